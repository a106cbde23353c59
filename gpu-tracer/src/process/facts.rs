//! Everything worth knowing about one process and the thread of it that matters.

use std::path::PathBuf;
use std::time::Duration;

use super::cgroup::{self, Placement};
use super::patience::within;
use super::{ProcDir, ProcError, ProcFs, Stat, Status, stack, status};
use crate::model::{RawText, TaskState};

/// Most bytes of a command line that are read.
const CMDLINE_LIMIT: usize = 4096;
/// How long a read through somebody's address space may take before it is given up.
const MM_PATIENCE: Duration = Duration::from_millis(200);
/// Threads of one process whose state is looked at before its address space is.
const MOST_THREADS: usize = 4096;
/// D state is mostly a matter of a disk read, and an exit is mostly quick: a thread is looked at this often before its
/// process counts as stuck.
const LOOKS: u32 = 3;
/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// May the process's address space be read? What the caller knows from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmReadable {
    /// Nothing speaks against it: the reader still looks for itself.
    Yes,
    /// It may block: a task of the process is exiting or in D state.
    No,
}

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactOptions {
    /// May `cmdline` and `exe` be read?
    pub mm: MmReadable,
    /// Read the kernel stack (root only)?
    pub stack: bool,
}

/// Something that is there and was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The file below `/proc/PID/task/TID`.
    pub file: &'static str,
    /// Why.
    pub reason: Reason,
}

/// Why something that is there was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It belongs to somebody else.
    Denied,
    /// A task of the process is exiting or in D state: the read might never return.
    MightBlock,
    /// The read did not return in time.
    TimedOut,
    /// The process is executing another program just now.
    Executing,
    /// The kernel refused for another reason, or wrote what it should not.
    Failed,
}

/// What is known of one process, with the state of one thread of it.
///
/// `None` means that there is nothing to show or that it could not be read; which, is in
/// [`withheld`](Self::withheld).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Thread-group id.
    pub pid: u32,
    /// The thread that was looked at.
    pub tid: u32,
    /// Name of the process, that is, of its leader.
    pub comm: RawText,
    /// Name of the thread.
    pub thread_comm: RawText,
    /// Command line with spaces between the arguments, at most 4,096 bytes; empty for one that erased it.
    pub cmdline: Option<RawText>,
    /// The executable; ends with ` (deleted)` when its file is gone.
    pub exe: Option<RawText>,
    /// Real user id.
    pub uid: Option<u32>,
    /// Thread-group id of the parent; 0 when that is outside of the PID namespace.
    pub ppid: u32,
    /// Session: the PID of the process that began it, from which it descends; 0 when that is outside of the PID namespace.
    pub session: u32,
    /// State of the thread.
    pub state: TaskState,
    /// State of the leader.
    pub leader_state: TaskState,
    /// Start of the process, ns of boot time, in steps of a clock tick (10 ms).
    pub start_ns: u64,
    /// The thread is in `do_exit`.
    pub exiting: bool,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// A SIGKILL is pending for the thread or its group.
    pub sigkill_pending: Option<bool>,
    /// A core dump is being written.
    pub core_dumping: Option<bool>,
    /// Who traces the thread; `None` for nobody.
    pub tracer: Option<u32>,
    /// Kernel function the thread waits in. The kernel tells nobody but the owner and root, and does not say so. Before 5.16
    /// mostly known only with the stack.
    pub wchan: Option<String>,
    /// Kernel stack of the thread, innermost first; empty if not asked for or not root.
    pub stack: Vec<String>,
    /// cgroup path; on v1 and hybrid hosts the most telling one.
    pub cgroup: Option<RawText>,
    /// What the cgroup path says.
    pub placement: Placement,
    /// Thread-group id in each PID namespace, from that of this `/proc` to the innermost.
    pub ns_tgids: Vec<u32>,
    /// Thread id likewise.
    pub ns_tids: Vec<u32>,
    /// Thread-group id in the innermost PID namespace.
    pub pid_in_ns: Option<u32>,
    /// What is there and was not read.
    pub withheld: Vec<Withheld>,
}

impl ProcFs {
    /// What is known of process `pid` and its thread `tid`.
    ///
    /// Everything about the address space is read through the thread, which may live when the leader does not.
    ///
    /// # Errors
    /// [`ProcError::Gone`] if the process or the thread has ended, [`ProcError::Denied`] if even its `stat` is hidden
    /// (`hidepid`), [`ProcError::Malformed`] if this is no `/proc`.
    pub fn facts(&self, pid: u32, tid: u32, options: FactOptions) -> Result<ProcessFacts, ProcError> {
        let process = self.process(pid)?;
        let leader = read_stat(&process)?;
        let task = process.below(task_path(tid))?;
        let thread = if tid == pid { leader.clone() } else { read_stat(&task)? };

        let mut reader = Reader { task: &task, withheld: Vec::new() };
        let status = Status::parse(&reader.read("status", status::LIMIT).unwrap_or_default());
        let wchan = reader.read("wchan", stack::WCHAN_LIMIT).and_then(|text| stack::parse_wchan(&text));
        let shown = options.stack && stack::may_be_read(thread.state);
        let frames = if shown { reader.read("stack", stack::STACK_LIMIT) } else { None };
        let frames = frames.map(|text| stack::parse_stack(&text)).unwrap_or_default();
        let cgroup = reader.read("cgroup", cgroup::LIMIT).and_then(|text| cgroup::most_telling(&text));
        let mut withheld = reader.withheld;
        let (cmdline, exe) = if thread.kernel_thread {
            (None, None)
        } else {
            through_mm(&process, &task, &leader, options.mm, &mut withheld)
        };
        let (cgroup, placement) = cgroup.unzip();

        Ok(ProcessFacts {
            pid,
            tid,
            comm: leader.comm,
            thread_comm: thread.comm,
            cmdline,
            exe,
            uid: status.uid,
            ppid: leader.ppid,
            session: leader.session,
            state: thread.state,
            leader_state: leader.state,
            start_ns: leader.start_ns,
            exiting: thread.exiting,
            kernel_thread: thread.kernel_thread,
            sigkill_pending: status.sigkill_pending,
            core_dumping: status.core_dumping,
            tracer: status.tracer.filter(|tracer| *tracer != 0),
            wchan: wchan.or_else(|| stack::innermost(&frames)),
            stack: frames,
            cgroup,
            placement: placement.unwrap_or_default(),
            pid_in_ns: status.tgid_in_ns(),
            ns_tgids: status.ns_tgids,
            ns_tids: status.ns_tids,
            withheld,
        })
    }
}

fn task_path(tid: u32) -> PathBuf {
    PathBuf::from(format!("task/{tid}"))
}

/// `stat` of the task whose directory is `task`.
pub fn read_stat(task: &ProcDir) -> Result<Stat, ProcError> {
    let text = task.read_small("stat")?;
    Stat::parse(&text).ok_or_else(|| ProcError::Malformed { path: task.path().join("stat") })
}

/// Reads files of one task and remembers what it was not given.
struct Reader<'a> {
    task: &'a ProcDir,
    withheld: Vec<Withheld>,
}

impl Reader<'_> {
    fn read(&mut self, file: &'static str, limit: usize) -> Option<Vec<u8>> {
        keep(file, self.task.read(file, limit), &mut self.withheld)
    }
}

/// What was read; a refusal is noted, an absence is not.
fn keep<T>(file: &'static str, result: Result<T, ProcError>, withheld: &mut Vec<Withheld>) -> Option<T> {
    let reason = match result {
        Ok(value) => return Some(value),
        Err(ProcError::Gone { .. }) => return None,
        Err(ProcError::Denied { .. }) => Reason::Denied,
        Err(_) => Reason::Failed,
    };
    withheld.push(Withheld { file, reason });
    None
}

/// Command line and executable, unless reading them might wait for a lock that is never given back.
fn through_mm(
    process: &ProcDir,
    task: &ProcDir,
    leader: &Stat,
    mm: MmReadable,
    withheld: &mut Vec<Withheld>,
) -> (Option<RawText>, Option<RawText>) {
    let mut withhold = |reason| {
        withheld.extend(["cmdline", "exe"].map(|file| Withheld { file, reason }));
        (None, None)
    };
    if mm == MmReadable::No || !mm_is_quiet(process, leader) {
        return withhold(Reason::MightBlock);
    }
    // The thread gets a directory of its own: it may outlive this call.
    let Ok(own) = task.below(".") else { return (None, None) };
    match within(MM_PATIENCE, move || (command_line(&own), own.link("exe"))) {
        Ok((cmdline, exe)) => {
            let cmdline = match cmdline.transpose() {
                Some(read) => keep("cmdline", read, withheld),
                None => {
                    withheld.push(Withheld { file: "cmdline", reason: Reason::Executing });
                    None
                }
            };
            (cmdline.map(|raw| RawText::from(arguments(raw))), keep("exe", exe, withheld))
        }
        Err(_) => withhold(Reason::TimedOut),
    }
}

/// `cmdline` as it is; `None` while the task has the memory of a new program that has no command line yet. That is over
/// in microseconds, unless its processor is busy.
fn command_line(task: &ProcDir) -> Result<Option<Vec<u8>>, ProcError> {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        let raw = task.read("cmdline", CMDLINE_LIMIT)?;
        // One that has no memory has no executable either.
        if !raw.is_empty() || read_stat(task)?.arg_end != 0 || task.link("exe").is_err() {
            return Ok(Some(raw));
        }
    }
    Ok(None)
}

/// No thread of the process holds its address space in a way that could last: every thread is looked at, since they
/// share it.
fn mm_is_quiet(process: &ProcDir, leader: &Stat) -> bool {
    let tids = if leader.threads > 1 || leader.is_dead() {
        match process.below("task").and_then(|tasks| tasks.numbers()) {
            Ok(tids) => tids,
            Err(_) => return false,
        }
    } else {
        return settles(process, leader.clone());
    };
    tids.iter().take(MOST_THREADS).all(|tid| {
        let Ok(task) = process.below(task_path(*tid)) else { return true };
        read_stat(&task).map_or(true, |stat| settles(&task, stat))
    })
}

/// Is the task, at the latest at the last look, in a state in which its address space may be read?
fn settles(task: &ProcDir, first: Stat) -> bool {
    let mut stat = first;
    for _ in 1..LOOKS {
        if !stat.may_hold_mm() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        match read_stat(task) {
            Ok(next) => stat = next,
            Err(_) => return true,
        }
    }
    !stat.may_hold_mm()
}

/// The bytes of `cmdline` as one line: NULs between arguments become spaces, those at the end go.
fn arguments(mut raw: Vec<u8>) -> Vec<u8> {
    // Spaces at the end are the process's own words.
    let end = raw.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    raw.truncate(end);
    for byte in &mut raw {
        if *byte == 0 {
            *byte = b' ';
        }
    }
    raw
}

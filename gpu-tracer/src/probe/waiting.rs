//! References held by system calls in progress.
//!
//! `poll(2)` and `select(2)` keep a reference to every file they wait for, and a call on a descriptor of a shared fd
//! table keeps one while it runs. They sit on a kernel stack where nothing lists them, but the call and its arguments
//! can be read (`/proc/PID/task/TID/syscall`), and for `poll` the array in the caller's memory. CUDA's event thread
//! polls about eight files of each GPU it uses, so without this no CUDA process would ever add up.
//!
//! Only files whose count does not add up are looked into. Of a task in uninterruptible sleep, as one that is stuck in a
//! driver's ioctl, only the call itself is read: its memory may be locked by what it waits for, and reading it could block.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use crate::model::hash::Map;
use crate::model::{FileKey, OpenFile, Reference, Snapshot, TableKey, Task, TaskState, Via};

/// Elements of a poll set that are looked at.
const MAX_POLLED: usize = 65_536;

/// Adds the references of system calls to files that the kernel counts more references of than are named.
pub fn explain(proc: &Path, snapshot: &mut Snapshot) {
    let mut unexplained = unexplained(snapshot);
    if unexplained.is_empty() {
        return;
    }
    let slots: HashMap<(TableKey, u32), FileKey> = snapshot
        .references
        .iter()
        .filter_map(|reference| match reference.via {
            Via::Fd { table, fd } => Some(((table, fd), reference.file)),
            _ => None,
        })
        .collect();
    let tables: HashSet<TableKey> = slots
        .iter()
        .filter(|(_, file)| unexplained.contains_key(file))
        .map(|((table, _), _)| *table)
        .collect();
    let mut found = Vec::new();
    for task in snapshot.tasks.iter().filter(|task| is_askable(task)) {
        let Some(table) = task.table.filter(|table| tables.contains(table)) else { continue };
        for fd in descriptors_in_use(proc, task) {
            let Some(file) = slots.get(&(table, fd)) else { continue };
            if let Some(left) = unexplained.get_mut(file).filter(|left| **left > 0) {
                *left -= 1;
                found.push(Reference { file: *file, via: Via::SystemCall { tid: task.tid, fd } });
            }
        }
    }
    snapshot.references.extend(found);
}

/// Files with more references than are named, and how many more.
fn unexplained(snapshot: &Snapshot) -> HashMap<FileKey, u64> {
    let more = |file: &OpenFile, named: u64| {
        let more = file.count?.saturating_sub(named);
        (more > 0).then_some((file.key, more))
    };
    let mut short = HashMap::new();
    let mut rest = &snapshot.references[..];
    // Mostly the references come file by file as the files do, and so many are found without a search.
    for file in &snapshot.files {
        let beside = rest.iter().take_while(|reference| reference.file == file.key).count();
        rest = &rest[beside..];
        short.extend(more(file, beside as u64));
    }
    if short.is_empty() {
        return short;
    }
    let mut named: Map<FileKey, u64> = short.keys().map(|file| (*file, 0)).collect();
    for reference in &snapshot.references {
        named.entry(reference.file).and_modify(|named| *named += 1);
    }
    let more = |file: &OpenFile| more(file, *named.get(&file.key)?);
    snapshot.files.iter().filter_map(more).collect()
}

/// Is the task inside a call, and asleep? The kernel tells the call of no other.
fn is_askable(task: &Task) -> bool {
    matches!(task.state, TaskState::Sleeping | TaskState::Uninterruptible) && !task.exiting
}

/// Descriptors that the system call in progress has in use.
fn descriptors_in_use(proc: &Path, task: &Task) -> Vec<u32> {
    let path = proc.join(task.tgid.to_string()).join("task").join(task.tid.to_string()).join("syscall");
    let Some(call) = fs::read_to_string(path).ok().as_deref().and_then(Call::parse) else {
        return Vec::new();
    };
    let may_be_read = task.state == TaskState::Sleeping;
    match call.kind() {
        Kind::Descriptor(at) => u32::try_from(call.arguments[at]).into_iter().collect(),
        Kind::Poll | Kind::Select if !may_be_read => Vec::new(),
        Kind::Poll => polled(task.tid, call.arguments[0], call.arguments[1]),
        Kind::Select => {
            let [count, read, write, except, ..] = call.arguments;
            selected(task.tid, [count, read, write, except])
        }
        Kind::Other => Vec::new(),
    }
}

/// The descriptor that a task in `close(2)`, or in a `dup2(2)` that closes one, cannot finish closing.
#[must_use]
pub fn descriptor_being_closed(proc: &Path, tgid: u32, tid: u32) -> Option<u32> {
    let path = proc.join(tgid.to_string()).join("task").join(tid.to_string()).join("syscall");
    let call = Call::parse(&fs::read_to_string(path).ok()?)?;
    let descriptor = match call.number {
        libc::SYS_close => call.arguments[0],
        libc::SYS_dup3 => call.arguments[1],
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => call.arguments[1],
        _ => return None,
    };
    u32::try_from(descriptor).ok()
}

/// A system call in progress, as `/proc/PID/syscall` shows it.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    number: i64,
    arguments: [u64; 6],
}

enum Kind {
    /// The argument at this place is a descriptor.
    Descriptor(usize),
    Poll,
    Select,
    Other,
}

impl Call {
    /// `NUMBER 0xA0 0xA1 0xA2 0xA3 0xA4 0xA5 0xSP 0xPC`; `running`, or `-1 0xSP 0xPC` outside of a call.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }

    fn kind(&self) -> Kind {
        match self.number {
            libc::SYS_ioctl
            | libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_fsync => Kind::Descriptor(0),
            libc::SYS_mmap => Kind::Descriptor(4),
            libc::SYS_ppoll => Kind::Poll,
            libc::SYS_pselect6 => Kind::Select,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => Kind::Poll,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => Kind::Select,
            _ => Kind::Other,
        }
    }
}

/// Descriptors in an array of `struct pollfd`.
fn polled(tid: u32, address: u64, count: u64) -> Vec<u32> {
    const SIZE: usize = size_of::<libc::pollfd>();
    let count = usize::try_from(count).unwrap_or(MAX_POLLED).min(MAX_POLLED);
    read_memory(tid, address, count * SIZE)
        .chunks_exact(SIZE)
        .filter_map(|entry| u32::try_from(i32::from_ne_bytes(entry[..4].try_into().ok()?)).ok())
        .collect()
}

/// Descriptors in the three sets of a `select`.
///
/// The kernel writes the result over the sets only when it returns, so they still are what was asked for.
fn selected(tid: u32, [count, sets @ ..]: [u64; 4]) -> Vec<u32> {
    let count = usize::try_from(count).unwrap_or(MAX_POLLED).min(MAX_POLLED);
    let bytes = count.div_ceil(64) * 8;
    let mut descriptors = Vec::new();
    for address in sets.into_iter().filter(|address| *address != 0) {
        let set = read_memory(tid, address, bytes);
        descriptors
            .extend((0..count).filter(|fd| set.get(fd / 8).is_some_and(|byte| byte >> (fd % 8) & 1 == 1)));
    }
    descriptors.sort_unstable();
    // One file in several sets is waited for once.
    descriptors.dedup();
    descriptors.into_iter().filter_map(|fd| u32::try_from(fd).ok()).collect()
}

/// Memory of another process; shorter than asked for, or empty, where it cannot be read.
fn read_memory(tid: u32, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; length];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    let Ok(pid) = libc::pid_t::try_from(tid) else { return Vec::new() };
    // SAFETY: `ours` is our own buffer; `theirs` is only read, and checked by the kernel.
    let read = unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
    bytes.truncate(usize::try_from(read).unwrap_or(0));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::Source;
    use crate::model::{DeviceNumber, ModuleUses, OpenFile};

    #[test]
    fn a_call_is_read_with_its_arguments() {
        let text = "7 0x7f1200000b40 0x9 0xffffffffffffffff 0x0 0x0 0x0 0x7f12004fa000 0x7f1290e1a4cd\n";
        let expected = Call { number: 7, arguments: [0x7f12_0000_0b40, 9, u64::MAX, 0, 0, 0] };
        assert_eq!(Call::parse(text), Some(expected));
    }

    #[test]
    fn a_task_outside_of_a_call_uses_no_descriptor() {
        for text in
            ["running\n", "-1 0x7ffd 0x7f12\n", "", "7 0x1", "x 0x1 0x2 0x3 0x4 0x5 0x6", "7 1 2 3 4 5 6"]
        {
            assert_eq!(Call::parse(text), None, "{text:?}");
        }
    }

    /// Two tasks share a table in which `nvidiactl` is descriptor 5. One of them, with this process's id and so with its
    /// memory, is in this call.
    fn explained(state: TaskState, call: &str) -> Vec<Via> {
        let (file, table, caller) = (FileKey(1), TableKey(2), std::process::id());
        let task = |tid, state| Task {
            tgid: 10,
            tid,
            start_ns: 1,
            ppid: 1,
            uid: 0,
            comm: "python3".into(),
            state,
            exiting: false,
            sigkill_pending: true,
            kernel_thread: false,
            frozen: false,
            dumping_core: false,
            tgid_in_ns: 10,
            pid_ns: 1,
            net_ns: 1,
            table: Some(table),
            mm: None,
        };
        let device = DeviceNumber { major: 195, minor: 255 };
        let mut snapshot = Snapshot {
            taken_ns: 1,
            source: Source::Iterators,
            tasks: vec![task(10, TaskState::Running), task(caller, state)],
            files: vec![OpenFile { key: file, device, count: Some(2), identity: 0, seen_ns: 0 }],
            references: vec![Reference { file, via: Via::Fd { table, fd: 5 } }],
            missing: Vec::new(),
            modules: ModuleUses::default(),
        };
        let proc = tempfile::tempdir().unwrap();
        for (tid, text) in [(10, "running\n"), (caller, call)] {
            let dir = proc.path().join(format!("10/task/{tid}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("syscall"), text).unwrap();
        }
        explain(proc.path(), &mut snapshot);
        snapshot.references.into_iter().skip(1).map(|reference| reference.via).collect()
    }

    #[test]
    fn a_call_in_which_a_task_is_stuck_explains_the_reference_that_it_keeps() {
        let ioctl = "16 0x5 0xc00446c9 0x7ffd 0x0 0x0 0x0 0x7ffc 0x7f12\n";
        let mmap = "9 0x0 0x1000 0x3 0x1 0x5 0x0 0x7ffc 0x7f12\n";
        let expected = [Via::SystemCall { tid: std::process::id(), fd: 5 }];
        for call in [ioctl, mmap] {
            for state in [TaskState::Uninterruptible, TaskState::Sleeping] {
                assert_eq!(explained(state, call), expected, "{state:?} in {call}");
            }
        }
        let of_another = "16 0x6 0xc00446c9 0x7ffd 0x0 0x0 0x0 0x7ffc 0x7f12\n";
        assert_eq!(explained(TaskState::Uninterruptible, of_another), []);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_memory_of_a_stuck_task_is_left_alone() {
        let polled = [libc::pollfd { fd: 5, events: 0, revents: 0 }];
        let poll = format!("{} {:#x} 0x1 0x0 0x0 0x0 0x0 0x1 0x1\n", libc::SYS_poll, polled.as_ptr() as u64);
        assert_eq!(
            explained(TaskState::Sleeping, &poll),
            [Via::SystemCall { tid: std::process::id(), fd: 5 }]
        );
        assert_eq!(explained(TaskState::Uninterruptible, &poll), []);
    }

    #[test]
    fn the_descriptor_that_is_being_closed_is_the_argument_of_the_call() {
        let proc = tempfile::tempdir().unwrap();
        let task = proc.path().join("7/task/8");
        fs::create_dir_all(&task).unwrap();
        let of = |text: &str| {
            fs::write(task.join("syscall"), text).unwrap();
            descriptor_being_closed(proc.path(), 7, 8)
        };
        let call = |number, first: u64, second: u64| {
            of(&format!("{number} {first:#x} {second:#x} 0x0 0x0 0x0 0x0 0x7f 0x7f\n"))
        };
        assert_eq!(call(libc::SYS_close, 5, 9), Some(5));
        assert_eq!(call(libc::SYS_dup3, 5, 9), Some(9));
        assert_eq!(call(libc::SYS_read, 5, 9), None);
        assert_eq!((of("running\n"), descriptor_being_closed(proc.path(), 7, 9)), (None, None));
    }

    #[test]
    fn memory_that_is_not_there_reads_as_nothing() {
        assert!(polled(std::process::id(), 8, 4).is_empty());
        assert!(polled(u32::MAX, 8, 4).is_empty());
    }

    #[test]
    fn the_sets_of_a_select_are_merged() {
        let read = [0b1010_u64, 0];
        let write = [0b1000_u64, 1];
        let sets = [66, read.as_ptr() as u64, write.as_ptr() as u64, 0];
        assert_eq!(selected(std::process::id(), sets), [1, 3, 64]);
    }
}

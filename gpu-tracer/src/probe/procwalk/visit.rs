//! One process: its tasks, their fd tables, its address space.

use rustix::io::Errno;
use rustix::path::DecInt;

use super::Site;
use super::coverage::Gap;
use super::crew::Beat;
use super::kcmp::{self, Kind, Subject};
use super::mappings::{self, Space};
use super::node::{Inode, Node, look, look_at_path};
use super::ring;
use crate::model::Task;
use crate::process::facts::read_stat;
use crate::process::{ProcDir, ProcError, Stat, Status, namespaces, stack, status};

/// What was found in one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Visit {
    /// Thread-group id.
    pub(super) pid: u32,
    /// Its tasks, described; empty if nothing of interest was found.
    pub(super) tasks: Vec<Task>,
    /// Its fd tables; nearly always one.
    pub(super) tables: Vec<Table>,
    /// What its address space maps.
    pub(super) space: Option<Space>,
    /// What could not be seen.
    pub(super) gaps: Vec<Gap>,
}

/// One fd table.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// The threads that use it; at least one.
    pub(super) tids: Vec<u32>,
    /// Every descriptor number, to recognise the table by where `kcmp` does not help.
    fds: Vec<u32>,
    /// Descriptors of GPU devices.
    pub(super) handles: Vec<Handle>,
    /// io_urings.
    pub(super) rings: Vec<Ring>,
}

/// A descriptor of a GPU device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    /// Its number.
    pub(super) fd: u32,
    /// What it is open on.
    pub(super) node: Node,
}

/// A descriptor of an io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    /// Its number.
    pub(super) fd: u32,
    /// Its inode: one per ring on newer kernels, one for all on older ones.
    pub(super) inode: u64,
    /// Slot and device of its registered GPU devices.
    pub(super) files: Vec<(u32, Node)>,
}

impl Visit {
    /// Was something in the middle of what is usually soon over?
    pub(super) fn is_unsettled(&self) -> bool {
        self.gaps.iter().any(|gap| matches!(gap, Gap::MapsLocked | Gap::HalfExited(_) | Gap::RingBusy))
    }

    /// The table that thread `tid` uses.
    pub(super) fn table_of(&self, tid: u32) -> Option<usize> {
        self.tables.iter().position(|table| table.tids.contains(&tid))
    }

    fn is_of_interest(&self) -> bool {
        let holds = |table: &Table| {
            !table.handles.is_empty() || table.rings.iter().any(|ring| !ring.files.is_empty())
        };
        self.tables.iter().any(holds)
            || self.space.as_ref().is_some_and(|space| !space.mappings.is_empty())
            || self.gaps.iter().any(|gap| matches!(gap, Gap::HalfExited(_)))
    }
}

/// Looks at process `pid`. One that has ended gives an empty visit.
pub(super) fn visit(site: &Site, pid: u32, beat: &Beat) -> Visit {
    let mut visit = Visit { pid, ..Visit::default() };
    match look_at(site, &mut visit, beat) {
        Ok(()) | Err(ProcError::Gone { .. }) => {}
        Err(ProcError::Denied { .. }) => visit.gaps.push(Gap::Denied),
        Err(_) => visit.gaps.push(Gap::Unreadable),
    }
    visit
}

/// A living thread.
struct Thread {
    stat: Stat,
    task: ProcDir,
}

fn look_at(site: &Site, visit: &mut Visit, beat: &Beat) -> Result<(), ProcError> {
    let process = ProcDir::open(site.root.join(visit.pid.to_string()))?;
    if read_stat(&process)?.kernel_thread {
        return Ok(());
    }
    let threads = threads(&process, beat)?;
    let mut denied = None;
    for thread in threads.iter().filter(|thread| !thread.stat.is_dead()) {
        beat.tick();
        match place_table(site, visit, thread, beat) {
            Ok(()) | Err(ProcError::Gone { .. }) => {}
            Err(error @ ProcError::Denied { .. }) => denied = Some(error),
            Err(_) => note(&mut visit.gaps, Gap::Unreadable),
        }
    }
    if let Some(error) = denied {
        if visit.tables.is_empty() {
            return Err(error);
        }
        // Threads may have credentials of their own.
        note(&mut visit.gaps, Gap::Denied);
    }
    look_at_space(site, visit, &threads, beat);
    if visit.is_of_interest() {
        visit.tasks = threads.iter().map(|thread| describe(visit.pid, thread)).collect();
    }
    Ok(())
}

/// The threads of a process, the leader first.
fn threads(process: &ProcDir, beat: &Beat) -> Result<Vec<Thread>, ProcError> {
    let mut threads = Vec::new();
    for tid in process.below("task")?.numbers()? {
        beat.tick();
        match process
            .below(format!("task/{tid}"))
            .and_then(|task| Ok(Thread { stat: read_stat(&task)?, task }))
        {
            Ok(thread) => threads.push(thread),
            Err(ProcError::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    threads.sort_by_key(|thread| thread.stat.tid);
    let leader = process.path().file_name().and_then(|name| name.to_str()?.parse().ok());
    // Thread ids wrap around: the leader's need not be the smallest.
    if let Some(place) = threads.iter().position(|thread| Some(thread.stat.tid) == leader) {
        threads[..=place].rotate_right(1);
    }
    Ok(threads)
}

/// Finds the table of a thread among those known, or lists it.
fn place_table(site: &Site, visit: &mut Visit, thread: &Thread, beat: &Beat) -> Result<(), ProcError> {
    let tid = thread.stat.tid;
    let directory = thread.task.below("fd")?;
    if thread.stat.exiting && is_empty(&directory)? {
        // Its table is gone, and what was in it may still be on its way out.
        visit.gaps.push(Gap::HalfExited(tid));
        return Ok(());
    }
    for table in &mut visit.tables {
        let same = match same_by_kernel(site, table.tids[0], tid) {
            Some(same) => same,
            None => {
                note(&mut visit.gaps, Gap::SharingUnknown);
                same_by_looks(table, &directory)?
            }
        };
        if same {
            table.tids.push(tid);
            return Ok(());
        }
    }
    let table = list_table(site, thread, &directory, beat, &mut visit.gaps)?;
    visit.tables.push(table);
    Ok(())
}

/// Notes a gap once.
fn note(gaps: &mut Vec<Gap>, gap: Gap) {
    if !gaps.contains(&gap) {
        gaps.push(gap);
    }
}

fn is_empty(directory: &ProcDir) -> Result<bool, ProcError> {
    let mut empty = true;
    directory.for_each_number(|_| {
        empty = false;
        false
    })?;
    Ok(empty)
}

/// Do the two threads share one table? `None` if the kernel does not say.
fn same_by_kernel(site: &Site, one: u32, other: u32) -> Option<bool> {
    if !site.kernel {
        return None;
    }
    let subject = |tid| Subject { tid, fd: 0 };
    kcmp::compare(Kind::Files, subject(one), subject(other)).ok().map(std::cmp::Ordering::is_eq)
}

/// Do the two tables look alike: the same descriptor numbers, and the same devices behind them?
fn same_by_looks(table: &Table, directory: &ProcDir) -> Result<bool, ProcError> {
    let mut fds = directory.numbers()?;
    fds.sort_unstable();
    let same_node =
        |handle: &Handle| look(directory, DecInt::new(handle.fd)) == Ok(Inode::Device(handle.node));
    Ok(fds == table.fds && table.handles.iter().all(same_node))
}

/// Lists an fd table through one of its threads.
fn list_table(
    site: &Site,
    thread: &Thread,
    directory: &ProcDir,
    beat: &Beat,
    gaps: &mut Vec<Gap>,
) -> Result<Table, ProcError> {
    let mut table = Table { tids: vec![thread.stat.tid], ..Table::default() };
    let (mut sockets, mut anonymous) = (Vec::new(), Vec::new());
    directory.for_each_number(|fd| {
        beat.tick();
        table.fds.push(fd);
        match look(directory, DecInt::new(fd)) {
            Ok(Inode::Device(node)) => {
                if site.devices.identify(node.device).is_some() {
                    table.handles.push(Handle { fd, node });
                }
            }
            Ok(Inode::Socket(inode)) => sockets.push((inode, fd)),
            Ok(Inode::Anonymous(inode)) => anonymous.push((fd, inode)),
            Ok(Inode::Other(_)) => {}
            // Closed meanwhile, or a link that is a description only.
            Err(Errno::NOENT) => match directory.link(DecInt::new(fd)) {
                Ok(text) if text.0.starts_with(b"socket:[") => sockets.push((bracketed(&text.0), fd)),
                Ok(text) if *text.0 == *ring::RING => anonymous.push((fd, 0)),
                _ => {}
            },
            Err(Errno::ACCESS | Errno::PERM) => note(gaps, Gap::Denied),
            Err(_) => note(gaps, Gap::Unreadable),
        }
        true
    })?;
    table.fds.sort_unstable();
    table.handles.retain(|handle| !is_path_only(&thread.task, handle.fd));
    look_into_sockets(&thread.task, sockets, beat, gaps);
    for (fd, inode) in anonymous {
        beat.tick();
        if directory.link(DecInt::new(fd)).is_ok_and(|text| *text.0 == *ring::RING) {
            let files = registered_devices(site, &thread.task, fd, gaps);
            table.rings.push(Ring { fd, inode, files });
        }
    }
    Ok(table)
}

/// The number in `socket:[N]`.
fn bracketed(text: &[u8]) -> u64 {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// `O_PATH`: the descriptor names the node and does not hold the device.
fn is_path_only(task: &ProcDir, fd: u32) -> bool {
    let flags = fdinfo_field(task, fd, b"flags:").and_then(|value| u32::from_str_radix(&value, 8).ok());
    flags.is_some_and(|flags| flags & libc::O_PATH.cast_unsigned() != 0)
}

/// A field of a descriptor's fdinfo; `None` if it is not there or the descriptor has gone.
fn fdinfo_field(task: &ProcDir, fd: u32, key: &[u8]) -> Option<String> {
    let text = task.read_small(format!("fdinfo/{fd}")).ok()?;
    let value = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    Some(std::str::from_utf8(value).ok()?.trim().to_owned())
}

/// Descriptors that wait in a unix socket's queue have a number (5.7 and newer) and no name.
fn look_into_sockets(task: &ProcDir, mut sockets: Vec<(u64, u32)>, beat: &Beat, gaps: &mut Vec<Gap>) {
    sockets.sort_unstable();
    sockets.dedup_by_key(|(inode, _)| *inode);
    let mut queued: u64 = 0;
    for (_, fd) in sockets {
        beat.tick();
        queued +=
            fdinfo_field(task, fd, b"scm_fds:").and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    }
    if queued > 0 {
        gaps.push(Gap::Queued(queued));
    }
}

/// The GPU devices among the registered files of a ring.
fn registered_devices(site: &Site, task: &ProcDir, fd: u32, gaps: &mut Vec<Gap>) -> Vec<(u32, Node)> {
    let files = match ring::registered(task, fd) {
        Ok(files) => files,
        Err(ring::RingError::Unreadable(ProcError::Gone { .. })) => return Vec::new(),
        Err(ring::RingError::Busy) => {
            gaps.push(Gap::RingBusy);
            return Vec::new();
        }
        Err(_) => {
            gaps.push(Gap::RingUnreadable);
            return Vec::new();
        }
    };
    let mut devices = Vec::new();
    let mut unidentified = 0;
    for (slot, name) in files {
        // Descriptions of what is no device. Any other name without a slash is all that an older kernel tells.
        let described =
            [b"socket:[".as_slice(), b"pipe:[", b"anon_inode:"].iter().any(|kind| name.0.starts_with(kind));
        if described {
            continue;
        }
        let inode = if name.0.starts_with(b"/") { look_at_path(task, &name.0, site.mount_ns) } else { None };
        match inode {
            Some(Inode::Device(node)) if site.devices.identify(node.device).is_some() => {
                devices.push((slot, node))
            }
            Some(_) => {}
            None => unidentified += 1,
        }
    }
    if unidentified > 0 {
        gaps.push(Gap::RingUnidentified(unidentified));
    }
    devices
}

/// Reads the address space, which all threads share, if none of them can be holding it for good.
fn look_at_space(site: &Site, visit: &mut Visit, threads: &[Thread], beat: &Beat) {
    let mut living = threads.iter().filter(|thread| !thread.stat.is_dead());
    let Some(thread) = living.clone().find(|thread| !thread.stat.exiting) else { return };
    // A thread's state may have changed since it was first read: that was before its fd table was listed.
    let locked = living.any(|thread| read_stat(&thread.task).is_ok_and(|stat| stat.may_hold_mm()));
    if locked {
        visit.gaps.push(Gap::MapsLocked);
        return;
    }
    visit.space = mappings::read(site, &thread.task, thread.stat.tid, beat, &mut visit.gaps);
    if let Some(space) = &visit.space {
        let listed =
            |inode: &u64| visit.tables.iter().flat_map(|table| &table.rings).any(|ring| ring.inode == *inode);
        if !space.rings.iter().all(listed) {
            visit.gaps.push(Gap::RingUnlisted);
        }
    }
}

/// A task as the model has it; what may not be read is 0 or false.
fn describe(tgid: u32, thread: &Thread) -> Task {
    let Thread { stat, task } = thread;
    let status = Status::parse(&task.read("status", status::LIMIT).unwrap_or_default());
    let wchan = stack::waits_in(task, stat.state);
    // Version 1 of the freezer and the system's own, then version 2.
    let frozen = wchan.is_some_and(|name| matches!(name.as_str(), "__refrigerator" | "do_freezer_trap"));
    Task {
        tgid,
        tid: stat.tid,
        start_ns: stat.start_ns,
        ppid: stat.ppid,
        uid: status.uid.unwrap_or_default(),
        comm: stat.comm.clone(),
        state: stat.state,
        exiting: stat.exiting,
        sigkill_pending: status.sigkill_pending.unwrap_or_default(),
        kernel_thread: stat.kernel_thread,
        frozen,
        dumping_core: status.core_dumping.unwrap_or_default(),
        tgid_in_ns: status.tgid_in_ns().unwrap_or(tgid),
        pid_ns: namespaces::one(task, "pid").unwrap_or_default(),
        net_ns: namespaces::one(task, "net").unwrap_or_default(),
        table: None,
        mm: None,
    }
}

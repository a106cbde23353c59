//! Fake trees for what cannot be staged, real processes for what can. `/dev/zero` stands in for `nvidia0`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::programs::{Program, spawn_sleep, start};
use super::*;
use crate::model::device::Naming;
use crate::model::{DeviceNumber, DeviceRange, RawText, TaskState, Via};
use crate::process::unprivileged::as_nobody;

const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };

fn devices() -> DeviceTable {
    let range = DeviceRange { major: 1, first: 5, last: 5, naming: Naming::Fixed("nvidia0".to_owned()) };
    DeviceTable { ranges: vec![range], gpu_nodes: vec![(ZERO, 0)] }
}

/// What one process holds, counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    files: usize,
    tables: usize,
    fds: usize,
    maps: usize,
    slots: usize,
}

fn count(snapshot: &Snapshot) -> Held {
    let mut held = Held { files: snapshot.files.len(), ..Held::default() };
    let mut tables = std::collections::BTreeSet::new();
    let device_file = |key| snapshot.files.iter().any(|file| file.key == key);
    for reference in snapshot.references.iter().filter(|reference| device_file(reference.file)) {
        match reference.via {
            Via::Fd { table, .. } => {
                held.fds += 1;
                tables.insert(table);
            }
            Via::Map { .. } => held.maps += 1,
            Via::IoUring { .. } => held.slots += 1,
            Via::InFlight { .. }
            | Via::Unaccepted { .. }
            | Via::DriverPin { .. }
            | Via::SystemCall { .. } => {}
        }
    }
    held.tables = tables.len();
    held
}

/// A walk of the real `/proc` that sees only `pids`.
fn walk_only(pids: &[u32]) -> (Snapshot, Vec<Gap>) {
    let site = Site::new(Path::new("/proc"), &devices());
    let visits: Vec<Visit> = pids.iter().map(|pid| visit::visit(&site, *pid, &Beat::default())).collect();
    let found = assemble::assemble(&visits, site.kernel);
    let snapshot = Snapshot {
        taken_ns: 0,
        source: Source::ProcWalk,
        tasks: found.tasks,
        files: found.files,
        references: found.references,
        missing: Vec::new(),
        modules: ModuleUses::default(),
    };
    (snapshot, visits.into_iter().flat_map(|visit| visit.gaps).collect())
}

/// The same of one [`Program`], which ends afterwards.
fn walk_program(program: Program) -> Option<(Snapshot, Vec<Gap>, u32)> {
    let running = start(program)?;
    let (snapshot, gaps) = walk_only(&[running.pid]);
    Some((snapshot, gaps, running.pid))
}

#[test]
fn threads_count_once_and_a_table_of_its_own_counts_apart() {
    let (snapshot, gaps, pid) = walk_program(Program::Threads).expect("supported");
    let expected = Held { files: 3, tables: 2, fds: 4, maps: 1, slots: 0 };
    assert_eq!(count(&snapshot), expected, "{:#?}", snapshot.references);
    assert_eq!(gaps, []);
    assert!(snapshot.files.iter().all(|file| file.device == ZERO && file.count.is_none()));
    assert!(snapshot.tasks.iter().all(|task| task.tgid == pid && task.table.is_some() && task.mm.is_some()));
    let leader = snapshot.tasks.iter().find(|task| task.is_leader()).expect("the leader");
    assert_eq!((leader.ppid, leader.tgid_in_ns), (std::process::id(), pid));
    assert!(leader.pid_ns != 0 && leader.net_ns != 0);
}

#[test]
fn a_mapping_without_a_descriptor_is_found() {
    let (snapshot, gaps, _) = walk_program(Program::Mapping).expect("supported");
    assert_eq!(count(&snapshot), Held { files: 1, maps: 1, ..Held::default() });
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(gaps, []);
    }
}

#[test]
fn a_thread_of_a_dead_leader_is_a_holder() {
    let (snapshot, _, pid) = walk_program(Program::DeadLeader).expect("supported");
    assert_eq!(count(&snapshot), Held { files: 1, tables: 1, fds: 1, maps: 1, slots: 0 });
    let states = |leader| {
        let tasks = snapshot.tasks.iter().filter(move |task| task.is_leader() == leader);
        tasks.map(|task| (task.tgid, task.state, task.table.is_some(), task.mm.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(states(true), [(pid, TaskState::Zombie, false, false)]);
    assert_eq!(states(false), [(pid, TaskState::Sleeping, true, true)]);
}

#[test]
fn a_descriptor_in_a_queue_is_told_as_unseen() {
    let (snapshot, gaps, _) = walk_program(Program::Queued).expect("supported");
    assert_eq!(count(&snapshot), Held::default());
    assert_eq!(gaps, [Gap::Queued(1)]);
}

#[test]
fn a_registered_file_of_a_ring_is_a_reference() {
    let Some((snapshot, gaps, pid)) = walk_program(Program::Ring) else {
        eprintln!("this kernel does not let us set up an io_uring");
        return;
    };
    assert_eq!(count(&snapshot), Held { files: 1, slots: 1, ..Held::default() }, "{gaps:?}");
    assert!(
        snapshot.references.iter().any(|reference| matches!(reference.via, Via::IoUring { slot: 2, .. }))
    );
    assert!(snapshot.tasks.iter().all(|task| task.tgid == pid));
}

#[test]
fn a_ring_tells_its_files_and_their_device_to_whoever_asks() {
    let Some(running) = start(Program::Ring) else {
        eprintln!("this kernel does not let us set up an io_uring");
        return;
    };
    let proc = Path::new("/proc");
    let links = fs::read_dir(proc.join(running.pid.to_string()).join("fd")).expect("its descriptors");
    let ring = links.flatten().find(|link| {
        fs::read_link(link.path()).is_ok_and(|text| text.as_os_str().as_encoded_bytes() == ring::RING)
    });
    let fd = ring.expect("a ring").file_name().to_string_lossy().parse().expect("a number");
    let files = fdinfo_ring_files(proc, running.pid, fd).expect("readable");
    assert_eq!(files, [(2, RawText::from("/dev/zero"))]);
    assert_eq!(device_at(proc, running.pid, &files[0].1.0), Some(ZERO));
    assert_eq!(device_at(proc, running.pid, b"/dev"), None);
    assert_eq!(device_at(proc, running.pid, b"/dev/no such node"), None);
}

#[test]
fn one_open_file_in_two_processes_is_one_file() {
    let zero = fs::File::open("/dev/zero").expect("open");
    let (one, two) = (spawn_sleep(&zero), spawn_sleep(&zero));
    let three = spawn_sleep(&fs::File::open("/dev/zero").expect("open"));
    let (snapshot, _) = walk_only(&[one.pid, two.pid, three.pid]);
    assert_eq!(
        count(&snapshot),
        Held { files: 2, tables: 3, fds: 3, ..Held::default() },
        "{:#?}",
        snapshot.references
    );
}

#[test]
fn a_walk_of_this_host_finds_the_holder_and_never_us() {
    let zero = fs::File::open("/dev/zero").expect("open");
    let child = spawn_sleep(&zero);
    let snapshot = walk(Path::new("/proc"), &devices(), 77);
    assert_eq!((snapshot.taken_ns, snapshot.source), (77, Source::ProcWalk));
    let task = snapshot.tasks.iter().find(|task| task.tid == child.pid).expect("the child is a holder");
    assert_eq!((task.comm.to_text().as_str(), task.tgid), ("sleep", child.pid));
    let via = |reference: &&crate::model::Reference| matches!(reference.via, Via::Fd { table, fd: 0 } if Some(table) == task.table);
    assert_eq!(snapshot.references.iter().filter(via).count(), 1);
    assert!(snapshot.tasks.iter().all(|task| task.tgid != std::process::id()));
    assert!(snapshot.missing.iter().any(|missing| missing.what == "reference-counts"));
}

#[test]
fn an_ordinary_user_is_told_whose_processes_stay_closed() {
    let zero = fs::File::open("/dev/zero").expect("open");
    let child = spawn_sleep(&zero);
    // SAFETY: geteuid cannot fail and touches no memory.
    let root = unsafe { libc::geteuid() } == 0;
    let nowhere = tempfile::tempdir().expect("temporary directory");
    let snapshot = as_nobody(nowhere.path(), |_| walk(Path::new("/proc"), &devices(), 0));
    let closed = snapshot.missing.iter().find(|missing| missing.what == "other-users").expect("told");
    assert!(closed.why.ends_with("run as root"), "{}", closed.why);
    assert_eq!(
        snapshot.tasks.iter().any(|task| task.tgid == child.pid),
        !root,
        "root's child is closed to others"
    );
}

/// A fake `/proc`.
struct FakeProc(TempDir);

impl FakeProc {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary directory"))
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("directory");
        fs::write(path, content).expect("file");
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("directory");
        symlink(target, path).expect("link");
    }

    /// A task without descriptors.
    fn task(&self, tgid: u32, tid: u32, comm: &[u8], letter: char, flags: u32) {
        let tail = format!(") {letter} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0 0\n");
        let stat = [format!("{tid} (").as_bytes(), comm, tail.as_bytes()].concat();
        if tgid == tid {
            self.write(&format!("{tgid}/stat"), &stat);
        }
        self.write(&format!("{tgid}/task/{tid}/stat"), &stat);
        fs::create_dir_all(self.0.path().join(format!("{tgid}/task/{tid}/fd"))).expect("directory");
    }

    /// A descriptor of it.
    fn fd(&self, tgid: u32, tid: u32, fd: u32, target: &str, fdinfo: &str) {
        self.link(&format!("{tgid}/task/{tid}/fd/{fd}"), target);
        self.write(&format!("{tgid}/task/{tid}/fdinfo/{fd}"), fdinfo);
    }

    fn walk(&self) -> Snapshot {
        walk(self.0.path(), &devices(), 0)
    }
}

fn why<'a>(snapshot: &'a Snapshot, what: &str) -> Option<&'a str> {
    snapshot.missing.iter().find(|missing| missing.what == what).map(|missing| missing.why.as_str())
}

const ORDINARY: &str = "pos:\t0\nflags:\t0100002\nmnt_id:\t24\n";

#[test]
fn no_name_loses_a_holder() {
    let proc = FakeProc::new();
    let names: [&[u8]; 8] =
        [b"a) Z 1 7", b") R 0", b"\n428 (x) Z 1", b"\x1b[2J", b"((((", b"))))", b"\xff\xfe\x80", b""];
    for (pid, name) in (100..).zip(names) {
        proc.task(pid, pid, name, 'S', 0);
        proc.fd(pid, pid, 3, "/dev/zero", ORDINARY);
    }
    let snapshot = proc.walk();
    let mut found: Vec<RawText> = snapshot.tasks.iter().map(|task| task.comm.clone()).collect();
    let mut expected: Vec<RawText> = names.iter().map(|name| RawText::from(name.to_vec())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(count(&snapshot), Held { files: 8, tables: 8, fds: 8, ..Held::default() });
}

#[test]
fn a_path_only_descriptor_holds_nothing() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    proc.fd(100, 100, 3, "/dev/zero", "pos:\t0\nflags:\t010000000\nmnt_id:\t24\n");
    proc.fd(100, 100, 4, "/dev/null", ORDINARY);
    assert_eq!(count(&proc.walk()), Held::default());
}

#[test]
fn threads_that_look_alike_count_once_where_the_kernel_does_not_say_and_that_is_told() {
    let proc = FakeProc::new();
    for tid in [100, 101, 102] {
        proc.task(100, tid, b"x", 'S', 0);
        proc.fd(100, tid, 3, "/dev/zero", ORDINARY);
    }
    proc.fd(100, 102, 4, "/dev/zero", ORDINARY);
    let snapshot = proc.walk();
    assert_eq!(count(&snapshot), Held { files: 3, tables: 2, fds: 3, ..Held::default() });
    assert!(why(&snapshot, "shared-tables").is_some_and(|why| why.contains("process 100")));
}

#[test]
fn a_task_half_way_through_exit_is_shown_and_told() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"gone", 'Z', 4);
    proc.task(100, 105, b"going", 'D', 4);
    let snapshot = proc.walk();
    assert!(why(&snapshot, "half-exited-task").is_some_and(|why| why.starts_with("process 105")));
    let task = snapshot.tasks.iter().find(|task| task.tid == 105).expect("shown");
    assert!(task.is_half_gone());
}

#[test]
fn a_mapping_is_known_by_what_is_mapped_and_not_by_its_name() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    let maps = "1000-2000 rw-s 0 00:06 4 /dev/renamed\n2000-3000 rw-s 0 00:06 9 /dev/zero\n3000-4000 rw-p 0 00:00 0 \n\
        4000-5000 rw-s 0 00:06 4 /dev/renamed\n";
    proc.write("100/task/100/maps", maps);
    proc.link("100/map_files/1000-2000", "/dev/zero");
    proc.link("100/map_files/2000-3000", "/dev/null");
    let snapshot = proc.walk();
    let maps: Vec<(u64, u64)> = snapshot
        .references
        .iter()
        .filter_map(|reference| match reference.via {
            Via::Map { start, end, .. } => Some((start, end)),
            _ => None,
        })
        .collect();
    assert_eq!(maps, [(0x1000, 0x2000), (0x4000, 0x5000)]);
    assert_eq!(why(&snapshot, "mappings"), None);
}

#[test]
fn without_map_files_a_mapping_is_looked_for_under_its_name_and_only_believed_if_it_is_the_same_inode() {
    let inode = rustix::fs::stat("/dev/zero").expect("stat").st_ino;
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    proc.link("100/task/100/root", "/");
    proc.write(
        "100/task/100/maps",
        format!("1000-2000 rw-s 0 00:06 {inode} /dev/zero\n2000-3000 rw-s 0 00:06 99999999 /dev/zero\n"),
    );
    let snapshot = proc.walk();
    assert_eq!(count(&snapshot), Held { files: 1, maps: 1, ..Held::default() });
    assert!(why(&snapshot, "mappings").is_some_and(|why| why.starts_with("1 mapped file of process 100")));
}

#[test]
fn an_address_space_with_a_thread_in_d_state_is_not_read() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    proc.task(100, 101, b"x", 'D', 0);
    proc.write("100/task/100/maps", "1000-2000 rw-s 0 00:06 4 /dev/zero\n");
    proc.link("100/map_files/1000-2000", "/dev/zero");
    let snapshot = proc.walk();
    assert_eq!(count(&snapshot), Held::default());
    assert!(why(&snapshot, "mappings").is_some_and(|why| why.contains("D state")));
}

#[test]
fn a_ring_is_read_for_what_it_registered() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    proc.link("100/task/100/root", "/");
    let fdinfo = "flags:\t02\nUserFiles:\t4\n    0: socket:[7]\n    1: /dev/zero\n    2: /dev/nowhere\\040(deleted)\n    \
        3: bare\nUserBufs:\t0\n";
    proc.fd(100, 100, 5, "anon_inode:[io_uring]", fdinfo);
    let snapshot = proc.walk();
    assert_eq!(count(&snapshot), Held { files: 1, slots: 1, ..Held::default() });
    assert!(why(&snapshot, "io_uring").is_some_and(|why| why.starts_with("2 files registered")));
    proc.write("100/task/100/fdinfo/5", "flags:\t02\n");
    assert!(why(&proc.walk(), "io_uring").is_some_and(|why| why.contains("too busy")));
}

#[test]
fn a_queue_is_counted_once_per_socket() {
    let proc = FakeProc::new();
    proc.task(100, 100, b"x", 'S', 0);
    proc.fd(100, 100, 5, "socket:[77]", "flags:\t02\nscm_fds: 3\n");
    proc.fd(100, 100, 6, "socket:[77]", "flags:\t02\nscm_fds: 3\n");
    proc.fd(100, 100, 7, "socket:[78]", "flags:\t02\nscm_fds: 0\n");
    let snapshot = proc.walk();
    assert!(
        why(&snapshot, "in-flight").is_some_and(|why| why.starts_with("3 descriptors")),
        "{:?}",
        snapshot.missing
    );
}

#[test]
fn we_ourselves_kernel_threads_and_zombies_are_left_out() {
    let proc = FakeProc::new();
    for (pid, letter, flags) in [(100, 'S', 0), (101, 'S', 0x20_0000), (102, 'Z', 4)] {
        proc.task(pid, pid, b"x", letter, flags);
        proc.fd(pid, pid, 3, "/dev/zero", ORDINARY);
    }
    proc.link("self", "100");
    proc.link("100/ns/pid", "pid:[4026531836]");
    let snapshot = proc.walk();
    assert_eq!((count(&snapshot), snapshot.tasks.len()), (Held::default(), 0));
    assert_eq!(why(&snapshot, "pid-namespace"), None);
}

#[test]
fn a_proc_that_is_not_there_or_not_the_hosts_is_told() {
    let proc = FakeProc::new();
    assert!(why(&proc.walk(), "pid-namespace").is_some());
    let snapshot = walk(&proc.0.path().join("nothing"), &devices(), 0);
    assert!(why(&snapshot, "proc").is_some_and(|why| why.ends_with("mount /proc")), "{:?}", snapshot.missing);
}

//! `/proc` trees that no honest process would make, and the real one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;

use super::unprivileged::as_nobody;
use super::*;
use crate::model::{RawText, TaskState};

const READ: FactOptions = FactOptions { mm: MmReadable::Yes, stack: true };

/// A fake `/proc` with one process 428 and its threads.
struct FakeProc(TempDir);

impl FakeProc {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary directory"))
    }

    fn fs(&self) -> ProcFs {
        ProcFs::at(self.0.path())
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

    /// A thread of process 428 in state `letter`.
    fn thread(&self, tid: u32, comm: &[u8], letter: char, threads: u32, flags: u32) {
        let stat = stat_line(tid, comm, letter, threads, flags);
        if tid == 428 {
            self.write("428/stat", &stat);
        }
        self.write(&format!("428/task/{tid}/stat"), &stat);
        self.write(&format!("428/task/{tid}/cmdline"), b"python3\0-m\0vllm\0\0\0");
        self.link(&format!("428/task/{tid}/exe"), "/usr/bin/python3 (deleted)");
    }
}

fn stat_line(tid: u32, comm: &[u8], letter: char, threads: u32, flags: u32) -> Vec<u8> {
    let tail = format!(") {letter} 7 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 500 0 0 0\n");
    [format!("{tid} (").as_bytes(), comm, tail.as_bytes()].concat()
}

#[test]
fn all_facts_of_a_process_are_read() {
    let proc = FakeProc::new();
    proc.thread(428, b"python3", 'S', 1, 0);
    proc.write(
        "428/task/428/status",
        "Uid:\t1000\t1000\nTracerPid:\t0\nNStgid:\t428\t12\nNSpid:\t428\t12\nSigPnd:\t100\n",
    );
    proc.write("428/task/428/wchan", "do_wait");
    proc.write("428/task/428/stack", "[<0>] do_wait+0x1/0x2\n[<0>] uvm_x+0x1/0x2 [nvidia_uvm]\n");
    proc.write("428/task/428/cgroup", "0::/system.slice/train.service\n");
    let facts = proc.fs().facts(428, 428, READ).expect("readable");
    let expected = ProcessFacts {
        pid: 428,
        tid: 428,
        comm: "python3".into(),
        thread_comm: "python3".into(),
        cmdline: Some("python3 -m vllm".into()),
        exe: Some("/usr/bin/python3 (deleted)".into()),
        uid: Some(1000),
        ppid: 7,
        session: 1,
        state: TaskState::Sleeping,
        leader_state: TaskState::Sleeping,
        start_ns: 5_000_000_000,
        exiting: false,
        kernel_thread: false,
        sigkill_pending: Some(true),
        core_dumping: None,
        tracer: None,
        wchan: Some("do_wait".to_owned()),
        stack: vec!["do_wait".to_owned(), "uvm_x [nvidia_uvm]".to_owned()],
        cgroup: Some("/system.slice/train.service".into()),
        placement: Placement { unit: Some("train.service".into()), ..Placement::default() },
        ns_tgids: vec![428, 12],
        ns_tids: vec![428, 12],
        pid_in_ns: Some(12),
        withheld: Vec::new(),
    };
    assert_eq!(facts, expected);
}

#[test]
fn where_wchan_says_nothing_the_stack_says_what_a_thread_waits_in() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'D', 1, 0);
    proc.write("428/task/428/wchan", "0");
    proc.write("428/task/428/stack", "[<0>] percpu_rwsem_wait+0x1/0x2\n[<0>] vfs_write+0x1/0x2\n");
    let facts = proc.fs().facts(428, 428, READ).expect("readable");
    assert_eq!(facts.wchan.as_deref(), Some("percpu_rwsem_wait"));
    let without = proc.fs().facts(428, 428, FactOptions { stack: false, ..READ }).expect("readable");
    assert_eq!(without.wchan, None);
}

#[test]
fn a_living_thread_of_a_dead_leader_shows_the_command_line() {
    let proc = FakeProc::new();
    proc.thread(428, b"leader", 'Z', 2, 4);
    proc.thread(440, b"worker", 'S', 2, 0);
    fs::write(proc.0.path().join("428/task/428/cmdline"), "").expect("a zombie has no command line");
    let facts = proc.fs().facts(428, 440, READ).expect("readable");
    assert_eq!(facts.cmdline, Some("python3 -m vllm".into()));
    assert_eq!((facts.comm, facts.thread_comm), ("leader".into(), "worker".into()));
    assert_eq!((facts.leader_state, facts.state), (TaskState::Zombie, TaskState::Sleeping));
}

#[test]
fn a_command_line_that_is_not_there_yet_is_not_an_empty_one() {
    let cases = [
        ("in an exec", 0, true, (None, vec![Withheld { file: "cmdline", reason: Reason::Executing }])),
        ("it erased its own", 4096, true, (Some(RawText::default()), vec![])),
        ("its memory is gone", 0, false, (Some(RawText::default()), vec![])),
    ];
    for (case, arg_end, has_exe, expected) in cases {
        let proc = FakeProc::new();
        proc.thread(428, b"python3", 'S', 1, 0);
        let stat = String::from_utf8(stat_line(428, b"python3", 'S', 1, 0)).expect("text");
        let fields = stat.trim_end().split(' ').count();
        let more = vec!["1"; 48 - fields].join(" ");
        proc.write("428/task/428/stat", format!("{} {more} {arg_end} 0 0 0\n", stat.trim_end()));
        proc.write("428/task/428/cmdline", "");
        if !has_exe {
            fs::remove_file(proc.0.path().join("428/task/428/exe")).expect("removed");
        }
        let facts = proc.fs().facts(428, 428, READ).expect("readable");
        assert_eq!((facts.cmdline, facts.withheld), expected, "{case}");
    }
}

#[test]
fn an_address_space_that_may_be_locked_for_good_is_left_alone() {
    let both = ["cmdline", "exe"].map(|file| Withheld { file, reason: Reason::MightBlock });
    let cases = [
        ("the thread itself is in D state", 'D', 'S', 0, MmReadable::Yes),
        ("another thread is in D state", 'S', 'D', 0, MmReadable::Yes),
        ("another thread is exiting", 'S', 'S', 4, MmReadable::Yes),
        ("the caller knows better", 'S', 'S', 0, MmReadable::No),
    ];
    for (case, state, other_state, other_flags, mm) in cases {
        let proc = FakeProc::new();
        proc.thread(428, b"leader", 'S', 3, 0);
        proc.thread(440, b"asked", state, 3, 0);
        proc.thread(441, b"other", other_state, 3, other_flags);
        let facts = proc.fs().facts(428, 440, FactOptions { mm, stack: false }).expect("readable");
        assert_eq!((facts.cmdline, facts.exe), (None, None), "{case}");
        assert_eq!(facts.withheld, both, "{case}");
    }
}

#[test]
fn gone_denied_and_absent_are_three_answers() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    let gone = proc.fs().facts(999, 999, READ).expect_err("no such process");
    assert!(gone.is_gone(), "{gone:?}");
    let gone = proc.fs().facts(428, 999, READ).expect_err("no such thread");
    assert!(gone.is_gone(), "{gone:?}");
    let facts = proc.fs().facts(428, 428, READ).expect("readable");
    assert_eq!(
        (facts.wchan, facts.cgroup, facts.withheld),
        (None, None, Vec::new()),
        "absent files are no refusal"
    );
    proc.write("428/stat", "nonsense");
    let malformed = proc.fs().facts(428, 428, READ).expect_err("no stat");
    assert!(matches!(malformed, ProcError::Malformed { .. }), "{malformed:?}");
}

#[test]
fn a_refused_file_is_reported_as_refused() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    proc.write("428/task/428/stack", "[<0>] x+0x1/0x2\n");
    fs::set_permissions(proc.0.path().join("428/task/428/stack"), fs::Permissions::from_mode(0o0))
        .expect("chmod");
    let facts =
        as_nobody(proc.0.path(), move |root| ProcFs::at(root).facts(428, 428, READ)).expect("readable");
    assert_eq!(facts.withheld, [Withheld { file: "stack", reason: Reason::Denied }]);
}

#[test]
fn a_command_line_is_cut_after_4096_bytes() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    proc.write("428/task/428/cmdline", vec![b'a'; 1 << 20]);
    let facts = proc.fs().facts(428, 428, READ).expect("readable");
    assert_eq!(facts.cmdline.map(|text| text.0.len()), Some(4096));
}

#[test]
fn a_link_where_a_file_belongs_is_not_followed() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    proc.link("428/task/428/wchan", "/proc/self/comm");
    let facts = proc.fs().facts(428, 428, READ).expect("readable");
    assert_eq!(facts.wchan, None);
    assert_eq!(facts.withheld, [Withheld { file: "wchan", reason: Reason::Failed }]);
}

#[test]
fn sixty_thousand_groups_do_not_hide_what_stands_behind_them() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    let groups: String = (1_000_000_000..1_000_060_000).map(|gid| format!("{gid} ")).collect();
    proc.write("428/task/428/status", format!("Uid:\t5\t5\nGroups:\t{groups}\nNStgid:\t428\t3\n"));
    assert_eq!(proc.fs().facts(428, 428, READ).expect("readable").pid_in_ns, Some(3));
}

#[test]
fn ten_thousand_hostile_names_change_nothing_but_the_name() {
    let proc = FakeProc::new();
    proc.thread(428, b"x", 'S', 1, 0);
    let chosen = [
        "a) Z 1 7",
        ") R 0",
        "\n428 (x) Z 1",
        "\x1b[2J\x1b[31m",
        "((((",
        "))))",
        "\u{202e}gpj",
        "",
        " ",
        "\t\r\n",
    ];
    let name = prop_oneof![
        1 => proptest::sample::select(chosen.map(|name| name.as_bytes().to_vec()).to_vec()),
        3 => proptest::collection::vec(1..=255u8, 0..16),
    ];
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(name.clone(), name), |(comm, argument)| {
        // New files each time: some file systems write a truncated file to disk when it is closed.
        for path in ["428/stat", "428/task/428/cmdline"] {
            fs::remove_file(proc.0.path().join(path)).expect("remove");
        }
        proc.write("428/stat", stat_line(428, &comm, 'S', 1, 0));
        proc.write("428/task/428/cmdline", [b"a\0", argument.as_slice(), b"z\0"].concat());
        let facts = proc.fs().facts(428, 428, READ).expect("readable");
        prop_assert_eq!(facts.comm, RawText::from(comm));
        prop_assert_eq!(facts.cmdline, Some(RawText::from([b"a ", argument.as_slice(), b"z"].concat())));
        prop_assert_eq!((facts.ppid, facts.state, facts.start_ns), (7, TaskState::Sleeping, 5_000_000_000));
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
}

#[test]
fn a_real_process_is_as_its_parent_started_it() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = child.id();
    // It may still be in its exec, and a busy machine may not give what is read through the address space in time.
    let looks = (0..100).map(|_| ProcFs::host().facts(pid, pid, READ));
    let facts = looks.filter_map(Result::ok).find(|facts| facts.cmdline.is_some() && facts.exe.is_some());
    child.kill().and_then(|()| child.wait()).expect("end of sleep");
    let facts = facts.expect("readable");
    assert_eq!((facts.comm, facts.cmdline), ("sleep".into(), Some("sleep 60".into())));
    // SAFETY: getuid cannot fail and touches no memory.
    let uid = unsafe { libc::getuid() };
    assert_eq!((facts.uid, facts.ppid), (Some(uid), std::process::id()));
    assert_eq!((facts.sigkill_pending, facts.tracer), (Some(false), None));
    assert!(facts.exe.is_some_and(|exe| exe.0.starts_with(b"/")));
    assert!(facts.cgroup.is_some_and(|path| path.0.starts_with(b"/")));
    assert_eq!(facts.pid_in_ns, facts.ns_tgids.last().copied());
    assert!(!facts.exiting && !facts.kernel_thread);

    let gone = ProcFs::host().facts(pid, pid, READ).expect_err("it was reaped");
    assert!(gone.is_gone(), "{gone:?}");
}

#[test]
fn the_stack_of_a_running_task_is_not_asked_for() {
    let proc = FakeProc::new();
    proc.write("428/task/428/stack", "[<0>] spin+0x1/0x2 [nvidia]\n");
    for (letter, frames) in [('D', 1), ('R', 0)] {
        proc.thread(428, b"python3", letter, 1, 0);
        let facts = proc.fs().facts(428, 428, READ).expect("readable");
        assert_eq!(facts.stack.len(), frames, "{letter}");
        let _ = fs::remove_file(proc.0.path().join("428/task/428/exe"));
    }
}

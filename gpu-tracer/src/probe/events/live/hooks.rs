//! What each hook tells.

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use super::{FULL, PATIENCE, Shell, attach, devices, is_exit_of, is_root, iterators, touches_by, until};
use crate::{
    kernel::Answer,
    model::{
        FileKey, ProcessId, Via,
        event::{Event, EventKind, HeldAtExit},
    },
    probe::events::{LossCause, Options, Start},
};

#[test]
fn every_hook_of_this_kernel_is_attached() {
    if !is_root() {
        return;
    }
    let source = attach(&Options::default());
    assert_eq!(source.start(), Start::Fresh);
    for report in source.hooks() {
        let modules = report.hook.starts_with("module:");
        assert!(report.works == Answer::Yes || modules, "{report:?}");
        if modules && report.works == Answer::No {
            assert_eq!(report.detail.as_deref(), Some("this kernel has no such tracepoint"));
        }
    }
}

#[test]
fn opening_a_device_is_told_with_who_and_how() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut shell = Shell::new();
    shell.run("exec 9</dev/full");
    let pid = shell.pid();
    let events = until(
        &mut source,
        |kind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.process.tgid == pid),
    );
    let [task] = touches_by(&events, pid)[..] else { panic!("{events:#?}") };
    assert_eq!((task.tid, task.is_leader()), (pid, true));
    let touch = events.iter().find(|event| !touches_by(std::slice::from_ref(event), pid).is_empty());
    let EventKind::DeviceTouched { access, comm, .. } = &touch.expect("a touch").kind else { unreachable!() };
    assert_eq!((access.read, access.write, &comm.0[..]), (true, false, &b"sh"[..]));
    assert!(source.tracked().contains(&task.process), "{:?}", source.tracked());
    let touched = source.take_touched();
    let ours = touched.iter().find(|touched| touched.process == task.process).expect("it is in the list");
    assert_eq!((ours.device, ours.cgroup.is_some()), (FULL, true), "{touched:?}");
    assert!(!source.take_touched().iter().any(|touched| touched.process == task.process));
    // `sh` is done with it: opening for writing says so.
    shell.run("exec 8>/dev/full");
    let events =
        until(&mut source, |kind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.tid == pid));
    let written = |event: &Event| matches!(&event.kind, EventKind::DeviceTouched { access, .. } if access.write && !access.read);
    assert!(events.iter().any(written), "{events:#?}");
}

#[test]
fn the_life_of_a_toucher_and_its_children_is_told() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut shell = Shell::new();
    shell.run("exec 9</dev/full");
    let child: u32 = shell.run("sleep 1000 >/dev/null & echo $!").parse().expect("a PID");
    // By another process, and with another signal than the last one.
    let mut killer = Shell::new();
    killer.run(&format!("kill -15 {child}"));
    shell.run(&format!("wait {child} 2>/dev/null"));
    shell.tell("exit 3");
    shell.wait();
    let pid = shell.pid();
    let events =
        until(&mut source, |kind| matches!(kind, EventKind::Freed { task } if task.process.tgid == pid));
    let one = |wanted: &dyn Fn(&EventKind) -> bool| {
        let found: Vec<&Event> = events.iter().filter(|event| wanted(&event.kind)).collect();
        assert_eq!(found.len(), 1, "{found:#?} in {events:#?}");
        found[0].kind.clone()
    };
    let EventKind::Forked { parent, child: forked, comm } =
        one(&|kind| matches!(kind, EventKind::Forked { child: forked, .. } if forked.tid == child))
    else {
        unreachable!()
    };
    assert_eq!((parent.process.tgid, forked.process.tgid, &comm.0[..]), (pid, child, &b"sh"[..]));
    let EventKind::Execed { task, comm } =
        one(&|kind| matches!(kind, EventKind::Execed { task, .. } if task.tid == child))
    else {
        unreachable!()
    };
    assert_eq!((task, &comm.0[..]), (forked, &b"sleep"[..]));
    let renamed = one(&|kind| matches!(kind, EventKind::Renamed { task, .. } if *task == forked));
    assert!(
        matches!(&renamed, EventKind::Renamed { old, new, .. } if old.0 == b"sh" && new.0 == b"sleep"),
        "{renamed:?}"
    );
    let EventKind::Signalled { sender, target, signal, code } =
        one(&|kind| matches!(kind, EventKind::Signalled { target, .. } if *target == forked))
    else {
        unreachable!()
    };
    assert_eq!((sender.task.process.tgid, sender.uid, signal, code), (killer.pid(), 0, 15, 0));
    assert_eq!((target, &sender.comm.0[..]), (forked, &b"sh"[..]));
    let exit = |of: u32| {
        let EventKind::Exiting { group_dead, exit, held, .. } = one(&|kind| is_exit_of(kind, of)) else {
            unreachable!()
        };
        assert!(group_dead);
        (exit.signal(), exit.status(), held.len())
    };
    assert_eq!(exit(child), (Some(15), None, 1));
    assert_eq!(exit(pid), (None, Some(3), 1));
    let ours = |process: &ProcessId| process.tgid == pid || process.tgid == child;
    assert!(!source.tracked().iter().any(ours), "{:?}", source.tracked());
}

#[test]
fn what_an_exiting_task_has_open_is_written_down() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut iterators = iterators();
    let mut shell = Shell::new();
    // 300 descriptors of one file beyond the first words of the table, one file more, and one that does not count.
    shell.run("exec 9</dev/full; exec 5</dev/full; exec 7</dev/zero; ulimit -n 2000");
    let pid = shell.pid();
    let mut many = Command::new("python3");
    many.arg("-c").arg(
        "import fcntl,os,sys\nf=os.open('/dev/full',0)\nfor n in range(1000,1300): os.dup2(f,n)\nsys.stdin.read()",
    );
    let mut many = many.stdin(Stdio::piped()).spawn().expect("python3");
    let many_pid = many.id();
    let snapshot = loop {
        let snapshot = iterators.snapshot(&devices(), PATIENCE).expect("snapshot");
        let table = snapshot.tasks.iter().find(|task| task.tid == many_pid).and_then(|task| task.table);
        let held = snapshot
            .references
            .iter()
            .filter(|reference| matches!(reference.via, Via::Fd { table: of, .. } if Some(of) == table));
        if held.count() == 301 {
            break snapshot;
        }
    };
    shell.tell("exit");
    shell.wait();
    drop(many.stdin.take());
    many.wait().expect("waited for");
    let (mut short, mut long) = (None, None);
    while short.is_none() || long.is_none() {
        for event in until(&mut source, |kind| is_exit_of(kind, pid) || is_exit_of(kind, many_pid)) {
            if let EventKind::Exiting { task, held, table, .. } = event.kind {
                let place = if task.tid == pid { &mut short } else { &mut long };
                *place = Some((held, table));
            }
        }
    }
    let (short, long) = (short.unwrap().0, long.unwrap());
    let keys = |held: &[HeldAtExit]| held.iter().map(|held| (held.fd, held.device)).collect::<Vec<_>>();
    assert_eq!(keys(&short), [(5, FULL), (9, FULL)]);
    let (held, table) = long;
    assert_eq!(held.len(), 301);
    let file: FileKey = held[0].file;
    assert!(held.iter().all(|held| held.file == file), "one file: {held:?}");
    assert_eq!(held[1..].iter().map(|held| held.fd).collect::<Vec<_>>(), (1000..1300).collect::<Vec<_>>());
    let seen = snapshot.files.iter().find(|seen| seen.key == file);
    assert!(seen.is_some_and(|seen| seen.device == FULL), "the same file in the snapshot: {seen:?}");
    assert!(snapshot.tasks.iter().any(|task| task.tid == many_pid && task.table == table));
}

#[test]
fn processes_that_have_nothing_to_do_with_it_are_not_told_of() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut bystander = Shell::new();
    bystander.run("for n in 1 2 3; do (exec true </dev/null); done; kill -CONT $$; (kill -9 $(exec sh -c 'echo $PPID'))");
    let (bystander_pid, mut shell) = (bystander.pid(), Shell::new());
    shell.run("exec 9</dev/full");
    let pid = shell.pid();
    let events = until(
        &mut source,
        |kind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.process.tgid == pid),
    );
    let names_bystander = |event: &&Event| format!("{event:?}").contains(&format!("tgid: {bystander_pid},"));
    assert_eq!(events.iter().find(names_bystander), None);
    assert!(source.tracked().iter().all(|process| process.tgid != bystander_pid));
}

#[test]
fn a_process_is_tracked_from_when_it_is_said_to_until_it_is_not() {
    if !is_root() {
        return;
    }
    let mut shell = Shell::new();
    // Before there was anybody to see it.
    shell.run("exec 9</dev/full");
    let mut source = attach(&Options::default());
    let mut iterators = iterators();
    let snapshot = iterators.snapshot(&devices(), PATIENCE).expect("snapshot");
    let task = snapshot.tasks.iter().find(|task| task.tid == shell.pid()).expect("the shell");
    let process = ProcessId { tgid: task.tgid, start_ns: task.start_ns };
    source.track(process).expect("track");
    shell.run("sh -c true");
    let events = until(
        &mut source,
        |kind| matches!(kind, EventKind::Forked { parent, .. } if parent.process.tgid == process.tgid),
    );
    let parent = |event: &Event| match event.kind {
        EventKind::Forked { parent, .. } => Some(parent.process),
        _ => None,
    };
    assert!(events.iter().filter_map(parent).any(|parent| parent == process), "{process:?} {events:#?}");
    let elsewhere = ProcessId { start_ns: process.start_ns + 1, ..process };
    source.untrack(elsewhere).expect("untrack");
    assert!(source.tracked().contains(&process), "another process with that PID is another process");
    source.untrack(process).expect("untrack");
    let dead = ProcessId { tgid: 4_194_304, start_ns: 1 };
    source.track(dead).expect("track");
    assert!(source.untrack_dead(&snapshot).expect("untrack") >= 1);
    assert!(
        !source.tracked().iter().any(|tracked| [dead, process].contains(tracked)),
        "{:?}",
        source.tracked()
    );
}

#[test]
fn a_storm_of_opens_is_counted_to_the_last_one() {
    if !is_root() {
        return;
    }
    const OPENS: u64 = 20_000;
    let mut source = attach(&Options { ring_bytes: 4096, ..Options::default() });
    let mut storm = Command::new("python3")
        .arg("-c")
        .arg(format!("import os\nfor n in range({OPENS}): os.close(os.open('/dev/full',0))"))
        .spawn()
        .expect("python3");
    let pid = storm.id();
    storm.wait().expect("waited for");
    let deadline = Instant::now() + PATIENCE;
    let (mut told, mut lost) = (0, 0);
    loop {
        for event in source.poll(deadline).expect("poll") {
            match event.kind {
                EventKind::DeviceTouched { task, .. } if task.process.tgid == pid => told += 1,
                EventKind::Lost { count, .. } => lost += count,
                _ => {}
            }
        }
        // The last word is one more touch for those that were only counted; it may find the process gone.
        let losses = source.losses().expect("losses");
        assert_eq!(
            losses.total(),
            losses.of(LossCause::RingFull) + losses.of(LossCause::RateLimited),
            "{losses:?}"
        );
        if told + lost >= OPENS {
            assert_eq!(losses.total(), lost, "every loss has been told");
            assert!(told + lost <= OPENS + 10, "{told} told, {lost} lost of {OPENS}");
            return;
        }
        assert!(Instant::now() < deadline, "{told} told, {lost} lost of {OPENS}: {losses:?}");
    }
}

//! What each hook tells.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Instant,
};

use super::{
    FULL, PATIENCE, Shell, attach, devices, exits, is_exit_of, is_root, iterators,
    parts::{Part, Playing, STORM},
    touches_by, until, walks_long_tables, walks_tables,
};
use crate::{
    kernel::Answer,
    model::{
        ProcessId, TableKey,
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
        if report.works == Answer::No {
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
    let EventKind::DeviceTouched { access, slot, comm, .. } = &touch.expect("a touch").kind else {
        unreachable!()
    };
    // The shell opens it at the lowest free descriptor, and moves it to 9 afterwards.
    let slot = slot.expect("the descriptor that was reserved for it");
    let lower = |fd| shell.run(&format!("test -e /proc/$$/fd/{fd} && echo used || echo free"));
    let used: Vec<bool> = (0..=slot.fd).map(lower).map(|answer| answer.trim() == "used").collect();
    assert_eq!(used.iter().position(|used| !used), Some(slot.fd as usize), "{slot:?} {used:?}");
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
    let mut events =
        until(&mut source, |kind| matches!(kind, EventKind::Execed { task, .. } if task.tid == child));
    // By another process, and not with a signal that the shell itself uses.
    let mut killer = Shell::new();
    killer.run(&format!("kill -15 {child}"));
    shell.run(&format!("wait {child} 2>/dev/null"));
    shell.tell("exit 3");
    shell.wait();
    let pid = shell.pid();
    // The kernel frees tasks after a grace period, on whichever processor and in whatever order.
    let freed = |events: &[Event], of: u32| {
        events.iter().any(|event| matches!(&event.kind, EventKind::Freed { task } if task.process.tgid == of))
    };
    for of in [child, pid] {
        if !freed(&events, of) {
            events.extend(until(
                &mut source,
                |kind| matches!(kind, EventKind::Freed { task } if task.process.tgid == of),
            ));
        }
    }
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
    assert_eq!(task, forked);
    let takes_the_name_of_the_program = |event: &Event| {
        matches!(&event.kind, EventKind::Renamed { task, old, new }
            if *task == forked && *old.0 == *b"sh" && *new == comm)
    };
    assert!(events.iter().any(takes_the_name_of_the_program), "{events:#?}");
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
    let held = usize::from(walks_tables(&source));
    assert_eq!(exit(child), (Some(15), None, held));
    assert_eq!(exit(pid), (None, Some(3), held));
    let ours = |process: &ProcessId| process.tgid == pid || process.tgid == child;
    assert!(!source.tracked().iter().any(ours), "{:?}", source.tracked());
}

#[test]
fn what_an_exiting_task_has_open_is_written_down() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    if !walks_tables(&source) {
        return;
    }
    let mut shell = Shell::new();
    // The other one is not asked for.
    shell.run("exec 9</dev/full; exec 5</dev/full; exec 7</dev/zero");
    shell.tell("exit");
    shell.wait();
    let pid = shell.pid();
    let events = until(&mut source, |kind| is_exit_of(kind, pid));
    let held: Vec<HeldAtExit> = exits(&events, pid).into_iter().flat_map(|(_, held)| held).collect();
    assert_eq!(held.iter().map(|held| (held.fd, held.device)).collect::<Vec<_>>(), [(5, FULL), (9, FULL)]);
    assert_ne!(held[0].file, held[1].file);
}

#[test]
fn a_long_table_is_written_down_whole_and_names_the_files_that_a_snapshot_names() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    if !walks_long_tables(&source) {
        return;
    }
    let mut holder = Playing::start(Part::Descriptors, Path::new(""));
    let snapshot = iterators().snapshot(&devices(), PATIENCE).expect("snapshot");
    let pid = holder.pid();
    holder.kill();
    let last = |kind: &EventKind| matches!(kind, EventKind::Exiting { task, group_dead: true, .. } if task.process.tgid == pid);
    let events = until(&mut source, last);
    let seen = snapshot.tasks.iter().find(|task| task.tid == pid).and_then(|task| task.table);
    let of_table = exits(&events, pid).into_iter().filter(|(table, held)| *table == seen && !held.is_empty());
    for (_, held) in of_table.clone() {
        let mut descriptors: Vec<u32> = held.iter().map(|held| held.fd).collect();
        descriptors.sort_unstable();
        assert_eq!(descriptors[1..], (500..800).collect::<Vec<_>>());
        let file = snapshot.files.iter().find(|file| file.key == held[0].file).expect("in the snapshot");
        assert_eq!((file.device, file.identity), (FULL, held[0].identity));
        assert!(held.iter().all(|held| held.file == file.key), "one file: {held:?}");
    }
    assert!(of_table.count() > 0, "{events:#?}");
}

#[test]
fn every_fd_table_of_a_killed_process_is_written_down_whoever_of_its_threads_has_it() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    if !walks_tables(&source) {
        return;
    }
    for _ in 0..10 {
        let mut holder = Playing::start(Part::Tables, Path::new(""));
        let pid = holder.pid();
        holder.kill();
        let mut ended = HashSet::new();
        let events = until(&mut source, |kind| {
            if let EventKind::Exiting { task, .. } = kind
                && task.process.tgid == pid
            {
                ended.insert(task.tid);
            }
            ended.len() >= 3
        });
        let exits = exits(&events, pid);
        assert!(exits.len() >= 3, "the leader and two threads: {exits:?}");
        let mut tables: HashMap<TableKey, usize> = HashMap::new();
        for (table, held) in exits.iter().filter(|(_, held)| !held.is_empty()) {
            tables.insert(table.expect("a table"), held.len());
        }
        let mut files: Vec<usize> = tables.into_values().collect();
        files.sort_unstable();
        assert_eq!(files, [1, 2], "{exits:?}");
    }
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
    // It may be one that is just being made.
    source.untrack_dead(&snapshot).expect("untrack");
    assert!(source.tracked().contains(&dead), "{:?}", source.tracked());
    assert!(source.untrack_dead(&snapshot).expect("untrack") >= 1);
    assert!(
        !source.tracked().iter().any(|tracked| [dead, process].contains(tracked)),
        "{:?}",
        source.tracked()
    );
}

#[test]
fn the_counters_of_tracked_processes_stay_right_while_both_sides_change_the_set() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut shell = Shell::new();
    shell.run("exec 9</dev/full");
    shell.tell("for n in 1 2 3 4 5 6 7 8 9 10; do for m in 1 2 3 4 5 6 7 8 9 10; do (true) & done; wait; done; echo over");
    let pid = shell.pid();
    let mut churn = 0_u32;
    let deadline = Instant::now() + PATIENCE;
    let mut forks = 0;
    while forks < 100 && Instant::now() < deadline {
        // Both real ones, which the programs remove, and some that only this side knows.
        for process in source.tracked().into_iter().filter(|process| process.tgid != pid) {
            source.untrack(process).expect("untrack");
            source.track(process).expect("track");
        }
        churn += 1;
        let invented = ProcessId { tgid: 5_000_000 + churn % 2000, start_ns: u64::from(churn) };
        source.track(invented).expect("track");
        for event in source.drain().expect("drain") {
            forks += u32::from(
                matches!(event.kind, EventKind::Forked { parent, .. } if parent.process.tgid == pid),
            );
        }
    }
    assert_eq!(forks, 100);
    // Others come and go while this is being counted.
    while source.tracked.counted() != source.tracked().len() {
        assert!(Instant::now() < deadline, "{} {}", source.tracked.counted(), source.tracked().len());
    }
    for process in source.tracked() {
        source.untrack(process).expect("untrack");
    }
    while source.tracked.counted() != source.tracked().len() {
        assert!(Instant::now() < deadline, "{} {}", source.tracked.counted(), source.tracked().len());
    }
}

#[test]
fn a_storm_of_opens_is_counted_to_the_last_one() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options { ring_bytes: 4096, ..Options::default() });
    let storm = Playing::start(Part::Storm, Path::new(""));
    let pid = storm.pid();
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
        let losses = source.losses().expect("losses");
        // Others lose something here too, so that it may be more.
        if told + lost >= STORM {
            assert!(losses.of(LossCause::RateLimited) > 0, "{losses:?}");
            assert!(losses.total() >= lost, "{lost} lost, {losses:?}");
            assert!(told < STORM / 2, "{told} told of {STORM}");
            return;
        }
        assert!(Instant::now() < deadline, "{told} told, {lost} lost of {STORM}: {losses:?}");
    }
}

//! How things came about.

use super::*;
use crate::ledger::{NAMES_KEPT, Origin};
use crate::model::change::{CloseCause, Gap, GapCause, Killer, ProcessDescription};

fn origins(ledger: &Ledger) -> Vec<(u32, Origin)> {
    let view = ledger.view();
    view.holders.iter().map(|holder| (holder.process.tgid, holder.held[0].origin)).collect()
}

/// A parent that touched `nvidia0` and opened it, seen at 100,000.
fn ledger_with_an_opener() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(60_000, 10, GPU0));
    ledger.reconcile(&one_holder(100_000));
    ledger
}

#[test]
fn the_opener_is_who_touched_the_device_and_then_refers_to_the_file() {
    let ledger = ledger_with_an_opener();
    let opened = ledger.view().files[0].opened.clone().expect("the touch announced it");
    assert_eq!((opened.at_ns, opened.exact, opened.opener.process), (60_000, true, process(10)));
    assert_eq!((origins(&ledger), ledger.drift().unannounced), (vec![(10, Origin::Opened)], 0));
}

#[test]
fn opens_of_one_device_are_matched_with_the_latest_touches_in_order() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    for at_ns in [60_000, 61_000, 62_000] {
        ledger.apply(&touched(at_ns, 10, GPU0));
    }
    // Of three touches one was an access(2), or the file was closed again.
    let files = vec![device(2, GPU0, 1), device(1, GPU0, 1)];
    ledger.reconcile(&world(100_000, vec![task(10, 10)], files, vec![fd(1, 10, 4), fd(2, 10, 3)]));
    let times: Vec<_> =
        ledger.view().files.iter().map(|file| file.opened.as_ref().map(|o| (o.at_ns, o.exact))).collect();
    assert_eq!(times, [Some((61_000, false)), Some((62_000, false))]);
}

#[test]
fn a_child_forked_from_a_holder_has_inherited_even_when_its_parent_is_dead() {
    let mut ledger = ledger_with_an_opener();
    ledger.apply(&forked(200_000, 10, 200));
    ledger.apply(&killed(200_010, 99, 10));
    let child = || Task { ppid: 1, ..task(200, 200) };
    let drift = ledger.reconcile(&world(
        300_000,
        vec![zombie(10), child()],
        vec![device(1, GPU0, 1)],
        vec![fd(1, 200, 3)],
    ));
    assert_eq!(origins(&ledger), [(200, Origin::Inherited { from: process(10) })]);
    let inherited = (Some(200), &ChangeKind::Inherited { from: process(10) });
    let closed = (Some(10), &ChangeKind::Closed { cause: CloseCause::Exit });
    assert!(said(&drift.changes).contains(&inherited), "{:?}", drift.changes);
    assert!(said(&drift.changes).contains(&closed), "{:?}", drift.changes);
    let file = ledger.view().files[0].clone();
    assert_eq!(file.opened.map(|opened| opened.opener.process), Some(process(10)));
}

#[test]
fn a_grandchild_inherits_through_a_parent_nobody_ever_saw_holding() {
    let mut ledger = ledger_with_an_opener();
    ledger.apply(&forked(200_000, 10, 200));
    ledger.apply(&forked(201_000, 200, 201));
    let tasks = vec![task(10, 10), task(201, 201)];
    ledger.reconcile(&world(300_000, tasks, vec![device(1, GPU0, 2)], vec![fd(1, 10, 3), fd(1, 201, 3)]));
    assert_eq!(origins(&ledger)[1], (201, Origin::Inherited { from: process(10) }));
}

#[test]
fn a_child_whose_fork_was_not_over_when_everything_was_looked_at_has_inherited_all_the_same() {
    // It begins at 200,000; the look that does not show it yet begins later.
    let mut ledger = ledger_with_an_opener();
    let only_parent = || vec![task(10, 10)];
    ledger.reconcile(&world(200_500, only_parent(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    ledger.apply(&forked(201_000, 10, 200));
    assert!(!ledger.apply(&killed(202_000, 10, 200)).is_empty(), "who may have it by fork matters");
    let tasks = vec![task(10, 10), task(200, 200)];
    let both = vec![fd(1, 10, 3), fd(1, 200, 3)];
    let drift = ledger.reconcile(&world(300_000, tasks, vec![device(1, GPU0, 2)], both));
    let inherited = (Some(200), &ChangeKind::Inherited { from: process(10) });
    assert!(said(&drift.changes).contains(&inherited), "{:?}", drift.changes);
}

#[test]
fn a_process_that_was_there_before_without_the_file_was_handed_it() {
    let mut ledger = ledger_with_an_opener();
    let tasks = || vec![task(10, 10), Task { ppid: 10, ..task(20, 20) }];
    let queued = vec![fd(1, 10, 3), in_flight(1, 50), fd(50, 20, 7)];
    let drift = ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 2)], queued));
    assert_eq!(said(&drift.changes), [(Some(20), &ChangeKind::Queued)]);

    let received = vec![fd(1, 10, 3), fd(1, 20, 8)];
    let drift = ledger.reconcile(&world(300_000, tasks(), vec![device(1, GPU0, 2)], received));
    let handed = ChangeKind::HandedOver { from: vec![process(10)] };
    assert_eq!(said(&drift.changes), [(Some(20), &handed)]);
    assert_eq!(origins(&ledger)[1], (20, Origin::Passed { from: Some(process(10)) }));
}

#[test]
fn a_fork_from_before_the_open_is_no_inheritance() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&forked(150_000, 10, 150));
    ledger.apply(&touched(160_000, 10, GPU0));
    let tasks = vec![task(10, 10), task(150, 150)];
    ledger.reconcile(&world(200_000, tasks, vec![device(1, GPU0, 2)], vec![fd(1, 10, 3), fd(1, 150, 3)]));
    assert_eq!(origins(&ledger)[1], (150, Origin::Passed { from: Some(process(10)) }));
}

#[test]
fn an_innocent_that_got_the_pid_of_a_dead_opener_is_somebody_else() {
    let mut ledger = ledger_with_an_opener();
    ledger.apply(&forked(200_000, 10, 200));
    let innocent = Task { start_ns: 250_000, ..task(10, 10) };
    let tasks = vec![innocent, task(200, 200)];
    ledger.reconcile(&world(300_000, tasks, vec![device(1, GPU0, 1)], vec![fd(1, 200, 3)]));
    let view = ledger.view();
    assert_eq!(view.holders.iter().map(|holder| holder.process.tgid).collect::<Vec<_>>(), [200]);
    assert_eq!(view.files[0].opened.as_ref().map(|opened| opened.opener.process), Some(process(10)));
}

#[test]
fn a_file_at_the_address_of_another_is_new_when_its_holder_has_touched_the_device_since() {
    let mut ledger = ledger_with_an_opener();
    let first = ledger.view().files[0].id;
    ledger.apply(&touched(150_000, 20, GPU0));
    let drift =
        ledger.reconcile(&world(200_000, vec![task(20, 20)], vec![device(1, GPU0, 1)], vec![fd(1, 20, 3)]));
    let file = ledger.view().files[0].clone();
    assert_ne!(file.id, first);
    assert_eq!((drift.replaced, origins(&ledger)), (1, vec![(20, Origin::Opened)]));
}

#[test]
fn a_file_of_another_identity_is_another_file() {
    let look = |taken_ns, identity| {
        let file = OpenFile { identity, ..device(1, GPU0, 1) };
        world(taken_ns, vec![task(10, 10)], vec![file], vec![fd(1, 10, 3)])
    };
    let mut ledger = Ledger::new();
    let ids: Vec<u64> = [(1, 0), (2, 7), (3, 7), (4, 0), (5, 8)]
        .into_iter()
        .map(|(taken_ns, identity)| {
            ledger.reconcile(&look(taken_ns, identity));
            ledger.view().files[0].id
        })
        .collect();
    assert_eq!(ids, [1, 1, 1, 1, 2], "0 is unknown and equal to any");
    assert_eq!((ledger.drift().replaced, ledger.living()[0].identity), (1, 8));
}

#[test]
fn a_release_from_before_a_snapshot_means_that_the_snapshot_saw_another_file() {
    let mut ledger = ledger_with_an_opener();
    let first = ledger.view().files[0].id;
    ledger.reconcile(&one_holder(200_000));
    ledger.apply(&released(150_000, 1));
    let view = ledger.view();
    assert_eq!((view.files.len(), holding(&view)), (1, vec![(10, 10, 1, 0)]));
    assert_ne!(view.files[0].id, first);
    let second = view.files[0].id;
    ledger.apply(&released(150_000, 1));
    assert_eq!(ledger.view().files[0].id, second, "the same news twice is no news");
}

#[test]
fn a_process_is_remembered_as_it_was_when_it_opened() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(60_000, 10, GPU0));
    assert_eq!((ledger.undescribed(), ledger.tracked()), (vec![process(10)], vec![process(10)]));
    let cmdline: RawText = "python3\0-m\0vllm".into();
    let description = ProcessDescription { cmdline: cmdline.clone(), ..ProcessDescription::default() };
    assert!(ledger.describe(process(10), 65_000, description));
    ledger.reconcile(&one_holder(100_000));
    let (old, new): (RawText, RawText) = ("python3".into(), "VLLM::Worker".into());
    let renamed = EventKind::Renamed { task: leader(10), old: old.clone(), new: new.clone() };
    let changes = ledger.apply(&event(110_000, renamed));
    assert_eq!(
        said(&changes),
        [(Some(10), &ChangeKind::Renamed { tid: 10, old: old.clone(), new: new.clone() })]
    );
    let view = ledger.view();
    let opener = view.files[0].opened.as_ref().map(|opened| &opened.opener);
    assert_eq!(opener.map(|opener| (&opener.comm, &opener.cmdline)), Some((&old, &cmdline)));
    assert_eq!((&view.holders[0].carrier.comm, &view.holders[0].history.comm), (&new, &new));
    assert_eq!(view.holders[0].history.names.entries().len(), 1);
}

#[test]
fn a_description_that_comes_after_the_open_is_still_the_openers() {
    let mut ledger = Ledger::new();
    ledger.apply(&opened(60_000, 10, 1, GPU0));
    let cmdline: RawText = "train.py".into();
    let description = ProcessDescription { cmdline: cmdline.clone(), ..ProcessDescription::default() };
    assert!(ledger.describe(process(10), 65_000, description));
    let opened = ledger.view().files[0].opened.clone();
    assert_eq!(opened.map(|opened| opened.opener.cmdline.clone()), Some(cmdline));
}

#[test]
fn what_was_read_before_an_exec_does_not_describe_what_was_executed() {
    let mut ledger = Ledger::new();
    ledger.apply(&opened(60_000, 10, 1, GPU0));
    let exec = EventKind::Execed { task: leader(10), comm: "python3".into() };
    ledger.apply(&event(70_000, exec));
    let description =
        |cmdline: &str| ProcessDescription { cmdline: cmdline.into(), ..ProcessDescription::default() };
    let cmdline_of = |ledger: &Ledger| {
        let history = ledger.history(process(10)).expect("known");
        history.description.as_ref().map(|known| known.cmdline.clone())
    };
    assert!(
        !ledger.describe(process(10), 69_000, description("bash start.sh")),
        "it is of the program before"
    );
    assert_eq!((cmdline_of(&ledger), ledger.undescribed()), (None, vec![process(10)]));
    assert!(ledger.describe(process(10), 71_000, description("python3 train.py")));
    assert_eq!(cmdline_of(&ledger), Some("python3 train.py".into()));
    assert!(!ledger.describe(process(99), 71_000, description("x")), "nobody knows this one");
}

#[test]
fn a_snapshot_does_not_take_back_a_name_given_since_it_was_begun() {
    for kind in [
        EventKind::Execed { task: leader(10), comm: "worker".into() },
        EventKind::Renamed { task: leader(10), old: "python3".into(), new: "worker".into() },
    ] {
        let mut ledger = ledger_with_one_holder();
        ledger.apply(&event(210_000, kind));
        let before = ledger.history(process(10)).expect("known").names.clone();
        let drift = ledger.reconcile(&one_holder(200_000));
        assert_eq!(said(&drift.changes), []);
        let view = ledger.view();
        let entry = &view.holders[0];
        let worker: RawText = "worker".into();
        assert_eq!((&entry.carrier.comm, &entry.history.comm), (&worker, &worker));
        assert_eq!(entry.history.names, before);
        let drift = ledger.reconcile(&one_holder(220_000));
        assert!(matches!(&said(&drift.changes)[..], [(Some(10), ChangeKind::Renamed { .. })]), "it is newer");
    }
}

#[test]
fn a_snapshot_that_saw_a_task_before_its_exec_does_not_rename_who_has_opened_since() {
    let mut ledger = Ledger::new();
    let mut before = one_holder(100_000);
    before.tasks[0].comm = "forked".into();
    ledger.apply(&touched(110_000, 10, GPU0));
    let drift = ledger.reconcile(&before);
    assert!(
        !said(&drift.changes).iter().any(|(_, kind)| matches!(kind, ChangeKind::Renamed { .. })),
        "{drift:?}"
    );
    let view = ledger.view();
    let python: RawText = "python3".into();
    assert_eq!((&view.holders[0].carrier.comm, &view.holders[0].history.comm), (&python, &python));
}

#[test]
fn a_name_changed_between_snapshots_is_noticed_without_an_event() {
    let mut ledger = ledger_with_one_holder();
    let renamed = Task { comm: "worker".into(), ..task(10, 10) };
    let drift =
        ledger.reconcile(&world(200_000, vec![renamed], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    let kind = ChangeKind::Renamed { tid: 10, old: "python3".into(), new: "worker".into() };
    assert_eq!(said(&drift.changes), [(Some(10), &kind)]);
}

#[test]
fn a_holder_whose_parent_died_is_reparented_whoever_adopts_it() {
    let with_parent = |ppid| {
        world(
            u64::from(ppid),
            vec![Task { ppid, ..task(10, 10) }],
            vec![device(1, GPU0, 1)],
            vec![fd(1, 10, 3)],
        )
    };
    let mut ledger = Ledger::new();
    ledger.reconcile(&with_parent(500));
    let drift = ledger.reconcile(&with_parent(700));
    assert_eq!(said(&drift.changes), [(Some(10), &ChangeKind::Reparented { from: 500, to: 700 })]);
    assert_eq!(ledger.view().holders[0].history.reparented.entries().len(), 1);
}

#[test]
fn who_killed_a_holder_is_remembered_and_timed() {
    let mut ledger = ledger_with_one_holder();
    let changes = ledger.apply(&killed(200_000, 99, 10));
    let by = Killer::Process(Sender { task: leader(99), comm: "pkill".into(), uid: 0 });
    assert_eq!(said(&changes), [(Some(10), &ChangeKind::Killed { by: by.clone() })]);
    let changes = ledger.apply(&exiting(200_100, 10, 9, &[]));
    let exit = ChangeKind::Exiting { tid: 10, group_dead: true, exit: Exit(9), by: Some(by) };
    assert_eq!(said(&changes), [(Some(10), &exit)]);
    let changes = ledger.apply(&released(350_000, 1));
    let after = match &changes[0].kind {
        ChangeKind::Released { after_kill_ns, after_exit_ns, .. } => (*after_kill_ns, *after_exit_ns),
        other => panic!("{other:?}"),
    };
    assert_eq!(after, (Some(150_000), Some(149_900)));
}

#[test]
fn that_a_holder_was_reaped_is_told_once_whether_an_event_says_so_or_a_look_shows_it() {
    let exited = (Some(10), &ChangeKind::Exited);
    let freed = || event(400_000, EventKind::Freed { task: leader(10) });
    for told in [true, false] {
        let mut ledger = ledger_with_one_holder();
        ledger.apply(&exiting(200_000, 10, 9, &[(1, 3)]));
        // A zombie for many looks, that holds nothing.
        for taken_ns in [250_000, 300_000, 350_000] {
            let drift = ledger.reconcile(&world(taken_ns, vec![zombie(10)], vec![], vec![]));
            assert!(!said(&drift.changes).contains(&exited), "{:?}", drift.changes);
        }
        if told {
            assert_eq!(said(&ledger.apply(&freed())), [exited]);
        }
        let drift = ledger.reconcile(&world(450_000, vec![], vec![], vec![]));
        assert_eq!(said(&drift.changes).contains(&exited), !told, "{:?}", drift.changes);
        assert_eq!(ledger.apply(&freed()), [], "told already");
    }
}

#[test]
fn memory_running_out_explains_the_kernels_own_kill() {
    let mut ledger = ledger_with_one_holder();
    let sender = Sender { task: leader(10), comm: "python3".into(), uid: 0 };
    let kind = EventKind::Signalled { sender, target: leader(10), signal: 9, code: 0x80 };
    ledger.apply(&event(200_000, kind));
    ledger.apply(&event(200_001, EventKind::OomKilled { victim: leader(10) }));
    let killed = ledger.history(process(10)).and_then(|history| history.killed.clone());
    assert_eq!(killed.map(|killed| (killed.at_ns, killed.by)), Some((200_000, Killer::OutOfMemory)));
}

#[test]
fn exec_closes_what_was_close_on_exec() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&event(150_000, EventKind::Execed { task: leader(10), comm: "sh".into() }));
    let drift =
        ledger.reconcile(&world(200_000, vec![Task { comm: "sh".into(), ..task(10, 10) }], vec![], vec![]));
    let closed = (Some(10), &ChangeKind::Closed { cause: CloseCause::Exec });
    assert!(said(&drift.changes).contains(&closed), "{:?}", drift.changes);
}

#[test]
fn mapping_unmapping_and_closing_are_told_apart() {
    let mut ledger = ledger_with_one_holder();
    let mut look = |taken_ns, references: Vec<Reference>| {
        let files = vec![device(1, GPU0, references.len() as u64)];
        let drift = ledger.reconcile(&world(taken_ns, vec![task(10, 10)], files, references));
        drift.changes.into_iter().map(|change| change.kind).collect::<Vec<_>>()
    };
    assert_eq!(look(200_000, vec![fd(1, 10, 3), map(1, 10, 0)]), [ChangeKind::Mapped { exact: false }]);
    assert_eq!(look(300_000, vec![map(1, 10, 0)]), [ChangeKind::DescriptorsClosed]);
    assert_eq!(look(400_000, vec![map(1, 10, 0), fd(1, 10, 4)]), []);
    assert_eq!(look(500_000, vec![fd(1, 10, 4)]), [ChangeKind::Unmapped]);
}

#[test]
fn lost_events_leave_a_gap_that_the_next_complete_snapshot_closes() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&event(150_000, EventKind::Lost { count: 2, cause: "ring-full" }));
    ledger.apply(&event(160_000, EventKind::Lost { count: 3, cause: "ring-full" }));
    let mut blind = one_holder(170_000);
    blind.missing.push(Missing { what: "mappings", why: "hung".to_owned() });
    ledger.reconcile(&blind);
    assert_eq!(ledger.gaps().entries(), []);
    let drift = ledger.reconcile(&one_holder(200_000));
    let cause = GapCause::Lost { cause: "ring-full", count: 5 };
    let gap = Gap { from_ns: 100_000, to_ns: 200_000, cause };
    assert_eq!(said(&drift.changes), [(None, &ChangeKind::Gap(gap.clone()))]);
    assert_eq!(ledger.gaps().entries(), [gap]);
}

#[test]
fn a_file_that_nothing_announced_is_counted_as_drift() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    let drift = ledger.reconcile(&one_holder(100_000));
    assert_eq!((drift.unannounced, ledger.drift().unannounced), (1, 1));
}

#[test]
fn a_history_keeps_the_first_name_and_the_last_and_says_how_many_are_missing() {
    let mut ledger = ledger_with_one_holder();
    let name = |n: usize| RawText::from(n.to_string().as_str());
    for n in 0..100 {
        let renamed = EventKind::Renamed { task: leader(10), old: name(n), new: name(n + 1) };
        ledger.apply(&event(200_000 + n as u64, renamed));
    }
    let names = ledger.history(process(10)).map(|history| history.names.clone()).expect("a holder");
    let ends = (names.entries()[0].old.clone(), names.entries()[NAMES_KEPT - 1].new.clone());
    assert_eq!((ends, names.dropped()), ((name(0), name(100)), 100 - NAMES_KEPT as u64));
}

#[test]
fn processes_are_forgotten_when_no_file_names_them() {
    let mut ledger = ledger_with_one_holder();
    for child in 200..300 {
        ledger.apply(&forked(u64::from(child) * 1_000, 10, child));
    }
    assert_eq!(ledger.tracked().len(), 101);
    ledger.reconcile(&one_holder(400_000));
    ledger.reconcile(&one_holder(500_000));
    assert_eq!(ledger.tracked(), [process(10)]);
    ledger.reconcile(&world(600_000, vec![], vec![], vec![]));
    ledger.reconcile(&world(700_000, vec![], vec![], vec![]));
    assert_eq!((ledger.tracked(), ledger.history(process(10))), (vec![], None));
}

#[test]
fn a_storm_between_two_snapshots_fills_no_memory_and_forgets_no_holder() {
    let mut ledger = ledger_with_one_holder();
    for child in 1_000..101_000 {
        ledger.apply(&forked(u64::from(child) * 1_000, 10, child));
        ledger.apply(&touched(u64::from(child) * 1_000, child, GPU0));
    }
    let (processes, touchers) = (ledger.processes.iter().count(), ledger.touches.processes().count());
    assert!(processes < 40_000 && touchers < 10_000, "{processes} processes, {touchers} touchers");
    assert!(ledger.tracked().contains(&process(10)));
}

#[test]
fn a_file_first_heard_of_when_its_opener_exits_has_an_opener() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(60_000, 10, GPU0));
    let changes = ledger.apply(&exiting(70_000, 10, 9, &[(1, 3)]));
    let opened = ledger.view().files[0].opened.clone().expect("the touch announced it");
    assert_eq!((opened.at_ns, opened.exact, opened.opener.process), (60_000, true, process(10)));
    let found = said(&changes).iter().any(|(_, kind)| **kind == ChangeKind::Found);
    assert!(!found, "it opened it and has not just come to it: {changes:?}");
}

#[test]
fn a_file_first_heard_of_when_an_heir_exits_was_opened_by_the_ancestor_who_touched_the_device() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(60_000, 10, GPU0));
    ledger.apply(&forked(61_000, 10, 200));
    let killed = ledger.apply(&killed(69_000, 10, 200));
    assert!(!killed.is_empty(), "the child of one who may have opened something matters");
    let changes = ledger.apply(&exiting(70_000, 200, 9, &[(1, 3)]));
    let opener = ledger.view().files[0].opened.clone().map(|opened| opened.opener.process);
    assert_eq!(opener, Some(process(10)));
    let inherited = (Some(200), &ChangeKind::Inherited { from: process(10) });
    assert!(said(&changes).contains(&inherited), "{changes:?}");
    // The parent then shows up with it, and has not got it from its child.
    let parent = world(300_000, vec![task(10, 10)], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]);
    let drift = ledger.reconcile(&parent);
    assert_eq!(origins(&ledger), [(10, Origin::Opened)], "{:?}", drift.changes);
}

#[test]
fn who_was_born_before_the_open_has_been_handed_it_even_where_both_are_new() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(160_000, 110, GPU0));
    let receiver = Task { ppid: 110, ..task(120, 120) };
    ledger.reconcile(&world(
        300_000,
        vec![task(10, 10), task(110, 110), receiver],
        vec![device(1, GPU0, 2)],
        vec![fd(1, 110, 3), fd(1, 120, 3)],
    ));
    let passed = Origin::Passed { from: Some(process(110)) };
    assert_eq!(origins(&ledger), [(110, Origin::Opened), (120, passed)]);
}

#[test]
fn a_mapping_that_was_seen_to_be_made_is_told_with_its_moment_and_once() {
    let mapped =
        |at_ns, file, tgid| event(at_ns, EventKind::Mapped { file: FileKey(file), task: leader(tgid) });
    let mut ledger = ledger_with_one_holder();
    let changes = ledger.apply(&mapped(100_500, 1, 10));
    let exactly = ChangeKind::Mapped { exact: true };
    assert_eq!((said(&changes), changes[0].at_ns), (vec![(Some(10), &exactly)], 100_500));
    assert_eq!(ledger.apply(&mapped(100_600, 1, 10)), [], "it has one already");
    let references = vec![fd(1, 10, 3), map(1, 10, 0), map(1, 10, 8192)];
    let drift = ledger.reconcile(&world(101_000, vec![task(10, 10)], vec![device(1, GPU0, 3)], references));
    assert_eq!(drift.changes, [], "the look shows what was told");
    assert_eq!(ledger.apply(&mapped(100_700, 1, 10)), [], "older than the look");
    assert_eq!(ledger.apply(&mapped(102_000, 1, 20)), [], "how it came to the file is for a look to say");
    assert_eq!(ledger.apply(&mapped(102_000, 7, 10)), [], "nobody knows this file");
}

//! A file on its way out.

use super::*;
use crate::ledger::FileState;
use crate::model::change::ReleasedHow;

fn states(ledger: &Ledger) -> Vec<&'static str> {
    ledger.view().files.iter().map(|file| file.state.word()).collect()
}

fn how(changes: &[Change]) -> Vec<ReleasedHow> {
    let how = |change: &Change| match change.kind {
        ChangeKind::Released { how, .. } => Some(how),
        _ => None,
    };
    changes.iter().filter_map(how).collect()
}

#[test]
fn a_file_whose_killed_holder_is_half_way_through_exit_is_detached_and_not_released() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&killed(100_010, 99, 10));
    ledger.apply(&exiting(100_020, 10, 9, &[(1, 3)]));
    let drift = ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    let view = ledger.view();
    assert_eq!(states(&ledger), ["detached"], "{:?}", drift.changes);
    assert_eq!(holding(&view), [(10, 10, 0, 1)]);
    assert!(view.holders[0].carrier.exiting);
    assert_eq!(view.files[0].dropped_by, [leader(10)]);
    assert_eq!(ledger.pending().len(), 1);
    let detached = ChangeKind::Detached { by: vec![leader(10)] };
    assert!(said(&drift.changes).contains(&(Some(10), &detached)), "{:?}", drift.changes);

    let drift = ledger.reconcile(&world(200_000, vec![half_gone(10, 10)], vec![], vec![]));
    assert_eq!(
        (states(&ledger), drift.changes),
        (vec!["detached"], vec![]),
        "it stays so and is not news again"
    );
}

#[test]
fn a_detached_file_is_released_once_its_last_task_is_a_zombie() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&killed(100_010, 99, 10));
    ledger.apply(&exiting(100_020, 10, 9, &[(1, 3)]));
    ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    let drift = ledger.reconcile(&world(105_010, vec![zombie(10)], vec![], vec![]));
    let released = ChangeKind::Released {
        how: ReleasedHow::Absent,
        last_holder: Some(process(10)),
        after_kill_ns: Some(5_000),
        after_exit_ns: Some(4_990),
    };
    assert_eq!(said(&drift.changes), [(Some(10), &released)]);
    assert_eq!(ledger.view().files, []);
}

#[test]
fn an_exit_seen_only_by_its_event_is_enough_to_name_the_holder() {
    // Opened and killed between two snapshots: the table at exit is all there ever was to see.
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(100_010, 10, GPU0));
    ledger.apply(&exiting(100_020, 10, 9, &[(1, 3), (1, 4)]));
    ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    assert_eq!((states(&ledger), holding(&ledger.view())), (vec!["detached"], vec![(10, 10, 0, 2)]));
}

#[test]
fn a_reference_that_an_exiting_task_had_is_credited_to_it_and_not_called_unexplained() {
    let mut ledger = Ledger::new();
    let both = vec![fd(1, 10, 3), fd(1, 20, 3)];
    ledger.reconcile(&world(100_000, vec![task(10, 10), task(20, 20)], vec![device(1, GPU0, 2)], both));
    ledger.apply(&exiting(100_020, 10, 9, &[(1, 3)]));
    let tasks = || vec![half_gone(10, 10), task(20, 20)];
    ledger.reconcile(&world(100_100, tasks(), vec![device(1, GPU0, 2)], vec![fd(1, 20, 3)]));
    let view = ledger.view();
    assert_eq!(holding(&view), [(10, 10, 0, 1), (20, 20, 1, 0)]);
    assert_eq!((view.files[0].named, view.files[0].dropping, view.files[0].unexplained), (1, 1, 0));

    ledger.reconcile(&world(100_200, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 20, 3)]));
    assert_eq!(holding(&ledger.view()), [(20, 20, 1, 0)], "the count says that it has dropped it");
}

#[test]
fn of_two_exiting_tasks_either_may_be_the_one_that_still_has_the_last_reference() {
    let mut ledger = Ledger::new();
    let tasks = vec![task(10, 10), task(20, 20), task(30, 30)];
    let references = vec![fd(1, 10, 3), fd(1, 20, 3), fd(1, 30, 3)];
    ledger.reconcile(&world(100_000, tasks, vec![device(1, GPU0, 3)], references));
    let tasks = vec![half_gone(10, 10), half_gone(20, 20), task(30, 30)];
    ledger.reconcile(&world(100_100, tasks, vec![device(1, GPU0, 2)], vec![fd(1, 30, 3)]));
    let view = ledger.view();
    assert_eq!(holding(&view), [(10, 10, 0, 1), (20, 20, 0, 1), (30, 30, 1, 0)]);
    assert_eq!((view.files[0].dropping, view.files[0].unexplained), (1, 0));
}

#[test]
fn a_file_closed_by_a_living_process_is_released_when_a_complete_snapshot_lacks_it() {
    let mut ledger = ledger_with_one_holder();
    let drift = ledger.reconcile(&world(100_100, vec![task(10, 10)], vec![], vec![]));
    assert_eq!((how(&drift.changes), drift.vanished), (vec![ReleasedHow::Absent], 1));
}

#[test]
fn a_file_is_not_released_by_a_snapshot_that_could_not_see_everywhere() {
    let mut ledger = ledger_with_one_holder();
    let mut blind = world(100_100, vec![task(10, 10)], vec![], vec![]);
    blind.missing.push(Missing { what: "in-flight", why: "not allowed".to_owned() });
    ledger.reconcile(&blind);
    assert_eq!((states(&ledger), ledger.pending().len()), (vec!["detached"], 1));
    let drift = ledger.reconcile(&world(100_200, vec![task(10, 10)], vec![], vec![]));
    assert_eq!(how(&drift.changes), [ReleasedHow::Absent]);
}

#[test]
fn a_task_half_way_through_exit_makes_no_other_file_doubtful() {
    let mut ledger = ledger_with_one_holder();
    let mut snapshot = world(100_100, vec![task(10, 10), half_gone(77, 77)], vec![], vec![]);
    snapshot.missing.push(Missing { what: "half-exited-task", why: "77".to_owned() });
    assert_eq!(how(&ledger.reconcile(&snapshot).changes), [ReleasedHow::Absent]);
}

#[test]
fn a_closer_in_uninterruptible_sleep_may_be_stuck_in_the_release() {
    let mut ledger = ledger_with_one_holder();
    let stuck = Task { state: TaskState::Uninterruptible, ..task(10, 10) };
    ledger.reconcile(&world(100_100, vec![stuck], vec![], vec![]));
    assert_eq!((states(&ledger), holding(&ledger.view())), (vec!["unreferenced"], vec![(10, 10, 0, 1)]));
    ledger.reconcile(&world(100_200, vec![task(10, 10)], vec![], vec![]));
    assert_eq!(states(&ledger), [""; 0]);
}

#[test]
fn with_rechecks_only_the_kernel_can_say_that_a_file_is_gone() {
    let mut ledger = Ledger::with_rechecks();
    ledger.reconcile(&one_holder(100_000));
    for taken_ns in [100_100, 100_200] {
        ledger.reconcile(&world(taken_ns, vec![task(10, 10)], vec![], vec![]));
        assert_eq!((states(&ledger), ledger.pending().len()), (vec!["unreferenced"], 1));
    }
    let changes = ledger.apply(&checked(100_300, 1, Some(1)));
    assert_eq!(states(&ledger), ["detached"], "it lives, so something refers to it: {changes:?}");
    assert_eq!(ledger.view().files[0].unexplained, 1);
    assert_eq!(how(&ledger.apply(&checked(100_400, 1, None))), [ReleasedHow::Checked]);
}

#[test]
fn a_file_that_the_kernel_says_is_alive_is_not_released_by_absence() {
    let mut ledger = ledger_with_one_holder();
    ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    ledger.apply(&checked(100_150, 1, Some(0)));
    assert_eq!(states(&ledger), ["unreferenced"]);
    ledger.reconcile(&world(100_200, vec![zombie(10)], vec![], vec![]));
    assert_eq!(states(&ledger), ["unreferenced"], "a kernel worker may be releasing it");
    assert_eq!(how(&ledger.apply(&checked(100_300, 1, None))), [ReleasedHow::Checked]);
}

#[test]
fn a_file_whose_release_waits_behind_another_still_names_the_task_it_waits_for() {
    let mut ledger = Ledger::with_rechecks();
    ledger.reconcile(&one_holder(100_000));
    ledger.apply(&exiting(100_020, 10, 9, &[(1, 3)]));
    for at_ns in [100_100, 100_200] {
        ledger.reconcile(&world(at_ns, vec![half_gone(10, 10)], vec![], vec![]));
        ledger.apply(&checked(at_ns + 50, 1, Some(0)));
        let view = ledger.view();
        assert_eq!((states(&ledger), holding(&view)), (vec!["unreferenced"], vec![(10, 10, 0, 1)]));
        assert_eq!((view.files[0].dropping, view.files[0].unexplained), (0, 0));
    }
}

#[test]
fn a_release_in_progress_names_its_task_and_ends_with_its_event() {
    let mut ledger = ledger_with_one_holder();
    let releasing = EventKind::Releasing { file: FileKey(1), device: GPU0, task: leader(10) };
    ledger.apply(&event(100_050, releasing));
    ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    let view = ledger.view();
    assert_eq!(view.files[0].state, FileState::Releasing { task: leader(10), since_ns: 100_050 });
    assert_eq!(holding(&view), [(10, 10, 0, 1)]);
    assert_eq!(how(&ledger.apply(&released(100_300, 1))), [ReleasedHow::Seen]);
    assert_eq!(ledger.view().files, []);
    assert_eq!(ledger.view().holders, [], "who held only that is no holder any more");
}

#[test]
fn a_deferred_release_goes_on_when_another_file_gets_the_address() {
    let mut ledger = ledger_with_one_holder();
    let work = FileKey(77);
    ledger.apply(&event(100_050, EventKind::Releasing { file: FileKey(1), device: GPU0, task: leader(10) }));
    ledger.apply(&event(100_060, EventKind::ReleaseDeferred { file: FileKey(1), device: GPU0, work }));
    ledger.apply(&opened(100_070, 10, 1, GPU0));
    ledger.reconcile(&one_holder(100_100));
    ledger.apply(&checked(100_150, 77, None));
    assert_eq!(states(&ledger), ["deferred", "open"]);
    let living: Vec<FileKey> = ledger.living().iter().map(|file| file.file).collect();
    assert_eq!(living, [FileKey(1)], "there is nothing to be looked at of what was deferred");
    assert_eq!(how(&ledger.apply(&released(100_300, 77))), [ReleasedHow::Seen]);
    assert_eq!(states(&ledger), ["open"]);
}

#[test]
fn what_is_told_once_more_after_a_loss_is_not_given_up() {
    let mut ledger = ledger_with_one_holder();
    let deferred =
        |work| EventKind::ReleaseDeferred { file: FileKey(work), device: GPU0, work: FileKey(work) };
    ledger.apply(&event(
        100_060,
        EventKind::ReleaseDeferred { file: FileKey(1), device: GPU0, work: FileKey(77) },
    ));
    ledger.reconcile(&world(100_065, vec![], vec![], vec![]));
    ledger.apply(&event(100_070, EventKind::Lost { count: 3, cause: "ring-full" }));
    // One that was known, and one whose event was among those lost.
    ledger.apply(&event(100_060, deferred(77)));
    ledger.apply(&event(100_062, deferred(88)));
    ledger.reconcile(&world(100_100, vec![], vec![], vec![]));
    assert_eq!(states(&ledger), ["deferred", "deferred"]);
}

#[test]
fn the_touch_before_an_open_that_was_followed_makes_nobody_the_opener_of_another_file() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![], vec![]));
    ledger.apply(&touched(100_010, 10, GPU0));
    let opening =
        EventKind::Opening { file: FileKey(1), device: GPU0, task: leader(10), comm: "python3".into() };
    ledger.apply(&event(100_011, opening));
    ledger.apply(&opened(100_012, 10, 1, GPU0));
    // The second came by another way.
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1)];
    ledger.reconcile(&world(100_100, vec![task(10, 10)], files, vec![fd(1, 10, 3), fd(2, 10, 4)]));
    let openers: Vec<bool> = ledger.view().files.iter().map(|file| file.opened.is_some()).collect();
    assert_eq!(openers, [true, false]);
}

#[test]
fn a_deferred_release_outlives_the_file_and_its_process() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&event(100_050, EventKind::Releasing { file: FileKey(1), device: GPU0, task: leader(10) }));
    ledger.apply(&event(
        100_060,
        EventKind::ReleaseDeferred { file: FileKey(1), device: GPU0, work: FileKey(77) },
    ));
    ledger.reconcile(&world(100_100, vec![], vec![], vec![]));
    ledger.apply(&checked(100_150, 1, None));
    assert_eq!(states(&ledger), ["deferred"], "the file is gone, the driver's work is not");
    assert_eq!(how(&ledger.apply(&released(100_300, 77))), [ReleasedHow::Seen]);
}

#[test]
fn a_deferred_release_whose_end_may_have_been_lost_is_given_up_without_claiming_proof() {
    let mut ledger = ledger_with_one_holder();
    ledger.apply(&event(
        100_060,
        EventKind::ReleaseDeferred { file: FileKey(1), device: GPU0, work: FileKey(77) },
    ));
    ledger.apply(&event(100_070, EventKind::Lost { count: 3, cause: "ring-full" }));
    assert_eq!(ledger.pending().len(), 1);
    let drift = ledger.reconcile(&world(100_100, vec![], vec![], vec![]));
    assert_eq!(how(&drift.changes), [ReleasedHow::NotSeen]);
}

#[test]
fn an_open_that_hangs_is_shown_and_ends_with_its_task() {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![], vec![]));
    let opening =
        EventKind::Opening { file: FileKey(1), device: GPU0, task: leader(10), comm: "python3".into() };
    ledger.apply(&event(100_010, opening));
    ledger.reconcile(&world(100_100, vec![task(10, 10)], vec![], vec![]));
    assert_eq!(states(&ledger), ["opening"]);
    let drift = ledger.reconcile(&world(100_200, vec![zombie(10)], vec![], vec![]));
    assert_eq!(said(&drift.changes), [(Some(10), &ChangeKind::OpenFailed { error: 0 })]);
    assert_eq!(ledger.view().files, []);
}

#[test]
fn a_file_reported_opened_after_a_snapshot_was_begun_is_not_taken_for_released_by_it() {
    let mut ledger = Ledger::new();
    ledger.apply(&opened(100_050, 10, 1, GPU0));
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![], vec![]));
    assert_eq!(states(&ledger), ["open"]);
}

#[test]
fn a_walk_of_proc_forgets_what_it_does_not_see_without_claiming_proof() {
    let walk = |taken_ns, files, references| Snapshot {
        source: Source::ProcWalk,
        ..world(taken_ns, vec![task(10, 10)], files, references)
    };
    let uncounted = OpenFile { count: None, ..device(1, GPU0, 0) };
    let mut ledger = Ledger::new();
    ledger.reconcile(&walk(1, vec![uncounted], vec![fd(1, 10, 3)]));
    assert_eq!(how(&ledger.reconcile(&walk(2, vec![], vec![])).changes), [ReleasedHow::NotSeen]);
}

#[test]
fn files_of_a_device_that_is_not_watched_any_more_are_forgotten_and_nobody_holds_them() {
    let mut ledger = ledger_with_one_holder();
    assert_eq!(ledger.forget_devices(200_000, |number| number == GPU0), []);
    assert_eq!(ledger.view().files.len(), 1, "it is watched");
    let changes = ledger.forget_devices(200_000, |number| number != GPU0);
    assert_eq!(how(&changes), [ReleasedHow::NotSeen]);
    let view = ledger.view();
    assert_eq!((view.files.len(), view.holders.len(), ledger.living().len()), (0, 0, 0), "{view:?}");
}

#[test]
fn the_memory_of_a_crowd_of_files_is_given_back_when_they_have_gone() {
    let mut ledger = Ledger::new();
    let files = (1..=5_000).map(|key| device(key, GPU0, 1)).collect();
    let references = (1..=5_000).map(|key| fd(key, 10, key as u32)).collect();
    ledger.reconcile(&world(100_000, vec![task(10, 10)], files, references));
    assert!(!ledger.shrink(), "it is needed");
    ledger.reconcile(&one_holder(200_000));
    assert_eq!(ledger.view().files.len(), 1);
    assert!(ledger.shrink());
    assert!(!ledger.shrink(), "once");
    assert_eq!(ledger.view().files.len(), 1);
}

#[test]
fn the_descriptor_that_an_exit_cannot_get_past_lies_before_the_first_device_that_is_not_released() {
    let mut ledger = Ledger::with_rechecks();
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1)];
    ledger.reconcile(&world(100_000, vec![task(10, 10)], files, vec![fd(1, 10, 4), fd(2, 10, 8)]));
    let mut exit = exiting(100_020, 10, 9, &[(1, 4), (2, 8)]);
    let waits = |fd| MayWait { fd, file_system: 0x6969 };
    if let EventKind::Exiting { may_wait, .. } = &mut exit.kind {
        *may_wait = vec![waits(3), waits(5), waits(9)];
    }
    ledger.apply(&exit);
    let closing = |ledger: &Ledger| ledger.view().holders[0].closing.clone();
    ledger.reconcile(&world(100_100, vec![half_gone(10, 10)], vec![], vec![]));
    assert_eq!(closing(&ledger), [waits(3)], "none of the devices is released");
    ledger.apply(&checked(100_200, 1, None));
    assert_eq!(closing(&ledger), [waits(5)], "the first is");
}

/// The file at address 1, which 10 opened at 105,000, is seen by the look of 100,000 at 110,000; then this happens; then the look is over.
fn gone_before_the_look_was_over(ends: impl Fn(&mut Ledger)) -> (Vec<u64>, Ledger) {
    let mut ledger = Ledger::with_rechecks();
    ledger.reconcile(&world(50_000, vec![task(10, 10)], Vec::new(), Vec::new()));
    ledger.apply(&opened(105_000, 10, 1, GPU0));
    ends(&mut ledger);
    let seen = OpenFile { seen_ns: 110_000, ..device(1, GPU0, 1) };
    ledger.reconcile(&world(100_000, vec![task(10, 10)], vec![seen], vec![fd(1, 10, 3)]));
    let open =
        ledger.view().files.iter().filter(|file| file.state == FileState::Open).map(|file| file.id).collect();
    (open, ledger)
}

#[test]
fn what_was_seen_and_released_before_the_look_was_over_does_not_come_back() {
    let (open, _) = gone_before_the_look_was_over(|ledger| _ = ledger.apply(&released(115_000, 1)));
    assert_eq!(open, [0; 0]);
    let (open, _) = gone_before_the_look_was_over(|ledger| _ = ledger.apply(&checked(115_000, 1, None)));
    assert_eq!(open, [0; 0]);
    let (open, ledger) = gone_before_the_look_was_over(|ledger| {
        let deferred = EventKind::ReleaseDeferred { file: FileKey(1), device: GPU0, work: FileKey(77) };
        ledger.apply(&event(115_000, deferred));
    });
    assert_eq!((open, ledger.view().files.len()), (vec![], 1), "the work that was deferred is left");
}

#[test]
fn what_was_seen_after_another_file_at_its_address_was_released_is_there() {
    let (open, _) = gone_before_the_look_was_over(|ledger| {
        ledger.apply(&released(106_000, 1));
    });
    assert_eq!(open.len(), 1);
    let (open, _) = gone_before_the_look_was_over(|ledger| {
        ledger.apply(&released(115_000, 1));
        ledger.apply(&opened(116_000, 10, 1, GPU0));
    });
    assert_eq!(open.len(), 1, "opened again since: the look says nothing of it");
}

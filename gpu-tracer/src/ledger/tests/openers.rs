//! Who opened what, and what is at an address that was in use before, from the slots that opens reserved.

use super::*;
use crate::ledger::Opened;
use crate::model::change::ReleasedHow;

/// (opener, when, is that exact?) of each file, by id.
pub(super) fn openings(ledger: &Ledger) -> Vec<Option<(u32, u64, bool)>> {
    let opening = |opened: &Opened| (opened.opener.process.tgid, opened.at_ns, opened.exact);
    ledger.view().files.iter().map(|file| file.opened.as_ref().map(opening)).collect()
}

pub(super) fn ids(ledger: &Ledger) -> Vec<u64> {
    ledger.view().files.iter().map(|file| file.id).collect()
}

pub(super) fn tasks() -> Vec<Task> {
    vec![task(10, 10), task(20, 20)]
}

/// Everything was looked at and nobody held anything.
pub(super) fn nothing_open() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(40_000, tasks(), vec![], vec![]));
    ledger.reconcile(&world(50_000, tasks(), vec![], vec![]));
    ledger
}

/// The file at address 1, which 10 opened as 3 at 60,000, was seen at 100,000.
fn one_open() -> Ledger {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.reconcile(&world(90_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, true))]);
    ledger
}

#[test]
fn files_of_two_processes_opened_within_one_look_are_told_apart_by_their_slots() {
    let mut ledger = nothing_open();
    for (at_ns, tgid, fd) in [(60_000, 10, 3), (61_000, 20, 7), (62_000, 10, 4)] {
        ledger.apply(&opens(at_ns, tgid, GPU0, fd));
    }
    // 10 has passed the file in slot 4 on to 20.
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1), device(3, GPU0, 2)];
    let references = vec![fd(1, 10, 3), fd(2, 20, 7), fd(3, 10, 4), fd(3, 20, 8)];
    ledger.reconcile(&world(100_000, tasks(), files, references));
    let mut openings = openings(&ledger);
    openings.sort_unstable();
    assert_eq!(openings, [Some((10, 60_000, true)), Some((10, 62_000, true)), Some((20, 61_000, true))]);
}

#[test]
fn an_opener_is_only_likely_while_somebody_elses_touch_led_to_no_file() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 20, GPU0, 7));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, false))]);
}

#[test]
fn of_two_who_may_equally_well_have_opened_a_file_none_is_named() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 20, GPU0, 7));
    let both = vec![fd(1, 10, 3), fd(1, 20, 7)];
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 2)], both));
    assert_eq!(openings(&ledger), [None]);
    // And where a file is in no slot that was opened.
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 20, GPU0, 7));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 9)]));
    assert_eq!(openings(&ledger), [None]);
}

#[test]
fn an_open_that_the_look_came_too_early_for_is_matched_in_the_next() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    // While the look went on; another process opens something before the next.
    ledger.apply(&opens(100_500, 10, GPU0, 4));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    ledger.apply(&opens(150_000, 20, GPU0, 7));
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1), device(3, GPU0, 1)];
    let references = vec![fd(1, 10, 3), fd(2, 10, 4), fd(3, 20, 7)];
    ledger.reconcile(&world(200_000, tasks(), files, references));
    let expected = [Some((10, 60_000, true)), Some((10, 100_500, true)), Some((20, 150_000, true))];
    assert_eq!(openings(&ledger), expected);
}

#[test]
fn what_is_seen_in_a_slot_that_is_opened_while_the_look_goes_on_may_have_been_there_before_that() {
    // 10 duplicates its file to slot 8, and closes both while the look goes on; then it opens another as 8.
    let mut ledger = one_open();
    let before = ids(&ledger);
    ledger.apply(&opens(200_500, 10, GPU0, 8));
    ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 8)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (before, vec![Some((10, 60_000, true))]));
    // And a file that is new: in this look it may be that of 20, in the next it is where 10 opened it.
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 20, GPU0, 5));
    ledger.apply(&opens(100_500, 10, GPU0, 3));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!((openings(&ledger), ledger.drift().unannounced), (vec![None], 0));
    ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger).len(), 1);
    assert_eq!(openings(&ledger)[0].map(|(opener, at_ns, _)| (opener, at_ns)), Some((10, 100_500)));
}

#[test]
fn a_file_that_was_opened_and_moved_while_the_look_went_on_is_not_said_to_be_an_earlier_openers() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 20, GPU0, 5));
    ledger.apply(&opens(100_500, 10, GPU0, 3));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 9)]));
    assert_eq!(openings(&ledger), [None]);
}

#[test]
fn an_open_that_takes_the_driver_several_looks_is_still_its_openers() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    for taken_ns in [100_000, 200_000, 300_000] {
        ledger.reconcile(&world(taken_ns, tasks(), vec![], vec![]));
    }
    ledger.apply(&opens(350_000, 20, GPU0, 7));
    ledger.reconcile(&world(400_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, false))]);
}

#[test]
fn a_file_closed_and_opened_again_at_the_same_address_and_slot_is_another() {
    let mut ledger = one_open();
    let before = ids(&ledger);
    ledger.apply(&opens(150_000, 10, GPU0, 3));
    let drift = ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_ne!(ids(&ledger), before, "{:?}", drift.changes);
    // It might be the old one after all: an open that failed, and a duplicate that was moved back.
    assert_eq!(openings(&ledger), [Some((10, 150_000, false))]);
    let released = |change: &Change| {
        matches!(change.kind, ChangeKind::Released { how: ReleasedHow::Replaced, .. })
            && change.file == Some(before[0])
    };
    assert!(drift.changes.iter().any(released), "{:?}", drift.changes);
    ledger.reconcile(&world(300_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(ledger.drift().replaced, 1, "once");
}

#[test]
fn a_file_that_moved_to_a_new_holder_who_opens_something_else_is_still_the_same() {
    let mut ledger = one_open();
    let before = ids(&ledger);
    ledger.apply(&forked(150_000, 10, 200));
    ledger.apply(&event(
        160_000,
        EventKind::DeviceTouched {
            task: leader(200),
            device: GPU0,
            access: Access::default(),
            slot: Some(Slot { table: TableKey(200), fd: 4 }),
            file: None,
            untold_until_ns: None,
            comm: "python3".into(),
        },
    ));
    // The parent has closed it; the child has it, and opened another.
    let all = vec![task(10, 10), task(20, 20), task(200, 200)];
    let references = vec![fd(1, 200, 3), fd(2, 200, 4)];
    ledger.reconcile(&world(300_000, all, vec![device(1, GPU0, 1), device(2, GPU0, 1)], references));
    assert_eq!(ids(&ledger)[0], before[0]);
    assert_eq!(openings(&ledger)[0], Some((10, 60_000, true)));
    assert_eq!(openings(&ledger)[1].map(|(opener, at_ns, _)| (opener, at_ns)), Some((200, 160_000)));
}

#[test]
fn a_file_that_may_have_been_replaced_is_not_said_to_have_been_opened_exactly_then() {
    let mut ledger = one_open();
    let before = ids(&ledger);
    // Closed and opened again as 3, then moved to 8? Or moved to 8, and what was opened as 3 is closed?
    ledger.apply(&opens(150_000, 10, GPU0, 3));
    ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 8)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (before, vec![Some((10, 60_000, false))]));
}

#[test]
fn a_reference_that_stayed_proves_that_the_file_did() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    let references = || vec![fd(1, 10, 3), map(1, 10, 0)];
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 2)], references()));
    let before = ids(&ledger);
    // The slot was empty in between; the mapping was not.
    ledger.apply(&opens(150_000, 10, GPU0, 3));
    ledger.reconcile(&world(200_000, tasks(), vec![device(1, GPU0, 2)], references()));
    assert_eq!(ids(&ledger), before);
}

#[test]
fn what_a_process_keeps_over_exec_was_opened_by_it() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 20, GPU0, 3));
    let exec = vec![Task { table: Some(TableKey(77)), ..task(10, 10) }, task(20, 20)];
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1)];
    ledger.reconcile(&world(100_000, exec, files, vec![fd(1, 77, 3), fd(2, 20, 3)]));
    let mut openings = openings(&ledger);
    openings.sort_unstable();
    assert_eq!(openings, [Some((10, 60_000, true)), Some((20, 61_000, true))]);
}

#[test]
fn what_a_child_has_in_a_slot_that_its_parent_opened_before_the_fork_was_opened_by_the_parent() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(160_000, 10, GPU0, 3));
    ledger.apply(&forked(200_000, 10, 200));
    ledger.apply(&opens(210_000, 10, GPU0, 3));
    ledger.apply(&opens(220_000, 20, GPU0, 5));
    // The parent has closed the first and opened another as 3.
    let all = vec![task(10, 10), task(20, 20), task(200, 200)];
    let files = vec![device(1, GPU0, 1), device(2, GPU0, 1), device(3, GPU0, 1)];
    let references = vec![fd(1, 200, 3), fd(2, 10, 3), fd(3, 20, 5)];
    ledger.reconcile(&world(300_000, all, files, references));
    let mut openings = openings(&ledger);
    openings.sort_unstable();
    let expected = [Some((10, 160_000, true)), Some((10, 210_000, true)), Some((20, 220_000, true))];
    assert_eq!(openings, expected);
}

#[test]
fn a_file_first_heard_of_when_one_exits_was_opened_by_whoever_shares_the_table_and_opened_it_there() {
    let mut ledger = nothing_open();
    let by_twenty = |at_ns, task| {
        let slot = Some(Slot { table: TableKey(10), fd: 5 });
        let kind = EventKind::DeviceTouched {
            task,
            device: GPU0,
            access: Access::default(),
            slot,
            file: None,
            untold_until_ns: None,
            comm: "python3".into(),
        };
        event(at_ns, kind)
    };
    ledger.apply(&by_twenty(60_000, leader(10)));
    // That one was closed; then 20, which shares the table, opened another.
    ledger.apply(&by_twenty(61_000, leader(20)));
    ledger.apply(&exiting(70_000, 10, 9, &[(1, 5)]));
    assert_eq!(openings(&ledger), [Some((20, 61_000, false))]);
}

#[test]
fn a_file_opened_again_at_its_address_is_another_when_only_an_exit_shows_it() {
    let mut ledger = one_open();
    let before = ids(&ledger);
    ledger.apply(&opens(150_000, 10, GPU0, 3));
    ledger.apply(&exiting(160_000, 10, 9, &[(1, 3)]));
    assert_ne!(ids(&ledger), before);
    assert_eq!(openings(&ledger), [Some((10, 150_000, false))]);
}

#[test]
fn a_slot_opened_for_another_device_since_says_nothing_of_an_earlier_open() {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 10, CTL, 3));
    ledger.apply(&opens(62_000, 20, GPU0, 4));
    // The file of `nvidia0` in slot 3 came there after both: from 20, for example.
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger), [None]);
}

/// A table that three processes share; one of them gets a copy of it and exits.
#[test]
fn at_an_exit_others_who_touched_the_device_are_not_forgotten_however_many_touched_it_since() {
    for between in [0, 1, 2, 40] {
        let mut ledger = nothing_open();
        ledger.apply(&forked(53_000, 10, 53));
        // What is in slot 8 was opened by a stranger to 53; 10, whom 53 descends from, opened something else.
        ledger.apply(&opens(60_000, 20, GPU0, 8));
        for other in 0..between {
            ledger.apply(&opens(61_000 + u64::from(other), 100 + other, GPU0, 3));
        }
        ledger.apply(&opens(62_000, 10, GPU0, 9));
        ledger.apply(&opens(63_000, 53, GPU0, 12));
        ledger.apply(&exiting(70_000, 53, 9, &[(1, 8), (2, 9), (3, 12)]));
        let mut openings = openings(&ledger);
        openings.sort_unstable();
        let known: Vec<_> = openings.iter().flatten().map(|(by, at_ns, _)| (*by, *at_ns)).collect();
        assert_eq!(known, [(53, 63_000)], "{between} others: {openings:?}");
    }
}

#[test]
fn who_was_forked_before_an_open_was_handed_the_file_although_its_opener_is_only_likely() {
    let mut ledger = nothing_open();
    ledger.apply(&forked(55_000, 10, 55));
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    // Somebody else's touch that leads to no file: nothing is exact.
    ledger.apply(&opens(61_000, 20, GPU0, 7));
    let tasks = vec![task(10, 10), task(20, 20), task(55, 55)];
    let references = vec![fd(1, 10, 3), fd(1, 55, 8)];
    let drift = ledger.reconcile(&world(100_000, tasks, vec![device(1, GPU0, 2)], references));
    assert_eq!(openings(&ledger), [Some((10, 60_000, false))]);
    let handed = ChangeKind::HandedOver { from: vec![process(10)] };
    assert!(said(&drift.changes).contains(&(Some(55), &handed)), "{:?}", drift.changes);
}

#[test]
fn whoever_touched_a_device_before_the_first_look_is_not_taken_for_the_opener_of_what_it_shows() {
    // The file may be older than anything that was told.
    let mut ledger = Ledger::new();
    ledger.apply(&touched(60_000, 20, GPU0));
    ledger.reconcile(&world(100_000, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(openings(&ledger), [None]);
}

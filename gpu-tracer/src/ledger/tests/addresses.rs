//! Touches that tell which file the device is opened as.

use super::openers::{ids, nothing_open, openings, tasks};
use super::*;

/// Opens a device as the file at this address, with this descriptor reserved.
fn opens_as(at_ns: u64, tgid: u32, fd: u32, address: u64) -> Event {
    let mut event = opens(at_ns, tgid, GPU0, fd);
    if let EventKind::DeviceTouched { file, .. } = &mut event.kind {
        *file = Some(FileKey(address));
    }
    event
}

/// A look that saw these files (address, process, descriptor) at `seen_ns`.
fn look(taken_ns: u64, seen_ns: u64, held: &[(u64, u32, u32)]) -> Snapshot {
    let files = held.iter().map(|(address, ..)| OpenFile { seen_ns, ..device(*address, GPU0, 1) });
    let references = held.iter().map(|(address, tgid, slot)| fd(*address, u64::from(*tgid), *slot));
    world(taken_ns, tasks(), files.collect(), references.collect())
}

/// The file at address 1, which 10 opened as 3 at 60,000, was seen at 105,000.
fn one_open() -> Ledger {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 10, 3, 1));
    ledger.reconcile(&look(100_000, 105_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![1], vec![Some((10, 60_000, true))]));
    ledger
}

#[test]
fn a_file_at_an_address_that_was_opened_since_is_another_one_wherever_it_is() {
    let mut ledger = one_open();
    // Closed, opened again at the same address as 4, and moved to where the first one was.
    ledger.apply(&opens_as(110_000, 10, 4, 1));
    assert_eq!(ids(&ledger), [0; 0], "what was there is gone");
    ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![2], vec![Some((10, 110_000, true))]));
}

#[test]
fn a_file_whose_address_was_not_opened_since_is_the_same_wherever_it_is() {
    let mut ledger = one_open();
    // An open as 4 at another address, which failed; then the first file is moved there.
    ledger.apply(&opens_as(110_000, 10, 4, 9));
    ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 4)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![1], vec![Some((10, 60_000, true))]));
}

#[test]
fn a_file_opened_while_a_look_went_on_keeps_the_number_that_it_got_then() {
    let mut ledger = one_open();
    ledger.apply(&opens_as(202_000, 10, 3, 1));
    ledger.apply(&opens_as(203_000, 20, 7, 2));
    ledger.reconcile(&look(200_000, 205_000, &[(1, 10, 3), (2, 20, 7)]));
    let found = (ids(&ledger), openings(&ledger));
    assert_eq!(found, (vec![2, 3], vec![Some((10, 202_000, true)), Some((20, 203_000, true))]));
    ledger.reconcile(&look(300_000, 305_000, &[(1, 10, 3), (2, 20, 7)]));
    assert_eq!((ids(&ledger), openings(&ledger)), found);
}

#[test]
fn a_file_that_a_look_saw_and_that_was_gone_before_its_end_is_not_there() {
    let mut ledger = one_open();
    ledger.apply(&opens_as(203_000, 10, 3, 1));
    ledger.reconcile(&look(200_000, 201_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), holding(&ledger.view())), (vec![], vec![]));
    ledger.reconcile(&look(300_000, 301_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![2], vec![Some((10, 203_000, true))]));
}

#[test]
fn a_touch_that_comes_late_makes_another_of_the_file_seen_since() {
    let mut ledger = one_open();
    ledger.reconcile(&look(200_000, 201_000, &[(1, 10, 3)]));
    ledger.apply(&opens_as(150_000, 10, 3, 1));
    assert_eq!(ids(&ledger), [2]);
    // From before the first file was seen: it says nothing new.
    ledger.apply(&opens_as(50_000, 10, 3, 1));
    ledger.reconcile(&look(300_000, 301_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![2], vec![Some((10, 150_000, true))]));
}

#[test]
fn an_open_that_failed_does_not_make_the_openers_of_others_uncertain() {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 10, 3, 1));
    ledger.apply(&opens_as(61_000, 20, 7, 2));
    // 20 has no file for it, and got the other one as the same descriptor.
    ledger.reconcile(&look(100_000, 101_000, &[(1, 20, 7)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, true))]);
}

#[test]
fn an_opener_is_exact_only_if_nothing_was_lost_since() {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 10, 3, 1));
    ledger.apply(&event(70_000, EventKind::Lost { count: 1, cause: "ring-full" }));
    ledger.apply(&opens_as(80_000, 20, 7, 2));
    ledger.reconcile(&look(100_000, 101_000, &[(1, 10, 3), (2, 20, 7)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, false)), Some((20, 80_000, true))]);
}

#[test]
fn after_a_touch_that_tells_no_file_slots_decide() {
    let mut ledger = one_open();
    ledger.apply(&opens(110_000, 10, GPU0, 3));
    ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![2], vec![Some((10, 110_000, false))]));
}

#[test]
fn what_is_seen_first_when_its_opener_exits_has_an_exact_opener() {
    let mut ledger = one_open();
    ledger.apply(&opens_as(110_000, 10, 5, 1));
    ledger.apply(&opens_as(111_000, 20, 6, 3));
    ledger.apply(&exiting(130_000, 10, 9, &[(1, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![2], vec![Some((10, 110_000, true))]));
}

/// As [`opens_as`]; what the same process opens for a while after that is not told.
fn opens_as_the_last_told(at_ns: u64, tgid: u32, fd: u32, address: u64) -> Event {
    let mut event = opens_as(at_ns, tgid, fd, address);
    if let EventKind::DeviceTouched { untold_until_ns, .. } = &mut event.kind {
        *untold_until_ns = Some(at_ns + 10_000);
    }
    event
}

#[test]
fn what_is_opened_while_not_every_touch_is_told_is_not_said_to_be_another_ones() {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 10, 3, 1));
    ledger.apply(&opens_as_the_last_told(61_000, 20, 7, 2));
    // 10 has closed its file, and 20, untold, has opened one at the same address.
    ledger.reconcile(&look(65_000, 66_000, &[(1, 20, 8), (2, 20, 7)]));
    assert_eq!(openings(&ledger), [Some((20, 61_000, false)), None]);
}

#[test]
fn while_not_every_touch_is_told_a_file_that_stays_in_its_slot_stays_the_same() {
    let mut ledger = one_open();
    ledger.apply(&opens_as_the_last_told(110_000, 20, 7, 2));
    ledger.reconcile(&look(115_000, 116_000, &[(1, 10, 3), (2, 20, 7)]));
    ledger.reconcile(&look(200_000, 201_000, &[(1, 10, 3), (2, 20, 7)]));
    assert_eq!((ids(&ledger), openings(&ledger)[0]), (vec![1, 2], Some((10, 60_000, true))));
}

#[test]
fn what_a_process_may_have_opened_anew_and_untold_is_not_exactly_the_one_remembered() {
    let mut ledger = one_open();
    ledger.apply(&opens_as_the_last_told(110_000, 10, 7, 2));
    // The file at address 1 may have been closed and another opened in its place.
    ledger.reconcile(&look(125_000, 126_000, &[(1, 10, 3), (2, 10, 7)]));
    assert_eq!(openings(&ledger)[0], Some((10, 60_000, false)));
}

#[test]
fn what_was_seen_after_the_last_untold_open_stays_exact() {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as_the_last_told(60_000, 10, 7, 2));
    ledger.apply(&opens_as(80_000, 10, 3, 1));
    for taken_ns in [100_000, 200_000] {
        ledger.reconcile(&look(taken_ns, taken_ns + 1_000, &[(1, 10, 3), (2, 10, 7)]));
        assert_eq!(openings(&ledger), [Some((10, 80_000, true)), Some((10, 60_000, false))]);
    }
}

#[test]
fn what_may_be_untold_of_one_device_leaves_others_exact() {
    let mut ledger = one_open();
    let mut event = opens_as_the_last_told(110_000, 10, 7, 2);
    if let EventKind::DeviceTouched { device, .. } = &mut event.kind {
        *device = CTL;
    }
    ledger.apply(&event);
    ledger.apply(&super::event(111_000, EventKind::Lost { count: 3, cause: "rate-limited" }));
    ledger.reconcile(&look(125_000, 126_000, &[(1, 10, 3)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, true))]);
}

#[test]
fn an_untold_open_by_a_parent_may_be_what_its_child_holds() {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 20, 3, 1));
    ledger.reconcile(&look(100_000, 105_000, &[(1, 20, 3)]));
    ledger.apply(&forked(106_000, 10, 30));
    ledger.apply(&opens_as_the_last_told(107_000, 10, 7, 2));
    let mut seen = look(125_000, 126_000, &[(1, 30, 3), (2, 10, 7)]);
    seen.tasks.push(Task { ppid: 10, ..task(30, 30) });
    ledger.reconcile(&seen);
    assert!(openings(&ledger)[0].is_none_or(|(.., exact)| !exact), "{:?}", openings(&ledger));
}

#[test]
fn after_a_loss_that_may_be_of_any_open_nothing_remembered_is_exact() {
    let mut ledger = one_open();
    ledger.apply(&event(110_000, EventKind::Lost { count: 1, cause: "ring-full" }));
    ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 3)]));
    assert_eq!((ids(&ledger), openings(&ledger)), (vec![1], vec![Some((10, 60_000, false))]));
}

#[test]
fn what_an_exiting_process_may_have_opened_anew_and_untold_is_not_exact() {
    let mut ledger = one_open();
    ledger.apply(&opens_as_the_last_told(110_000, 10, 7, 2));
    ledger.apply(&exiting(112_000, 10, 0, &[(1, 3)]));
    assert_eq!(openings(&ledger)[0], Some((10, 60_000, false)));
}

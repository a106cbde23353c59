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

/// 10 has a file in slot 3 and 20 one in slot 7, opened by each and known exactly; then `suspect` opens more than is told, and
/// the same is seen again.
fn after_a_storm_by(suspect: u32, handed_over: bool) -> Vec<Option<(u32, u64, bool)>> {
    let mut ledger = nothing_open();
    ledger.apply(&opens(60_000, 10, GPU0, 3));
    ledger.apply(&opens(61_000, 20, GPU0, 7));
    let files = || vec![device(1, GPU0, 1), device(2, GPU0, 1)];
    let before = vec![fd(1, 10, 3), fd(2, 20, 7)];
    ledger.reconcile(&world(100_000, tasks(), files(), before.clone()));
    let mut storm = opens(150_000, suspect, GPU0, 9);
    if let EventKind::DeviceTouched { untold_until_ns, .. } = &mut storm.kind {
        *untold_until_ns = Some(190_000);
    }
    ledger.apply(&storm);
    let after = if handed_over { vec![fd(1, 30, 3), fd(2, 20, 7)] } else { before };
    let mut tasks = tasks();
    tasks.push(task(30, 30));
    ledger.reconcile(&world(200_000, tasks, files(), after));
    openings(&ledger)
}

#[test]
fn what_a_process_has_that_opened_more_than_is_told_is_not_certain_and_that_of_others_is() {
    // Its file may be another in the same slot, by itself.
    assert_eq!(after_a_storm_by(10, false), [Some((10, 60_000, false)), Some((20, 61_000, true))]);
    assert_eq!(after_a_storm_by(30, false), [Some((10, 60_000, true)), Some((20, 61_000, true))]);
}

#[test]
fn nobody_is_named_for_a_file_that_somebody_else_may_have_opened_untold() {
    // 30 has in its slot 3 what 10 passed on, or what it opened itself at the same address.
    assert_eq!(after_a_storm_by(30, true), [None, Some((20, 61_000, true))]);
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
    let mut storm = opens_as_the_last_told(110_000, 10, 7, 2);
    if let EventKind::DeviceTouched { device, .. } = &mut storm.kind {
        *device = CTL;
    }
    ledger.apply(&storm);
    ledger.apply(&opens_as(110_500, 20, 8, 3));
    ledger.apply(&event(111_000, EventKind::Lost { count: 3, cause: "rate-limited" }));
    ledger.reconcile(&look(125_000, 126_000, &[(1, 10, 3), (3, 20, 8)]));
    assert_eq!(openings(&ledger), [Some((10, 60_000, true)), Some((20, 110_500, true))]);
}

#[test]
fn after_a_loss_that_may_be_of_any_open_nothing_remembered_is_exact() {
    for (cause, exact) in
        [("ring-full", false), ("unreadable", false), ("missed", false), ("rate-limited", true)]
    {
        let mut ledger = one_open();
        ledger.apply(&event(110_000, EventKind::Lost { count: 1, cause }));
        ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 3)]));
        assert_eq!((ids(&ledger), openings(&ledger)), (vec![1], vec![Some((10, 60_000, exact))]), "{cause}");
        // From before the file was seen: it says nothing of it.
        let mut ledger = one_open();
        ledger.apply(&event(104_000, EventKind::Lost { count: 1, cause }));
        ledger.reconcile(&look(120_000, 121_000, &[(1, 10, 3)]));
        assert_eq!(openings(&ledger), [Some((10, 60_000, true))], "{cause}, before");
    }
}

#[test]
fn what_an_exiting_process_may_have_opened_anew_and_untold_is_not_exact() {
    let mut ledger = one_open();
    ledger.apply(&opens_as_the_last_told(110_000, 10, 7, 2));
    ledger.apply(&exiting(112_000, 10, 0, &[(1, 3)]));
    assert_eq!(openings(&ledger)[0], Some((10, 60_000, false)));
}

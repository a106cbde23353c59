//! Files that need not be looked at closely, because nothing can have taken their place.

use super::openers::{nothing_open, tasks};
use super::*;
use crate::ledger::holding::{Holding, Scene};
use crate::ledger::resolve::resolve;
use crate::ledger::world::World;
use crate::model::hash::Set;

/// The file at address 1, which 10 has as 3, seen a little later.
fn look(taken_ns: u64) -> Snapshot {
    let file = OpenFile { seen_ns: taken_ns + 1_000, ..device(1, GPU0, 1) };
    world(taken_ns, tasks(), vec![file], vec![fd(1, 10, 3)])
}

/// 10 opens a device as the file at this address.
fn opens_as(at_ns: u64, slot: u32, address: u64) -> Event {
    let mut event = opens(at_ns, 10, GPU0, slot);
    if let EventKind::DeviceTouched { file, .. } = &mut event.kind {
        *file = Some(FileKey(address));
    }
    event
}

/// A file that was opened and seen, and an open of the same process that came to nothing.
fn one_open_and_one_failed() -> Ledger {
    let mut ledger = nothing_open();
    ledger.apply(&opens_as(60_000, 3, 1));
    ledger.reconcile(&look(100_000));
    ledger.apply(&opens_as(110_000, 4, 9));
    ledger
}

/// Is the file done with, in a look begun at this moment, without anything else being gone through?
fn is_done_with(ledger: &mut Ledger, taken_ns: u64) -> bool {
    let snapshot = look(taken_ns);
    let resolved = resolve(&snapshot);
    let holding = Holding::new(&resolved);
    let world = World::new(&snapshot, &Set::default());
    let scene = Scene { taken_ns, complete: true, before: ledger.looked, world: &world };
    let (mut ids, mut as_before) = ([0], [false]);
    ledger.see_unchanged(&resolved, &holding, &scene, (&mut ids, &mut as_before));
    assert_eq!(ids, [u64::from(as_before[0])]);
    as_before[0]
}

#[test]
fn an_open_elsewhere_that_is_remembered_is_no_reason_to_look_closer() {
    let mut ledger = one_open_and_one_failed();
    assert!(!ledger.touches.is_empty(), "it is remembered while its process lives");
    assert!(is_done_with(&mut ledger, 120_000));
}

#[test]
fn an_open_of_which_the_address_is_not_told_is_one_until_the_file_has_been_seen_after_it() {
    let mut ledger = one_open_and_one_failed();
    ledger.apply(&touched(110_000, 20, GPU0));
    assert!(!is_done_with(&mut ledger, 120_000));
    ledger.reconcile(&look(120_000));
    assert!(is_done_with(&mut ledger, 130_000));
}

#[test]
fn an_open_of_another_device_is_none() {
    let mut ledger = one_open_and_one_failed();
    ledger.apply(&touched(110_000, 20, CTL));
    assert!(is_done_with(&mut ledger, 120_000));
}

#[test]
fn opens_that_are_only_counted_are_one_until_the_file_has_been_seen_after_them() {
    let mut ledger = one_open_and_one_failed();
    let mut counted = opens_as(110_500, 5, 10);
    if let EventKind::DeviceTouched { untold_until_ns, .. } = &mut counted.kind {
        *untold_until_ns = Some(125_000);
    }
    ledger.apply(&counted);
    assert!(!is_done_with(&mut ledger, 120_000));
    ledger.reconcile(&look(120_000));
    assert!(!is_done_with(&mut ledger, 122_000), "they go on");
    ledger.reconcile(&look(130_000));
    assert!(is_done_with(&mut ledger, 140_000));
}

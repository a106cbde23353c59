//! What the next daemon is told of open files.

use super::*;
use crate::ledger::{Opened, Origin, Recollection};

const IDENTITY: u64 = 77;

fn file(identity: u64) -> OpenFile {
    OpenFile { identity, ..device(1, GPU0, 2) }
}

/// 10 opened the file at address 1 and forked 20, which has it too.
fn known() -> Vec<Recollection> {
    let mut ledger = Ledger::new();
    let alone = || vec![task(10, 10)];
    ledger.reconcile(&world(11_000, alone(), vec![], vec![]));
    ledger.reconcile(&world(12_000, alone(), vec![], vec![]));
    ledger.apply(&opens(15_000, 10, GPU0, 3));
    ledger.reconcile(&world(18_000, alone(), vec![file(IDENTITY)], vec![fd(1, 10, 3)]));
    ledger.apply(&forked(20_000, 10, 20));
    let both = vec![task(10, 10), task(20, 20)];
    ledger.reconcile(&world(100_000, both, vec![file(IDENTITY)], vec![fd(1, 10, 3), fd(1, 20, 3)]));
    let known = ledger.recollections();
    let opener = |opened: &Opened| (opened.opener.process, opened.at_ns, opened.exact);
    assert_eq!(known[0].opened.as_ref().map(opener), Some((process(10), 15_000, true)));
    assert!(known[0].origins.contains(&(process(20), Origin::Inherited { from: process(10) })), "{known:?}");
    known
}

/// The next daemon's ledger: `events` were still in the ring, 10 has died, and 20 has the file with this identity.
fn next(events: &[Event], identity: u64, sure: bool) -> Ledger {
    let mut ledger = Ledger::new();
    events.iter().for_each(|event| drop(ledger.apply(event)));
    ledger.reconcile(&world(200_000, vec![task(20, 20)], vec![file(identity)], vec![fd(1, 20, 3)]));
    ledger.recall(&known(), sure);
    ledger
}

/// (opener, when, is that exact?) and how 20 came to hold it.
fn told(ledger: &Ledger) -> (Option<(u32, u64, bool)>, Origin) {
    let view = ledger.view();
    let opener = |opened: &Opened| (opened.opener.process.tgid, opened.at_ns, opened.exact);
    (view.files[0].opened.as_ref().map(opener), view.holders[0].held[0].origin)
}

#[test]
fn who_opened_a_file_and_who_inherited_it_outlives_the_daemon() {
    let inherited = Origin::Inherited { from: process(10) };
    let ledger = next(&[], IDENTITY, true);
    assert_eq!(told(&ledger), (Some((10, 15_000, true)), inherited));
    // The dead opener is remembered for as long as its file lives.
    let mut ledger = ledger;
    for taken_ns in [300_000, 400_000] {
        ledger.reconcile(&world(taken_ns, vec![task(20, 20)], vec![file(IDENTITY)], vec![fd(1, 20, 3)]));
    }
    assert_eq!(told(&ledger).0, Some((10, 15_000, true)));
    assert_eq!(ledger.recollections().len(), 1, "and told to the next again");
}

#[test]
fn what_nobody_would_have_told_meanwhile_makes_a_time_uncertain() {
    assert_eq!(told(&next(&[], IDENTITY, false)).0, Some((10, 15_000, false)));
}

#[test]
fn another_file_at_the_address_is_not_taken_for_the_one_remembered() {
    assert_eq!(told(&next(&[], IDENTITY + 1, true)), (None, Origin::Unknown));
    assert_eq!(told(&next(&[], 0, true)), (None, Origin::Unknown), "where that cannot be told");
}

#[test]
fn a_holder_that_has_opened_the_device_since_may_have_opened_this_file() {
    // In a slot where it is not: two opens are possible, and none is named.
    let (opener, origin) = told(&next(&[opens(150_000, 20, GPU0, 9)], IDENTITY, true));
    assert!(opener.is_none_or(|(opener, ..)| opener == 20), "{opener:?}");
    assert_ne!(origin, Origin::Inherited { from: process(10) });
}

/// The number of the only file after the first look of a daemon that expects what was [`known`].
fn number_after(events: &[Event], identity: u64, known: &[Recollection]) -> u64 {
    let mut ledger = Ledger::new();
    ledger.continue_after(500);
    ledger.expect(known);
    events.iter().for_each(|event| drop(ledger.apply(event)));
    ledger.reconcile(&world(200_000, vec![task(20, 20)], vec![file(identity)], vec![fd(1, 20, 3)]));
    let number = ledger.view().files[0].id;
    // Only the first look may find what was expected.
    ledger.apply(&released(210_000, 1));
    ledger.reconcile(&world(300_000, vec![task(20, 20)], vec![file(identity)], vec![fd(1, 20, 3)]));
    assert!(ledger.view().files[0].id > 500, "{:?}", ledger.view().files);
    number
}

#[test]
fn a_file_keeps_its_number_and_another_gets_one_that_none_has_had() {
    let known = known();
    assert_eq!(number_after(&[], IDENTITY, &known), known[0].id);
    assert_eq!(number_after(&[], IDENTITY + 1, &known), 501, "another identity");
    assert_eq!(number_after(&[], 0, &known), 501, "where that cannot be told");
    assert_eq!(
        number_after(&[opens(150_000, 20, GPU0, 9)], IDENTITY, &known),
        501,
        "its holder has opened one since"
    );
    let mut opened_there = opens(150_000, 30, GPU0, 9);
    if let EventKind::DeviceTouched { file, .. } = &mut opened_there.kind {
        *file = Some(FileKey(1));
    }
    assert_eq!(number_after(&[opened_there], IDENTITY, &known), 501, "its address was opened since");
    let unheard_of: Vec<Recollection> =
        known.iter().cloned().map(|file| Recollection { id: 501, ..file }).collect();
    assert_eq!(number_after(&[], IDENTITY, &unheard_of), 501, "a number that is yet to be given");
}

#[test]
fn what_nobody_saw_the_opening_of_keeps_its_number_too() {
    let mut before = Ledger::new();
    before.reconcile(&world(100_000, vec![task(20, 20)], vec![file(IDENTITY)], vec![fd(1, 20, 3)]));
    let known = before.recollections();
    assert!(known[0].opened.is_none() && known[0].origins.is_empty(), "{known:?}");
    assert_eq!(number_after(&[], IDENTITY, &known), known[0].id);
}

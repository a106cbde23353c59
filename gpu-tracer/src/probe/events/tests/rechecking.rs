//! What a record says of a file that was remembered.

use gpu_tracer_common::snapshot::{
    FILE_DEVICE, HOLD_CHECKED, HOLD_FD, Header, HoldRecord, check_bits::HAS_SECURITY_BLOB,
};

use super::GPU0;
use crate::{
    model::{DeviceNumber, FileKey, event::EventKind},
    probe::events::recheck::{FileChecked, RememberedFile, judge},
};

const DENTRY: u64 = 0xd;

fn file(key: u64) -> RememberedFile {
    RememberedFile { key: FileKey(key), device: GPU0, identity: 7 }
}

fn record(file: u64, count: u64, node_references: u64, bits: u64) -> HoldRecord {
    HoldRecord {
        header: Header::new(HOLD_CHECKED),
        file_kind: FILE_DEVICE,
        rdev: GPU0.to_kernel(),
        tid: 0,
        file,
        count,
        by: DENTRY,
        at: node_references,
        end: bits,
        identity: 7,
        seen_ns: 0,
    }
}

fn counts(files: &[RememberedFile], records: &[HoldRecord]) -> Vec<Option<u64>> {
    let checked = judge(files, records);
    assert_eq!(checked.len(), files.len());
    assert!(checked.iter().all(|checked| checked.still_same == checked.count.is_some()), "{checked:?}");
    checked.iter().map(|checked| checked.count).collect()
}

#[test]
fn a_file_with_references_lives_and_one_that_cannot_be_found_does_not() {
    assert_eq!(counts(&[file(1), file(2)], &[record(1, 3, 1, HAS_SECURITY_BLOB)]), [Some(3), None]);
    assert_eq!(
        counts(&[file(1)], &[HoldRecord { header: Header::new(HOLD_FD), ..record(1, 3, 1, 0) }]),
        [None]
    );
    // A count that could not be read is no count of zero.
    assert_eq!(counts(&[file(1)], &[record(1, u64::MAX, 0, 0)]), [Some(u64::MAX)]);
}

#[test]
fn another_file_at_the_address_is_not_the_one_that_was_remembered() {
    let other = HoldRecord { identity: 8, ..record(1, 1, 1, HAS_SECURITY_BLOB) };
    let checked = judge(&[file(1)], &[other]);
    let gone = FileChecked { file: FileKey(1), still_same: false, count: None, identity: 8 };
    assert_eq!(checked, [gone]);
    let other_device = DeviceNumber { minor: 1, ..GPU0 };
    let moved = RememberedFile { device: other_device, ..file(1) };
    assert_eq!(counts(&[moved], &[record(1, 1, 1, HAS_SECURITY_BLOB)]), [None]);
    let unknown = RememberedFile { identity: 0, ..file(1) };
    assert_eq!(counts(&[unknown], &[other]), [Some(1)], "of which nothing is known but the device");
}

#[test]
fn without_references_a_security_blob_is_a_sign_of_life() {
    assert_eq!(counts(&[file(1)], &[record(1, 0, 0, HAS_SECURITY_BLOB)]), [Some(0)]);
}

#[test]
fn where_files_have_no_blob_the_node_tells_whether_all_that_refer_to_it_are_known() {
    let (dying, living) = (record(1, 0, 2, 0), record(2, 1, 2, 0));
    assert_eq!(
        counts(&[file(1), file(2)], &[dying, living]),
        [Some(0), Some(1)],
        "two references, one is the living one's"
    );
    let (gone, living) = (record(1, 0, 1, 0), record(2, 1, 1, 0));
    assert_eq!(
        counts(&[file(1), file(2)], &[gone, living]),
        [None, Some(1)],
        "one reference, and it is the living one's"
    );
    assert_eq!(counts(&[file(1)], &[record(1, 0, 1, 0)]), [Some(0)], "a reference that nobody accounts for");
    assert_eq!(counts(&[file(1)], &[record(1, 0, 0, 0)]), [None]);
    let elsewhere = HoldRecord { by: 0xe, ..living };
    assert_eq!(
        counts(&[file(1), file(2)], &[gone, elsewhere]),
        [Some(0), Some(1)],
        "another node's files do not count"
    );
}

#[test]
fn a_check_becomes_the_event_that_the_ledger_takes_in() {
    let checked = FileChecked { file: FileKey(1), still_same: true, count: Some(0), identity: 7 };
    let expected = EventKind::FileChecked { file: FileKey(1), count: Some(0), still_same: true };
    assert_eq!(EventKind::from(checked), expected);
}

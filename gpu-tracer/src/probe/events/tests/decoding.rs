//! Bytes that are records, and bytes that are not.

use gpu_tracer_common::{LAYOUT, events::EXIT_HOLDS};
use proptest::prelude::*;

use super::{GPU0, exit, one_of_each};
use crate::probe::events::decode::Record;

#[test]
fn a_record_of_each_kind_is_read_and_nothing_shorter_or_longer_is() {
    for (index, bytes) in one_of_each().iter().enumerate() {
        assert!(Record::decode(bytes).is_some(), "record {index}");
        for length in 0..bytes.len() {
            assert!(Record::decode(&bytes[..length]).is_none(), "record {index} cut to {length}");
        }
        for more in 1..40 {
            let longer = [&bytes[..], &vec![0; more]].concat();
            assert!(Record::decode(&longer).is_none(), "record {index} with {more} more");
        }
    }
}

#[test]
fn records_of_another_layout_or_of_no_kind_are_refused() {
    for mut bytes in one_of_each() {
        let layout = bytes[2..4].to_vec();
        assert_eq!(layout, LAYOUT.to_ne_bytes());
        bytes[2..4].copy_from_slice(&(LAYOUT + 1).to_ne_bytes());
        assert!(Record::decode(&bytes).is_none());
        bytes[2..4].copy_from_slice(&layout);
        bytes[..2].copy_from_slice(&999_u16.to_ne_bytes());
        assert!(Record::decode(&bytes).is_none());
    }
}

#[test]
fn an_exit_has_as_many_files_as_it_says_and_no_more_than_fit() {
    let held = |count| vec![(0xabc, GPU0, 3); count];
    let files = |bytes: &[u8]| match Record::decode(bytes) {
        Some(Record::Exiting(_, held)) => Some(held.len()),
        _ => None,
    };
    assert_eq!(files(&exit(0, &held(0))), Some(0));
    assert_eq!(files(&exit(0, &held(EXIT_HOLDS))), Some(EXIT_HOLDS));
    assert_eq!(files(&exit(0, &held(EXIT_HOLDS + 1))), None);
    let mut lying = exit(0, &held(2));
    lying[36..40].copy_from_slice(&3_u32.to_ne_bytes());
    assert_eq!(files(&lying), None);
    lying[36..40].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(files(&lying), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        kind in 30_u16..50,
        layout in prop_oneof![Just(LAYOUT), any::<u16>()],
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = [&kind.to_ne_bytes()[..], &layout.to_ne_bytes()[..], &rest].concat();
        if let Some(record) = Record::decode(&bytes) {
            prop_assert_eq!(layout, LAYOUT);
            prop_assert!(bytes.len() >= 32, "{:?}", record);
        }
    }
}

//! Up to which number files may have been numbered: no later daemon gives one of these to another file, though this one be
//! killed before the numbers are written down anywhere else, or keep no journal.
//!
//! Numbers are reserved in portions, each written down before it is begun, and what is left of the last one is given back at the end.

use std::fs;
use std::io::Write as _;

use super::core::Core;
use super::lastly::{self, Lastly};
use crate::ledger::Ledger;

const NAME: &str = "last-file";
/// Numbers reserved at a time.
const PORTION: u64 = 1 << 16;
/// The next portion is reserved when fewer are left. In the time between two looks at this nobody opens so many.
const LOW: u64 = PORTION / 2;

/// The numbers that are reserved.
#[derive(Debug)]
pub(super) struct Numbering {
    reserved: u64,
}

impl Numbering {
    /// Goes on after all numbers that were reserved by daemons before, and reserves the next.
    pub(super) fn go_on(lastly: &Lastly, ledger: &mut Ledger) -> Self {
        let before = fs::read_to_string(lastly.directory().join(NAME)).ok();
        let before = before.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        ledger.continue_after(before);
        let mut numbering = Self { reserved: 0 };
        numbering.reserve(lastly, ledger.last_id());
        numbering
    }

    /// Reserves more where few are left.
    fn reserve(&mut self, lastly: &Lastly, last_id: u64) {
        if self.reserved.saturating_sub(last_id) < LOW {
            self.write(lastly, last_id.saturating_add(PORTION));
        }
    }

    fn write(&mut self, lastly: &Lastly, reserved: u64) {
        let written = lastly::replace(&lastly.directory().join(NAME), |file| writeln!(file, "{reserved}"));
        if let Err(error) = written {
            super::log::warning(&format!(
                "numbers of files may be given once more by the next daemon: {NAME}: {error}"
            ));
        }
        // Where the disk refuses, it is asked again with the next portion.
        self.reserved = reserved;
    }
}

impl Core {
    /// Has more numbers reserved where few are left.
    pub(super) fn reserve_numbers(&mut self) {
        if let (Some(numbering), Some(lastly)) = (&mut self.numbering, &self.lastly) {
            numbering.reserve(lastly, self.ledger.last_id());
        }
    }

    /// At the end: gives back those that were not used.
    pub(super) fn return_numbers(&mut self) {
        if let (Some(numbering), Some(lastly)) = (&mut self.numbering, &self.lastly) {
            numbering.write(lastly, self.ledger.last_id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ledger of the next daemon.
    fn next(lastly: &Lastly) -> (Numbering, Ledger) {
        let mut ledger = Ledger::new();
        (Numbering::go_on(lastly, &mut ledger), ledger)
    }

    #[test]
    fn numbers_go_on_after_an_end_and_leave_out_what_a_killed_daemon_may_have_given() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        let (mut numbering, mut ledger) = next(&lastly);
        assert_eq!(ledger.last_id(), 0);
        ledger.continue_after(7);
        numbering.write(&lastly, ledger.last_id());
        assert_eq!(next(&lastly).1.last_id(), 7, "it ended well");
        assert_eq!(next(&lastly).1.last_id(), 7 + PORTION, "the one before did not");
    }

    #[test]
    fn more_numbers_are_reserved_before_they_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        let (mut numbering, _) = next(&lastly);
        for last_id in [1, LOW, LOW + 1, 3 * PORTION] {
            numbering.reserve(&lastly, last_id);
            let written = fs::read_to_string(dir.path().join(NAME)).unwrap();
            assert!(written.trim().parse::<u64>().unwrap() >= last_id + LOW, "{last_id}: {written}");
        }
    }

    #[test]
    fn what_is_no_number_counts_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        fs::write(dir.path().join(NAME), "\x1b many\n").unwrap();
        assert_eq!(next(&lastly).1.last_id(), 0);
    }
}

//! All tests, in two guests at a time: what keeps the processors busy in one, and in the other what needs the stand-in
//! driver and mostly waits. In one guest they would disturb each other: as long as a task is stuck in the driver nobody can say that
//! anything else is free.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};

use super::guest::Guest;
use super::protocol::Verdict;
use super::{disk, systemd};

/// What the names of test programs begin with that are not for the first guest.
const WITH_DRIVER: [&str; 2] = ["vm_", "standin-driver"];

/// Which tests a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those that need no driver.
    General,
    /// Those that need it, and then, in further boots with one disk, those of what outlives a boot.
    Driver,
    /// Those of the unit, with systemd as first process.
    Unit,
}

impl Part {
    /// As the guest's first process and a person are told.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Driver => "driver",
            Self::Unit => "unit",
        }
    }
}

/// Runs the tests that the filter allows. `guest` is what both have in common.
///
/// Fails where a guest gives no verdict, when the other has ended.
pub(super) fn run(guest: &Guest<'_>, filter: &str) -> Result<Verdict> {
    let console = guest.console.with_file_name("console-general.log");
    let general = Guest { part: Some(Part::General), console: &console, disk: None, ..*guest };
    let driver = Guest { part: Some(Part::Driver), ..*guest };
    let first = || if wants_general(filter) { Ok(general.run()?.verdict) } else { Ok(Verdict::of([])) };
    // Whichever is done first goes on with the unit's.
    let is_taken = AtomicBool::new(false);
    let and_unit = |verdict: Verdict| -> Result<Verdict> {
        let is_taken = is_taken.swap(true, Ordering::Relaxed);
        Ok(if is_taken { verdict } else { verdict.and(systemd::run(guest, filter)?) })
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| told(Part::General, first().and_then(and_unit)));
        let second = told(Part::Driver, disk::run_all_boots(driver).and_then(and_unit));
        let first = first.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        first.zip(second).map(|(first, second)| first.and(second)).context("no verdict on all of it")
    })
}

/// Says at once why there is no verdict: the other guest may be long.
fn told(part: Part, verdict: Result<Verdict>) -> Option<Verdict> {
    verdict.inspect_err(|error| eprintln!("vm: {}: {error:#}", part.name())).ok()
}

/// The parts of names that a filter has, with commas between them.
pub(super) fn parts(filter: &str) -> impl Iterator<Item = &str> {
    filter.split(',').filter(|part| !part.is_empty())
}

/// May this filter allow any test that needs no driver?
fn wants_general(filter: &str) -> bool {
    filter.is_empty()
        || parts(filter).any(|part| !WITH_DRIVER.iter().any(|beginning| part.starts_with(beginning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_not_started_for_tests_that_are_not_asked_for() {
        for filter in ["", "threads", "a1", "vm_driver,threads", "driver"] {
            assert!(wants_general(filter), "{filter}");
        }
        for filter in ["vm_", "vm_driver::b14", "standin-driver", "vm_driver,vm_reboot"] {
            assert!(!wants_general(filter), "{filter}");
        }
    }
}

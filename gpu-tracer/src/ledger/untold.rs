//! Opens of which nobody was told, and which files that were known may have been replaced by them.
//!
//! Of a storm of opens only the first are told one by one; of which process and device the others are is known. They leave no
//! trace: a file may have been closed and another opened at the same address, as the same descriptor, by the same process.
//! A file's identity is made of its opener's credentials among others, which each process has for itself: what takes its place
//! unseen was opened by the same process or, where that is gone, by one that holds it or passed it on by a fork.

use super::Ledger;
use super::files::{Certainty, FileRecord};
use crate::model::change::GapCause;
use crate::model::hash::Map;
use crate::model::{DeviceNumber, ProcessId};

/// Pairs of process and device that are told apart. Where there are more, they stand for their device.
const PAIRS_KEPT: usize = 4_096;
/// Losses among which there is no open that is not told of otherwise: in a storm, those of its process and device are.
const OF_NO_OPEN: &[&str] = &["rate-limited", "map-full", "table-too-long"];

/// Until when opens may have happened that were not told.
#[derive(Clone, Debug, Default)]
pub(super) struct Untold {
    by: Map<(ProcessId, DeviceNumber), u64>,
    /// By anybody.
    of: Map<DeviceNumber, u64>,
    /// By anybody, of any device.
    any_ns: u64,
    /// The latest of all these.
    latest_ns: u64,
}

/// Files that may or may not be those that were at their addresses before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undecided {
    pub(super) id: u64,
    /// When it was seen before.
    pub(super) seen_ns: u64,
    /// Untold opens are among what may have replaced it.
    pub(super) untold: bool,
}

impl Untold {
    /// This process may have opened this device up to this moment.
    pub(super) fn note(&mut self, process: ProcessId, device: DeviceNumber, until_ns: u64) {
        if self.by.len() >= PAIRS_KEPT && !self.by.contains_key(&(process, device)) {
            self.forget(|_| true);
        }
        let last = self.by.entry((process, device)).or_default();
        *last = until_ns.max(*last);
        self.latest_ns = until_ns.max(self.latest_ns);
    }

    /// Anybody may have opened anything up to this moment.
    pub(super) fn lose(&mut self, until_ns: u64) {
        self.any_ns = until_ns.max(self.any_ns);
        self.latest_ns = until_ns.max(self.latest_ns);
    }

    /// Whose they were is not told apart any more for those that ended by this moment.
    pub(super) fn retain(&mut self, since_ns: u64) {
        self.forget(|until_ns| until_ns <= since_ns);
    }

    fn forget(&mut self, which: impl Fn(u64) -> bool) {
        let of = &mut self.of;
        self.by.retain(|(_, device), until_ns| {
            let old = which(*until_ns);
            if old {
                let last = of.entry(*device).or_default();
                *last = (*until_ns).max(*last);
            }
            !old
        });
    }

    /// May anything have been opened after this moment without being told?
    pub(super) fn any(&self, since_ns: u64) -> bool {
        self.latest_ns > since_ns
    }

    fn by_anybody(&self, device: DeviceNumber, since_ns: u64) -> bool {
        self.any_ns > since_ns || self.of.get(&device).is_some_and(|until_ns| *until_ns > since_ns)
    }

    fn by(&self, process: ProcessId, device: DeviceNumber, since_ns: u64) -> bool {
        self.by.get(&(process, device)).is_some_and(|until_ns| *until_ns > since_ns)
    }
}

impl Ledger {
    /// May what these processes refer to have taken the place of this file, untold, since that was seen last?
    pub(super) fn may_be_untold(&self, file: &FileRecord, referrers: &[ProcessId]) -> bool {
        let (untold, since_ns) = (&self.touches.untold, file.latest_ns());
        if untold.by_anybody(file.device, since_ns) {
            return true;
        }
        if untold.by.is_empty() {
            return false;
        }
        let by = |process: ProcessId| untold.by(process, file.device, since_ns);
        file.opened.as_ref().is_some_and(|opened| by(opened.task.process))
            || referrers.iter().any(|process| by(*process))
            || referrers
                .iter()
                .flat_map(|process| self.processes.ancestors(*process))
                .any(|(ancestor, _)| by(ancestor))
    }

    /// What was missed may have been opens.
    pub(super) fn may_have_missed_opens(cause: &GapCause) -> bool {
        match cause {
            GapCause::Lost { cause, .. } => !OF_NO_OPEN.contains(cause),
            GapCause::Module { .. } => false,
            _ => true,
        }
    }

    /// After everything that is new has its opener: files of which it is not known whether they are those that were there
    /// before, and whose device was touched since by somebody who has no file for it, may be younger than their record says.
    pub(super) fn doubt_openings(&mut self, undecided: &[Undecided], until_ns: u64) {
        if undecided.is_empty() {
            return;
        }
        let mut last: Map<DeviceNumber, u64> = Map::default();
        for touch in self.touches.all().filter(|touch| touch.at_ns <= until_ns) {
            let known = last.entry(touch.device).or_insert(touch.at_ns);
            *known = touch.at_ns.max(*known);
        }
        for Undecided { id, seen_ns, untold } in undecided {
            let Some(file) = self.files.get_mut(*id) else { continue };
            let touched = last.get(&file.device).is_some_and(|at_ns| at_ns > seen_ns);
            if let Some(opened) = file.opened.as_mut().filter(|_| touched || *untold) {
                opened.certainty = Certainty::Likely;
            }
        }
    }
}

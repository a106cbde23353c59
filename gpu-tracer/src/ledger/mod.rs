//! The holder ledger: which device files are open, who refers to them, and how that came about. Pure: no I/O, no clock.
//!
//! Its unit is the open file (`struct file`), not the process. [`Ledger::apply`] takes what happened and
//! [`Ledger::reconcile`] what is; where they differ, the snapshot is right and the difference is counted ([`Drift`]).
//!
//! * **Identity.** A file is known by its address and by a number of the ledger's own, which is never given twice:
//!   addresses are reused at once. A new file is recognised at a known address by the release of the old one (seen, or
//!   found by a re-check), by a touch that tells of it (`addresses.rs`), by another device or identity, or, where touches do
//!   not tell, by this: none of its references has stayed since it was last seen, and it is where the device was opened
//!   since (`openers.rs`).
//! * **Order.** Events may come late, twice, or never. An event about an address from before the file there was born
//!   is not about that file; a release from before a snapshot that saw the address in use means that there has been a
//!   new file. Everything that was reported before a snapshot was finished should be applied before it.
//! * **Absence is not release.** A file that leaves all tables while a task that referred to it is still going through
//!   exit is `detached`, with that task as its holder. Without such a task it is taken for released only by a
//!   snapshot that could see everywhere or, under [`Ledger::with_rechecks`], only when the kernel has been asked about
//!   the very file.
//! * **Credit.** References that the kernel counts and the snapshot does not show are credited to exiting tasks that had
//!   them, up to the number they had. The rest is unexplained.
//! * **Memory** is bounded by what the kernel keeps open: histories per process keep their oldest and newest entries
//!   ([`Bounded`]), processes that no living file names are forgotten after two snapshots, touches and strangers have
//!   fixed limits.

mod addresses;
mod apply;
mod bounded;
mod dropping;
mod exits;
mod files;
mod gap;
mod gone;
mod holding;
mod lineage;
mod openers;
mod opening;
mod recall;
mod reconcile;
mod release;
mod resolve;
mod tidy;
mod touches;
mod unchanged;
mod untold;
mod view;
mod world;

#[cfg(test)]
mod tests;

pub use bounded::Bounded;
pub use files::{FileState, Origin};
pub use gap::{GAPS_KEPT, OpenGap};
pub use lineage::{
    ExitSeen, NAMES_KEPT, NameChange, PARENTS_KEPT, ProcessHistory, Reparenting, SIGNALS_KEPT, SignalSeen,
};
pub use recall::Recollection;
pub use reconcile::Drift;
pub use view::{FileView, HeldFile, HolderView, Opened, Pending, View};

pub use crate::model::change::Identity;

use std::sync::Arc;

use crate::model::change::{Gap, GapCause, ProcessDescription};
use crate::model::hash::Map;
use crate::model::{FileKey, ProcessId};
use files::{Certainty, Files};
use gap::Gaps;
use gone::Ends;
use lineage::Processes;
use recall::Expected;
use touches::Touches;
use view::HolderEntry;

/// The state of the world as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    files: Files,
    processes: Processes,
    touches: Touches,
    ends: Ends,
    gaps: Gaps,
    /// What an earlier daemon knew, until the first look.
    expected: Map<FileKey, Expected>,
    /// As of the last snapshot; ids of files released since are skipped when read.
    holders: Vec<HolderEntry>,
    looked: Option<Looked>,
    rechecks: bool,
    drift: Drift,
}

/// The last snapshot taken over.
#[derive(Clone, Copy, Debug)]
struct Looked {
    taken_ns: u64,
    /// When the one before was taken; 0 if there was none.
    before_ns: u64,
    /// It could see everywhere.
    complete: bool,
}

impl Ledger {
    /// The last number that a file was given.
    #[must_use]
    pub fn last_id(&self) -> u64 {
        self.files.next_id() - 1
    }

    /// Knows nothing yet. For a caller that takes snapshots and nothing else.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For a caller that has every file of [`Ledger::pending`] looked at again in the kernel and reports the outcome by
    /// `FileChecked`: a file that a snapshot does not show any more then stays pending until that report.
    #[must_use]
    pub fn with_rechecks() -> Self {
        Self { rechecks: true, ..Self::default() }
    }

    /// Numbers files from here on, so that the ids in a journal stay unique across restarts. Ids never go back.
    pub fn continue_after(&mut self, last_id: u64) {
        self.files.continue_after(last_id);
    }

    /// Adds what `/proc` says of a process. It is kept as what the process was when it opened its files.
    ///
    /// `read_ns`: when reading it began, ns of boot time. False, and nothing changes, if the process is unknown or has
    /// executed another program since.
    pub fn describe(&mut self, process: ProcessId, read_ns: u64, description: ProcessDescription) -> bool {
        let Some(record) = self.processes.get_mut(process) else { return false };
        if record.history.execed_ns.is_some_and(|execed| execed >= read_ns) {
            return false;
        }
        let description = Arc::new(description);
        record.history.description = Some(Arc::clone(&description));
        for id in std::mem::take(&mut record.undescribed) {
            if let Some(opened) = self.files.get_mut(id).and_then(|file| file.opened.as_mut())
                && opened.task.process == process
                && opened.description.is_none()
            {
                opened.description = Some(Arc::clone(&description));
            }
        }
        true
    }

    /// Living processes of [`Ledger::tracked`] that nobody has described since they last executed a program, in order.
    #[must_use]
    pub fn undescribed(&self) -> Vec<ProcessId> {
        self.followed(|history| history.exit.is_none() && history.description.is_none())
    }

    /// Would [`Ledger::undescribed`] name this one?
    #[must_use]
    pub fn is_undescribed(&self, process: ProcessId) -> bool {
        let waits = |history: &ProcessHistory| {
            history.freed_ns.is_none() && history.exit.is_none() && history.description.is_none()
        };
        self.history(process).is_some_and(waits) && self.relevant(process)
    }

    /// Processes whose forks, execs, exits, names and signals matter, in order: those that hold something, have touched
    /// a device, or were forked by one that does and have not been looked at since.
    #[must_use]
    pub fn tracked(&self) -> Vec<ProcessId> {
        self.followed(|_| true)
    }

    fn followed(&self, which: impl Fn(&ProcessHistory) -> bool) -> Vec<ProcessId> {
        let mut followed: Vec<ProcessId> = self
            .processes
            .iter()
            .filter(|(process, record)| {
                record.history.freed_ns.is_none() && which(&record.history) && self.relevant(*process)
            })
            .map(|(process, _)| process)
            .collect();
        followed.sort_unstable();
        followed
    }

    /// Does it matter to any file, or may it, before the next snapshot tells?
    fn relevant(&self, process: ProcessId) -> bool {
        let looked_ns = self.looked.map_or(0, |looked| looked.taken_ns);
        // What a process has touched it may have opened, and a child of it may have that since.
        let ancestors = self.processes.ancestors(process);
        let mut young = ancestors.take_while(|(_, child)| self.processes.is_younger(*child, looked_ns));
        self.processes.relevant(process, looked_ns)
            || self.touches.has(process)
            || young.any(|(ancestor, _)| self.touches.has(ancestor))
    }

    /// What is remembered of a process.
    #[must_use]
    pub fn history(&self, process: ProcessId) -> Option<&ProcessHistory> {
        self.processes.get(process).map(|record| &record.history)
    }

    /// Gives back memory that a crowd of files took which has gone since. Says whether there was any.
    pub fn shrink(&mut self) -> bool {
        self.files.shrink()
    }

    /// Holes in the record that a complete snapshot has closed, oldest first.
    #[must_use]
    pub fn gaps(&self) -> &Bounded<Gap, GAPS_KEPT> {
        self.gaps.closed()
    }

    /// Holes in the record that the next complete snapshot will close.
    #[must_use]
    pub fn open_gaps(&self) -> &[OpenGap] {
        self.gaps.still_open()
    }

    /// Nothing was recorded from `from_ns` to `noticed_ns`: the tracer was not running, or its hooks were not attached.
    pub fn note_gap(&mut self, from_ns: u64, noticed_ns: u64, cause: GapCause) {
        if may_lack_opens(&cause) {
            self.touches.addresses.doubt(noticed_ns);
            self.doubt_what_is_older(noticed_ns);
        }
        self.gaps.open(from_ns, noticed_ns, cause);
        self.doubt(noticed_ns);
    }

    /// Anybody may have opened anything up to this moment: also a file at the address and in the slot of one that was known.
    fn doubt_what_is_older(&mut self, until_ns: u64) {
        for (_, file) in self.files.iter_mut().filter(|(_, file)| file.latest_ns() < until_ns) {
            if let Some(opened) = &mut file.opened {
                opened.certainty = Certainty::Likely;
            }
        }
    }

    /// All drift so far, without the changes.
    #[must_use]
    pub fn drift(&self) -> &Drift {
        &self.drift
    }
}

/// May there have been an open in such a gap that is not told of otherwise? What is beyond the budget of a process is told with
/// the last touch within it, and modules come and go without anybody's open.
fn may_lack_opens(cause: &GapCause) -> bool {
    match cause {
        GapCause::Lost { cause, .. } => !["rate-limited", "map-full", "table-too-long"].contains(cause),
        GapCause::Module { .. } => false,
        GapCause::NotRunning => true,
    }
}

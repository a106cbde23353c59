//! Open files with ids of their own, and where in their lives they are.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::resolve::Ways;
use crate::model::change::SharedDescription;
use crate::model::event::TaskId;
use crate::model::hash::Map;
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText, Via};

/// Where in its life an open file is.
///
/// `opening` -> `open` -> (`detached` | `unreferenced`) -> `releasing` -> (`deferred`) -> gone. A plan that cannot see
/// the driver's own functions skips what it cannot see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// The driver's open has not returned yet.
    Opening {
        /// Who opens.
        task: TaskId,
        /// Since when, ns of boot time.
        since_ns: u64,
    },
    /// Something refers to it.
    Open,
    /// No fd table, address space or queue that can be seen refers to it, and it is not known to be released.
    Detached {
        /// Since when, ns of boot time.
        since_ns: u64,
    },
    /// It has been let go of, and its release may be waiting or running unseen.
    Unreferenced {
        /// Since when, ns of boot time.
        since_ns: u64,
    },
    /// The driver's release is running.
    Releasing {
        /// In whose context.
        task: TaskId,
        /// Since when, ns of boot time.
        since_ns: u64,
    },
    /// A kernel thread of the driver has its release.
    Deferred {
        /// Since when, ns of boot time.
        since_ns: u64,
    },
}

impl FileState {
    /// The word of the JSON contract.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Opening { .. } => "opening",
            Self::Open => "open",
            Self::Detached { .. } => "detached",
            Self::Unreferenced { .. } => "unreferenced",
            Self::Releasing { .. } => "releasing",
            Self::Deferred { .. } => "deferred",
        }
    }

    /// The task that is inside the driver with it, where that is known.
    #[must_use]
    pub const fn task(self) -> Option<TaskId> {
        match self {
            Self::Opening { task, .. } | Self::Releasing { task, .. } => Some(task),
            Self::Open | Self::Detached { .. } | Self::Unreferenced { .. } | Self::Deferred { .. } => None,
        }
    }

    /// When it came into this state, ns of boot time; `None` for `open`.
    #[must_use]
    pub const fn since_ns(self) -> Option<u64> {
        match self {
            Self::Open => None,
            Self::Opening { since_ns, .. }
            | Self::Detached { since_ns }
            | Self::Unreferenced { since_ns }
            | Self::Releasing { since_ns, .. }
            | Self::Deferred { since_ns } => Some(since_ns),
        }
    }
}

/// How a process came to hold a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Not seen.
    #[default]
    Unknown,
    /// It opened it.
    Opened,
    /// By fork.
    Inherited {
        /// From this process.
        from: ProcessId,
    },
    /// Through a socket, or by `pidfd_getfd`.
    Passed {
        /// From this process, where only one had it before.
        from: Option<ProcessId>,
    },
}

/// The opening of a file, as recorded.
#[derive(Clone, Debug)]
pub(super) struct OpenRecord {
    pub(super) at_ns: u64,
    pub(super) certainty: Certainty,
    pub(super) task: TaskId,
    pub(super) comm: RawText,
    pub(super) parent: Option<ProcessId>,
    pub(super) description: Option<SharedDescription>,
}

/// How certain it is who opened a file, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// Nothing else is possible.
    Exact,
    /// A descriptor points to that open: if that process opened it, it was then.
    Slot,
    /// Nobody else is as likely.
    Likely,
}

/// One process that refers to a file, through whichever of its threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldBy {
    pub(super) process: ProcessId,
    pub(super) origin: Origin,
    pub(super) since_ns: u64,
    pub(super) ways: Ways,
}

/// A process that is letting go of references that can no longer be seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropper {
    pub(super) task: TaskId,
    pub(super) since_ns: u64,
    pub(super) references: u64,
}

/// What the ledger knows of one open file.
#[derive(Clone, Debug)]
pub(super) struct FileRecord {
    pub(super) key: FileKey,
    pub(super) device: DeviceNumber,
    /// `OpenFile::identity`; 0 where unknown.
    pub(super) identity: u64,
    pub(super) state: FileState,
    pub(super) count: Option<u64>,
    pub(super) named: u64,
    pub(super) driver_pins: u64,
    /// References credited to `droppers`.
    pub(super) dropping: u64,
    pub(super) unexplained_since_ns: Option<u64>,
    /// Apart: most passes over all files have no use for it.
    pub(super) opened: Option<Box<OpenRecord>>,
    /// Its slot was opened while the first look at it went on: only the next can tell by whom it was. And is it certain then
    /// that it is not the file that was at its address before?
    pub(super) opener_due: Option<bool>,
    /// From when on the address is known to mean this file: an event about the address from before is not about it.
    pub(super) born_ns: u64,
    /// Beginning of the last snapshot that had it.
    pub(super) seen_ns: Option<u64>,
    /// When that snapshot saw it; 0 where none has had it.
    pub(super) alive_ns: u64,
    /// The references in that snapshot. Most files have one, and so one holder: that is kept in place.
    pub(super) references: SmallVec<[Via; 1]>,
    /// Ordered by process, each once.
    pub(super) held_by: SmallVec<[HeldBy; 1]>,
    pub(super) droppers: Vec<Dropper>,
    /// Whose `held_by` it was in last, once it is empty.
    pub(super) last_holder: Option<ProcessId>,
    /// The event that would tell of its release may be among those lost.
    pub(super) doubtful: bool,
    /// Its count could be read at some time, so that it can be checked again.
    pub(super) counted: bool,
    /// The kernel has said that it lives although no snapshot shows it.
    pub(super) checked: bool,
    /// That it is in no table any more has been said.
    pub(super) announced: bool,
}

impl FileRecord {
    pub(super) fn new(key: FileKey, device: DeviceNumber, state: FileState, born_ns: u64) -> Self {
        Self {
            key,
            device,
            identity: 0,
            state,
            count: None,
            named: 0,
            driver_pins: 0,
            dropping: 0,
            unexplained_since_ns: None,
            opened: None,
            opener_due: None,
            born_ns,
            seen_ns: None,
            alive_ns: 0,
            references: SmallVec::new(),
            held_by: SmallVec::new(),
            droppers: Vec::new(),
            last_holder: None,
            doubtful: false,
            counted: false,
            announced: false,
            checked: false,
        }
    }

    /// References that the kernel counts and nobody accounts for.
    pub(super) fn unexplained(&self) -> u64 {
        self.count.map_or(0, |count| count.saturating_sub(self.named).saturating_sub(self.dropping))
    }

    pub(super) fn holder(&self, process: ProcessId) -> Option<&HeldBy> {
        let at = self.held_by.binary_search_by_key(&process, |held| held.process).ok()?;
        self.held_by.get(at)
    }

    /// Can a file of this device and identity not be this one?
    pub(super) fn differs(&self, device: DeviceNumber, identity: u64) -> bool {
        let known = self.identity != 0 && identity != 0;
        self.device != device || (known && self.identity != identity)
    }

    /// Is it on its way out, or are its whereabouts not known?
    pub(super) fn is_pending(&self) -> bool {
        match self.state {
            FileState::Opening { .. } => false,
            FileState::Open => !self.droppers.is_empty(),
            FileState::Deferred { .. } => self.doubtful,
            FileState::Detached { .. } | FileState::Unreferenced { .. } | FileState::Releasing { .. } => true,
        }
    }

    /// The last moment that anything was learnt about it.
    pub(super) fn latest_ns(&self) -> u64 {
        self.born_ns.max(self.alive_ns).max(self.state.since_ns().unwrap_or(0))
    }
}

/// What is true of any of the living files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unrest {
    /// One is on its way out, or its whereabouts are not known.
    pub(super) pending: bool,
    /// A task is inside the driver with one.
    pub(super) in_progress: bool,
    /// References to one do not add up, and did in the snapshot before the last.
    pub(super) in_doubt: bool,
}

impl Unrest {
    /// Adds what is true of this file. `taken_ns`: when the last snapshot was taken.
    pub(super) fn note(&mut self, file: &FileRecord, taken_ns: Option<u64>) {
        self.pending |= file.is_pending();
        self.in_progress |= file.state.task().is_some();
        self.in_doubt |= file.unexplained_since_ns.is_some() && file.unexplained_since_ns == taken_ns;
    }
}

/// Files for which there is always space.
const SPACE_KEPT: usize = 1024;

/// All living files. An address names at most one of them; an id is never used twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    /// In the order in which they were heard of, which is mostly the order in which they lie in memory and in which snapshots
    /// have them: ten thousand of them do not fit in a processor's cache.
    records: BTreeMap<u64, Box<FileRecord>>,
    by_key: Map<FileKey, u64>,
    last_id: u64,
    /// `None`: a file may have changed since somebody went through all of them.
    unrest: Option<Unrest>,
}

impl Files {
    /// The living file at this address.
    pub(super) fn id_of(&self, key: FileKey) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn get(&self, id: u64) -> Option<&FileRecord> {
        self.records.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut FileRecord> {
        self.unrest = None;
        self.records.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn continue_after(&mut self, last_id: u64) {
        self.last_id = last_id.min(i64::MAX as u64).max(self.last_id);
    }

    /// The id that the next file will get.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// A file that was not known. Whatever was at its address must have been removed.
    pub(super) fn insert(&mut self, record: FileRecord) -> u64 {
        self.last_id += 1;
        self.insert_as(self.last_id, record)
    }

    /// A file that has this number already, and that no living file has.
    pub(super) fn insert_as(&mut self, id: u64, record: FileRecord) -> u64 {
        self.unrest = None;
        let before = self.by_key.insert(record.key, id);
        debug_assert!(before.is_none(), "two files at one address");
        self.records.insert(id, Box::new(record));
        id
    }

    /// A file whose release is deferred goes by the driver's name for that work from now on: its address is free.
    pub(super) fn outlive(&mut self, address: FileKey, work: FileKey) {
        let Some(id) = self.id_of(address) else { return };
        let Some(file) = self.records.get_mut(&id) else { return };
        if !matches!(file.state, FileState::Deferred { .. }) || self.by_key.contains_key(&work) {
            return;
        }
        file.key = work;
        self.by_key.remove(&address);
        self.by_key.insert(work, id);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<FileRecord> {
        self.unrest = None;
        let record = self.records.remove(&id)?;
        self.by_key.remove(&record.key);
        Some(*record)
    }

    /// After a crowd of files has gone: gives back what only so many need. Says whether there was anything.
    pub(super) fn shrink(&mut self) -> bool {
        let spacious = self.by_key.capacity() > 4 * self.by_key.len().max(SPACE_KEPT);
        if spacious {
            self.by_key.shrink_to(SPACE_KEPT);
        }
        spacious
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Ordered by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &FileRecord)> {
        self.records.iter().map(|(id, record)| (*id, record.as_ref()))
    }

    /// What somebody found who went through all files, none of which has changed since.
    pub(super) fn set_unrest(&mut self, found: Unrest) {
        self.unrest = Some(found);
    }

    /// What is true of any of them. `taken_ns`: when the last snapshot was taken.
    pub(super) fn unrest(&self, taken_ns: Option<u64>) -> Unrest {
        let go_through = || {
            let mut unrest = Unrest::default();
            self.iter().for_each(|(_, file)| unrest.note(file, taken_ns));
            unrest
        };
        if let Some(known) = self.unrest {
            debug_assert_eq!(known, go_through(), "a file has changed");
            return known;
        }
        go_through()
    }

    /// This one and all with greater ids, in order.
    pub(super) fn from(&mut self, id: u64) -> impl Iterator<Item = (u64, &mut FileRecord)> {
        self.unrest = None;
        self.records.range_mut(id..).map(|(id, record)| (*id, record.as_mut()))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut FileRecord)> {
        self.unrest = None;
        self.records.iter_mut().map(|(id, record)| (*id, record.as_mut()))
    }
}

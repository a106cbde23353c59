//! What one daemon knew of open files, for the next one: who opened them, and how their holders came by them.
//!
//! A file is known again by its address and what stays the same while it lives. Where a process closed one and opened
//! another meanwhile that may be the same to the letter, so whoever opened it is still right and the time may not be:
//! an opening that is recalled is exact only where every touch since would have been told. Its number it keeps, as it does while
//! one ledger follows it: until it is known to be another.

use std::sync::Arc;

use super::Ledger;
use super::files::{Certainty, FileRecord, FileState, OpenRecord, Origin};
use super::resolve::{ResolvedFile, Ways};
use super::view::Opened;
use crate::model::change::{Identity, ProcessDescription};
use crate::model::event::TaskId;
use crate::model::{DeviceNumber, FileKey, ProcessId};

/// One open file as it was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recollection {
    /// The number that it went by.
    pub id: u64,
    /// Its address.
    pub file: FileKey,
    /// Its device.
    pub device: DeviceNumber,
    /// `OpenFile::identity`, never 0.
    pub identity: u64,
    /// When it was seen last, ns of boot time.
    pub seen_ns: u64,
    /// Its opening, if that was seen.
    pub opened: Option<Opened>,
    /// How those who hold it came to it, where that is known.
    pub origins: Vec<(ProcessId, Origin)>,
}

/// What a file must be to go by the number that it had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    id: u64,
    device: DeviceNumber,
    identity: u64,
    seen_ns: u64,
}

impl Expected {
    fn of(known: &Recollection) -> Self {
        let Recollection { id, device, identity, seen_ns, .. } = *known;
        Self { id, device, identity, seen_ns }
    }
}

impl Ledger {
    /// What is known of open files that no look at the kernel can tell. Ordered by id.
    #[must_use]
    pub fn recollections(&self) -> Vec<Recollection> {
        let mut openers = super::view::Openers::default();
        let told = |file: &FileRecord| file.identity != 0 && matches!(file.state, FileState::Open);
        let files = self.files.iter().filter(|(_, file)| told(file)).map(|(id, file)| Recollection {
            id,
            file: file.key,
            device: file.device,
            identity: file.identity,
            seen_ns: file.seen_ns.unwrap_or(file.born_ns),
            opened: super::view::opened(file, &mut openers),
            origins: file
                .held_by
                .iter()
                .filter(|held| held.origin != Origin::Unknown)
                .map(|held| (held.process, held.origin))
                .collect(),
        });
        files.collect()
    }

    /// Before the first look: numbers that files go by on if they are there still. All of them, and those that may have been
    /// given to others since, must have been [passed over](Ledger::continue_after).
    pub fn expect(&mut self, known: &[Recollection]) {
        let known = known.iter().filter(|file| file.identity != 0 && file.id < self.files.next_id());
        self.expected = known.map(|file| (file.file, Expected::of(file))).collect();
    }

    /// The number of a file that is new to this ledger, if it went by one before: nothing is known by which it would be
    /// another.
    pub(super) fn expected(&mut self, seen: &ResolvedFile, holders: &[(ProcessId, Ways)]) -> Option<u64> {
        let known = self.expected.remove(&seen.key)?;
        let is_it = (known.identity, known.device) == (seen.identity, seen.device);
        let anew = self.touches.addresses.reused(seen.key, known.seen_ns)
            || holders.iter().any(|(process, _)| self.touched_since(*process, seen.key, &known));
        (is_it && !anew && self.files.get(known.id).is_none()).then_some(known.id)
    }

    /// May this process have opened this file since it was seen last?
    fn touched_since(&self, process: ProcessId, key: FileKey, known: &Expected) -> bool {
        self.touches
            .of(process)
            .any(|touch| touch.device == known.device && touch.fits(key) && touch.at_ns > known.seen_ns)
    }

    /// Just after the first look: adds what was known before. `sure`: whatever was opened since has been told.
    pub fn recall(&mut self, known: &[Recollection], sure: bool) {
        let mut descriptions = Vec::new();
        for recollection in known {
            self.recall_one(recollection, sure, &mut descriptions);
        }
    }

    fn recall_one(&mut self, known: &Recollection, sure: bool, descriptions: &mut Descriptions) {
        let Some(id) = self.files.id_of(known.file) else { return };
        let Some(file) = self.files.get(id) else { return };
        let is_it = known.identity != 0
            && (file.identity, file.device) == (known.identity, known.device)
            && matches!(file.state, FileState::Open);
        // Who has opened that device since may have opened this.
        let expected = Expected::of(known);
        let anew = |process: ProcessId| self.touched_since(process, known.file, &expected);
        if !is_it || file.opened.is_some() || file.held_by.iter().any(|held| anew(held.process)) {
            return;
        }
        if let Some(opened) = &known.opened {
            let record = record(opened, sure, descriptions);
            self.meet(record.task, opened.at_ns, &record.comm);
            if let Some(process) = self.processes.get_mut(record.task.process) {
                let history = &mut process.history;
                history.parent = history.parent.or(record.parent);
                if history.description.is_none() {
                    history.description.clone_from(&record.description);
                }
            }
            if let Some(file) = self.files.get_mut(id) {
                file.opened = Some(Box::new(record));
            }
        }
        let Some(file) = self.files.get_mut(id) else { return };
        for held in &mut file.held_by {
            let origin = known.origins.iter().find(|(process, _)| *process == held.process);
            if let (Origin::Unknown, Some((_, origin))) = (held.origin, origin) {
                held.origin = *origin;
            }
        }
    }
}

/// Descriptions made from identities, which many files share.
type Descriptions = Vec<(Arc<Identity>, Arc<ProcessDescription>)>;

fn record(opened: &Opened, sure: bool, descriptions: &mut Descriptions) -> OpenRecord {
    let opener = &opened.opener;
    let described = descriptions.iter().rev().take(64).find(|(of, _)| Arc::ptr_eq(of, opener));
    let description = described.map(|(_, description)| Arc::clone(description)).unwrap_or_else(|| {
        let Identity { cmdline, exe, cgroup, .. } = opener.as_ref();
        let description =
            ProcessDescription { cmdline: cmdline.clone(), exe: exe.clone(), cgroup: cgroup.clone() };
        let description = Arc::new(description);
        descriptions.push((Arc::clone(opener), Arc::clone(&description)));
        description
    });
    OpenRecord {
        at_ns: opened.at_ns,
        certainty: if sure && opened.exact { Certainty::Exact } else { Certainty::Likely },
        task: TaskId::leader(opener.process),
        comm: opener.comm.clone(),
        parent: opener.parent,
        description: Some(description),
    }
}

//! Taking over a snapshot.

use std::collections::HashSet;

use super::Ledger;
use super::files::{FileRecord, FileState};
use super::resolve::resolve;
use crate::model::Snapshot;

/// Where a snapshot differed from what the ledger had believed, and where it contradicts itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Files that were open and that the ledger did not know. 0 for the first snapshot, which cannot surprise.
    pub unannounced: u64,
    /// Files that the ledger took for open and that are no longer there.
    pub vanished: u64,
    /// Files at a remembered address that are not the file remembered.
    pub replaced: u64,
    /// Files with more references seen than the kernel counts: one was dropped while the snapshot was being taken.
    pub racing: u64,
    /// References to files that the snapshot does not otherwise mention.
    pub dangling: u64,
}

impl Ledger {
    /// Takes a snapshot for the truth about which files are open and who refers to them.
    pub fn reconcile(&mut self, snapshot: &Snapshot) -> Drift {
        let resolved = resolve(snapshot);
        let mut drift = Drift { dangling: resolved.dangling, ..Drift::default() };
        let mut present = HashSet::with_capacity(resolved.files.len());
        for file in resolved.files {
            drift.racing += u64::from(file.count.is_some_and(|count| file.named > count));
            let known = self.files.id_of(file.key).and_then(|id| Some((id, self.files.get_mut(id)?)));
            let id = match known {
                Some((id, record)) if record.device == file.device => {
                    record.count = file.count;
                    record.named = file.named;
                    record.driver_pins = file.driver_pins;
                    id
                }
                other => {
                    drift.replaced += u64::from(other.is_some());
                    drift.unannounced += u64::from(other.is_none() && self.reconciled);
                    self.files.insert(FileRecord {
                        key: file.key,
                        device: file.device,
                        state: FileState::Open,
                        count: file.count,
                        named: file.named,
                        driver_pins: file.driver_pins,
                        opened: None,
                    })
                }
            };
            present.insert(id);
        }
        if self.files.len() > present.len() {
            let gone: Vec<u64> =
                self.files.iter().map(|(id, _)| id).filter(|id| !present.contains(id)).collect();
            drift.vanished = gone.len() as u64;
            gone.into_iter().for_each(|id| drop(self.files.remove(id)));
        }
        self.holders = resolved.holders;
        self.taken_ns = snapshot.taken_ns;
        self.reconciled = true;
        drift
    }
}

//! Open files with ids of their own.

use std::collections::HashMap;

use super::view::Opened;
use crate::model::{DeviceNumber, FileKey};

/// Where in its life an open file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Something refers to it.
    Open,
}

impl FileState {
    /// The word of the JSON contract.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
        }
    }
}

/// What the ledger knows of one open file.
#[derive(Clone, Debug)]
pub(super) struct FileRecord {
    pub(super) key: FileKey,
    pub(super) device: DeviceNumber,
    pub(super) state: FileState,
    pub(super) count: Option<u64>,
    pub(super) named: u64,
    pub(super) driver_pins: u64,
    pub(super) opened: Option<Opened>,
}

/// All living files. An address names at most one of them; an id is never used twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    records: HashMap<u64, FileRecord>,
    by_key: HashMap<FileKey, u64>,
    last_id: u64,
}

impl Files {
    /// The living file at this address.
    pub(super) fn id_of(&self, key: FileKey) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut FileRecord> {
        self.records.get_mut(&id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&FileRecord> {
        self.records.get(&id)
    }

    /// A file that was not known. Whatever was at its address before is another file, and gone.
    pub(super) fn insert(&mut self, record: FileRecord) -> u64 {
        self.last_id += 1;
        if let Some(before) = self.by_key.insert(record.key, self.last_id) {
            self.records.remove(&before);
        }
        self.records.insert(self.last_id, record);
        self.last_id
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<FileRecord> {
        let record = self.records.remove(&id)?;
        if self.by_key.get(&record.key) == Some(&id) {
            self.by_key.remove(&record.key);
        }
        Some(record)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &FileRecord)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

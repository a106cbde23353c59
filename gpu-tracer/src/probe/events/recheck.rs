//! Files remembered from earlier, looked at again in the kernel by address.
//!
//! A file that has left every table and mapping may still live: a task that got stuck while closing another one, a release
//! that waits in the driver. "Not found" is never taken for "released"; this is how the difference is told.
//!
//! From Linux 6.7 the memory of a released `struct file` stays readable and looks as it did, until it is used for another
//! one. So what is compared is an identity that hardly any other file at that address can have, and for files without
//! references there are two further signs of life:
//!
//! * the blob that a security module hangs on each file, taken away when the file is freed (any kernel with AppArmor,
//!   SELinux, Landlock or another that marks files);
//! * where there is none, the references to the directory entry of the node: every living file has one of them. If those
//!   that are known to live account for all, the others are gone. If not, they count as living.

use std::collections::{HashMap, HashSet};

use gpu_tracer_common::snapshot::{HOLD_CHECKED, HoldRecord, check_bits};

use crate::{
    model::{
        DeviceNumber, FileKey, OpenFile,
        event::{EventKind, HeldAtExit},
    },
    probe::{Iterators, ProbeError, spares::Spare},
};

/// A file as it was when it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RememberedFile {
    /// Its address.
    pub key: FileKey,
    /// Its device.
    pub device: DeviceNumber,
    /// [`OpenFile::identity`]; 0 where it is not known: then any file of the device counts as this one.
    pub identity: u64,
}

impl From<&OpenFile> for RememberedFile {
    fn from(file: &OpenFile) -> Self {
        Self { key: file.key, device: file.device, identity: file.identity }
    }
}

impl From<&HeldAtExit> for RememberedFile {
    fn from(held: &HeldAtExit) -> Self {
        Self { key: held.file, device: held.device, identity: held.identity }
    }
}

/// What is there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChecked {
    /// The address.
    pub file: FileKey,
    /// Is it still the file that was remembered?
    pub still_same: bool,
    /// References as the kernel counts them. 0: it waits for its release, or is being released. `None`: it is gone.
    pub count: Option<u64>,
    /// Identity of what is there, 0 for nothing.
    pub identity: u64,
}

impl From<FileChecked> for EventKind {
    fn from(checked: FileChecked) -> Self {
        let FileChecked { file, still_same, count, .. } = checked;
        Self::FileChecked { file, count, still_same }
    }
}

impl Iterators {
    /// Looks at files again; one answer for each, in the same order.
    ///
    /// Give it all files that are believed to live, not only the doubtful ones: where no security module marks files, those
    /// that certainly live tell what has become of the others. Takes some 300 ns for each.
    ///
    /// Errors: the program is not to be had on this kernel, or the kernel fails.
    pub fn recheck(&mut self, files: &[RememberedFile]) -> Result<Vec<FileChecked>, ProbeError> {
        let link = self.spares.link(Spare::Checks).map_err(|_| ProbeError::Incompatible("iter_recheck"))?;
        let keys: HashSet<u64> = files.iter().map(|file| file.key.0).collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        let mut found = Vec::new();
        if !keys.is_empty() {
            self.look_closer(&link, &keys, &mut found)?;
        }
        Ok(judge(files, &found))
    }
}

/// What the records say of each file. No record: nothing that looks like a device file is there.
pub(super) fn judge(files: &[RememberedFile], records: &[HoldRecord]) -> Vec<FileChecked> {
    let now: HashMap<u64, &HoldRecord> = records
        .iter()
        .filter(|record| record.header.kind == HOLD_CHECKED)
        .map(|record| (record.file, record))
        .collect();
    let mut living: HashMap<u64, u64> = HashMap::new();
    for record in now.values().filter(|record| record.count > 0) {
        *living.entry(record.by).or_default() += 1;
    }
    let gone = |record: &HoldRecord| {
        let marked = record.end & check_bits::HAS_SECURITY_BLOB != 0;
        record.count == 0 && !marked && record.at <= living.get(&record.by).copied().unwrap_or(0)
    };
    files
        .iter()
        .map(|file| match now.get(&file.key.0) {
            Some(record) if is_same(file, record) && !gone(record) => FileChecked {
                file: file.key,
                still_same: true,
                count: Some(record.count),
                identity: record.identity,
            },
            Some(record) if !gone(record) => {
                FileChecked { file: file.key, still_same: false, count: None, identity: record.identity }
            }
            _ => FileChecked { file: file.key, still_same: false, count: None, identity: 0 },
        })
        .collect()
}

fn is_same(file: &RememberedFile, record: &HoldRecord) -> bool {
    record.rdev == file.device.to_kernel() && (file.identity == 0 || file.identity == record.identity)
}

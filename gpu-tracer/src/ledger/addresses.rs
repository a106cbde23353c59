//! Touches that tell which file the device is opened as.
//!
//! At that moment the file at that address referred to nothing yet: whatever had been there is gone, and whatever is seen
//! there later is that file, or one of which a later touch tells.

use super::touches::Touch;
use crate::model::hash::Map;
use crate::model::{DeviceNumber, FileKey, ProcessId};

/// Addresses remembered. Opens that fail use the same ones again and again.
const ADDRESSES_KEPT: usize = 65_536;
/// Touches remembered of each.
const TOUCHES_KEPT: usize = 4;

/// Who opened what at which address.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// In order of time.
    touches: Map<FileKey, Vec<Touch>>,
    /// When each device was last touched, or may have been, without a file being told of.
    without_file: Map<DeviceNumber, u64>,
    /// Touches up to this moment may be missing.
    doubted_ns: u64,
}

impl Addresses {
    pub(super) fn add(&mut self, touch: &Touch) {
        let Some(file) = touch.file else {
            self.lack(touch.device, touch.at_ns);
            return;
        };
        if self.touches.len() >= ADDRESSES_KEPT && !self.touches.contains_key(&file) {
            self.forget_older_half();
        }
        let known = self.touches.entry(file).or_default();
        let at = known.partition_point(|other| other.at_ns < touch.at_ns);
        if known.get(at).is_none_or(|other| other.at_ns > touch.at_ns) {
            known.insert(at, touch.clone());
        }
        if known.len() > TOUCHES_KEPT {
            known.remove(0);
        }
    }

    /// This device may have been touched up to this moment without a file being told of.
    pub(super) fn lack(&mut self, device: DeviceNumber, until_ns: u64) {
        let last = self.without_file.entry(device).or_default();
        *last = until_ns.max(*last);
    }

    fn forget_older_half(&mut self) {
        let latest = |known: &Vec<Touch>| known.last().map_or(0, |touch| touch.at_ns);
        let mut times: Vec<u64> = self.touches.values().map(latest).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.touches.retain(|_, known| latest(known) > median);
        self.doubt(median);
    }

    /// Touches up to this moment may be missing.
    pub(super) fn doubt(&mut self, until_ns: u64) {
        self.doubted_ns = until_ns.max(self.doubted_ns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }

    /// The touch that opened the file of this device that was seen at this address at this moment, and is that certain?
    pub(super) fn opened(&self, file: FileKey, device: DeviceNumber, seen_ns: u64) -> Option<(&Touch, bool)> {
        let touch = self.touches.get(&file)?.iter().rfind(|touch| touch.at_ns <= seen_ns)?;
        (touch.device == device).then(|| (touch, !self.may_lack(device, touch.at_ns)))
    }

    /// Was a device opened at this address after this moment? Then what was there is gone.
    pub(super) fn reused(&self, file: FileKey, since_ns: u64) -> bool {
        let latest = self.touches.get(&file).and_then(|known| known.last());
        latest.is_some_and(|touch| touch.at_ns > since_ns)
    }

    /// May this device have been opened after this moment without [`Addresses::reused`] knowing of it?
    pub(super) fn may_lack(&self, device: DeviceNumber, since_ns: u64) -> bool {
        self.lacking_until(device) > since_ns
    }

    /// The last moment up to which that may be; 0 where it never was.
    pub(super) fn lacking_until(&self, device: DeviceNumber) -> u64 {
        self.without_file.get(&device).copied().unwrap_or(0).max(self.doubted_ns)
    }

    /// Forgets touches that a file has been matched with, and those before.
    pub(super) fn take(&mut self, file: FileKey, until_ns: u64) {
        let Some(known) = self.touches.get_mut(&file) else { return };
        known.retain(|touch| touch.at_ns > until_ns);
        if known.is_empty() {
            self.touches.remove(&file);
        }
    }

    /// Forgets those up to this moment of processes that are gone.
    pub(super) fn retain(&mut self, since_ns: u64, keep: impl Fn(ProcessId) -> bool) {
        self.touches.retain(|_, known| {
            known.retain(|touch| touch.at_ns > since_ns || keep(touch.task.process));
            !known.is_empty()
        });
    }
}

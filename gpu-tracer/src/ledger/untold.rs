//! Processes that have asked for a device more often than is told one by one: what they opened since may be any file that they have.

use smallvec::SmallVec;

use crate::model::hash::Map;
use crate::model::{DeviceNumber, ProcessId};

/// Processes and devices remembered; with more of them it may have been anybody.
const KEPT: usize = 8_192;

/// Until when each process may have opened each device without that being told.
#[derive(Clone, Debug, Default)]
pub(super) struct Untold {
    until: Map<(ProcessId, DeviceNumber), u64>,
    /// Until when anybody may have opened any.
    by_anybody_ns: u64,
}

/// Who may have opened a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Suspects {
    Anybody,
    These(SmallVec<[ProcessId; 4]>),
}

impl Suspects {
    pub(super) fn are_none(&self) -> bool {
        matches!(self, Self::These(processes) if processes.is_empty())
    }

    pub(super) fn include(&self, process: ProcessId) -> bool {
        match self {
            Self::Anybody => true,
            Self::These(processes) => processes.contains(&process),
        }
    }

    pub(super) fn are_only(&self, process: ProcessId) -> bool {
        matches!(self, Self::These(processes) if processes[..] == [process])
    }
}

impl Untold {
    pub(super) fn add(&mut self, process: ProcessId, device: DeviceNumber, until_ns: u64) {
        if self.until.len() >= KEPT && !self.until.contains_key(&(process, device)) {
            let last_ns = self.until.values().copied().max().unwrap_or(0);
            self.by_anybody_ns = self.by_anybody_ns.max(last_ns);
            self.until.clear();
        }
        let known = self.until.entry((process, device)).or_default();
        *known = until_ns.max(*known);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.until.is_empty() && self.by_anybody_ns == 0
    }

    /// Who may have opened this device after this moment.
    pub(super) fn since(&self, device: DeviceNumber, since_ns: u64) -> Suspects {
        if self.by_anybody_ns > since_ns {
            return Suspects::Anybody;
        }
        let they = self.until.iter().filter(|((_, of), until_ns)| *of == device && **until_ns > since_ns);
        Suspects::These(they.map(|((process, _), _)| *process).collect())
    }

    /// The last moment up to which anybody may have opened this device; 0 where nobody ever may.
    pub(super) fn until(&self, device: DeviceNumber) -> u64 {
        let they = self.until.iter().filter(|((_, of), _)| *of == device).map(|(_, until_ns)| *until_ns);
        they.max().unwrap_or(0).max(self.by_anybody_ns)
    }

    /// Each process and device after this moment. Not who was forgotten for want of room.
    pub(super) fn all_since(&self, since_ns: u64) -> impl Iterator<Item = (ProcessId, DeviceNumber)> {
        self.until.iter().filter(move |(_, until_ns)| **until_ns > since_ns).map(|(key, _)| *key)
    }

    /// Did anybody do so after this moment who was forgotten for want of room?
    pub(super) fn forgot(&self, since_ns: u64) -> bool {
        self.by_anybody_ns > since_ns
    }

    /// Forgets what was over at this moment.
    pub(super) fn retain_since(&mut self, since_ns: u64) {
        self.until.retain(|_, until_ns| *until_ns > since_ns);
        if self.by_anybody_ns <= since_ns {
            self.by_anybody_ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_too_many_to_remember_it_may_have_been_anybody_until_that_is_over() {
        let device = DeviceNumber { major: 195, minor: 0 };
        let process = |tgid| ProcessId { tgid, start_ns: 1 };
        let mut untold = Untold::default();
        untold.add(process(1), device, 100);
        assert!(untold.since(device, 50).are_only(process(1)) && untold.since(device, 100).are_none());
        for tgid in 2..=KEPT as u32 + 1 {
            untold.add(process(tgid), device, 100);
        }
        assert_eq!(untold.since(device, 50), Suspects::Anybody);
        assert!(untold.forgot(50) && untold.until.len() < KEPT);
        untold.retain_since(100);
        assert!(untold.is_empty());
    }
}

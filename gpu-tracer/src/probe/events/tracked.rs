//! The set of tracked processes, which the programs and this side both change.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

use aya::maps::{HashMap, Map, MapData, MapError};
use gpu_tracer_common::events::{TRACKED_SLOTS, Tracked};

use super::{Plain, refused};
use crate::{
    model::ProcessId,
    probe::{ProbeError, SyscallError},
};

/// Names of its maps.
pub(super) const MAPS: [&str; 2] = ["TRACKED", "TRACKED_SLOTS"];

const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;
const BYTES: usize = TRACKED_SLOTS * size_of::<u32>();

pub(super) struct TrackedSet {
    processes: HashMap<MapData, u32, Plain<Tracked>>,
    slots: Slots,
}

impl TrackedSet {
    /// Takes the maps from where they are.
    pub(super) fn take(
        mut map: impl FnMut(&'static str) -> Result<Map, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let [processes, slots] = MAPS;
        Ok(Self {
            processes: HashMap::try_from(map(processes)?).map_err(refused(processes))?,
            slots: Slots::map(&map(slots)?)?,
        })
    }

    pub(super) fn add(&mut self, process: ProcessId) -> Result<(), ProbeError> {
        if self.has(process) {
            return Ok(());
        }
        let fresh = Plain(Tracked { start_ns: process.start_ns, ..Tracked::default() });
        // Counted first, so that there is no moment at which the programs overlook the element.
        self.slots.of(process.tgid).fetch_add(1, Ordering::SeqCst);
        let Err(error) = self.processes.insert(process.tgid, fresh, BPF_NOEXIST) else { return Ok(()) };
        self.slots.of(process.tgid).fetch_sub(1, Ordering::SeqCst);
        let replaced = if errno(&error) == Some(libc::EEXIST) {
            self.processes.insert(process.tgid, fresh, BPF_EXIST)
        } else {
            Err(error)
        };
        replaced.map_err(refused("TRACKED"))
    }

    pub(super) fn remove(&mut self, process: ProcessId) -> Result<(), ProbeError> {
        if !self.has(process) {
            return Ok(());
        }
        match self.processes.remove(&process.tgid) {
            Ok(()) => {
                self.slots.of(process.tgid).fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
            // Reaped meanwhile.
            Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(refused("TRACKED")(error)),
        }
    }

    pub(super) fn list(&self) -> Vec<ProcessId> {
        self.processes
            .iter()
            .filter_map(Result::ok)
            .map(|(tgid, tracked)| ProcessId { tgid, start_ns: tracked.0.start_ns })
            .collect()
    }

    /// How many processes the counters stand for.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        (0..TRACKED_SLOTS as u32).map(|tgid| self.slots.of(tgid).load(Ordering::SeqCst) as usize).sum()
    }

    fn has(&self, process: ProcessId) -> bool {
        self.processes.get(&process.tgid, 0).is_ok_and(|known| known.0.start_ns == process.start_ns)
    }
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::KeyNotFound | MapError::ElementNotFound => Some(libc::ENOENT),
        error => crate::probe::errno(error),
    }
}

/// The counters of [`TRACKED_SLOTS`], in memory shared with the programs.
struct Slots(NonNull<AtomicU32>);

// SAFETY: atomics in memory that belongs to nobody else in this process.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    fn map(map: &Map) -> Result<Self, ProbeError> {
        let Map::Array(data) = map else { return Err(ProbeError::Incompatible("TRACKED_SLOTS")) };
        let descriptor = data.fd().as_fd().as_raw_fd();
        // SAFETY: a new mapping, wherever there is room; the kernel refuses it if the map is shorter.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, descriptor, 0)
        };
        let failed = || SyscallError { call: "mmap of a BPF map", source: io::Error::last_os_error() };
        match NonNull::new(at.cast::<AtomicU32>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Self(at)),
            _ => Err(failed().into()),
        }
    }

    fn of(&self, tgid: u32) -> &AtomicU32 {
        // SAFETY: the mapping has `TRACKED_SLOTS` counters and lives as long as `self`.
        unsafe { self.0.add(tgid as usize % TRACKED_SLOTS).as_ref() }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

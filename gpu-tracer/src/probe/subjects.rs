//! The map `SUBJECTS`: files that a program is to look at, written through a mapping of it.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::{Map, MapData};
use gpu_tracer_common::snapshot::MAX_SUBJECTS;

use super::{ProbeError, sys};

const NAME: &str = "SUBJECTS";
const BYTES: usize = MAX_SUBJECTS as usize * size_of::<u64>();

/// The map, mapped.
pub(super) struct Subjects {
    elements: NonNull<AtomicU64>,
    _map: MapData,
}

// SAFETY: the mapping belongs to this value alone and is of the whole process, not of a thread.
unsafe impl Send for Subjects {}

impl Subjects {
    /// Maps it (`BPF_F_MMAPABLE`, Linux 5.5).
    pub(super) fn map(map: Map) -> Result<Self, ProbeError> {
        let Map::Array(data) = map else { return Err(ProbeError::Incompatible(NAME)) };
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = data.fd().as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, shared, fd, 0) };
        match NonNull::new(address.cast()) {
            Some(elements) if address != libc::MAP_FAILED => Ok(Self { elements, _map: data }),
            _ => {
                Err(sys::SyscallError { call: "mmap of a BPF map", source: io::Error::last_os_error() }
                    .into())
            }
        }
    }

    /// Makes these its first elements; those beyond its length are left out.
    pub(super) fn write(&mut self, files: &[u64]) {
        for (index, file) in files.iter().take(MAX_SUBJECTS as usize).enumerate() {
            // SAFETY: within the mapping, which is aligned to a page and lives as long as this.
            unsafe { self.elements.add(index).as_ref() }.store(*file, Ordering::Relaxed);
        }
    }
}

impl Drop for Subjects {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.elements.as_ptr().cast(), BYTES) };
    }
}

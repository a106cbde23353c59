//! An io_uring of our own, only to learn what the `f_op` of io_uring files is on this boot.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// Length of the kernel's `struct io_uring_params`.
const PARAMETERS: usize = 120;

/// A ring with one entry. ENOSYS: this kernel has none. EPERM: they are disabled for us, others may still have some.
pub(super) fn create() -> io::Result<OwnedFd> {
    let mut parameters = [0u8; PARAMETERS];
    // SAFETY: the kernel reads and writes `PARAMETERS` bytes.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, parameters.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

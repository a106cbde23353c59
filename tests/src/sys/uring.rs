//! io_uring, as far as holding files goes (Linux 5.1).

use std::ffi::c_int;
use std::io;

use super::{check_long, fd};

/// `IORING_REGISTER_FILES` and `IORING_UNREGISTER_FILES`.
const REGISTER_FILES: u32 = 2;
const UNREGISTER_FILES: u32 = 3;

/// Bytes of a ring's mapping that are enough to keep it: one page at `IORING_OFF_SQ_RING`.
pub const RING_PAGE: usize = 4096;

/// Sets up a ring with eight entries and returns its descriptor.
pub fn setup() -> io::Result<c_int> {
    // `struct io_uring_params` is 120 bytes; all-zero asks for the defaults.
    let mut params = [0u8; 120];
    // SAFETY: the parameters are valid for reading and writing, and as long as the kernel expects.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr()) };
    Ok(check_long(ring)? as c_int)
}

/// Registers files with the ring; slot N gets the N-th.
pub fn register(ring: c_int, fds: &[c_int]) -> io::Result<()> {
    // SAFETY: the array is as long as said.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_FILES, fds.as_ptr(), fds.len()) };
    check_long(done).map(drop)
}

/// Drops all registered files.
pub fn unregister(ring: c_int) -> io::Result<()> {
    // SAFETY: takes no memory.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, UNREGISTER_FILES, 0, 0) };
    check_long(done).map(drop)
}

/// Maps one page of the ring, which keeps the ring after its descriptor is closed.
pub fn map(ring: c_int) -> io::Result<u64> {
    fd::map_as(ring, RING_PAGE, libc::MAP_SHARED)
}

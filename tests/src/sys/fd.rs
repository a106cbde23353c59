//! Descriptors and mappings.

use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::ptr::null_mut;

use super::{c_path, check};

/// `open(2)` with mode 0600.
pub fn open(path: &Path, flags: c_int) -> io::Result<c_int> {
    let path = c_path(path)?;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    check(unsafe { libc::open(path.as_ptr(), flags, 0o600) })
}

/// `dup(2)`.
pub fn dup(fd: c_int) -> io::Result<c_int> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::dup(fd) })
}

/// `dup2(2)`.
pub fn dup2(fd: c_int, to: c_int) -> io::Result<c_int> {
    // SAFETY: takes numbers only; the caller says which descriptor is replaced.
    check(unsafe { libc::dup2(fd, to) })
}

/// `close(2)`.
pub fn close(fd: c_int) -> io::Result<()> {
    // SAFETY: takes a number only; no owner of that number exists on the Rust side (see the module above).
    check(unsafe { libc::close(fd) }).map(drop)
}

/// Closes every descriptor from 3 up, except one.
pub fn close_all_but(kept: c_int) {
    let kept = kept.cast_unsigned();
    let ranges = [(3, kept.saturating_sub(1)), (kept.saturating_add(1).max(3), u32::MAX)];
    for (first, last) in ranges {
        if first <= last {
            // SAFETY: takes numbers only; called in a fresh child, which owns none of them on the Rust side.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Sets or clears close-on-exec.
pub fn set_cloexec(fd: c_int, on: bool) -> io::Result<()> {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: takes numbers only.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, flags) }).map(drop)
}

/// Maps `length` bytes of a device, private; returns the address.
///
/// Private, because a shared mapping of `/dev/zero` is quietly turned into one of an unnamed memory file and then no
/// longer refers to the device.
pub fn map(fd: c_int, length: usize) -> io::Result<u64> {
    map_as(fd, length, libc::MAP_PRIVATE)
}

/// Maps with the given sharing, readable and writable, from offset 0.
pub(super) fn map_as(fd: c_int, length: usize, sharing: c_int) -> io::Result<u64> {
    // SAFETY: the kernel picks the address, so nothing that exists is replaced.
    let at = unsafe { libc::mmap(null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, sharing, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// `munmap(2)` of a range that [`map`] or [`remap`] returned.
pub fn unmap(at: u64, length: usize) -> io::Result<()> {
    // SAFETY: only ranges that this worker mapped by order come here, and nothing on the Rust side points into them.
    check(unsafe { libc::munmap(at as *mut libc::c_void, length) }).map(drop)
}

/// `mremap(2)`, free to move; returns the new address.
pub fn remap(at: u64, length: usize, new_length: usize) -> io::Result<u64> {
    // SAFETY: as for `unmap`.
    let at = unsafe { libc::mremap(at as *mut libc::c_void, length, new_length, libc::MREMAP_MAYMOVE) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// Writes one page of zeros; blocks as long as the file system makes it.
pub fn write_page(fd: c_int) -> io::Result<()> {
    let page = [0u8; 4096];
    // SAFETY: the buffer is as long as said.
    let written = unsafe { libc::write(fd, page.as_ptr().cast(), page.len()) };
    if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `ioctl(2)` with an argument that is read, or read and written, by the driver.
pub fn request(fd: c_int, request: u64, mut argument: Vec<u8>) -> io::Result<()> {
    // SAFETY: callers give as many bytes as the request's number says, and the driver touches no more.
    check(unsafe { libc::ioctl(fd, request, argument.as_mut_ptr()) }).map(drop)
}

/// Takes a copy of another process's descriptor (`pidfd_getfd(2)`, Linux 5.6).
pub fn take_from(pid: u32, fd: c_int) -> io::Result<c_int> {
    // SAFETY: takes numbers only.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let pidfd = super::check_long(pidfd)? as c_int;
    // SAFETY: takes numbers only.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) };
    let taken = super::check_long(taken);
    close(pidfd)?;
    Ok(taken? as c_int)
}

/// Lifts the limit on open descriptors to `wanted`, or as far as this process may; returns what it is then.
pub fn lift_limit(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    let allowed = limit.rlim_max;
    // Beyond the hard limit only with CAP_SYS_RESOURCE.
    for (soft, hard) in [(wanted, allowed.max(wanted)), (wanted.min(allowed), allowed)] {
        let lifted = libc::rlimit { rlim_cur: soft.max(limit.rlim_cur), rlim_max: hard };
        // SAFETY: the struct is valid for reading.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lifted) } == 0 {
            return Ok(lifted.rlim_cur);
        }
    }
    Err(io::Error::last_os_error())
}

/// Points the three standard descriptors to `/dev/null`: a process that outlives its starter must not keep its pipes.
pub fn silence() {
    if let Ok(null) = open(Path::new("/dev/null"), libc::O_RDWR) {
        for standard in 0..3 {
            let _ = dup2(null, standard);
        }
        let _ = close(null);
    }
}

//! System calls that the standard library does not offer, as thin functions over `libc`.
//!
//! Descriptors are plain numbers here, on purpose: a worker's descriptors are its *subject*, opened, duplicated and
//! dropped by order, and must not close themselves.

use std::ffi::{CString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub mod fd;
pub mod freezer;
pub mod fuse;
pub mod loopfs;
pub mod mounts;
pub mod process;
pub mod socket;
pub mod title;
pub mod uring;

/// `-1` becomes the error that `errno` names.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`check`], for calls that return a `long`.
pub(crate) fn check_long(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A path as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

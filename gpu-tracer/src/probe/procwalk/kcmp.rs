//! `kcmp(2)`: do two tasks share a kernel object? (3.5 and newer, if the kernel was built with it.)

use std::cmp::Ordering;

use rustix::io::Errno;

/// What is compared; values of `include/uapi/linux/kcmp.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Open files, by descriptor.
    File = 0,
    /// Address spaces.
    Vm = 1,
    /// fd tables.
    Files = 2,
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// A thread, in our own PID namespace.
    pub(super) tid: u32,
    /// A descriptor, for [`Kind::File`]; otherwise unused.
    pub(super) fd: u32,
}

/// Compares two objects by the kernel's own, scrambled order, which is good for sorting.
///
/// # Errors
/// `EPERM` without ptrace rights to both tasks, `ESRCH` and `EBADF` when one has gone, `ENOSYS` without support.
pub(super) fn compare(kind: Kind, one: Subject, other: Subject) -> Result<Ordering, Errno> {
    // SAFETY: kcmp takes numbers only and reads or writes no memory of ours.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            libc::c_long::from(one.tid),
            libc::c_long::from(other.tid),
            kind as libc::c_long,
            libc::c_long::from(one.fd),
            libc::c_long::from(other.fd),
        )
    };
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        _ => Err(Errno::INVAL),
    }
}

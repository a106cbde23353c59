//! How the allocator is to deal with a process that lives for months and needs much only now and then.
//!
//! An answer about ten thousand handles takes a few MiB for some milliseconds, in whichever thread. Left to itself glibc
//! gives every thread an arena of its own, each of which grows to that size once.

/// Bytes from which an allocation is a mapping of its own, and is given back to the kernel when it is freed: more than the list of
/// ten thousand open files, which would otherwise have to be mapped, page by page, for every answer.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 4 << 20;
/// Free bytes at the end of the heap that are kept for the next time, until nobody has asked for a while ([`give_back`]).
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 4 << 20;

/// Should be called before threads are started.
pub(super) fn be_modest() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers only; what it does not like it ignores.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Gives back what is free, between allocations that are not as well: after loading programs, after a crowd of files has
/// gone, and when nobody has asked for a while.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

//! Files remembered from earlier, as they are now: the user side compares.
//!
//! From 6.7 a `struct file` is reused as soon as it is freed, and nothing marks a free one. What comes back is therefore
//! everything that helps to tell a file that lives, one that is being released, and one that is gone:
//!
//! * its count of references;
//! * its identity ([`identity`]), in which the security blob is the strongest part: `security_file_free` takes it away
//!   after the driver's release has returned, just before the memory is given back;
//! * how many references its dentry has, of which every file that is not yet freed holds one. Kernels on which no
//!   security module has file blobs are left with that.

use core::ffi::c_void;

use gpu_tracer_common::snapshot::{FILE_DEVICE, HOLD_CHECKED, check_bits};

use crate::{
    access::{follow, offset, peek, read},
    holds::{Found, Full, character_device, emit},
    subjects::{all_subjects, next_subject, step},
};

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_recheck(_: *mut c_void) -> i32 {
    all_subjects!(look_at_next_again)
}

/// The same for kernels without `bpf_loop`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_recheck_singly(_: *mut c_void) -> i32 {
    next_subject(look_again)
}

#[inline(never)]
unsafe extern "C" fn look_at_next_again(_: u32, _: *mut c_void) -> i64 {
    step(look_again)
}

#[inline(always)]
fn look_again(file: u64) -> Result<(), Full> {
    let Some(rdev) = character_device(file) else { return Ok(()) };
    let inode = peek::<u64>(file, offset!(file_inode));
    let dentry = follow(file, offset!(file_path_dentry));
    let references = if read::<u64>(dentry, offset!(dentry_inode)) == Some(inode) {
        peek::<i32>(dentry, offset!(dentry_lockref_count)).max(0)
    } else {
        0
    };
    let blob = peek::<u64>(file, offset!(file_security));
    let bits = if blob == 0 { 0 } else { check_bits::HAS_SECURITY_BLOB };
    let found = Found { kind: HOLD_CHECKED, tid: 0, by: dentry, at: references as u64, end: bits };
    emit(&found, FILE_DEVICE, file, rdev)
}

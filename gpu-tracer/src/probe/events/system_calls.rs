//! Which system calls may change who refers to what, by their numbers: for the programs of plan `exhaustive`.
//!
//! Left out on purpose: `open(2)`, fork, exec and exit have hooks of their own. `ioctl(2)` is not looked into: by it the driver
//! can pin files, and a seccomp notifier can put a descriptor into another process; a look in its turn finds both.

use gpu_tracer_common::events::{CALL_NUMBERS, call_class};

use crate::kernel::Btf;

/// What it costs to follow them, in a sentence (`cargo xtask bench overhead --plan exhaustive`).
pub const COST_OF_CALLS: &str =
    "every system call of every process on this host takes some 200 ns longer while it is in effect";

/// Can they be followed? What the tracepoints print is in BTF, and the tracepoints themselves are not.
#[must_use]
pub fn can_follow_calls(btf: &Btf) -> bool {
    let known = |structure, member| btf.field(structure, member).is_ok();
    known("trace_event_raw_sys_enter", "id") && known("trace_event_raw_sys_exit", "ret")
}

/// Calls of programs of this architecture.
const OWN: [(i64, u8); 18] = [
    (libc::SYS_close, call_class::CLOSE),
    (libc::SYS_dup, call_class::DUP),
    (libc::SYS_dup3, call_class::DUP_ONTO),
    (libc::SYS_fcntl, call_class::FCNTL),
    (libc::SYS_mmap, call_class::MAP),
    (libc::SYS_sendmsg, call_class::SEND),
    (libc::SYS_recvmsg, call_class::RECEIVE),
    (libc::SYS_recvmmsg, call_class::RECEIVE_MANY),
    (libc::SYS_pidfd_getfd, call_class::TAKE),
    (libc::SYS_sendmmsg, call_class::ANY),
    (libc::SYS_close_range, call_class::ANY),
    (libc::SYS_munmap, call_class::ANY),
    (libc::SYS_mremap, call_class::ANY),
    (libc::SYS_unshare, call_class::ANY),
    (libc::SYS_io_uring_setup, call_class::ANY),
    (libc::SYS_io_uring_enter, call_class::ANY),
    (libc::SYS_io_uring_register, call_class::ANY),
    (libc::SYS_remap_file_pages, call_class::ANY),
];
/// Calls that newer architectures do without.
#[cfg(target_arch = "x86_64")]
const OWN_OLD: [(i64, u8); 1] = [(libc::SYS_dup2, call_class::DUP_ONTO)];
#[cfg(not(target_arch = "x86_64"))]
const OWN_OLD: [(i64, u8); 0] = [];

/// Numbers of the same calls where 32-bit programs make them: i386, whose `socketcall` is among them.
#[cfg(target_arch = "x86_64")]
const COMPAT: [u16; 24] = [
    6, 41, 55, 63, 90, 91, 102, 163, 192, 221, 257, 310, 330, 337, 345, 370, 372, 373, 417, 425, 426, 427,
    436, 438,
];
/// ARM.
#[cfg(target_arch = "aarch64")]
const COMPAT: [u16; 21] =
    [6, 41, 55, 63, 91, 163, 192, 221, 253, 293, 296, 297, 337, 358, 365, 374, 417, 425, 426, 427, 436];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const COMPAT: [u16; 0] = [];

/// `CALL_CLASSES` of the programs.
pub(super) fn classes() -> [u8; CALL_NUMBERS] {
    let mut classes = [call_class::NONE; CALL_NUMBERS];
    let own =
        OWN.into_iter().chain(OWN_OLD).filter_map(|(call, class)| Some((usize::try_from(call).ok()?, class)));
    let of_compat = COMPAT.into_iter().map(|call| (usize::from(call), call_class::OF_COMPAT));
    for (call, bits) in own.chain(of_compat) {
        if let Some(entry) = classes.get_mut(call) {
            *entry |= bits;
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_place_and_one_class() {
        let classes = classes();
        for (call, class) in OWN.into_iter().chain(OWN_OLD) {
            assert_eq!(classes[usize::try_from(call).unwrap()] & call_class::OWN, class, "call {call}");
        }
        assert_eq!(classes[usize::try_from(libc::SYS_getppid).unwrap()] & call_class::OWN, call_class::NONE);
        let marked = classes.iter().filter(|entry| *entry & call_class::OF_COMPAT != 0).count();
        assert_eq!(marked, COMPAT.len(), "each is there once");
    }
}

//! The bpf(2) calls that aya does not offer: iterator links that can be read many times, and with a PID filter.

use std::{
    fs::File,
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd};

/// A system call failed.
#[derive(Debug, thiserror::Error)]
#[error("`{call}` failed: {source}")]
pub struct SyscallError {
    /// The call, with bpf(2)'s command.
    pub call: &'static str,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// bpf(2); pointers in `attributes` must be valid for the call.
pub(super) fn bpf(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: `attributes` is a valid `bpf_attr` of the size given; pointers in it are the caller's and outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// bpf(2) with a command that returns a new descriptor.
pub(super) fn bpf_open(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller names a command that returns a new descriptor.
    bpf(command, attributes).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The task member of the kernel's `union bpf_iter_link_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TaskFilter {
    tid: u32,
    pid: u32,
    pid_fd: u32,
}

/// Creates a link for an iterator program; with `pid` only for the threads of that process.
///
/// The filter exists since 6.1; older kernels answer E2BIG or EINVAL.
#[doc(alias = "BPF_LINK_CREATE")]
pub(super) fn iterator_link(program: BorrowedFd<'_>, pid: Option<u32>) -> Result<OwnedFd, SyscallError> {
    let mut filter = TaskFilter { tid: 0, pid: pid.unwrap_or(0), pid_fd: 0 };
    // SAFETY: all-zero is a valid `bpf_attr`.
    let mut attributes: bpf_attr = unsafe { zeroed() };
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attributes.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    if pid.is_some() {
        // `iter_info` sits in a union of plain integers; `filter` outlives the call below.
        attributes.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info = &raw mut filter as u64;
        attributes.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info_len =
            size_of::<TaskFilter>() as u32;
    }
    bpf_open(bpf_cmd::BPF_LINK_CREATE, &mut attributes)
        .map_err(|source| SyscallError { call: "bpf(BPF_LINK_CREATE)", source })
}

/// Opens the iterator of a link: one pass over the kernel's objects, in the namespaces of the calling thread.
#[doc(alias = "BPF_ITER_CREATE")]
pub(super) fn open_iterator(link: BorrowedFd<'_>) -> Result<File, SyscallError> {
    // SAFETY: all-zero is a valid `bpf_attr`.
    let mut attributes: bpf_attr = unsafe { zeroed() };
    attributes.iter_create.link_fd = link.as_raw_fd() as u32;
    bpf_open(bpf_cmd::BPF_ITER_CREATE, &mut attributes)
        .map(File::from)
        .map_err(|source| SyscallError { call: "bpf(BPF_ITER_CREATE)", source })
}

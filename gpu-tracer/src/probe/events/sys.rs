//! The bpf(2) calls for links that aya does not offer: cgroup links that can be pinned, and what a link knows of itself.

use std::{
    ffi::{CStr, CString},
    io,
    mem::{size_of, zeroed},
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_link_info, bpf_prog_info};

use crate::probe::sys::{bpf, bpf_open};

fn attributes() -> bpf_attr {
    // SAFETY: all-zero is a valid `bpf_attr`.
    unsafe { zeroed() }
}

/// Attaches a raw tracepoint program. ENOENT: this kernel has no such tracepoint.
#[doc(alias = "BPF_RAW_TRACEPOINT_OPEN")]
pub(super) fn tracepoint_link(program: BorrowedFd<'_>, tracepoint: &CStr) -> io::Result<OwnedFd> {
    let mut attributes = attributes();
    attributes.raw_tracepoint.name = tracepoint.as_ptr() as u64;
    attributes.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    bpf_open(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attributes)
}

/// Attaches a `cgroup/dev` program to a cgroup and everything below it, beside the programs that are there already: a
/// link always is of the kind that others may stand beside (`BPF_F_ALLOW_MULTI`). Links of cgroups exist since 5.7.
#[doc(alias = "BPF_LINK_CREATE")]
pub(super) fn cgroup_link(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = attributes();
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attributes.link_create.__bindgen_anon_2.target_fd = cgroup.as_raw_fd() as u32;
    attributes.link_create.attach_type = bpf_attach_type::BPF_CGROUP_DEVICE as u32;
    bpf_open(bpf_cmd::BPF_LINK_CREATE, &mut attributes)
}

/// Gives a link a name in a BPF file system, by which it outlives this process.
#[doc(alias = "BPF_OBJ_PIN")]
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = attributes();
    attributes.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attributes.__bindgen_anon_4.bpf_fd = object.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attributes).map(drop)
}

/// Opens what has a name in a BPF file system.
#[doc(alias = "BPF_OBJ_GET")]
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = attributes();
    attributes.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    bpf_open(bpf_cmd::BPF_OBJ_GET, &mut attributes)
}

/// The program behind a link.
pub(super) fn program_of(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: bpf_link_info = unsafe { zeroed() };
    query(link, &mut info)?;
    let mut attributes = attributes();
    attributes.__bindgen_anon_6.__bindgen_anon_1.prog_id = info.prog_id;
    bpf_open(bpf_cmd::BPF_PROG_GET_FD_BY_ID, &mut attributes)
}

/// How often a program was not run because it was running already on that CPU (counted since 5.12).
pub(super) fn times_missed(program: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    query(program, &mut info)?;
    Ok(info.recursion_misses)
}

/// `BPF_OBJ_GET_INFO_BY_FD`. `T` must be the kernel's structure for objects of this kind.
pub(super) fn query<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attributes = attributes();
    attributes.info.bpf_fd = object.as_raw_fd() as u32;
    attributes.info.info_len = size_of::<T>() as u32;
    attributes.info.info = (&raw mut *info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attributes).map(drop)
}

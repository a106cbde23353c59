//! kprobes through perf events, which need no tracefs and end with their descriptor.
//!
//! A kprobe does not pin the module it is in: the module can be unloaded, and the probe is silent from then on.

use std::{
    ffi::CString,
    fs, io,
    mem::{size_of, zeroed},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd,
    bpf_link_info, perf_event_attr,
};

use crate::probe::events::sys::query;
use crate::probe::sys::bpf_open;

/// The kernel's source of probes (Linux 4.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pmu {
    kind: u32,
    /// The bit of `config` that makes a probe one at the return.
    returns: u64,
}

impl Pmu {
    /// `None`: this kernel has no kprobes.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let directory = root.join("sys/bus/event_source/devices/kprobe");
        let kind = fs::read_to_string(directory.join("type")).ok()?.trim().parse().ok()?;
        let format = fs::read_to_string(directory.join("format/retprobe")).ok()?;
        let bit: u32 = format.trim().strip_prefix("config:")?.parse().ok()?;
        Some(Self { kind, returns: 1_u64.checked_shl(bit)? })
    }
}

/// Where to put a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// `MODULE:FUNCTION`
    Name(String),
    /// The address of a function.
    Address(u64),
}

/// A place at which the kernel stops already, and runs nothing yet. To make one takes the kernel tens of ms.
#[derive(Debug)]
pub(super) struct Place(OwnedFd);

impl Place {
    /// At the entry of a function, or at its return.
    #[doc(alias = "perf_event_open")]
    pub(super) fn make(pmu: Pmu, target: &Target, at_return: bool) -> io::Result<Self> {
        open_event(pmu, target, at_return).map(Self)
    }
}

/// A probe that is there as long as this lives, or as long as its link has a name in a BPF file system.
#[derive(Debug)]
pub(super) struct Probe {
    /// `None`: it was made by an earlier process.
    _event: Option<OwnedFd>,
    /// Linux 5.15.
    pub(super) link: Option<OwnedFd>,
}

impl Probe {
    /// One that runs nothing, and is only to be removed.
    pub(super) fn unused(Place(event): Place) -> Self {
        Self { _event: Some(event), link: None }
    }

    /// One that was left by an earlier process.
    pub(super) fn kept(link: OwnedFd) -> Self {
        Self { _event: None, link: Some(link) }
    }

    /// Has `program` run at this place from now on.
    pub(super) fn attach(Place(event): Place, program: BorrowedFd<'_>) -> io::Result<Self> {
        let link = match link(program, event.as_fd()) {
            Ok(link) => Some(link),
            // Before 5.15 there are no links for perf events.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                control(&event, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
                None
            }
            Err(error) => return Err(error),
        };
        control(&event, PERF_EVENT_IOC_ENABLE, 0)?;
        Ok(Self { _event: Some(event), link })
    }

    /// How often it was passed without its program being run, for want of room to remember a return. The kernel tells
    /// since 6.7; 0 before.
    pub(super) fn missed(&self) -> u64 {
        let Some(link) = &self.link else { return 0 };
        // SAFETY: plain integers, for which zero is a value.
        let mut info: bpf_link_info = unsafe { zeroed() };
        if query(link.as_fd(), &mut info).is_err() {
            return 0;
        }
        // SAFETY: of a link of a kprobe the kernel fills this member; all of them are plain integers.
        unsafe { info.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe.missed }
    }
}

fn open_event(pmu: Pmu, target: &Target, at_return: bool) -> io::Result<OwnedFd> {
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: perf_event_attr = unsafe { zeroed() };
    attributes.type_ = pmu.kind;
    attributes.size = size_of::<perf_event_attr>() as u32;
    attributes.config = if at_return { pmu.returns } else { 0 };
    let name;
    match target {
        Target::Name(text) => {
            name = CString::new(text.as_str())?;
            attributes.__bindgen_anon_3.kprobe_func = name.as_ptr() as u64;
        }
        Target::Address(address) => attributes.__bindgen_anon_4.kprobe_addr = *address,
    }
    const EVERY_TASK: i32 = -1;
    const ANY_CPU: i32 = 0;
    const NO_GROUP: i32 = -1;
    // SAFETY: `attributes` is a `perf_event_attr` of the size it says, and the name in it outlives the call.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            EVERY_TASK,
            ANY_CPU,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let descriptor = i32::try_from(descriptor).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[doc(alias = "BPF_LINK_CREATE")]
fn link(program: BorrowedFd<'_>, event: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid `bpf_attr`.
    let mut attributes: bpf_attr = unsafe { zeroed() };
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attributes.link_create.__bindgen_anon_2.target_fd = event.as_raw_fd() as u32;
    attributes.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    bpf_open(bpf_cmd::BPF_LINK_CREATE, &mut attributes)
}

fn control(event: &OwnedFd, request: u32, argument: i32) -> io::Result<()> {
    // SAFETY: both requests take a plain number.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_return_probes_are_asked_for() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Pmu::read(root.path()), None);
        let directory = root.path().join("sys/bus/event_source/devices/kprobe");
        fs::create_dir_all(directory.join("format")).unwrap();
        fs::write(directory.join("type"), "8\n").unwrap();
        assert_eq!(Pmu::read(root.path()), None);
        fs::write(directory.join("format/retprobe"), "config:0\n").unwrap();
        assert_eq!(Pmu::read(root.path()), Some(Pmu { kind: 8, returns: 1 }));
        fs::write(directory.join("format/retprobe"), "config:99\n").unwrap();
        assert_eq!(Pmu::read(root.path()), None);
    }
}

//! The root of the cgroup v2 hierarchy, whether or not it is mounted anywhere.

use std::{fs::File, io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::kernel::Features;

/// Opens the root cgroup.
///
/// Where the hierarchy is not mounted it is mounted for us alone: the mount has no place in any directory and goes with
/// its descriptor (Linux 5.2).
pub(super) fn open(features: &Features) -> io::Result<OwnedFd> {
    match &features.cgroup2 {
        Some(point) => open_mounted(point).or_else(|_| open_detached()),
        None => open_detached(),
    }
}

/// What cannot be seen from the root cgroup that [`open`] gives.
pub(super) fn remark(features: &Features) -> Option<String> {
    (features.initial_cgroup_namespace == Some(false)).then(|| {
        "sees only what this container's processes open; run it in the host's cgroup namespace \
         (in Docker: --cgroupns=host)"
            .to_owned()
    })
}

fn open_mounted(point: &Path) -> io::Result<OwnedFd> {
    File::open(point).map(OwnedFd::from)
}

fn open_detached() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    // The mount's own descriptor only names it.
    Ok(openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::events::live;

    #[test]
    fn the_root_cgroup_is_there_without_a_mount() {
        if !live::is_root() {
            return;
        }
        let detached = open_detached().expect("a private mount of cgroup2");
        let has = |name| openat(&detached, name, OFlags::RDONLY, Mode::empty());
        assert!(has("cgroup.procs").is_ok(), "{:?}", has("cgroup.procs"));
        // Only the root has no such file.
        assert!(has("cgroup.events").is_err(), "this is not the root");
    }
}

//! What a machine needs to build and start guests.

use anyhow::Result;

use super::systemd;
use crate::debian::{self, Need};

/// What building and starting guests takes, beside the compiler and cargo.
fn host_tools() -> Vec<Need> {
    vec![
        Need::program("qemu-system-x86_64", "qemu-system-x86"),
        Need::program("busybox", "busybox-static"),
        Need::program("cc", "gcc"),
        Need::program("strip", "binutils"),
        Need::program("ldd", "libc-bin"),
        Need::program("dpkg-deb", "dpkg"),
        Need::program("tar", "tar"),
        Need::program("xz", "xz-utils"),
        Need::program("zstd", "zstd"),
        Need::program("unshare", "util-linux"),
        Need::file("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    ]
}

/// Programs of this machine that go into the guest because tests call them; the rest of a system is busybox.
pub(crate) fn guest_tools() -> Vec<Need> {
    vec![
        Need::program("fuser", "psmisc"),
        Need::program("lsof", "lsof"),
        Need::program("lsfd", "util-linux-extra"),
        Need::program("mkfs.ext4", "e2fsprogs"),
        Need::program("flock", "util-linux"),
        Need::program("fsfreeze", "util-linux"),
        Need::program("losetup", "mount"),
        Need::program("mount", "mount"),
        Need::program("umount", "mount"),
        Need::program("nsenter", "util-linux"),
        Need::program("unshare", "util-linux"),
        Need::program("ps", "procps"),
        Need::program("pkill", "procps"),
        // A copy of busybox under another name is no `sleep`.
        Need::program("sleep", "coreutils"),
    ]
}

/// All of it.
pub(crate) fn packages() -> impl Iterator<Item = Need> {
    host_tools().into_iter().chain(guest_tools()).chain(systemd::needs())
}

/// Installs what is missing of it.
pub(crate) fn ensure_packages() -> Result<()> {
    debian::provide(packages())
}

//! From an inode to a device, without waiting for the inode's file system.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::model::DeviceNumber;
use crate::process::{ProcDir, namespaces};

/// The inode that a handle is open on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node {
    /// The device it stands for.
    pub(super) device: DeviceNumber,
    /// The file system it is in.
    pub(super) fs: (u32, u32),
    /// Its inode number.
    pub(super) inode: u64,
}

/// What an inode turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inode {
    /// A character device.
    Device(Node),
    /// A socket, with its number.
    Socket(u64),
    /// One of the kernel's own files without a type: eventfd, io_uring, ...
    Anonymous(u64),
    /// Anything else.
    Other(u64),
}

/// What `name` in `directory` leads to, following links.
///
/// `AT_STATX_DONT_SYNC` makes network file systems answer from memory; type and device number are never stale.
pub(super) fn look(directory: impl AsFd, name: impl Arg) -> Result<Inode, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(directory, name, flags, StatxFlags::TYPE | StatxFlags::INO)?;
    Ok(sort(&stat))
}

fn sort(stat: &Statx) -> Inode {
    match u32::from(stat.stx_mode) & libc::S_IFMT {
        libc::S_IFCHR => {
            let device = DeviceNumber { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor };
            Inode::Device(Node { device, fs: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino })
        }
        libc::S_IFSOCK => Inode::Socket(stat.stx_ino),
        0 => Inode::Anonymous(stat.stx_ino),
        _ => Inode::Other(stat.stx_ino),
    }
}

/// What the path `text`, as the kernel showed it for a file of `task`, leads to.
///
/// The kernel writes such paths as seen from *our* root directory if the file's mount is one of ours, otherwise from
/// the top of the other mount namespace. `None` when it cannot be told: the name is gone, hidden, or looking it up
/// would mean waiting for a file server.
pub(super) fn look_at_path(task: &ProcDir, text: &[u8], own_mount_ns: Option<u32>) -> Option<Inode> {
    let ours = own_mount_ns.is_some() && namespaces::one(task, "mnt") == own_mount_ns;
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = if ours {
        rustix::fs::openat(CWD, "/", directory, Mode::empty())
    } else {
        rustix::fs::openat(task, "root", directory, Mode::empty())
    };
    let base = base.ok()?;
    let found = open_below(&base, text, ResolveFlags::CACHED).or_else(|errno| {
        // Only a name that is not in the kernel's cache needs its file system; /dev has none that can hang.
        match errno {
            Errno::AGAIN | Errno::INVAL if text.starts_with(b"/dev/") => {
                open_below(&base, text, ResolveFlags::empty())
            }
            errno => Err(errno),
        }
    });
    let found = found.ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&found, "", flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    Some(sort(&stat))
}

/// `RESOLVE_CACHED` is of Linux 5.12; older kernels say `EINVAL`, those before 5.6 `ENOSYS`.
fn open_below(base: &OwnedFd, path: &[u8], how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = how | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(base, path, flags, Mode::empty(), how) {
        Err(Errno::NOSYS) if path.starts_with(b"/dev/") => {
            rustix::fs::openat(base, &path[1..], flags, Mode::empty())
        }
        result => result,
    }
}

/// Our own mount namespace, if the `/proc` at `root` shows us.
pub(super) fn own_mount_ns(root: &Path) -> Option<u32> {
    let own = std::fs::read_link(root.join("self")).ok()?;
    namespaces::one(&ProcDir::open(root.join(own)).ok()?, "mnt")
}

/// Which device the path `text` of a file of process `pid` leads to, as the kernel shows it in `maps` or in the fdinfo
/// of an io_uring; `None` if it is no character device or cannot be looked up without waiting.
#[must_use]
pub fn device_at(root: &Path, pid: u32, text: &[u8]) -> Option<DeviceNumber> {
    let task = ProcDir::open(root.join(pid.to_string())).ok()?;
    match look_at_path(&task, text, own_mount_ns(root))? {
        Inode::Device(node) => Some(node.device),
        _ => None,
    }
}

/// Device number of the file system that holds anonymous shared memory, memfds and deleted `/dev/zero` mappings.
pub(super) fn shmem_device() -> Option<(u32, u32)> {
    let memfd = rustix::fs::memfd_create("gpu-tracer", MemfdFlags::CLOEXEC).ok()?;
    let stat = rustix::fs::statx(&memfd, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

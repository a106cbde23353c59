//! Mount namespaces, mounts and device nodes.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use super::{c_path, check, process};

/// Gives the caller its own copy of the mount table, from which nothing spreads to the rest of the host.
pub fn go_private() -> io::Result<()> {
    process::unshare(libc::CLONE_NEWNS)?;
    // SAFETY: the target is a NUL-terminated string; the other pointers may be null for a change of propagation.
    check(unsafe {
        libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    })
    .map(drop)
}

/// `mount(2)`.
pub fn mount(source: &str, target: &Path, kind: &str, options: &str) -> io::Result<()> {
    let (source, kind, options) = (CString::new(source)?, CString::new(kind)?, CString::new(options)?);
    let target = c_path(target)?;
    // SAFETY: all four are NUL-terminated strings that outlive the call.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) })
        .map(drop)
}

/// Takes a mount away now; what still uses it keeps it until it ends (`MNT_DETACH`).
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: a NUL-terminated string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// Makes a character device node that everybody may open.
pub fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    make_device(path, libc::S_IFCHR, major, minor)
}

/// Makes a device node of the given kind with mode 0666, whatever the umask.
pub(super) fn make_device(path: &Path, kind: u32, major: u32, minor: u32) -> io::Result<()> {
    let name = c_path(path)?;
    // SAFETY: a NUL-terminated string that outlives the call.
    check(unsafe { libc::mknod(name.as_ptr(), kind | 0o600, libc::makedev(major, minor)) })?;
    // SAFETY: as above.
    check(unsafe { libc::chmod(name.as_ptr(), 0o666) }).map(drop)
}

/// `chroot(2)`, and into it.
pub fn change_root(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: NUL-terminated strings that outlive the calls.
    check(unsafe { libc::chroot(path.as_ptr()) })?;
    // SAFETY: as above.
    check(unsafe { libc::chdir(c"/".as_ptr()) }).map(drop)
}

/// Where a file system of this kind (with this option, if any) is mounted for the caller.
pub fn mounted(kind: &str, option: Option<&str>) -> io::Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (target, its_kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = option.is_none_or(|wanted| options.split(',').any(|one| one == wanted));
        (its_kind == kind && fits).then(|| PathBuf::from(target))
    }))
}

//! Which namespaces a task lives in.

use std::os::unix::ffi::OsStrExt as _;

use super::read::ProcDir;

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO` of `include/linux/proc_ns.h`).
pub const INITIAL_PID: u32 = 0xEFFF_FFFC;

/// Inode numbers of a task's namespaces; `None` where they may not be read or the task has none any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// PID.
    pub pid: Option<u32>,
    /// Network.
    pub net: Option<u32>,
    /// Mount.
    pub mnt: Option<u32>,
    /// User.
    pub user: Option<u32>,
}

impl Namespaces {
    /// Those of the task whose directory is `task`.
    #[must_use]
    pub fn of(task: &ProcDir) -> Self {
        Self { pid: one(task, "pid"), net: one(task, "net"), mnt: one(task, "mnt"), user: one(task, "user") }
    }
}

/// Are this process's PIDs those of the host?
#[must_use]
pub fn is_initial_pid() -> bool {
    let link = std::fs::read_link("/proc/self/ns/pid");
    link.is_ok_and(|link| parse(link.as_os_str().as_bytes()) == Some(INITIAL_PID))
}

/// Inode number of one namespace (`pid`, `net`, ...) of the task whose directory is `task`.
#[must_use]
pub fn one(task: &ProcDir, kind: &str) -> Option<u32> {
    parse(&task.link(format!("ns/{kind}")).ok()?.0)
}

/// The number in a link such as `pid:[4026531836]`.
fn parse(link: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(link).ok()?;
    text.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_in_brackets() {
        assert_eq!(parse(b"pid:[4026531836]"), Some(INITIAL_PID));
        for bad in [b"pid:4026531836".as_slice(), b"", b"pid:[x]", b"pid:[1", b"\xff:[1]"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn our_own_namespaces_are_the_kernels() {
        let this = ProcDir::open(format!("/proc/{}", std::process::id())).expect("own directory");
        let inode = |kind| {
            let stat = rustix::fs::stat(format!("/proc/self/ns/{kind}")).expect("own namespace");
            u32::try_from(stat.st_ino).ok()
        };
        let expected =
            Namespaces { pid: inode("pid"), net: inode("net"), mnt: inode("mnt"), user: inode("user") };
        assert_eq!(Namespaces::of(&this), expected);
    }
}

//! What a task waits for in a file system: the file that its system call is about, and who has to answer.

use std::time::Duration;

use super::second_look::task;
use crate::diagnose::input::Obstacle;
use crate::diagnose::place::Place;
use crate::model::RawText;
use crate::process::ProcFs;
use crate::process::patience::within;

/// How long a task may take to tell which system call it is in.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// Most bytes of a table of mounts that are read.
const MOUNTS_LIMIT: usize = 4 << 20;

/// What a task waits for, if it waits in a file system.
pub(super) fn obstacle(pid: u32, tid: u32, place: Place) -> Option<Obstacle> {
    if !matches!(place, Place::FrozenFileSystem | Place::Fuse | Place::Nfs | Place::FileSystem) {
        return None;
    }
    let of_call = within(PATIENCE, move || of_system_call(pid, tid)).ok().flatten();
    match (of_call, place) {
        (Some(obstacle), _) => Some(obstacle),
        (None, Place::Fuse) => waiting_connection(),
        (None, _) => None,
    }
}

/// The file that its system call is about. Names are read, nothing is opened: that could block as well.
fn of_system_call(pid: u32, tid: u32) -> Option<Obstacle> {
    let task = task(pid, tid)?;
    let call = task.read("syscall", 512).ok()?;
    let mut words = std::str::from_utf8(&call).ok()?.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let fd = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    if !TAKES_FD.contains(&number) {
        return None;
    }
    let path = task.link(format!("fd/{fd}")).ok().filter(|path| path.0.starts_with(b"/"))?;
    let mounts = task.read("mountinfo", MOUNTS_LIMIT).ok()?;
    let mount = mount_of(&mounts, &path.0)?;
    Some(Obstacle { path: Some(path), ..mount })
}

/// System calls whose first argument is the descriptor that they may wait for.
const TAKES_FD: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_ioctl,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_openat,
    libc::SYS_sendfile,
];

/// The mount that a path lies on: the longest mount point that begins it, the last of equals, which hides the others.
fn mount_of(mountinfo: &[u8], path: &[u8]) -> Option<Obstacle> {
    let lines = mountinfo.split(|byte| *byte == b'\n').filter_map(parse_mount);
    let below = |mount: &[u8]| {
        mount == b"/" || path == mount || path.strip_prefix(mount).is_some_and(|rest| rest.starts_with(b"/"))
    };
    let found = lines.filter(|(point, ..)| below(point)).max_by_key(|(point, ..)| point.len())?;
    let (point, file_system, minor) = found;
    let fuse = file_system.starts_with("fuse") || file_system == "virtiofs";
    Some(Obstacle {
        path: None,
        mount: Some(RawText::from(point)),
        fuse_connection: minor.filter(|_| fuse),
        file_system,
    })
}

/// Mount point, type, and the minor number where the major is 0, of a line of `mountinfo`.
fn parse_mount(line: &[u8]) -> Option<(Vec<u8>, String, Option<u32>)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let device = std::str::from_utf8(fields.get(2)?).ok()?;
    let minor = device.strip_prefix("0:").and_then(|minor| minor.parse().ok());
    let file_system = String::from_utf8_lossy(fields.get(dash + 1)?).into_owned();
    Some((unescape(fields.get(4)?), file_system, minor))
}

/// `\040` and the like, as `mountinfo` writes blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits {
            Some(digits) if *first == b'\\' => {
                let code = digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                out.push(u8::try_from(code).unwrap_or(b'?'));
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The FUSE connection with requests that wait, if there is only one.
fn waiting_connection() -> Option<Obstacle> {
    let mut waiting = Vec::new();
    for entry in std::fs::read_dir("/sys/fs/fuse/connections").ok()?.flatten().take(1024) {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let requests = std::fs::read_to_string(entry.path().join("waiting")).unwrap_or_default();
        if requests.trim().parse::<u64>().is_ok_and(|requests| requests > 0) {
            waiting.push(number);
        }
    }
    let [connection] = waiting[..] else { return None };
    let mounts =
        ProcFs::host().process(std::process::id()).and_then(|ours| ours.read("mountinfo", MOUNTS_LIMIT));
    let mounts = mounts.unwrap_or_default();
    let mounted = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(parse_mount)
        .find(|(_, file_system, minor)| *minor == Some(connection) && file_system.starts_with("fuse"));
    let (mount, file_system) = match mounted {
        Some((point, file_system, _)) => (Some(RawText::from(point)), file_system),
        None => (None, "fuse".to_owned()),
    };
    Some(Obstacle { path: None, mount, file_system, fuse_connection: Some(connection) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
        30 22 0:41 / /data\\040one rw - fuse.sshfs host: rw\n\
        31 22 0:42 / /mnt rw - tmpfs tmpfs rw\n\
        32 22 7:0 / /mnt rw - ext4 /dev/loop0 rw\n";

    #[test]
    fn a_path_lies_on_the_longest_mount_and_the_latest_of_equals() {
        let of = |path: &str| {
            let found = mount_of(MOUNTS, path.as_bytes()).expect("a root is mounted");
            (found.mount.expect("it is mounted").to_text(), found.file_system, found.fuse_connection)
        };
        assert_eq!(of("/etc/passwd"), ("/".to_owned(), "ext4".to_owned(), None));
        assert_eq!(of("/data one/x"), ("/data one".to_owned(), "fuse.sshfs".to_owned(), Some(41)));
        assert_eq!(of("/mnt/a"), ("/mnt".to_owned(), "ext4".to_owned(), None));
        assert_eq!(of("/mntx"), ("/".to_owned(), "ext4".to_owned(), None));
    }
}

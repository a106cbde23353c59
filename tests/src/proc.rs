//! What `/proc` says of a task, as far as scenarios must know it to go on.
//!
//! Only files that never wait for the task: `stat` and `status`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::poll::{PATIENCE, until};

/// The state letter of a task, or `None` if there is no such task.
///
/// The name in `stat` may hold any byte, so everything is counted from the *last* closing bracket.
pub fn state(pid: u32, tid: u32) -> io::Result<Option<char>> {
    match fs::read(format!("/proc/{pid}/task/{tid}/stat")) {
        Ok(stat) => Ok(after_name(&stat).and_then(|rest| rest.first()).map(|letter| char::from(*letter))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The parent's PID, or `None` if there is no such process.
pub fn parent(pid: u32) -> io::Result<Option<u32>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(after_name(&stat).and_then(|rest| {
            let field = rest.split(|byte| *byte == b' ').nth(1)?;
            std::str::from_utf8(field).ok()?.parse().ok()
        })),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// When a process was started, in hundredths of a second of boot time; `None` if it is gone. Tells it from a later one with
/// the same PID.
pub fn started(pid: u32) -> io::Result<Option<u64>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(after_name(&stat).and_then(|rest| {
            let field = rest.split(|byte| *byte == b' ').nth(19)?;
            std::str::from_utf8(field).ok()?.parse().ok()
        })),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All processes.
pub fn processes() -> io::Result<Vec<u32>> {
    numbers(Path::new("/proc"))
}

/// The tasks of a process; empty if there is no such process.
pub fn tasks(pid: u32) -> io::Result<Vec<u32>> {
    match numbers(Path::new(&format!("/proc/{pid}/task"))) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        tasks => tasks,
    }
}

/// Children of a process.
pub fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for process in processes()? {
        if parent(process)? == Some(pid) {
            children.push(process);
        }
    }
    Ok(children)
}

/// The host's id of the thread that calls itself `tid` inside its own PID namespace.
pub fn host_tid(pid: u32, tid: u32) -> Result<u32> {
    for task in tasks(pid)? {
        let path = format!("/proc/{pid}/task/{task}/status");
        let status = fs::read(&path).context(path)?;
        let inner = String::from_utf8_lossy(&status)
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last()?.parse::<u32>().ok());
        if inner == Some(tid) {
            return Ok(task);
        }
    }
    anyhow::bail!("process {pid} has no thread that calls itself {tid}")
}

/// Waits until the task is in one of these states (letters as `ps` prints them).
pub fn await_state(pid: u32, tid: u32, wanted: &str) -> Result<()> {
    until(&format!("task {tid} of {pid} in state {wanted}"), PATIENCE, || {
        Ok(state(pid, tid)?.filter(|state| wanted.contains(*state)).map(drop))
    })
}

/// Descriptors of a device that `/proc` shows for one task.
pub fn visible_fds(pid: u32, tid: u32, rdev: u64) -> io::Result<u64> {
    let mut fds = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task/{tid}/fd"))? {
        fds += u64::from(fs::metadata(entry?.path()).is_ok_and(|held| is_device(&held, rdev)));
    }
    Ok(fds)
}

/// Mappings of a node that `/proc` shows for one task, by the node's file system and inode.
///
/// Not for tasks that are on their way out: reading `maps` may wait for the address space.
pub fn visible_maps(pid: u32, tid: u32, node: &Path) -> io::Result<u64> {
    let node = fs::metadata(node)?;
    let (major, minor) = (libc::major(node.dev()), libc::minor(node.dev()));
    let wanted = [format!("{major:02x}:{minor:02x}"), node.ino().to_string()];
    let maps = fs::read(format!("/proc/{pid}/task/{tid}/maps"))?;
    let is_it = |line: &&str| line.split_whitespace().skip(3).take(2).eq(wanted.iter());
    Ok(String::from_utf8_lossy(&maps).lines().filter(is_it).count() as u64)
}

fn is_device(held: &fs::Metadata, rdev: u64) -> bool {
    held.file_type().is_char_device() && held.rdev() == rdev
}

/// Processes outside `known` that hold a descriptor of the device, as far as `/proc` shows.
pub fn strangers(rdev: u64, known: &BTreeSet<u32>) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for pid in processes()? {
        if known.contains(&pid) {
            continue;
        }
        let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let holds =
            fds.flatten().any(|entry| fs::metadata(entry.path()).is_ok_and(|held| is_device(&held, rdev)));
        if holds {
            found.push(pid);
        }
    }
    Ok(found)
}

fn numbers(dir: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

fn after_name(stat: &[u8]) -> Option<&[u8]> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2..)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

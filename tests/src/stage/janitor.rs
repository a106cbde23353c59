//! Waits for the conductor to end, then leaves nothing of the scenario behind.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::proc;
use crate::sys::freezer::{self, Generation};
use crate::sys::{loopfs, mounts, process};

/// Signals that the janitor takes as requests; all but SIGCHLD mean "end now".
pub(super) const SIGNALS: &[c_int] = &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD];

/// How long processes may take to die once nothing blocks them any more.
const LAST_WAIT: Duration = Duration::from_secs(20);

/// How to undo something that outlives the process which did it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Undo {
    /// Thaw the file system mounted here.
    Thaw(PathBuf),
    /// Abort a FUSE connection by writing to this file.
    AbortFuse(PathBuf),
    /// Thaw and remove this cgroup v1 freezer group.
    RemoveGroupV1(PathBuf),
    /// Thaw and remove this cgroup v2 group.
    RemoveGroupV2(PathBuf),
    /// Write these lines to a file of a driver's, each by itself: some now, some when all processes have died.
    Tell {
        /// The file.
        file: PathBuf,
        /// What lets processes die. It does not matter whether it is accepted.
        first: Vec<String>,
        /// What can only be done when they have.
        last: Vec<String>,
    },
    /// Unmount.
    Unmount(PathBuf),
    /// Remove a directory with all its files.
    RemoveDirectory(PathBuf),
}

impl Undo {
    /// What must happen before processes can die. Failures mean that it has happened already.
    fn unblock(&self) {
        match self {
            Self::Thaw(target) => drop(loopfs::thaw(target)),
            Self::AbortFuse(file) => drop(fs::write(file, "1")),
            Self::RemoveGroupV1(group) => drop(freezer::set(group, Generation::V1, false)),
            Self::RemoveGroupV2(group) => drop(freezer::set(group, Generation::V2, false)),
            Self::Tell { file, first, .. } => first.iter().for_each(|line| drop(fs::write(file, line))),
            Self::Unmount(_) | Self::RemoveDirectory(_) => {}
        }
    }

    /// What must wait until they have died.
    fn remove(&self) -> std::io::Result<()> {
        match self {
            Self::Thaw(_) | Self::AbortFuse(_) => Ok(()),
            Self::Tell { file, last, .. } => last.iter().try_for_each(|line| fs::write(file, line)),
            Self::RemoveGroupV1(group) | Self::RemoveGroupV2(group) => fs::remove_dir(group),
            Self::Unmount(target) => mounts::unmount(target),
            Self::RemoveDirectory(dir) => fs::remove_dir_all(dir),
        }
    }
}

/// Runs until the conductor has ended and nothing is left; the exit status is the conductor's, or 3 if something stayed.
pub(super) fn keep(conductor: u32, instructions: PipeReader, signals: c_int) -> ExitCode {
    // SAFETY: `take_signals` made it for this process alone.
    let signals = unsafe { OwnedFd::from_raw_fd(signals) };
    let ended_well = watch(conductor, &File::from(signals));
    let mut undos = Vec::new();
    for line in BufReader::new(instructions).lines().map_while(Result::ok) {
        match serde_json::from_str::<Undo>(&line) {
            Ok(undo) => undos.push(undo),
            Err(error) => eprintln!("scenario: cannot undo {line:?}: {error}"),
        }
    }
    kill_children();
    undos.iter().rev().for_each(Undo::unblock);
    let mut clean = bury_children();
    for undo in undos.iter().rev() {
        if let Err(error) = undo.remove()
            && error.kind() != std::io::ErrorKind::NotFound
            && error.raw_os_error() != Some(libc::EINVAL)
        {
            eprintln!("scenario: {undo:?}: {error}");
            clean = false;
        }
    }
    match (clean, ended_well) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::FAILURE,
        (false, _) => ExitCode::from(3),
    }
}

/// Reaps whatever dies until the conductor has; ends the conductor when told to end. Did the conductor end well?
fn watch(conductor: u32, mut signals: &File) -> bool {
    loop {
        let mut waiting = libc::pollfd { fd: signals.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as said.
        unsafe { libc::poll(&raw mut waiting, 1, -1) };
        // `struct signalfd_siginfo` is 128 bytes and begins with the signal number.
        let mut report = [0u8; 128];
        while signals.read(&mut report).is_ok_and(|length| length == report.len()) {
            let [a, b, c, d, ..] = report;
            if u32::from_ne_bytes([a, b, c, d]) != libc::SIGCHLD.cast_unsigned() {
                let _ = process::kill(conductor, libc::SIGKILL);
            }
        }
        while let Ok(Some((pid, status))) = process::reap(None) {
            if pid == conductor {
                return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            }
        }
    }
}

fn kill_children() {
    for child in proc::children(std::process::id()).unwrap_or_default() {
        let _ = process::kill(child, libc::SIGKILL);
    }
}

/// Kills and reaps until there is no descendant left: orphans come to this process as their parents die.
fn bury_children() -> bool {
    let end = Instant::now() + LAST_WAIT;
    loop {
        match process::reap(None) {
            Ok(Some(_)) => {}
            Ok(None) => {
                if Instant::now() > end {
                    eprintln!(
                        "scenario: processes that do not die: {:?}",
                        proc::children(std::process::id()).unwrap_or_default()
                    );
                    return false;
                }
                kill_children();
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return true,
        }
    }
}

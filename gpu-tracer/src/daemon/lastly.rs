//! Until when there was a daemon: written down now and then, so that the next one knows how long nobody looked.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

use crate::kernel;

const NAME: &str = "alive";

/// The state directory, for us alone as long as this lives.
#[derive(Debug)]
pub(super) struct Lastly {
    directory: PathBuf,
    boot_id: String,
    _lock: File,
}

impl Lastly {
    /// Makes the directory if need be. Errors: another daemon uses it, or it cannot be made.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(directory)
            .with_context(|| format!("cannot make the state directory {}", directory.display()))?;
        let lock = lock(&directory.join("lock"))?;
        let boot_id = kernel::boot_id(Path::new("/")).unwrap_or_default();
        Ok(Self { directory: directory.to_owned(), boot_id, _lock: lock })
    }

    /// The state directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Identity of this boot.
    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The last moment of this boot that a daemon is known to have been alive, ns of boot time.
    pub(super) fn alive_until(&self) -> Option<u64> {
        let text = fs::read_to_string(self.directory.join(NAME)).ok()?;
        let (boot_id, ns) = text.trim().split_once(' ')?;
        (boot_id == self.boot_id).then(|| ns.parse().ok())?
    }

    /// Writes down that there is one at this moment.
    pub(super) fn write(&self, now_ns: u64) -> anyhow::Result<()> {
        let path = self.directory.join(NAME);
        replace(&path, |file| writeln!(file, "{} {now_ns}", self.boot_id))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Writes a file of the state directory anew: it is there as it was or as `write` makes it, and nothing in between.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&new)?;
    write(&mut file)?;
    fs::rename(&new, path)
}

/// A file that only one process has at a time. Errors: another has it.
pub(super) fn lock(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .with_context(|| format!("cannot open the lock {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => anyhow::bail!(
            "another gpu-tracer daemon is running ({} is locked); stop that one first, or give this one a --socket, a \
             --state-dir and a --pin-dir of its own",
            path.display()
        ),
        Err(errno) => {
            Err(std::io::Error::from(errno)).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sign_of_life_is_found_again_and_one_of_another_boot_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        assert_eq!(lastly.alive_until(), None);
        lastly.write(12_345).unwrap();
        assert_eq!(lastly.alive_until(), Some(12_345));
        fs::write(dir.path().join(NAME), "another-boot 12345\n").unwrap();
        assert_eq!(lastly.alive_until(), None);
    }

    #[test]
    fn one_daemon_at_a_time_has_the_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lastly::open(dir.path()).unwrap();
        let refused = Lastly::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("another gpu-tracer daemon"), "{refused}");
        drop(first);
        Lastly::open(dir.path()).unwrap();
    }
}

//! The socket that the daemon listens on: made complete elsewhere and put in its place at once, never through a link.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::lastly;

/// Everybody may ask; who sees what is decided by who asks.
const MODE: u32 = 0o666;

/// A socket in its place, ours alone. Dropping it takes it away.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    inode: u64,
    _lock: File,
}

impl Socket {
    /// Binds it. Errors: another daemon has it, something that is no socket is in its place, or its directory is such
    /// that others could put something else there.
    pub(super) fn bind(path: &Path) -> anyhow::Result<(Self, UnixListener)> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("{} is no path for a socket", path.display());
        };
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        demand_ours(directory)?;
        let with = |suffix: &str| {
            let mut name = name.to_owned();
            name.push(suffix);
            directory.join(name)
        };
        let lock = lastly::lock(&with(".lock"))?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                bail!(
                    "{} is there and is no socket; remove it, or listen elsewhere with --socket",
                    path.display()
                )
            }
            _ => {}
        }
        let unfinished = with(".new");
        let bind = || {
            // Left by one that was killed in between; it is ours, as the directory is.
            remove(&unfinished)?;
            let listener = UnixListener::bind(&unfinished)?;
            fs::set_permissions(&unfinished, Permissions::from_mode(MODE))?;
            let inode = fs::symlink_metadata(&unfinished)?.ino();
            fs::rename(&unfinished, path)?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>((inode, listener))
        };
        let (inode, listener) = bind().with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok((Self { path: path.to_owned(), inode, _lock: lock }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Only if it is still this one.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The directory must be one in which nobody else can make or replace anything.
fn demand_ours(directory: &Path) -> anyhow::Result<()> {
    let metadata =
        fs::metadata(directory).with_context(|| format!("cannot look at {}", directory.display()))?;
    let owner = metadata.uid();
    let ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !ours || metadata.mode() & 0o022 != 0 {
        bail!(
            "others may write to {}; the socket needs a directory that only root may change (chmod go-w {0}, or --socket)",
            directory.display()
        );
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn everybody_may_connect_and_the_socket_goes_with_its_daemon() {
        let dir = directory(0o755);
        let path = dir.path().join("below/x.sock");
        let (socket, _listener) = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
        let dir = directory(0o755);
        let path = dir.path().join("x.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = Socket::bind(&path).unwrap();
        let refused = format!("{:#}", Socket::bind(&path).unwrap_err());
        assert!(refused.contains("another gpu-tracer daemon"), "{refused}");
        drop(first);
    }

    #[test]
    fn a_link_is_not_followed_and_other_files_are_not_replaced() {
        let dir = directory(0o755);
        let (path, target) = (dir.path().join("x.sock"), dir.path().join("precious"));
        fs::write(&target, "1").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let refused = format!("{:#}", Socket::bind(&path).unwrap_err());
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "1");
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let dir = directory(0o777);
        let refused = format!("{:#}", Socket::bind(&dir.path().join("x.sock")).unwrap_err());
        assert!(refused.contains("others may write"), "{refused}");
    }
}

//! Bounded reads below a directory of `/proc`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::ProcError;
use crate::model::RawText;

/// An open directory of `/proc`.
///
/// The kernel ties it to one process, so everything read through it is about that process or fails: a reused PID
/// cannot slip in between two reads.
#[derive(Debug)]
pub struct ProcDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl ProcDir {
    /// Opens the directory at `path`; a symbolic link is refused.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ProcError> {
        let path = path.into();
        match rustix::fs::openat(CWD, &path, Self::flags(), Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(errno) => Err(ProcError::from_errno(path, errno)),
        }
    }

    /// Opens a directory below this one, `task/440` for example.
    pub fn below(&self, name: impl AsRef<Path>) -> Result<Self, ProcError> {
        let path = self.path.join(&name);
        match rustix::fs::openat(&self.fd, name.as_ref(), Self::flags(), Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(errno) => Err(ProcError::from_errno(path, errno)),
        }
    }

    fn flags() -> OFlags {
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
    }

    /// Where it is, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first `limit` bytes of a file.
    pub fn read(&self, name: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, ProcError> {
        let name = name.as_ref();
        let failed = |errno| ProcError::from_errno(self.path.join(name), errno);
        let file = self.open_file(name)?;
        let mut content = Vec::with_capacity(limit.min(4096));
        let mut block = [0; 4096];
        while content.len() < limit {
            let want = block.len().min(limit - content.len());
            match rustix::io::read(&file, &mut block[..want]) {
                Ok(0) => break,
                Ok(count) => content.extend_from_slice(&block[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(content)
    }

    /// A file that the kernel writes in one piece of less than 4,096 bytes: `stat`, `wchan`, most of `fdinfo`. Takes one
    /// read where [`read`](Self::read) takes two.
    pub fn read_small(&self, name: impl AsRef<Path>) -> Result<Vec<u8>, ProcError> {
        let name = name.as_ref();
        let failed = |errno| ProcError::from_errno(self.path.join(name), errno);
        let file = self.open_file(name)?;
        let mut content = vec![0; 4096];
        let count =
            rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut content[..])).map_err(failed)?;
        content.truncate(count);
        Ok(content)
    }

    fn open_file(&self, name: &Path) -> Result<OwnedFd, ProcError> {
        // O_NONBLOCK: opening must not wait even if somebody put a FIFO where /proc has a file.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|errno| ProcError::from_errno(self.path.join(name), errno))
    }

    /// The text of a symbolic link, which for the kernel's magic links is a description and not always a path.
    pub fn link(&self, name: impl AsRef<Path>) -> Result<RawText, ProcError> {
        match rustix::fs::readlinkat(&self.fd, name.as_ref(), Vec::new()) {
            Ok(text) => Ok(RawText::from(text.into_bytes())),
            Err(errno) => Err(ProcError::from_errno(self.path.join(name), errno)),
        }
    }

    /// Calls `visit` for each entry whose name is a number, until it returns `false`.
    pub fn for_each_number(&self, mut visit: impl FnMut(u32) -> bool) -> Result<(), ProcError> {
        let failed = |errno| ProcError::from_errno(self.path.clone(), errno);
        rustix::fs::seek(&self.fd, SeekFrom::Start(0)).map_err(failed)?;
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let number =
                std::str::from_utf8(entry.file_name().to_bytes()).ok().and_then(|name| name.parse().ok());
            if let Some(number) = number
                && !visit(number)
            {
                break;
            }
        }
        Ok(())
    }

    /// The entries whose names are numbers, in the directory's order.
    pub fn numbers(&self) -> Result<Vec<u32>, ProcError> {
        let mut numbers = Vec::new();
        self.for_each_number(|number| {
            numbers.push(number);
            true
        })?;
        Ok(numbers)
    }
}

impl AsFd for ProcDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

//! What is worth knowing about a process, from a `/proc` rooted anywhere.
//!
//! Three rules keep a reader of `/proc` out of trouble.
//!
//! * **Nothing here waits for the process it reads about.** `cmdline` and `maps` go through the target's address
//!   space, which a task in D state or half-way through exit may have locked for good, and whose pages a hostile
//!   process may never deliver. They are read only when the caller says the address space is fit to be read *and* no
//!   thread of the process is seen in D state or exiting, and then on a thread of their own with a deadline
//!   ([`patience`]). `stat`, `status`, `wchan`, `stack` and `cgroup` need no such care.
//! * **Everything is bounded**, because the process decides how long its command line or its list of groups is.
//! * **Text stays bytes** ([`RawText`](crate::model::RawText)): a process chooses its name, and `a) Z 1 7` is a name.
//!
//! A process that is gone, one that may not be looked at, and one that has nothing to show are three different
//! answers: [`ProcError::Gone`], [`ProcError::Denied`] or [`Withheld`], and `None`.

pub mod cgroup;
pub mod facts;
pub mod namespaces;
pub mod patience;
pub mod read;
pub mod stack;
pub mod stat;
pub mod status;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod unprivileged;

use std::io;
use std::path::{Path, PathBuf};

pub use cgroup::Placement;
pub use facts::{FactOptions, MmReadable, ProcessFacts, Reason, Withheld};
pub use namespaces::Namespaces;
pub use read::ProcDir;
pub use stat::Stat;
pub use status::Status;

/// Why something in `/proc` could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The process, the thread or the file is not there (any more).
    #[error("`{}` is gone", path.display())]
    Gone {
        /// What was read.
        path: PathBuf,
    },
    /// It is there and belongs to somebody else.
    #[error("`{}` may not be read: run as root", path.display())]
    Denied {
        /// What was read.
        path: PathBuf,
    },
    /// It can be read and says something that the kernel does not write.
    #[error("`{}` is not in the kernel's format: is this a real /proc?", path.display())]
    Malformed {
        /// What was read.
        path: PathBuf,
    },
    /// Reading failed for another reason.
    #[error("reading `{}` failed: {source}", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ProcError {
    /// Sorts an error number: a task that ends between open and read gives `ESRCH`, one that ended before `ENOENT`.
    #[must_use]
    pub fn from_errno(path: PathBuf, errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::NOENT | Errno::SRCH => Self::Gone { path },
            Errno::ACCESS | Errno::PERM => Self::Denied { path },
            other => Self::Io { path, source: other.into() },
        }
    }

    /// Is it there, only not for us?
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }

    /// Has it ended?
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

/// A `/proc`: the host's, or a directory that looks like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcFs {
    root: PathBuf,
}

impl ProcFs {
    /// The `/proc` of this host.
    #[must_use]
    pub fn host() -> Self {
        Self::at("/proc")
    }

    /// The one at `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of one process. What is read below it is about that very process, even if its PID is reused.
    pub fn process(&self, pid: u32) -> Result<ProcDir, ProcError> {
        ProcDir::open(self.root.join(pid.to_string()))
    }
}

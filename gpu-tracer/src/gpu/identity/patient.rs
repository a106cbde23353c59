//! Reading files that may never answer.
//!
//! To print one GPU's `information`, NVIDIA's driver (up to 590) takes its own locks, uninterruptibly. When the driver
//! is stuck, which is when this program is needed most, such a read does not return, and no signal ends it. A thread
//! would not do: a process with a thread in that state cannot finish exiting. So every file is read by a child of its
//! own, which has nothing of ours open but a pipe, and which is left behind when the deadline passes.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Longer files are cut off. The longest of the driver's, `mig-minors`, has 120 kB.
const MAX_LEN: usize = 256 << 10;

/// With this many children left behind, no more are started: the driver does not answer.
const MAX_LEFT_BEHIND: usize = 64;

/// Children that were killed and had not ended when last looked at.
static LEFT_BEHIND: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// What became of one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The contents.
    Read(Vec<u8>),
    /// It could not be opened or read.
    Failed,
    /// It did not answer in time.
    Late,
}

/// Reads all of `paths` at once, for at most `patience`.
pub(super) fn read_all(paths: &[PathBuf], patience: Duration) -> Vec<Outcome> {
    let crowded = {
        let mut left_behind = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
        left_behind.retain(|child| !reap(*child));
        left_behind.len() >= MAX_LEFT_BEHIND
    };
    let deadline = Instant::now() + patience;
    let readers: Vec<Result<Reader, Outcome>> = paths
        .iter()
        .map(|path| if crowded { Err(Outcome::Late) } else { Reader::start(path).ok_or(Outcome::Failed) })
        .collect();
    readers
        .into_iter()
        .map(|reader| reader.map_or_else(|outcome| outcome, |reader| reader.finish(deadline)))
        .collect()
}

/// A child that reads one file into a pipe.
struct Reader {
    child: libc::pid_t,
    pipe: File,
}

impl Reader {
    fn start(path: &Path) -> Option<Self> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        // SAFETY: the child of a process with several threads may only call what is safe in a signal handler. `copy`
        // calls nothing but system calls, allocates nothing, takes no lock and never returns.
        match unsafe { libc::fork() } {
            -1 => None,
            // SAFETY: this is the child, and the descriptor and the path were made before the fork.
            0 => unsafe { copy(&path, theirs) },
            child => Some(Self { child, pipe: File::from(ours) }),
        }
    }

    /// Collects what the child wrote until it closes the pipe; kills it if that takes beyond `deadline`.
    fn finish(mut self, deadline: Instant) -> Outcome {
        let mut contents = Vec::new();
        let mut block = [0_u8; 4096];
        let ended = loop {
            if !readable(&self.pipe, deadline) {
                break false;
            }
            match self.pipe.read(&mut block) {
                Ok(0) => break true,
                Ok(len) => contents.extend_from_slice(&block[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        if !ended {
            // SAFETY: `kill` on our own child, which nobody has reaped: its number cannot have been reused.
            unsafe { libc::kill(self.child, libc::SIGKILL) };
            if !reap(self.child) {
                LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner).push(self.child);
            }
            return Outcome::Late;
        }
        // The pipe is the last thing that the child has open, so this wait is for microseconds.
        let mut status = 0;
        // SAFETY: waits for our own child; `status` is ours to write.
        while unsafe { libc::waitpid(self.child, &raw mut status, 0) } == -1
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            Outcome::Read(contents)
        } else {
            Outcome::Failed
        }
    }
}

/// Waits until there is something to read or the other end is closed; false when the deadline passed.
fn readable(pipe: &File, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// Has the child ended? If so it is gone for good.
fn reap(child: libc::pid_t) -> bool {
    // SAFETY: does not wait; asks only about our own child.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) != 0 }
}

/// Copies the file into the pipe and ends the process: status 0 if all of it was read.
///
/// # Safety
///
/// Only for the child of a fork.
unsafe fn copy(path: &CString, pipe: OwnedFd) -> ! {
    let mut block = [0_u8; 4096];
    let mut total = 0;
    // SAFETY: plain system calls on memory that lives in this frame, and on descriptors that are this process's own.
    unsafe {
        // Everything else is closed, standard streams too: whoever waits for the end of our output must not wait for
        // a child that the driver holds.
        if libc::dup2(pipe.as_raw_fd(), 0) == -1 {
            libc::_exit(1);
        }
        if libc::syscall(libc::SYS_close_range, 1_u32, u32::MAX, 0_u32) == -1 {
            // Linux 5.8 and older.
            for fd in 1..4096 {
                libc::close(fd);
            }
        }
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file == -1 {
            libc::_exit(1);
        }
        while total < MAX_LEN {
            match libc::read(file, block.as_mut_ptr().cast(), block.len().min(MAX_LEN - total)) {
                0 => break,
                // More than zero, so the cast keeps the value.
                len if len > 0 => {
                    if libc::write(0, block.as_ptr().cast(), len as usize) != len {
                        libc::_exit(1);
                    }
                    total += len as usize;
                }
                _ => libc::_exit(1),
            }
        }
        libc::close(file);
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_never_answers_does_not_delay_the_others_beyond_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let (good, fifo, absent) =
            (dir.path().join("good"), dir.path().join("fifo"), dir.path().join("absent"));
        std::fs::write(&good, "hello").unwrap();
        // Opening a FIFO that nobody writes to blocks.
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let start = Instant::now();
        let outcomes = read_all(&[fifo, good, absent], Duration::from_secs(2));
        assert_eq!(outcomes, [Outcome::Late, Outcome::Read(b"hello".to_vec()), Outcome::Failed]);
        assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
    }

    #[test]
    fn an_endless_file_is_cut_off() {
        let outcomes = read_all(&["/dev/zero".into()], Duration::from_secs(60));
        assert_eq!(outcomes, [Outcome::Read(vec![0; MAX_LEN])]);
    }
}

//! Signals as things to read: SIGTERM and SIGINT stop, SIGHUP reads the configuration again.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// End.
    Stop,
    /// Read the configuration again.
    Reload,
}

/// Signals to this process, from now on. Every thread that is started afterwards leaves them to whoever reads this.
#[derive(Debug)]
pub(super) struct Signals(OwnedFd);

const WANTED: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

impl Signals {
    /// Must be called before other threads are started.
    pub(super) fn take() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` makes `set` a set; the other calls read or extend it, and none keeps the pointer.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in WANTED {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// The next wish that has come, if any.
    pub(super) fn next(&self) -> Option<Wish> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut record).ok()?;
        // The number is the first field.
        let number: [u8; 4] = record.get(..4).filter(|_| read >= 4)?.try_into().ok()?;
        match u32::from_ne_bytes(number).cast_signed() {
            libc::SIGHUP => Some(Wish::Reload),
            _ => Some(Wish::Stop),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

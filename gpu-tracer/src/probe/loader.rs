//! A loader of BPF programs that has not decoded the kernel's types.
//!
//! aya decodes all of them (100,000 and more) whenever a loader is made, wanted or not. Ours never are: what the programs know of the
//! kernel's structures is in `KERNEL`, and the iterators that they are for are looked up in an excerpt
//! ([`programs::targets`](super::programs::targets)).

use std::thread::{self, JoinHandle};

use aya::EbpfLoader;
use rustix::{
    process::chroot,
    thread::{UnshareFlags, unshare_unsafe},
};

use super::ProbeError;

/// A folder in which nothing has the name that the kernel's types have.
const ELSEWHERE: &str = "/proc/self/fdinfo";

/// A loader that is being made.
pub(super) struct Loader(JoinHandle<EbpfLoader<'static>>);

impl Loader {
    /// Begins to make one, in a thread whose root is a folder without the kernel's types. Where that is not allowed (it takes
    /// CAP_SYS_CHROOT) aya decodes them, while the caller does something else.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn begin() -> Result<Self, ProbeError> {
        let make = || {
            match leave_root() {
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, "the kernel's types are decoded for nothing"),
            }
            let mut loader = EbpfLoader::new();
            loader.btf(None);
            loader
        };
        thread::Builder::new().name("loader".to_owned()).spawn(make).map(Self).map_err(ProbeError::Thread)
    }

    /// Waits for it.
    pub(super) fn made(self) -> EbpfLoader<'static> {
        self.0.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
    }
}

/// Gives this thread another root than all others have.
fn leave_root() -> rustix::io::Result<()> {
    // SAFETY: roots and working folders are all that is not shared any more; descriptors and memory still are.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    chroot(ELSEWHERE)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_thread_that_leaves_the_root_leaves_it_alone() {
        let types = "/sys/kernel/btf/vmlinux";
        let left = thread::spawn(move || (leave_root(), fs::exists("/proc"), fs::exists(types)));
        let (left, finds_proc, finds_types) = left.join().unwrap();
        if left.is_ok() {
            assert_eq!((finds_proc.ok(), finds_types.ok()), (Some(false), Some(false)));
        }
        assert!(fs::exists("/proc/self/fdinfo").unwrap(), "this thread's root is where it was");
    }
}

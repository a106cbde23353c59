//! Looking at the kernel. The only room that names aya.
//!
//! A snapshot is taken by BPF iterators: small programs that the kernel runs over its own tasks, mappings and
//! sockets when a file is read. They see every PID namespace below ours, every mount namespace, every name a process
//! may wear, and threads whose leader is dead.
//!
//! | pass | iterator | finds |
//! |---|---|---|
//! | 1 | `task`, walking fd tables | tasks, descriptors, files registered with io_urings |
//! | 2 | `task`, walking trees or lists of mappings | mappings, rings that only a mapping keeps |
//! | 3 | `unix`, once in every network namespace | descriptors in flight |
//! | 4 | `task` again, only if pass 3 found something | who has the sockets that carry them |
//!
//! Before 5.17 (no `bpf_loop`, no `iter/unix`) fd tables are walked in steps of what one program may do, and so is the kernel's
//! table of sockets, from which descriptors in flight come there.
//!
//! What happens between snapshots is told by programs at tracepoints and at device nodes: [`events`].
//!
//! Where a pass cannot be made, the snapshot says so in `missing`; [`procwalk`] is what is left without BPF.

pub mod events;
mod in_flight;
pub mod iterators;
mod kallsyms;
mod layout;
mod loader;
mod module_use;
mod netns;
pub mod procwalk;
mod programs;
mod records;
mod ring;
pub mod snapshot;
mod socket_table;
mod spares;
mod subjects;
mod sys;
pub mod waiting;
mod wanted;

pub use events::EventSource;
pub use iterators::Iterators;
pub use layout::LayoutError;
pub use sys::SyscallError;

/// The compiled programs; empty when the crate was built without them.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/gpu-tracer.bpf.o"));

/// Why the kernel could not be looked at with BPF.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Built without BPF programs.
    #[error("this build has no BPF programs in it; build it with `cargo xtask build-ebpf`")]
    NoObject,
    /// No BTF.
    #[error(transparent)]
    Btf(#[from] crate::kernel::BtfError),
    /// A field is missing.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The kernel refused the object or one of its maps.
    #[error("cannot load the BPF object: {}", chain(.0))]
    Load(#[source] aya::EbpfError),
    /// The kernel refused a program.
    #[error("cannot load BPF program `{program}`: {}", chain(.source))]
    Program {
        /// Its name.
        program: &'static str,
        /// Why.
        #[source]
        source: aya::programs::ProgramError,
    },
    /// The object lacks a map or program: object and program are of different versions.
    #[error("the BPF object has no `{0}`; rebuild it with `cargo xtask build-ebpf`")]
    Incompatible(&'static str),
    /// A map operation failed.
    #[error("cannot use BPF map `{map}`: {}", chain(.source))]
    Map {
        /// Its name.
        map: &'static str,
        /// Why.
        #[source]
        source: aya::maps::MapError,
    },
    /// A bpf(2) call of our own failed.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
    /// An iterator did not come back in time.
    #[error("the {iterator} iterator has not come back for {seconds} s: a task blocks it in the kernel")]
    Hung {
        /// Which.
        iterator: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// The programs wrote something that this version does not understand.
    #[error(
        "a record of kind {kind}, layout {layout} came from the BPF programs; rebuild them with `cargo xtask build-ebpf`"
    )]
    Record {
        /// Its kind.
        kind: u16,
        /// Its layout version.
        layout: u16,
    },
    /// More in one element than fits the ring, several times over.
    #[error("one {iterator} element has more records than can be taken out")]
    Overflow {
        /// Which iterator.
        iterator: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Hooks cannot be kept beyond this process.
    #[error(
        "cannot keep hooks in {}: {source}; it has to be a directory on a BPF file system (`mount -t bpf bpf /sys/fs/bpf`)",
        path.display()
    )]
    Pin {
        /// The directory, or what is in it.
        path: std::path::PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else has them.
    #[error("the hooks in {} are in use by another gpu-tracer; stop that one first", path.display())]
    Busy {
        /// The directory.
        path: std::path::PathBuf,
    },
}

impl ProbeError {
    /// Was it for lack of privilege? (EPERM; the verifier says EACCES.)
    #[must_use]
    pub fn is_denied(&self) -> bool {
        errno(self) == Some(libc::EPERM)
    }
}

/// What the kernel said, if it is among the causes of this error.
fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        source = error.source();
    }
    None
}

/// An error with its causes on one line. The verifier's log is left out: it is for us, not for an operator.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}

//! What changed: the stream that `watch` prints, the journal keeps, and metrics count.
//!
//! A change is a conclusion of the ledger from events and snapshots. Where only a snapshot showed it, its time is that
//! of the snapshot: it happened by then.

use std::sync::Arc;

use super::event::{Exit, Sender, TaskId};
use super::{DeviceNumber, ProcessId, RawText};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// The open file concerned, by the ledger's id.
    pub file: Option<u64>,
    /// Its device.
    pub device: Option<DeviceNumber>,
    /// The process concerned.
    pub process: Option<ProcessId>,
    /// What changed.
    pub kind: ChangeKind,
}

/// What changed.
///
/// For each pair of file and process, one of `Opened`, `Found`, `Inherited`, `HandedOver`, `Queued`, `Registered` and
/// `Pinned` begins the holding, and `Closed` of the process or `Released` of the file ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// `process` opened `file`.
    Opened {
        /// As it was then.
        opener: Identity,
        /// Is `at_ns` the moment of this very open? If not, it is that of one of several opens by this process.
        exact: bool,
    },
    /// The driver's open has been entered and has not returned.
    Opening {
        /// Who opens.
        task: TaskId,
    },
    /// The open failed.
    OpenFailed {
        /// Negative errno; 0 when the opener ended first.
        error: i32,
    },
    /// `process` holds `file`, and how it came to that was not seen.
    Found,
    /// `process` got `file` by fork.
    Inherited {
        /// From this process.
        from: ProcessId,
    },
    /// `process` got `file` in another way than by opening or by fork: through a socket or `pidfd_getfd`.
    HandedOver {
        /// From one of these, which held it before; empty when that is not known.
        from: Vec<ProcessId>,
    },
    /// `process` has mapped `file`.
    Mapped {
        /// Is `at_ns` the moment? If not, it was by then.
        exact: bool,
    },
    /// `process` has no mapping of `file` any more and still refers to it otherwise.
    Unmapped,
    /// `process` has no descriptor of `file` any more and still refers to it otherwise.
    DescriptorsClosed,
    /// `file` waits in the queue of a socket that `process` owns.
    Queued,
    /// `file` is registered with an io_uring that `process` owns.
    Registered,
    /// The driver holds `file` on behalf of another device file that `process` holds.
    Pinned,
    /// `process` does not refer to `file` any more.
    Closed {
        /// Why.
        cause: CloseCause,
    },
    /// `process` or one of its threads took another name.
    Renamed {
        /// The task.
        tid: u32,
        /// Before.
        old: RawText,
        /// After.
        new: RawText,
    },
    /// `process` executed another program.
    Execed {
        /// Its name afterwards.
        comm: RawText,
    },
    /// `process` has another parent: the one before has died.
    Reparented {
        /// Thread-group id of the parent before.
        from: u32,
        /// And now.
        to: u32,
    },
    /// `process` was sent a signal other than SIGKILL.
    Signalled {
        /// By whom.
        by: Killer,
        /// Signal number.
        signal: i32,
    },
    /// `process` was sent SIGKILL.
    Killed {
        /// By whom.
        by: Killer,
    },
    /// A task of `process` entered exit; what it held is not released yet.
    Exiting {
        /// The task.
        tid: u32,
        /// Was it the last task of the process?
        group_dead: bool,
        /// How it ends.
        exit: Exit,
        /// Who is to blame, if a signal ends it.
        by: Option<Killer>,
    },
    /// `process` was reaped.
    Exited,
    /// Nobody's tables refer to `file` any more, and it is not released.
    Detached {
        /// Tasks that are dropping it.
        by: Vec<TaskId>,
    },
    /// The count of `file` is zero, and its release has not begun.
    Unreferenced,
    /// The driver's release of `file` has begun.
    Releasing {
        /// In whose context.
        task: TaskId,
    },
    /// A kernel thread of the driver has the release of `file`.
    Deferred,
    /// `file` is gone.
    Released {
        /// How that is known.
        how: ReleasedHow,
        /// The last process known to hold it.
        last_holder: Option<ProcessId>,
        /// Since SIGKILL (or the signal that ended it) was sent to that process, ns.
        after_kill_ns: Option<u64>,
        /// Since that process entered exit, ns.
        after_exit_ns: Option<u64>,
    },
    /// The record has a hole.
    Gap(Gap),
    /// A driver module was loaded or unloaded.
    Module {
        /// Its name.
        name: String,
        /// Loaded, or unloaded.
        loaded: bool,
    },
}

/// Why a process does not refer to a file any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseCause {
    /// It closed it.
    Close,
    /// It executed another program and the descriptor was close-on-exec.
    Exec,
    /// It ended.
    Exit,
}

/// How the ledger knows that a file is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleasedHow {
    /// The driver's release was seen to return.
    Seen,
    /// The kernel was asked about this very file.
    Checked,
    /// Another file has its address.
    Replaced,
    /// A complete snapshot does not have it, and no task that might still be dropping it lives.
    Absent,
    /// It is not seen any more. No proof: what reports it cannot see everything (`/proc`), or events were lost.
    NotSeen,
}

/// Who sent a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Killer {
    /// A process.
    Process(Sender),
    /// The kernel, for a reason of its own.
    Kernel,
    /// The kernel, because memory ran out.
    OutOfMemory,
}

/// A process as it was at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Which process.
    pub process: ProcessId,
    /// The name it wore.
    pub comm: RawText,
    /// Its command line, arguments separated by spaces; empty when nobody could read it in time.
    pub cmdline: RawText,
    /// Its executable.
    pub exe: Option<RawText>,
    /// Its cgroup.
    pub cgroup: Option<RawText>,
    /// Its parent.
    pub parent: Option<ProcessId>,
}

/// What `/proc` says of a process; read by the caller as soon as the process becomes interesting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessDescription {
    /// Command line, arguments separated by spaces.
    pub cmdline: RawText,
    /// Executable.
    pub exe: Option<RawText>,
    /// cgroup path.
    pub cgroup: Option<RawText>,
}

/// A description shared by all that was opened under it.
pub type SharedDescription = Arc<ProcessDescription>;

/// A hole in the record: between these moments something may have happened that nobody saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Last moment before it that is known, ns of boot time.
    pub from_ns: u64,
    /// First complete snapshot after it.
    pub to_ns: u64,
    /// Why.
    pub cause: GapCause,
}

/// Why the record has a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GapCause {
    /// Events were lost.
    Lost {
        /// In a stable word, as the event said.
        cause: &'static str,
        /// How many.
        count: u64,
    },
    /// A driver module was loaded or unloaded, and hooks had to be attached again.
    Module {
        /// Its name.
        name: String,
    },
    /// The tracer was not running.
    NotRunning,
}

impl ChangeKind {
    /// Is this known only from a look, so that it had happened by then? If not, its time is the moment itself.
    #[must_use]
    pub const fn is_by_then(&self) -> bool {
        match self {
            Self::Opened { exact, .. } | Self::Mapped { exact } => !*exact,
            Self::Released { how, .. } => !matches!(how, ReleasedHow::Seen),
            Self::Closed { .. }
            | Self::Reparented { .. }
            | Self::Unmapped
            | Self::DescriptorsClosed
            | Self::Queued
            | Self::Registered
            | Self::Pinned
            | Self::Found => true,
            Self::Opening { .. }
            | Self::OpenFailed { .. }
            | Self::Inherited { .. }
            | Self::HandedOver { .. }
            | Self::Renamed { .. }
            | Self::Execed { .. }
            | Self::Signalled { .. }
            | Self::Killed { .. }
            | Self::Exiting { .. }
            | Self::Exited
            | Self::Detached { .. }
            | Self::Unreferenced
            | Self::Releasing { .. }
            | Self::Deferred
            | Self::Gap(_)
            | Self::Module { .. } => false,
        }
    }
}

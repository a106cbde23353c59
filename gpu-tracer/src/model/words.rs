//! Stable words for what changed: the same in the stream of events, in the journal and in what is printed.

use super::change::{ChangeKind, CloseCause, GapCause, ReleasedHow};

impl ChangeKind {
    /// What happened, in a stable word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "opened",
            Self::Opening { .. } => "opening",
            Self::OpenFailed { .. } => "open-failed",
            Self::Found => "found",
            Self::Inherited { .. } => "inherited",
            Self::HandedOver { .. } => "handed-over",
            Self::Mapped { .. } => "mapped",
            Self::Unmapped => "unmapped",
            Self::DescriptorsClosed => "descriptors-closed",
            Self::Queued => "queued",
            Self::Registered => "registered",
            Self::Pinned => "pinned",
            Self::Closed { .. } => "closed",
            Self::Renamed { .. } => "renamed",
            Self::Execed { .. } => "execed",
            Self::Reparented { .. } => "reparented",
            Self::Signalled { .. } => "signalled",
            Self::Killed { .. } => "killed",
            Self::Exiting { .. } => "exiting",
            Self::Exited => "exited",
            Self::Detached { .. } => "detached",
            Self::Unreferenced => "unreferenced",
            Self::Releasing { .. } => "releasing",
            Self::Deferred => "deferred",
            Self::Released { .. } => "released",
            Self::Gap(_) => "gap",
            Self::Module { loaded: true, .. } => "module-loaded",
            Self::Module { loaded: false, .. } => "module-unloaded",
        }
    }
}

impl CloseCause {
    /// Why a process let go, in a stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Exec => "exec",
            Self::Exit => "exit",
        }
    }
}

impl ReleasedHow {
    /// How it is known, in a stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Checked => "checked",
            Self::Replaced => "replaced",
            Self::Absent => "absent",
            Self::NotSeen => "not-seen",
        }
    }
}

impl GapCause {
    /// Why the record has a hole, in a word; of a module with its name.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Lost { cause, .. } => (*cause).to_owned(),
            Self::Module { name } => format!("module {name}"),
            Self::NotRunning => "not-running".to_owned(),
        }
    }

    /// How many events that cost, where it is known.
    #[must_use]
    pub const fn events(&self) -> Option<u64> {
        match self {
            Self::Lost { count, .. } => Some(*count),
            Self::Module { .. } | Self::NotRunning => None,
        }
    }
}

//! How the journal is doing, for `/v1/status`, metrics and doctor.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Does it write?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It does.
    Writing,
    /// It cannot for now, and tries again: what happens meanwhile is a gap.
    Halted,
    /// There is none.
    #[default]
    Off,
}

/// Part of the JSON contract: fields may be added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Does it write?
    pub state: State,
    /// Where it is.
    pub path: String,
    /// Why it does not write, and what would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Records committed.
    pub records: u64,
    /// Records that were not kept, and are gaps.
    pub dropped: u64,
    /// Commits.
    pub commits: u64,
    /// The longest commit so far, µs.
    pub longest_commit_us: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Events taken out because they were too old, or too many.
    pub pruned: u64,
    /// A broken file that was moved aside, by its new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_aside: Option<String>,
}

/// The writer's side and everybody else's.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Health>>);

impl Shared {
    pub(super) fn get(&self) -> Health {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

//! One line of `gpu-tracer watch` and of the daemon's `/v1/events`: what changed, with the names that go with it.
//!
//! Part of the JSON contract: fields and words may be added, never renamed. Fields that do not apply are left out.

use serde::{Deserialize, Serialize};

use super::RawText;

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// Wall clock, RFC 3339, UTC, milliseconds.
    pub at: String,
    /// The same moment, ns of boot time.
    #[serde(default)]
    pub at_ns: u64,
    /// What, in a stable word: `opened`, `found`, `inherited`, `handed-over`, `queued`, `registered`, `pinned`, `mapped`,
    /// `unmapped`, `descriptors-closed`, `closed`, `opening`, `open-failed`, `renamed`, `execed`, `reparented`,
    /// `signalled`, `killed`, `exiting`, `exited`, `detached`, `unreferenced`, `releasing`, `deferred`, `released`,
    /// `gap`, `module-loaded`, `module-unloaded`; and of the stream itself `listening`, `missed`, `withheld`.
    pub what: String,
    /// The open file, by the daemon's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    /// Its device, without `/dev/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Index of the GPU of that device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The process concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Party>,
    /// The task of it, where that is not the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Where it came from: who forked it, who passed the file on, who was the parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<Party>,
    /// Who did it: the sender of a signal, the tasks that are dropping a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<Party>,
    /// The kernel did it for a reason of its own: `kernel` or `out-of-memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_kernel: Option<String>,
    /// The name before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<RawText>,
    /// The name after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<RawText>,
    /// Signal number, sent or fatal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Status given to `exit(2)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<u8>,
    /// Positive errno of an open that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Why, or how it is known, in a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How many events a gap, `missed` or `withheld` stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Is `at` the moment itself? If not, it had happened by then.
    #[serde(default = "yes")]
    pub exact: bool,
    /// Since the signal that ended the last holder, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_kill_us: Option<u64>,
    /// Since the last holder entered exit, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_exit_us: Option<u64>,
    /// Beginning of a gap, wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// A process with a part in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Host PID.
    pub pid: u32,
    /// Start, ns of boot time; 0 where unknown.
    #[serde(default)]
    pub start_ns: u64,
    /// Real user, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its name at that moment, as far as known.
    #[serde(default)]
    pub comm: RawText,
    /// Its command line, as far as known; arguments separated by spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<RawText>,
}

const fn yes() -> bool {
    true
}

//! The JSON contract of `gpu-tracer history` (schema 1): fields may be added, never renamed.

use jiff::Timestamp;
use serde::Serialize;

use super::RawText;
use super::happening::{Happening, Party};

/// Who held what when, and what happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct History {
    /// [`super::report::SCHEMA`].
    pub schema: u32,
    /// The host that the record is of.
    pub host: Option<String>,
    /// The window, or the moment, that was asked about.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// Set where a moment was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<AtMoment>,
    /// What the answer is worth.
    pub coverage: Coverage,
    /// Who held what.
    pub holdings: Vec<Holding>,
    /// Files that were open at the moment asked about and that no process was known to hold: on their way out, or held by what
    /// could not be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unheld: Vec<Unheld>,
    /// How processes among them ended.
    pub fates: Vec<Fate>,
    /// What happened, in order.
    pub events: Vec<Happening>,
    /// The processes whose story was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lives: Vec<Life>,
    /// There were more events than were asked for: these are the newest.
    pub more_events: bool,
}

/// An open file without a known holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unheld {
    /// Device without `/dev/`.
    pub device: String,
    /// Index of its GPU.
    pub gpu: Option<u32>,
    /// Number of the open file.
    pub file: u64,
    /// Since when it is known.
    pub since: Timestamp,
}

/// A moment that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AtMoment {
    /// This one.
    pub asked: Timestamp,
    /// The moment that is answered: the last one that is known, if that one is in a hole of the record. `null`: none is known.
    pub answered: Option<Timestamp>,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// Host PID.
    pub pid: u32,
    /// Start, ns of boot time.
    pub start_ns: u64,
    /// Which boot.
    pub boot_id: String,
    /// When it began to exit.
    pub at: Option<Timestamp>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Status given to `exit(2)`.
    pub exit_status: Option<u8>,
    /// Who sent the signal.
    pub by: Option<Party>,
    /// The kernel did: `kernel` or `out-of-memory`.
    pub by_kernel: Option<String>,
    /// From the signal, or from the exit where there was none, to the release of the last file that it held, µs.
    pub released_us: Option<u64>,
    /// SIGKILL was sent, and the end of the record has not seen it exit.
    pub pending: bool,
}

/// All that a report of an incident is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// What happened in the window.
    pub history: History,
    /// Who held what at the chosen moment.
    pub then: History,
    /// The processes among the holders and their ancestors.
    pub lives: Vec<Life>,
    /// Memory, in order of time.
    pub samples: Vec<MemorySample>,
    /// GPUs of the host.
    pub gpus: Vec<super::Gpu>,
    /// Boots in the record, newest first.
    pub boots: Vec<BootFacts>,
    /// Where the record begins.
    pub record_begin: Timestamp,
    /// Where it ends.
    pub record_end: Timestamp,
}

/// How much memory of a GPU was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemorySample {
    /// When.
    pub at: Timestamp,
    /// Index of the GPU.
    pub gpu: u32,
    /// MiB.
    pub used_mib: Option<u64>,
    /// MiB.
    pub total_mib: Option<u64>,
}

/// One boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BootFacts {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Name of the host.
    pub host: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Beginning of its record.
    pub from: Timestamp,
    /// End of its record.
    pub to: Timestamp,
    /// Versions and plans of the daemons that ran.
    pub daemons: Vec<String>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    /// Who, by its last name.
    pub process: Party,
    /// Which boot.
    pub boot_id: String,
    /// All its names, oldest first.
    pub names: Vec<RawText>,
    /// The executable.
    pub exe: Option<RawText>,
    /// cgroup path.
    pub cgroup: Option<RawText>,
    /// Its parent and so on.
    pub ancestors: Vec<Party>,
    /// The first that is known of it.
    pub from: Timestamp,
    /// The last.
    pub to: Timestamp,
    /// It has ended, with all that it held.
    pub over: bool,
}

/// Is the record of a window complete?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Nothing is missing in it.
    pub complete: bool,
    /// Where something is, in order.
    pub holes: Vec<Hole>,
}

/// A stretch of which the record does not tell everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hole {
    /// Its beginning: until here all is known.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// Why, in a stable word: `no-record`, `not-running`, `reboot`, `no-sign-of-life`, `journal-overflow`, `disk`, `disk-full`,
    /// `journal-broken`, `module NAME`, or the cause of lost events.
    pub cause: String,
    /// Events lost, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
}

/// One process and one open file, for as long as it held it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Which boot.
    pub boot_id: String,
    /// Device without `/dev/`.
    pub device: String,
    /// Index of its GPU; `null` for devices that all share.
    pub gpu: Option<u32>,
    /// Number of the open file.
    pub file: u64,
    /// Who.
    pub process: Party,
    /// The executable.
    pub exe: Option<RawText>,
    /// cgroup path.
    pub cgroup: Option<RawText>,
    /// `infrastructure`, `display`, `monitor`, ...; `compute` for whatever has no other role.
    pub role: String,
    /// How it came to it: `opened`, `found`, `inherited`, `handed-over`, `queued`, `registered`, `pinned`; `dropping`: in no table of
    /// it any more, and not released.
    pub how: String,
    /// From whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Party>,
    /// Beginning, wall clock.
    pub since: Timestamp,
    /// Beginning, ns of boot time.
    pub since_ns: i64,
    /// End, wall clock; `null`: none that the record knows.
    pub until: Option<Timestamp>,
    /// End, ns of boot time.
    pub until_ns: Option<i64>,
    /// `close`, `exec`, `exit`, `released`; `unseen`: it had ended when somebody looked again, or nothing is known after that.
    pub ended: Option<String>,
    /// Row of the process.
    #[serde(skip)]
    pub row: i64,
    /// Row of the boot.
    #[serde(skip)]
    pub boot: i64,
}

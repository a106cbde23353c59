//! The JSON contract of `gpu-tracer history` (schema 1): fields may be added, never renamed.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
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
    /// What was said of GPUs, by time; at a moment: what had been said last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<VerdictSpan>,
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

/// What the daemon said of a GPU, for as long as it said the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerdictSpan {
    /// Which boot.
    pub boot_id: String,
    /// Index of the GPU; `null` stands for the devices that all GPUs share.
    pub gpu: Option<u32>,
    /// When it was said first.
    pub since: Timestamp,
    /// When it was said last.
    pub until: Timestamp,
    /// `free`, `held`, `stuck`, `no-handle`, `unknown`: as `gpu-tracer why` has it.
    pub verdict: String,
    /// The exit status that goes with it.
    pub status: u8,
    /// The same as a sentence.
    pub headline: String,
}

impl VerdictSpan {
    /// Does the other one say the same of the same GPU?
    #[must_use]
    pub fn goes_on_as(&self, other: &Self) -> bool {
        (&self.boot_id, self.gpu, &self.verdict, &self.headline)
            == (&other.boot_id, other.gpu, &other.verdict, &other.headline)
    }
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
    /// So many processes of this program's own have been left out.
    pub helpers: usize,
    /// Boots in the record, newest first.
    pub boots: Vec<BootFacts>,
    /// Where the record begins.
    pub record_begin: Timestamp,
    /// Where it ends.
    pub record_end: Timestamp,
}

impl History {
    /// Takes out what the process held in which this program asks NVML, where that is over; gives how many such processes
    /// there were. One that did not come back is what somebody may be looking for.
    pub fn leave_out_own_helper(&mut self) -> usize {
        let of = |party: &Party| (party.pid, party.start_ns);
        let mut helpers: BTreeSet<(u32, u64)> = BTreeSet::new();
        self.holdings.retain(|held| {
            let left_out = held.is_passing_helper();
            if left_out {
                helpers.insert(of(&held.process));
            }
            !left_out
        });
        // Unless it did something else besides.
        helpers.retain(|helper| self.holdings.iter().all(|held| of(&held.process) != *helper));
        self.events
            .retain(|event| event.process.as_ref().is_none_or(|process| !helpers.contains(&of(process))));
        self.fates.retain(|fate| !helpers.contains(&(fate.pid, fate.start_ns)));
        helpers.len()
    }
}

impl Incident {
    /// Takes out the process in which this program asks NVML, and says in [`Incident::helpers`] how many that were.
    pub fn leave_out_own_helper(&mut self) {
        self.helpers = self.history.leave_out_own_helper();
        self.then.leave_out_own_helper();
        let named: BTreeSet<(u32, u64)> = self
            .history
            .holdings
            .iter()
            .chain(&self.then.holdings)
            .map(|held| (held.process.pid, held.process.start_ns))
            .collect();
        self.lives.retain(|life| named.contains(&(life.process.pid, life.process.start_ns)));
    }
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

/// The role of the process in which this program asks NVML.
pub const OWN_HELPER: &str = "own-helper";
/// It asks for two seconds at most; whatever has held something for longer is worth a look, whatever it calls itself.
const PASSING: SignedDuration = SignedDuration::from_secs(30);

impl Holding {
    /// Is it the process in which this program asks NVML, and over?
    #[must_use]
    pub fn is_passing_helper(&self) -> bool {
        self.role == OWN_HELPER && self.until.is_some_and(|until| until.duration_since(self.since) < PASSING)
    }
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
    /// `infrastructure`, `display`, `monitor`, ...; `own-helper`: this program, asking NVML; `compute` for whatever has no other
    /// role.
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

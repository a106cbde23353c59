//! The JSON contract of `gpu-tracer why` (schema 1): fields may be added, never renamed.
//!
//! Sentences may contain names that processes chose for themselves: they are escaped where they are printed.

use serde::{Deserialize, Serialize};

use super::report::Coverage;
use super::{ExitStatus, RawText};

/// What keeps which GPU, and what will make it let go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// [`super::report::SCHEMA`].
    pub schema: u32,
    /// Wall clock, RFC 3339, UTC, milliseconds.
    pub taken_at: String,
    /// Where the answer comes from, as in [`super::report::Report::plan`].
    pub plan: String,
    /// What the answer is worth.
    pub coverage: Coverage,
    /// How far NVML answered.
    pub nvml: NvmlReport,
    /// One verdict per GPU asked about, by index.
    pub gpus: Vec<GpuVerdict>,
    /// Processes asked about by PID.
    pub asked: Vec<Innocent>,
    /// What the kernel log says that may belong to it; hints, no proof.
    pub hints: Vec<String>,
}

impl Diagnosis {
    /// The worst of the GPUs: stuck, then no handle, then held, then unknown, then free.
    ///
    /// Nothing asked about is nothing known.
    #[must_use]
    pub fn exit_status(&self) -> ExitStatus {
        self.gpus
            .iter()
            .map(|gpu| gpu.verdict)
            .max_by_key(|verdict| verdict.weight())
            .map_or(ExitStatus::Unknown, Verdict::exit_status)
    }
}

/// How far NVML answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlReport {
    /// `complete`, `partial`, `absent`, `hung`, `failed`.
    pub state: String,
    /// The same for a person.
    pub text: String,
}

/// The answer for one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No handle lives, and everything was looked at.
    Free,
    /// Held by what can be killed.
    Held,
    /// Held by what SIGKILL does not end.
    Stuck,
    /// Memory is in use, no handle lives, and everything was looked at.
    NoHandle,
    /// Not everything could be seen, or what was seen has no name.
    Unknown,
}

impl Verdict {
    /// What the program tells its caller.
    #[must_use]
    pub const fn exit_status(self) -> ExitStatus {
        match self {
            Self::Free => ExitStatus::Free,
            Self::Held => ExitStatus::Held,
            Self::Stuck => ExitStatus::Stuck,
            Self::NoHandle => ExitStatus::NoHandle,
            Self::Unknown => ExitStatus::Unknown,
        }
    }

    /// The word of the contract.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Stuck => "stuck",
            Self::NoHandle => "no-handle",
            Self::Unknown => "unknown",
        }
    }

    const fn weight(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Unknown => 1,
            Self::Held => 2,
            Self::NoHandle => 3,
            Self::Stuck => 4,
        }
    }
}

/// One GPU's diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuVerdict {
    /// Index in PCI bus order; `null` stands for the devices that all GPUs share.
    pub gpu: Option<u32>,
    /// UUID.
    pub uuid: Option<String>,
    /// PCI bus id.
    pub bus_id: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// The answer.
    pub verdict: Verdict,
    /// The answer in one line.
    pub headline: String,
    /// What belongs to the answer and has no place in one line, one sentence each.
    #[serde(default)]
    pub details: Vec<String>,
    /// All that is held of it are contexts in which nothing is allocated.
    #[serde(default)]
    pub idle_contexts: bool,
    /// Who holds it: what will not go first, then by what they pin.
    pub holders: Vec<Finding>,
    /// Who looks guilty and is not.
    pub innocents: Vec<Innocent>,
    /// What its memory says.
    pub memory: MemoryStory,
    /// What to do, in the order in which to do it.
    pub advice: Vec<Advice>,
    /// Why the answer is not certain; empty when it is.
    pub doubts: Vec<String>,
}

/// One holder of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Host thread-group id.
    pub pid: u32,
    /// The task that carries the handles.
    pub tid: u32,
    /// Start of the process, ns of boot time.
    pub start_ns: u64,
    /// Start of the process, wall clock.
    pub started_at: Option<String>,
    /// Real user id.
    pub uid: u32,
    /// Name it wears now.
    pub comm: RawText,
    /// Command line it shows now.
    pub cmdline: RawText,
    /// Command line recorded when it opened what it holds, where that differs from today's.
    pub started_as: Option<RawText>,
    /// The executable, which it cannot rename.
    pub exe: Option<RawText>,
    /// Container.
    pub container: Option<RawText>,
    /// Kubernetes pod uid.
    pub pod: Option<RawText>,
    /// systemd unit.
    pub unit: Option<RawText>,
    /// Batch job.
    pub job: Option<RawText>,
    /// What kind of holder it is.
    pub role: String,
    /// Why it still holds: DESIGN section 5's words.
    pub why: Vec<String>,
    /// Descriptors of this GPU's own device and of shared devices.
    pub fds: u64,
    /// Mappings likewise.
    pub maps: u64,
    /// Descriptors queued in its sockets likewise.
    pub in_flight: u64,
    /// Slots in its io_urings likewise.
    pub io_uring: u64,
    /// Holds the GPU's own device, not only shared ones.
    pub direct: bool,
    /// Other GPUs that it holds: ending it affects those too.
    pub other_gpus: Vec<u32>,
    /// What NVML attributes to it on this GPU, or to a dead process whose memory stays with it, MiB.
    pub memory_mib: Option<u64>,
    /// PID of the dead process that created the memory that it keeps, as NVML says: it did not do so itself.
    #[serde(default)]
    pub created_by: Option<u32>,
    /// Will SIGKILL end it?
    pub killable: bool,
    /// It has been killed or exits by itself, and was not seen to be stuck on the way: it will be gone without another signal.
    #[serde(default)]
    pub ending: bool,
    /// Why it can or cannot be ended, one sentence.
    pub killable_because: String,
    /// Where in the kernel it waits: `gpu-driver`, `frozen-file-system`, `fuse`, `nfs`, `file-system`, `core-dump`, `freezer`,
    /// `memory`, `kernel`.
    pub waits_in: Option<String>,
    /// It does not wait there but runs.
    #[serde(default)]
    pub runs: bool,
    /// The same as a sentence.
    pub waits: Option<String>,
    /// The facts that this rests on.
    pub evidence: Vec<Fact>,
}

/// One fact, or what was concluded from facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// One sentence.
    pub text: String,
    /// Concluded, not seen.
    pub inferred: bool,
}

/// A process that looks guilty and is not, or one that was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Innocent {
    /// Its PID.
    pub pid: u32,
    /// `zombie`, `dead`, `reused-pid`, `not-a-holder`, `monitor`, `initialised`, or `holder` for one that was asked about and is none of these.
    pub what: String,
    /// One sentence.
    pub text: String,
}

/// What a GPU's memory says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStory {
    /// Used, MiB.
    pub used_mib: Option<u64>,
    /// Installed, MiB.
    pub total_mib: Option<u64>,
    /// Put down to some PID by NVML, MiB.
    pub attributed_mib: Option<u64>,
    /// Put down to nobody, MiB.
    pub unattributed_mib: Option<u64>,
    /// Recorded when the GPU was idle, MiB.
    pub baseline_mib: Option<u64>,
    /// What NVML claims, resolved.
    pub claims: Vec<ClaimReport>,
    /// The story in sentences.
    pub story: Vec<String>,
}

/// What NVML says of one PID, and who that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimReport {
    /// As NVML gave it.
    pub pid: u32,
    /// MiB; `null` when NVML does not say.
    pub mib: Option<u64>,
    /// `holder`, `thread`, `dead`, `zombie`, `exiting`, `other`, `unchecked`.
    pub resolved: String,
    /// PIDs of the processes that keep that memory now.
    pub kept_by: Vec<u32>,
    /// One sentence.
    pub text: String,
}

/// One step of what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// One sentence.
    pub text: String,
    /// A command to paste.
    pub command: Option<String>,
    /// Other GPUs that this affects.
    #[serde(default)]
    pub affects: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_certain_and_worst_decides_the_status() {
        let status = |verdicts: &[Verdict]| {
            let gpus = verdicts.iter().map(|verdict| GpuVerdict {
                gpu: None,
                uuid: None,
                bus_id: None,
                name: None,
                verdict: *verdict,
                headline: String::new(),
                details: Vec::new(),
                idle_contexts: false,
                holders: Vec::new(),
                innocents: Vec::new(),
                memory: MemoryStory::default(),
                advice: Vec::new(),
                doubts: Vec::new(),
            });
            Diagnosis {
                schema: 1,
                taken_at: String::new(),
                plan: String::new(),
                coverage: Coverage::default(),
                nvml: NvmlReport::default(),
                gpus: gpus.collect(),
                asked: Vec::new(),
                hints: Vec::new(),
            }
            .exit_status()
        };
        use Verdict::{Free, Held, NoHandle, Stuck, Unknown};
        assert_eq!(status(&[]), ExitStatus::Unknown);
        assert_eq!(status(&[Free, Free]), ExitStatus::Free);
        assert_eq!(status(&[Free, Unknown]), ExitStatus::Unknown);
        assert_eq!(status(&[Held, Unknown]), ExitStatus::Held);
        assert_eq!(status(&[Held, NoHandle, Free]), ExitStatus::NoHandle);
        assert_eq!(status(&[Held, Stuck, NoHandle, Unknown]), ExitStatus::Stuck);
    }
}

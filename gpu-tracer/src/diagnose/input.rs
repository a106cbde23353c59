//! What a diagnosis rests on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::gpu::NvmlStatus;
use crate::model::RawText;
use crate::model::report::Report;

/// Everything that is known when the verdict is given.
#[derive(Clone, Debug)]
pub struct Input {
    /// Who holds what, of the whole host: a reset needs others to let go than those asked about.
    pub report: Report,
    /// GPUs asked about; `None` means all.
    pub gpus: Option<BTreeSet<u32>>,
    /// How far NVML answered.
    pub nvml: NvmlStatus,
    /// What NVML says of PIDs.
    pub claims: Vec<Claim>,
    /// Tasks half-way through exit: what they still hold is in no table.
    pub half_gone: Vec<HalfGone>,
    /// By task id: holders that seem stuck, looked at a second time.
    pub waits: HashMap<u32, Wait>,
    /// Used memory of GPUs when they were idle, MiB, where that was recorded.
    pub baselines: BTreeMap<u32, u64>,
    /// Processes asked about by PID.
    pub asked: Vec<(u32, Resolved)>,
    /// Xid lines of the kernel log.
    pub hints: Vec<String>,
}

impl Input {
    /// Nothing but a report.
    #[must_use]
    pub fn of(report: Report) -> Self {
        Self {
            report,
            gpus: None,
            nvml: NvmlStatus::Absent("it was not asked".to_owned()),
            claims: Vec::new(),
            half_gone: Vec::new(),
            waits: HashMap::new(),
            baselines: BTreeMap::new(),
            asked: Vec::new(),
            hints: Vec::new(),
        }
    }
}

/// NVML's figure for one PID on one GPU, with the PID looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Index of the GPU.
    pub gpu: u32,
    /// As NVML gave it: whoever created the client.
    pub pid: u32,
    /// MiB.
    pub mib: Option<u64>,
    /// Computes through an MPS server.
    pub mps_client: bool,
    /// Who that is now.
    pub resolved: Resolved,
}

/// Who a PID is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Nobody: no process and no thread has it.
    Dead,
    /// A zombie without a living thread.
    Zombie {
        /// Name.
        comm: RawText,
        /// Who has yet to reap it.
        ppid: u32,
    },
    /// A living process, or one whose leader is dead and a thread lives.
    Process {
        /// Name.
        comm: RawText,
        /// Start, ns of boot time, in steps of a clock tick.
        start_ns: u64,
        /// Only threads of it live.
        leader_dead: bool,
    },
    /// A thread of this process.
    ThreadOf {
        /// Thread-group id.
        pid: u32,
        /// Name of the process.
        comm: RawText,
    },
    /// On its way through exit.
    Exiting {
        /// Name.
        comm: RawText,
    },
    /// It could not be looked up.
    Unchecked,
}

/// A task whose fd table and address space have been taken from it and that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HalfGone {
    /// Thread-group id.
    pub pid: u32,
    /// Task.
    pub tid: u32,
    /// Start of the task, ns of boot time.
    pub start_ns: u64,
    /// Name.
    pub comm: RawText,
    /// State letter.
    pub state: String,
    /// Kernel function it waits in.
    pub wchan: Option<String>,
    /// Kernel stack, innermost first.
    pub stack: Vec<String>,
}

/// So long without moving, and it is stuck: an ordinary exit inside the driver takes some hundred ms.
pub const LASTING: Duration = Duration::from_secs(1);
/// So long on the way out, and it is stuck although it moves: the driver may poll for something that never comes.
pub const RESTLESS: Duration = Duration::from_secs(2);

/// A task seen twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Between the two looks, ms.
    pub over_ms: u64,
    /// It has ended in between.
    pub gone: bool,
    /// It has not moved in between: it is in the same state and has not given up the processor once.
    pub unmoved: bool,
    /// The file that its system call is about, and where that is.
    pub obstacle: Option<Obstacle>,
}

impl Wait {
    /// Has it been there for so long that more than an ordinary exit is going on?
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        let over = Duration::from_millis(self.over_ms);
        !self.gone && (self.unmoved && over >= LASTING || over >= RESTLESS)
    }
}

/// What a task waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// The file.
    pub path: Option<RawText>,
    /// Where its file system is mounted.
    pub mount: Option<RawText>,
    /// Type of the file system.
    pub file_system: String,
    /// Number of the FUSE connection below `/sys/fs/fuse/connections`.
    pub fuse_connection: Option<u32>,
}

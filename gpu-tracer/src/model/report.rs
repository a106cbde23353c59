//! The JSON contract of `gpu-tracer holders` (schema 1): fields may be added, never renamed.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Name, RawText, WallTime};

/// Version of the contract.
pub const SCHEMA: u32 = 1;

/// Who holds which device at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Wall clock, RFC 3339, UTC, milliseconds.
    pub taken_at: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Where the answer comes from: `snapshot` (iterators, no daemon), `proc` (walk of `/proc`), or the daemon's plan: `lean`, `full`, `exhaustive`.
    pub plan: String,
    /// What the answer is worth.
    pub coverage: Coverage,
    /// What the answer cost.
    #[serde(default)]
    pub cost: Cost,
    /// The GPUs asked about.
    pub gpus: Vec<GpuReport>,
    /// Open device files.
    pub files: Vec<FileReport>,
    /// Who refers to them.
    pub holders: Vec<Holder>,
}

/// Wall time that an answer took, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Loading the BPF programs; 0 where they were loaded already.
    pub load_ms: f64,
    /// Looking at the kernel, once or twice.
    pub look_ms: f64,
    /// Snapshots taken.
    pub looks: u32,
}

/// What an answer is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Everything was looked at and everything found is explained: only then does "nobody" mean nobody.
    pub complete: bool,
    /// What could not be seen.
    pub missing: Vec<MissingReport>,
}

/// One thing that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MissingReport {
    /// A stable word for scripts.
    pub what: String,
    /// The reason and what would help, for a person.
    pub why: String,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Index in PCI bus order.
    pub index: u32,
    /// Minor of its node.
    pub minor: Option<u32>,
    /// UUID.
    pub uuid: Option<String>,
    /// PCI bus id.
    pub bus_id: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Used memory, MiB (NVML).
    pub memory_used_mib: Option<u64>,
    /// Installed memory, MiB (NVML).
    pub memory_total_mib: Option<u64>,
    /// Used memory that NVML attributes to no process, MiB.
    pub unattributed_mib: Option<u64>,
    /// Used memory that a daemon has recorded while nobody held it, MiB.
    #[serde(default)]
    pub idle_mib: Option<u64>,
}

/// One open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReport {
    /// Number of this open file; stable for its life within one daemon, otherwise for this answer only.
    pub id: u64,
    /// Device name without `/dev/`.
    pub device: Name,
    /// GPU index; `null` for shared devices.
    pub gpu: Option<u32>,
    /// `opening`, `open`, `detached`, `unreferenced`, `releasing`, `deferred`.
    pub state: Cow<'static, str>,
    /// Since when it is in that state; `null` for `open`.
    #[serde(default)]
    pub since: Option<WallTime>,
    /// For how long it is in that state, ms; left out for `open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The task that is inside the driver with it, where that is known: of an `opening` file the one that opens it, of a
    /// `releasing` one the one in whose context it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskReport>,
    /// The kernel's count; `null` where it cannot be read.
    pub references: Option<u64>,
    /// References that nobody we can name accounts for.
    pub unexplained: u64,
    /// References the driver itself holds on behalf of other device files.
    #[serde(default)]
    pub driver_pins: u64,
    /// When it was opened, if that was seen.
    pub opened_at: Option<WallTime>,
    /// Are `opened_at` and `opener` certain? If not, they are what is likely: several opens of the device came so close
    /// together that this file may be of another one of them.
    #[serde(default)]
    pub opened_exact: bool,
    /// Who opened it, if that was seen.
    pub opener: Option<Opener>,
}

/// A task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Host PID.
    pub pid: u32,
    /// Host thread id.
    pub tid: u32,
}

/// Who opened a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    /// Host PID.
    pub pid: u32,
    /// Start time, ns of boot time.
    pub start_ns: u64,
    /// Name at open.
    pub comm: RawText,
    /// Command line at open.
    pub cmdline: RawText,
    /// Does that very process still live?
    pub alive: bool,
}

/// One process (or one thread of it with a private fd table) that holds devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Host thread-group id.
    pub pid: u32,
    /// The live task that carries the handle; equal to `pid` while the leader does.
    pub tid: u32,
    /// All live tasks that carry the handle.
    #[serde(default)]
    pub tids: Vec<u32>,
    /// Start of the process, ns of boot time.
    pub start_ns: u64,
    /// Start of the process, wall clock.
    #[serde(default)]
    pub started_at: Option<String>,
    /// Parent.
    pub ppid: u32,
    /// Session: the PID of the process that began it, from which it descends. 0 where that is not known.
    #[serde(default)]
    pub session: u32,
    /// Real user id.
    pub uid: u32,
    /// Name the process wears now.
    pub comm: RawText,
    /// Command line it shows now, arguments separated by spaces; bounded.
    pub cmdline: RawText,
    /// The executable, which it cannot rename.
    pub exe: Option<RawText>,
    /// State letter of `tid`.
    pub state: String,
    /// State letter of the leader.
    pub leader_state: String,
    /// Kernel function `tid` waits in.
    pub wchan: Option<String>,
    /// What `tid` closes and cannot finish closing, where its kernel stack tells: descriptor, where that is known, and kind
    /// of file. It is not the device.
    #[serde(default)]
    pub closing: Option<String>,
    /// Top of the kernel stack of `tid`, innermost first (root only).
    #[serde(default)]
    pub stack: Vec<String>,
    /// `tid` is in `do_exit`.
    pub exiting: bool,
    /// SIGKILL has been sent and not acted on.
    pub sigkill_pending: bool,
    /// PID inside its own PID namespace.
    pub pid_in_ns: u32,
    /// cgroup path.
    pub cgroup: Option<RawText>,
    /// Container: `docker:ID`, `containerd:ID`, `cri-o:ID`, `podman:ID`, `lxc:NAME`, `nspawn:NAME`.
    pub container: Option<RawText>,
    /// Kubernetes pod uid.
    #[serde(default)]
    pub pod: Option<RawText>,
    /// systemd unit.
    pub unit: Option<RawText>,
    /// Batch job: `slurm:ID[.STEP]`.
    pub job: Option<RawText>,
    /// `compute`, `initialised`, `monitor`, `infrastructure`, `display`, `unknown`, ...
    pub role: String,
    /// Why it still holds: DESIGN section 5's words.
    pub why: Vec<String>,
    /// What it holds.
    pub devices: Vec<HeldDevice>,
    /// What NVML attributes to it.
    pub memory: Vec<HeldMemory>,
}

/// What one holder holds of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDevice {
    /// Device name without `/dev/`.
    pub device: String,
    /// GPU index; `null` for shared devices.
    pub gpu: Option<u32>,
    /// Descriptors, once per fd table.
    pub fds: u64,
    /// Mappings, once per address space.
    pub maps: u64,
    /// Descriptors queued in a socket whose receiving end it has open: once per process, in however many fd tables of its
    /// threads that is.
    pub in_flight: u64,
    /// Registered files of an io_uring it has open or mapped, likewise.
    pub io_uring: u64,
    /// References that it is dropping: gone from its tables by exit or close, and not released yet. Only a daemon that
    /// saw it hold them knows.
    #[serde(default)]
    pub dropping: u64,
    /// Ids of the open files concerned.
    pub files: Vec<u64>,
}

/// GPU memory attributed to a holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    /// GPU index.
    pub gpu: u32,
    /// MiB.
    pub mib: u64,
    /// Who says so: `nvml`.
    pub source: String,
}

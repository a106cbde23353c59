//! GPUs: identity and memory.

use serde::{Deserialize, Serialize};

/// Identity of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Index in PCI bus order, as NVML and `nvidia-smi` number them.
    pub index: u32,
    /// Minor number of its node, `/dev/nvidiaMINOR`. Not the index.
    pub minor: Option<u32>,
    /// `GPU-...`, as `nvidia-smi -L` prints it.
    pub uuid: Option<String>,
    /// PCI bus id in sysfs form, `0000:0f:00.0`.
    pub bus_id: Option<String>,
    /// Marketing name.
    pub name: Option<String>,
}

/// What NVML says of one GPU's memory. NVML's claims, not facts: its PIDs name whoever *created* a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// Index of the GPU.
    pub gpu: u32,
    /// Used, MiB.
    pub used_mib: Option<u64>,
    /// Installed, MiB.
    pub total_mib: Option<u64>,
    /// Per process.
    pub processes: Vec<ProcessMemory>,
}

/// NVML's figure for one PID on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// The PID as NVML gave it: may be dead, reused, or a thread id.
    pub pid: u32,
    /// MiB; `None` when NVML does not say.
    pub mib: Option<u64>,
}

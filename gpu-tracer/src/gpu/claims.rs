//! What NVML claims, and how much of a GPU's memory those claims explain. Pure.

use std::fmt;
use std::time::Duration;

use crate::model::{Gpu, GpuMemory};

/// Everything that one question to NVML brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlAnswer {
    /// One per GPU that NVML named, by index.
    pub gpus: Vec<NvmlGpu>,
    /// How far the question got.
    pub status: NvmlStatus,
    /// Host driver version, such as `580.159.04`.
    pub driver: Option<String>,
    /// The library that answered, as it was named to the dynamic loader.
    pub library: Option<String>,
    /// Questions that NVML refused, in the order in which it refused them.
    pub refusals: Vec<Refusal>,
    /// The helper's PID: it opens GPU devices itself and must not be listed as a holder. `None` when none was started.
    pub helper_pid: Option<u32>,
    /// Whether the helper has been reaped. `false` means that it is still on its way out (or cannot be killed), and
    /// that handles it opened may still be alive in the kernel.
    pub helper_gone: bool,
}

impl NvmlAnswer {
    /// An answer without any figure.
    #[must_use]
    pub fn without_figures(status: NvmlStatus) -> Self {
        Self {
            gpus: Vec::new(),
            status,
            driver: None,
            library: None,
            refusals: Vec::new(),
            helper_pid: None,
            helper_gone: true,
        }
    }

    /// NVML's words on the GPU with this index.
    #[must_use]
    pub fn gpu(&self, index: u32) -> Option<&NvmlGpu> {
        self.gpus.iter().find(|gpu| gpu.identity.index == index)
    }
}

/// One GPU as NVML describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlGpu {
    /// Who it is.
    pub identity: Gpu,
    /// Memory in MiB. One entry per PID: a PID in several lists has the largest figure, a PID in several MIG
    /// instances the sum.
    pub memory: GpuMemory,
    /// In which of NVML's lists each PID stood; same order as `memory.processes`.
    pub uses: Vec<ProcessUse>,
    /// Whether every process list was given. If not, a PID that is absent proves nothing.
    pub processes_complete: bool,
    /// MIG mode; `None` when the GPU has none or NVML did not say.
    pub mig: Option<bool>,
}

impl NvmlGpu {
    /// [`attribute`] of this GPU.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        attribute(&self.memory, self.processes_complete)
    }
}

/// The lists that a PID stood in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// The PID as NVML gave it.
    pub pid: u32,
    /// Has a compute context.
    pub compute: bool,
    /// Has a graphics context.
    pub graphics: bool,
    /// Computes through an MPS server.
    pub mps_client: bool,
}

/// How far a question to NVML got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvmlStatus {
    /// Every question was answered (or does not apply to the GPU).
    Complete,
    /// Some figures are missing; the text says which and why.
    Partial(String),
    /// There is no NVML to ask here; the text says what was looked for.
    Absent(String),
    /// NVML did not come back in time. What it said before that is kept.
    Hung {
        /// How long it was waited for; zero when it was not asked again because earlier helpers are still stuck.
        after: Duration,
        /// The questions that are still unanswered.
        during: String,
    },
    /// NVML is there and did not work.
    Failed(String),
}

impl fmt::Display for NvmlStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("NVML answered"),
            Self::Partial(reason) => write!(f, "NVML answered in part: {reason}"),
            Self::Absent(reason) => write!(f, "no NVML: {reason}"),
            Self::Hung { after, during } => write!(f, "NVML hung for {:.1} s: {during}", after.as_secs_f64()),
            Self::Failed(reason) => write!(f, "NVML failed: {reason}"),
        }
    }
}

/// A question that NVML refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the GPU it was about, if it was about one.
    pub gpu: Option<u32>,
    /// What was asked.
    pub question: super::facts::Question,
    /// NVML's reason.
    pub reason: String,
    /// The GPU or driver does not have the feature: nothing is missing.
    pub unsupported: bool,
}

/// How much of a GPU's used memory NVML puts down to processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Sum over the processes with a figure, MiB.
    pub attributed_mib: u64,
    /// Used and put down to nobody, MiB: managed memory, exported memory, the driver's own. `None` when the used
    /// figure, a process list or a process's figure is unknown. Zero when the claims exceed what is used, as they may
    /// for memory that two processes share.
    pub unattributed_mib: Option<u64>,
    /// Processes that NVML names without a figure.
    pub without_figure: usize,
}

/// Splits used memory into attributed and unattributed.
///
/// `processes_complete` says whether every process list was read; see [`NvmlGpu::processes_complete`].
#[must_use]
pub fn attribute(memory: &GpuMemory, processes_complete: bool) -> Attribution {
    let figures = memory.processes.iter().filter_map(|process| process.mib);
    let attributed_mib = figures.fold(0u64, u64::saturating_add);
    let without_figure = memory.processes.iter().filter(|process| process.mib.is_none()).count();
    let unattributed_mib = match memory.used_mib {
        Some(used) if processes_complete && without_figure == 0 => Some(used.saturating_sub(attributed_mib)),
        _ => None,
    };
    Attribution { attributed_mib, unattributed_mib, without_figure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessMemory;

    fn memory(used_mib: Option<u64>, figures: &[Option<u64>]) -> GpuMemory {
        let processes = (1u32..).zip(figures).map(|(pid, mib)| ProcessMemory { pid, mib: *mib }).collect();
        GpuMemory { gpu: 0, used_mib, total_mib: Some(143_771), processes }
    }

    #[test]
    fn what_no_process_accounts_for_is_unattributed() {
        // Managed memory on an H200: 22,033 MiB used, 1,542 attributed.
        let split = attribute(&memory(Some(22_033), &[Some(1_542)]), true);
        assert_eq!(split.attributed_mib, 1_542);
        assert_eq!(split.unattributed_mib, Some(20_491));
    }

    #[test]
    fn claims_above_what_is_used_leave_nothing_unattributed() {
        let split = attribute(&memory(Some(15_887), &[Some(15_878), Some(15_878)]), true);
        assert_eq!(split.unattributed_mib, Some(0));
        assert_eq!(
            attribute(&memory(Some(1), &[Some(u64::MAX), Some(u64::MAX)]), true).attributed_mib,
            u64::MAX
        );
    }

    #[test]
    fn unattributed_is_unknown_when_any_part_is() {
        assert_eq!(attribute(&memory(None, &[Some(3)]), true).unattributed_mib, None, "used is unknown");
        assert_eq!(
            attribute(&memory(Some(9), &[Some(3)]), false).unattributed_mib,
            None,
            "a list is missing"
        );
        let split = attribute(&memory(Some(9), &[Some(3), None]), true);
        assert_eq!(split, Attribution { attributed_mib: 3, unattributed_mib: None, without_figure: 1 });
    }

    #[test]
    fn a_gpu_without_processes_has_all_its_memory_unattributed() {
        // A 12 GiB export left in a socket: used, and no process listed.
        assert_eq!(attribute(&memory(Some(12_288), &[]), true).unattributed_mib, Some(12_288));
    }
}

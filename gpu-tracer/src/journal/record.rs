//! What the daemon gives to the journal.

use crate::model::change::{Change, SharedDescription};
use crate::model::{DeviceNumber, Gpu, ProcessId, RawText};

/// One thing to write down.
#[derive(Clone, Debug)]
pub enum Record {
    /// Something changed.
    Change(Change),
    /// What is known of a process; comes before the first record that names it, and again when it has changed.
    Process(ProcessRecord),
    /// What a device number means; comes before the first record that names it.
    Device {
        /// The number.
        number: DeviceNumber,
        /// Its name, without `/dev/`.
        name: String,
        /// The GPU it belongs to.
        gpu: Option<u32>,
    },
    /// The GPUs of this host.
    Gpus(Vec<Gpu>),
    /// A sign of life, with the wall clock of that moment.
    Alive {
        /// ns of boot time.
        at_ns: u64,
        /// Wall clock at boot, ns since 1970.
        wall_offset_ns: i64,
    },
    /// All that is held at a moment after records were lost: what is not in it has ended, what is new in it began unseen.
    Standing(Standing),
    /// How much memory of a GPU is used.
    Memory {
        /// ns of boot time.
        at_ns: u64,
        /// Index of the GPU.
        gpu: u32,
        /// MiB.
        used_mib: Option<u64>,
        /// MiB.
        total_mib: Option<u64>,
    },
    /// What is said of each GPU.
    Verdicts {
        /// ns of boot time.
        at_ns: u64,
        /// One for each GPU.
        verdicts: Vec<GivenVerdict>,
    },
}

/// What is said of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenVerdict {
    /// Index; `None` stands for the devices that all GPUs share.
    pub gpu: Option<u32>,
    /// In a stable word: `free`, `held`, `stuck`, `no-handle`, `unknown`.
    pub verdict: &'static str,
    /// The exit status that goes with it.
    pub status: u8,
    /// The same as a sentence.
    pub headline: String,
}

/// A process as it is at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Which process.
    pub process: ProcessId,
    /// Since when it is as described, as far as known; ns of boot time.
    pub at_ns: u64,
    /// Its name; empty where unknown.
    pub comm: RawText,
    /// Its real user.
    pub uid: Option<u32>,
    /// Its parent.
    pub parent: Option<ProcessId>,
    /// What `/proc` said of it.
    pub description: Option<SharedDescription>,
}

/// What is open and who holds it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// Records that were lost before it, if any were: since when and how many.
    pub lost: Option<Lost>,
    /// Open files.
    pub files: Vec<StandingFile>,
    /// Holdings.
    pub holdings: Vec<StandingHolding>,
}

/// Records that could not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The last moment before the first of them, ns of boot time.
    pub from_ns: u64,
    /// How many.
    pub records: u64,
}

/// One open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandingFile {
    /// The ledger's id.
    pub id: u64,
    /// Its device.
    pub device: DeviceNumber,
    /// When it was opened and by whom, if that was seen.
    pub opened: Option<(u64, ProcessId)>,
}

/// One holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandingHolding {
    /// The file.
    pub file: u64,
    /// The holder.
    pub process: ProcessId,
    /// Since when, ns of boot time.
    pub since_ns: u64,
    /// In a stable word: `found`, `opened`, `inherited`, `handed-over`, `dropping`.
    pub how: &'static str,
}

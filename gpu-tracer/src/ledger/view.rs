//! What the ledger says: open files, and who holds them.

use super::files::FileState;
use crate::model::{DeviceNumber, ProcessId, RawText, Task};

/// Who holds what, as of one snapshot and the events since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Open device files, by id. A file nobody can be found for is here all the same.
    pub files: Vec<FileView>,
    /// Who holds them, ordered by (tgid, carrier's tid).
    pub holders: Vec<HolderView>,
    /// When the snapshot behind this was begun, ns of boot time; 0 before the first.
    pub taken_ns: u64,
}

/// One open device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileView {
    /// The ledger's own number for it: never used for another file, whatever address that gets.
    pub id: u64,
    /// The device it is open on.
    pub device: DeviceNumber,
    /// Where in its life it is.
    pub state: FileState,
    /// The kernel's count of references; `None` where it could not be read.
    pub count: Option<u64>,
    /// References that were seen, each once. More than `count` only when the snapshot raced with a close.
    pub named: u64,
    /// References that the kernel counts and nobody accounts for.
    pub unexplained: u64,
    /// Those of `named` that the driver itself holds for other device files.
    pub driver_pins: u64,
    /// Its opening, if that was seen.
    pub opened: Option<Opened>,
}

/// The opening of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// By whom, as it was then.
    pub opener: Identity,
}

/// A process as it was at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Which process.
    pub process: ProcessId,
    /// The name it wore.
    pub comm: RawText,
    /// Its command line, arguments separated by NUL; empty when nobody could read it in time.
    pub cmdline: RawText,
    /// Its executable.
    pub exe: Option<RawText>,
    /// Its cgroup.
    pub cgroup: Option<RawText>,
}

/// A process that holds something, or those threads of it that do so through an fd table of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Which process.
    pub process: ProcessId,
    /// The live task that stands for it: the leader if it carries the handle, else one in uninterruptible sleep, else
    /// the one with the lowest id.
    pub carrier: Task,
    /// The leader, dead or alive.
    pub leader: Option<Task>,
    /// All live tasks that carry a handle, ascending.
    pub tids: Vec<u32>,
    /// What it holds, by file id.
    pub held: Vec<HeldFile>,
}

/// How one holder refers to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Id of the file.
    pub id: u64,
    /// Its device.
    pub device: DeviceNumber,
    /// Descriptors, once per fd table.
    pub fds: u64,
    /// Mappings, once per address space.
    pub maps: u64,
    /// Descriptors queued in sockets that it owns, directly or through other sockets.
    pub in_flight: u64,
    /// Slots of io_urings that it owns.
    pub io_uring: u64,
    /// References the driver holds for a device file that this holder holds.
    pub driver_pins: u64,
}

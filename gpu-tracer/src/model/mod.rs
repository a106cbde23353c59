//! The nouns of the program: what every room may talk about.
//!
//! Nothing here does I/O, reads a clock, or knows how a fact was obtained.
//! [`snapshot`] is what the kernel said at one instant, [`event`] what it said
//! happened, [`change`] what follows from both, [`report`] the JSON contract that users and scripts rely on.

pub mod change;
pub mod device;
pub mod diagnosis;
pub mod doctor;
pub mod event;
pub mod exit;
pub mod gpu;
pub mod happening;
pub(crate) mod hash;
pub mod history;
pub mod report;
pub mod snapshot;
pub mod task;
pub mod text;
mod wall;
mod words;

pub use device::{Device, DeviceNumber, DeviceRange, DeviceTable};
pub use exit::ExitStatus;
pub use gpu::{Gpu, GpuMemory, ProcessMemory};
pub use snapshot::{FileKey, Missing, ModuleUses, OpenFile, Reference, Snapshot, Via};
pub use task::{MmKey, ProcessId, TableKey, Task, TaskState};
pub use text::{Name, RawText, counted, seconds};
pub use wall::WallTime;

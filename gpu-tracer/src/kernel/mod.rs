//! What this kernel is: where its fields are, what it can do, which of its devices are GPU handles, what time it is.
//!
//! Nothing here loads a program or changes anything. Everything but the clock is read from files under a root that the
//! caller names (`/` but for tests).

pub mod btf;
pub mod clock;
pub mod devices;
pub mod features;
pub mod paging;

pub use btf::{Btf, BtfError, Field};
pub use clock::{Clock, boot_id, boot_now};
pub use devices::{DeviceError, Devices, ExtraDevice, ExtraDeviceError, discover};
pub use features::{Answer, Capabilities, Capability, Features, KernelVersion, Module};

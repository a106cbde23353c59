//! What this kernel is: BTF offsets, features, devices.

pub mod btf;
pub mod devices;

pub use btf::{Btf, BtfError, Field};
pub use devices::{DeviceError, Devices, ExtraDevice, ExtraDeviceError, discover};

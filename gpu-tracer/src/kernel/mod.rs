//! What this kernel is: BTF offsets, features, devices.

pub mod btf;

pub use btf::{Btf, BtfError, Field};

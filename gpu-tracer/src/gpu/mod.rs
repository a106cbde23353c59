//! GPU identity and memory. NVML only inside a short-lived helper process.
//!
//! NVML hangs: its process query takes the driver's API lock and the GPU's lock, which a stuck teardown keeps. So
//! [`nvml`] re-executes this program as a [`helper`] that loads the library, asks, and tells every fact as one JSON
//! line ([`facts`]) the moment it has it. The asking side waits for a bounded time, keeps whatever was said, and
//! never waits for the helper's death. What comes out are [`claims`]: NVML's word, not the kernel's.

pub mod claims;
pub mod facts;
pub mod helper;
pub mod identity;
pub mod library;
pub mod nvml;
pub mod selector;

pub use claims::{Attribution, NvmlAnswer, NvmlGpu, NvmlStatus};

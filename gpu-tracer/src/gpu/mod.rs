//! GPU identity and memory. NVML only inside a short-lived helper process.

pub mod identity;
pub mod selector;

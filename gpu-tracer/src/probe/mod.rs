//! Looking at the kernel. The only room that names aya.

pub mod procwalk;

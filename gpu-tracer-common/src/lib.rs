//! Record layouts shared by the BPF programs and the user side.
//!
//! Every record is `repr(C)`, has explicit padding, begins with its kind and layout version, and has its size asserted,
//! so that both sides are known to agree. Pointers travel as `u64` and serve only as identities.
#![no_std]

pub mod events;
pub mod layout;
pub mod snapshot;

/// Layout version, in the first word of every record. Changes when any layout changes.
pub const LAYOUT: u16 = 3;

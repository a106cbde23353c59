//! Verdicts and advice. Pure: what was seen goes in, words come out.
//!
//! [`Roles::role`] and [`why()`] say of each holder what it is and why it still holds. [`diagnose`] takes the whole report, what
//! NVML claims, and a second look at what seems stuck, and says of each GPU whether it is free, who keeps it, whether they
//! will go, and what to do. In order: which holders concern the GPU (its own device, or shared devices while there is memory
//! to keep); whether SIGKILL ends them, and where in the kernel those wait that it does not; who keeps memory that NVML puts
//! down to the dead; then one verdict, one headline, and the commands.

mod advice;
mod finding;
mod going;
mod headline;
mod idle;
pub mod input;
mod lineage;
mod memory;
pub mod place;
mod role;
mod verdict;
mod why;
mod words;

#[cfg(test)]
pub(crate) mod tests;

pub use idle::{MOST_IDLE_MIB, idle_gpus};
pub use input::Input;
pub use role::{NAMES as ROLES, RoleRule, Roles, is_infrastructure, reason_of};
pub use verdict::diagnose;
pub use why::why;

use crate::ledger::View;
use crate::model::Task;
use crate::model::report::HeldDevice;
use crate::process::ProcessFacts;

/// What is known of one holder when it is judged.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The task that carries the handles.
    pub carrier: &'a Task,
    /// The thread-group leader, dead or alive.
    pub leader: Option<&'a Task>,
    /// From `/proc`; `None` if the process has gone since.
    pub facts: Option<&'a ProcessFacts>,
    /// What it holds.
    pub devices: &'a [HeldDevice],
    /// Everybody else.
    pub view: &'a View,
}

//! Verdicts and advice. Pure: what was seen goes in, words come out.

mod role;
mod why;

pub use role::role;
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

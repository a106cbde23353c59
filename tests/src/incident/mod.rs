//! The two incidents that this project exists for, on the stand-in driver: eight GPUs, real processes, real handles.
//!
//! Only in the guests of `cargo xtask vm`, where that driver is loaded. [`renamed`] is the first: workers that a pattern for
//! the program's name misses. [`gpu4`] is the second: one GPU full, nobody to blame, in five variants of what is there.
//! [`inquiry`] is what the tests ask.

pub mod driver;
pub mod gpu4;
pub mod inquiry;
pub mod renamed;

use anyhow::Result;

use crate::scenario::Scenario;
use crate::worker::{Order, Worker};

/// Both.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "incident-renamed",
        summary: "A1: a server, its helper and eight workers hold 8 GPUs; next: server and helper are gone",
        play: renamed::play,
    },
    Scenario {
        name: "incident-gpu4",
        summary: "A2: GPU 4 is full: thread, inherited, releasing, in-flight or leak; next: what blocks it goes",
        play: gpu4::play,
    },
];

/// The incident with this name.
#[must_use]
pub fn find(name: &str) -> Option<Scenario> {
    ALL.iter().find(|incident| incident.name == name).copied()
}

/// Gives a process a command line, and the name that goes with it.
fn call(worker: &Worker, comm: &str, cmdline: &str) -> Result<()> {
    worker.order(Order::Retitle(cmdline.as_bytes().to_vec()))?;
    worker.order(Order::Rename(comm.as_bytes().to_vec()))
}

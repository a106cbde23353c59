//! The journal: how fast it is written, how large it gets, how long a question takes.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::Subject;
use crate::interrupt;

/// Runs the benchmark, which is a program of the crate that has the journal.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let (events, seconds) = (subject.arguments.events, subject.arguments.journal_seconds);
    let mut command = Command::new("cargo");
    command.args(["bench", "--quiet", "--package", "gpu-tracer", "--bench", "journal", "--"]);
    command.args([events.to_string(), seconds.to_string()]);
    let status = command.status().context("cannot start cargo")?;
    interrupt::check()?;
    if !status.success() {
        bail!("the benchmark of the journal failed ({status})");
    }
    Ok(())
}

//! `cargo xtask lint`: formatting of every crate, and clippy without a warning for those of the host.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::child;
use crate::workspace::Workspace;

/// Runs `lint`.
pub(crate) fn task(workspace: &Workspace) -> Result<()> {
    check(cargo(workspace).args(["fmt", "--all", "--check"]), "rustfmt")?;
    // Clippy would need the BPF target's own compiler for the eBPF crate; the others are the host's.
    let mut clippy = cargo(workspace);
    clippy.args([
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--exclude",
        "gpu-tracer-ebpf",
        "--all-targets",
    ]);
    check(clippy.args(["--", "-D", "warnings"]), "clippy")?;
    println!("lint: formatting and clippy are clean");
    Ok(())
}

fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = child::cargo();
    cargo.current_dir(workspace.root());
    cargo
}

fn check(command: &mut Command, component: &str) -> Result<()> {
    child::run(command).with_context(|| {
        format!(
            "{component} is not content (or not installed: `rustup component add {component}`, or the \
             distribution's package)"
        )
    })
}

//! `cargo xtask lint`: formatting of every crate, and clippy without a warning for those of the host.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::child;
use crate::workspace::Workspace;

/// Runs `lint`: both checks, even when the first is not content.
pub(crate) fn task(workspace: &Workspace) -> Result<()> {
    let formatting = child::run(cargo(workspace).args(["fmt", "--all", "--check"]));
    // Clippy would need the BPF target's own compiler for the eBPF crate; the others are the host's.
    let clippy = child::run(
        cargo(workspace)
            .args([
                "clippy",
                "--quiet",
                "--locked",
                "--workspace",
                "--exclude",
                "gpu-tracer-ebpf",
                "--all-targets",
            ])
            .args(["--", "-D", "warnings"]),
    );
    formatting.context(
        "formatting is not clean: run `cargo fmt --all` (if cargo has no such command: `rustup component add rustfmt`)",
    )?;
    clippy.context(
        "clippy has something to say (if cargo has no such command: `rustup component add clippy`)",
    )?;
    println!("lint: formatting and clippy are clean");
    Ok(())
}

fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = child::cargo();
    cargo.current_dir(workspace.root());
    cargo
}

//! `cargo xtask exam`: random steps by real processes on stand-in devices; after each burst of them gpu-tracer's answer is
//! compared with what was done, reference by reference.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::build_ebpf;
use crate::child;
use crate::host_build;
use crate::setup;
use crate::workspace::Workspace;

/// Arguments of `exam`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Decides every step; a fresh one when not given. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// How many steps.
    #[arg(long, default_value_t = 50_000)]
    ops: u64,
    /// No longer than so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Ask a daemon after every burst, and the tracer alone only now and then.
    #[arg(long)]
    daemon: bool,
    /// Processes at the same time, at most.
    #[arg(long, default_value_t = 48)]
    processes: u32,
    /// Processes to begin with.
    #[arg(long, default_value_t = 1)]
    start_with: u32,
    /// Steps between two questions, at most.
    #[arg(long, default_value_t = 100)]
    burst: u32,
    /// Milliseconds between a question and the next burst. A daemon is told of 64 opens of one process and device within 100 ms.
    #[arg(long, default_value_t = 0)]
    rest: u32,
    /// How many seconds to look for the shortest sequence that shows a difference.
    #[arg(long, default_value_t = 60)]
    shorten: u64,
}

/// Runs `exam`. Fails on a difference.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if !child::is_root() {
        bail!("the exam makes device nodes and looks at all processes: run this as root");
    }
    let toolchain = setup::for_build()?;
    build_ebpf::build(workspace, &toolchain, false)?;
    let programs = host_build::release(workspace)?;
    let mut exam = Command::new(workspace.release_program("exam"));
    exam.envs(programs.environment());
    for (option, value) in [
        ("--seed", arguments.seed),
        ("--ops", Some(arguments.ops)),
        ("--seconds", arguments.seconds),
        ("--processes", Some(u64::from(arguments.processes))),
        ("--start-with", Some(u64::from(arguments.start_with))),
        ("--burst", Some(u64::from(arguments.burst))),
        ("--rest", Some(u64::from(arguments.rest))),
        ("--shorten", Some(arguments.shorten)),
    ] {
        if let Some(value) = value {
            exam.arg(option).arg(value.to_string());
        }
    }
    if arguments.daemon {
        exam.arg("--daemon");
    }
    child::run(&mut exam)
}

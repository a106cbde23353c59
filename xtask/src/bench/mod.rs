//! `cargo xtask bench`: measurements whose figures the documentation states. One file each; a benchmark is a function
//! from [`Subject`] to nothing that prints its table, and a name in [`Name`].

mod agree;
mod crowd;
mod daemon;
mod idle;
mod journal;
mod kprobes;
mod measure;
mod overhead;
mod restarts;
mod snapshot;
mod standing;
mod storm;
mod why;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::build_ebpf;
use crate::child;
use crate::host_build;
use crate::interrupt;
use crate::setup;
use crate::workspace::Workspace;

pub(crate) use crowd::Arguments as CrowdArguments;
pub(crate) use crowd::task as crowd_task;
pub(crate) use storm::Arguments as StormerArguments;
pub(crate) use storm::task as stormer_task;

/// Arguments of `bench`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Which one; all of them when not given.
    name: Option<Name>,
    /// snapshot: processes in the crowd.
    #[arg(long, default_value_t = 2000)]
    processes: u32,
    /// snapshot: open files of each.
    #[arg(long, default_value_t = 50)]
    files: u32,
    /// snapshot, overhead, why: measurements of each, alternating.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure this gpu-tracer instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// storm: seconds of it; standing: seconds in which nothing happens.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// standing: handles held while answers are timed.
    #[arg(long, default_value_t = 10_000)]
    handles: usize,
    /// standing: answers that are timed, of each kind.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    answers: u32,
    /// journal: events written.
    #[arg(long, default_value_t = 10_000_000)]
    events: u64,
    /// journal: seconds after which no more are written.
    #[arg(long, default_value_t = 300)]
    journal_seconds: u64,
    /// storm: opens per second; as many as can be when not given.
    #[arg(long)]
    rate: Option<u64>,
    /// kprobes: development builds, which are built faster. What the kernel does is the same.
    #[arg(long)]
    dev: bool,
    /// overhead: the plan of the daemon.
    #[arg(long, default_value = "lean", value_parser = ["lean", "exhaustive", "snapshot"])]
    plan: String,
    /// restarts: how many, in five minutes at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    restarts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// A crowd of processes, one of which holds the device: fuser, lsof and lsfd against `gpu-tracer holders`.
    Snapshot,
    /// `gpu-tracer holders` from a standing start on this machine as it is.
    Idle,
    /// What a running daemon costs processes that have nothing to do with GPUs.
    Overhead,
    /// What a daemon takes with nothing to do, and how quickly it answers when ten thousand handles are held.
    Standing,
    /// The device opened and closed as fast as can be while a daemon watches.
    Storm,
    /// Writing the journal, and asking a full one.
    Journal,
    /// A daemon killed and started again while the device is opened and closed.
    Restarts,
    /// What the kprobes of plan full cost: in a guest, in instructions, with an estimate of what that is on hardware.
    Kprobes,
    /// `gpu-tracer why` without NVML, with one that hangs, and through a daemon, against what is promised.
    Why,
}

/// What is measured, and how much of it.
struct Subject<'a> {
    gpu_tracer: PathBuf,
    arguments: &'a Arguments,
}

/// Runs `bench`.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if !child::is_root() {
        bail!("benchmarks compare complete answers, which only root gets: run this as root");
    }
    let toolchain = setup::for_build()?;
    setup::for_tests(false)?;
    let gpu_tracer = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => {
            build_ebpf::build(workspace, &toolchain, false)?;
            host_build::release(workspace)?.gpu_tracer
        }
    };
    let subject = Subject { gpu_tracer, arguments };
    interrupt::catch();
    interrupt::adopt_orphans()?;
    let outcome = Name::value_variants()
        .iter()
        .filter(|name| arguments.name.is_none_or(|wanted| wanted == **name))
        .try_for_each(|name| {
            interrupt::check()?;
            match name {
                Name::Snapshot => snapshot::measure(&subject),
                Name::Idle => idle::measure(&subject),
                Name::Overhead => overhead::measure(&subject),
                Name::Standing => standing::measure(&subject),
                Name::Storm => storm::measure(&subject),
                Name::Journal => journal::measure(&subject),
                Name::Restarts => restarts::measure(&subject),
                Name::Kprobes => kprobes::measure(workspace, &subject),
                Name::Why => why::measure(workspace, &subject),
            }
        });
    interrupt::end_children(Duration::from_secs(10));
    outcome
}

/// A finished run of a program.
struct Timed {
    took: Duration,
    /// Exit status; `None` where a signal ended it.
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a program to its end, its output read as it comes.
fn timed(command: &mut Command) -> Result<Timed> {
    let start = Instant::now();
    let output = command.output().with_context(|| format!("cannot start `{}`", child::shown(command)))?;
    let took = start.elapsed();
    interrupt::check()?;
    Ok(Timed {
        took,
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Checks that `gpu-tracer holders` answered (0 nobody, 1 held, 3 not everything seen).
fn check_answer(run: &Timed) -> Result<()> {
    match run.status {
        Some(0 | 1 | 3) => Ok(()),
        status => bail!("`gpu-tracer holders` failed (status {status:?}): {}", run.stderr.trim()),
    }
}

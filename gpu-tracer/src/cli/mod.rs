//! Command line: one file per subcommand, nothing but arguments and calls.
//!
//! Exit statuses are a contract ([`ExitStatus`]). Wrong usage and every failure end with 2 and a message on standard error. A reader who
//! goes away early (`gpu-tracer holders | head -1`) is no failure: the status is that of the answer.

mod completions;
mod doctor;
mod history;
mod holders;
mod man;
mod manual;
mod record;
mod release;
mod report;
mod run;
mod screen;
mod wait;
mod watch;
mod why;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use crate::answer::Question;
use crate::answer::{WaitOptions, Waited};
use crate::daemon;
use crate::diagnose::Roles;
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::model::diagnosis::Diagnosis;
use crate::model::doctor::DoctorReport;
use crate::model::report::Report;
use crate::release::{ReleaseOptions, Talk};
use crate::render::text::escape_str;
use screen::Screen;

/// Devices that count as GPUs, separated by commas, where `--device` is not given.
const DEVICES_VARIABLE: &str = "GPU_TRACER_DEVICES";

/// The configuration, where it is not the usual file.
const CONFIG_VARIABLE: &str = "GPU_TRACER_CONFIG";

/// What the subcommands ask of the rest of the program.
pub trait Answers {
    /// Who holds which device now.
    ///
    /// # Errors
    /// Selectors that select nothing, and whatever keeps an answer from being given at all. What merely could not be seen
    /// is no error: it stands in the report.
    fn holders(&self, question: &Question) -> anyhow::Result<Report>;

    /// What keeps which GPU, and what will make it let go; also a word on each of these PIDs.
    ///
    /// # Errors
    /// As for [`Answers::holders`].
    fn why(&self, question: &Question, pids: &[u32]) -> anyhow::Result<Diagnosis>;

    /// Waits until GPUs are free, telling `say` why it does.
    ///
    /// # Errors
    /// As for [`Answers::holders`].
    fn wait(
        &self,
        question: &Question,
        options: &WaitOptions,
        say: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Waited>;

    /// Ends the holders that can be ended; returns how things are afterwards.
    ///
    /// # Errors
    /// As for [`Answers::holders`]; also when there is nobody to ask.
    fn release(
        &self,
        question: &Question,
        options: &ReleaseOptions,
        talk: &mut dyn Talk,
    ) -> anyhow::Result<Diagnosis>;

    /// What works on this host.
    ///
    /// # Errors
    /// Whatever keeps an answer from being given at all. What does not work is no error: it stands in the report.
    fn doctor(&self, question: &Question) -> anyhow::Result<DoctorReport>;
}

/// Who still holds this GPU, and what will make them let go
///
/// gpu-tracer finds every process that keeps an NVIDIA device (/dev/nvidia*) in use, as the kernel sees it: through descriptors, mappings,
/// handles that wait in a socket or are registered with io_uring; in any container or namespace; under any name; and in threads whose
/// process looks dead already. Where something could not be looked at, the answer is "unknown", never "nobody".
#[derive(Debug, Parser)]
#[command(
    name = "gpu-tracer",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand understands.
#[derive(Args, Debug)]
struct Common {
    /// Count this character device as a GPU device as well (repeatable)
    ///
    /// MAJOR:MINOR=NAME, or /dev/PATH=NAME. A device called nvidiaN belongs to GPU N, any other name to all GPUs. Without this
    /// option the environment variable GPU_TRACER_DEVICES is read, a list separated by commas. Useful for /dev/kfd, /dev/dri/renderD*,
    /// /dev/accel/*, and for trying things out without a GPU.
    #[arg(long = "device", value_name = "MAJOR:MINOR=NAME", global = true, value_parser = str::parse::<ExtraDevice>)]
    devices: Vec<ExtraDevice>,
}

impl Common {
    /// `--device`, or else the environment's list; an empty variable counts as none.
    fn devices(&self, variable: Option<&OsStr>) -> anyhow::Result<Vec<ExtraDevice>> {
        if !self.devices.is_empty() {
            return Ok(self.devices.clone());
        }
        let Some(list) = variable else { return Ok(Vec::new()) };
        let list = list.to_str().with_context(|| format!("{DEVICES_VARIABLE} is no text"))?;
        ExtraDevice::list(list).with_context(|| format!("in {DEVICES_VARIABLE}"))
    }
}

/// The configuration that the environment names.
fn configuration() -> Option<PathBuf> {
    std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Who plays which role. An answer is wanted most when things are not as they should be: a configuration that cannot be used
/// is told of and does without.
fn roles() -> Roles {
    daemon::configured_roles(configuration().as_deref()).unwrap_or_else(|error| {
        let problem = escape_str(&format!("{error:#}"));
        let _ = writeln!(io::stderr(), "gpu-tracer: {problem}; roles are the built-in ones");
        Roles::default()
    })
}

#[derive(Debug, Subcommand)]
enum Command {
    Holders(holders::Arguments),
    Watch(watch::Arguments),
    Run(run::Arguments),
    Why(why::Arguments),
    Wait(wait::Arguments),
    Release(release::Arguments),
    Doctor(doctor::Arguments),
    History(history::Arguments),
    Report(report::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// Runs the program with the process's own arguments, on its own standard output.
#[must_use]
pub fn main(answers: &dyn Answers) -> ExitCode {
    // A bug must not look like "held" to a script: whatever panics, the status is that of an error.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(std::env::args_os(), std::env::var_os(DEVICES_VARIABLE).as_deref(), answers)
    }));
    outcome.unwrap_or(ExitStatus::Error).into()
}

fn run(
    arguments: impl IntoIterator<Item = OsString>,
    devices: Option<&OsStr>,
    answers: &dyn Answers,
) -> ExitStatus {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; a reader who went away is none either.
            let _ = error.print();
            return if error.use_stderr() { ExitStatus::Error } else { ExitStatus::Free };
        }
    };
    let screen = Screen::of_standard_output();
    let mut out = io::BufWriter::new(io::stdout().lock());
    match answer(&cli, devices, answers, &screen, &mut out) {
        Ok(status) => status,
        Err(error) => {
            drop(out);
            let _ = writeln!(io::stderr(), "gpu-tracer: {}", escape_str(&format!("{error:#}")));
            ExitStatus::Error
        }
    }
}

/// The command with its man pages' sections in the long help.
fn command() -> clap::Command {
    manual::add_to_help(Cli::command())
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches: ArgMatches = command().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches)
}

/// Answers on `out`.
fn answer(
    cli: &Cli,
    devices: Option<&OsStr>,
    answers: &dyn Answers,
    screen: &Screen,
    out: &mut dyn io::Write,
) -> anyhow::Result<ExitStatus> {
    let devices = || cli.common.devices(devices);
    let (status, written) = match &cli.command {
        Command::Holders(arguments) => arguments.run(devices()?, answers, screen, out)?,
        Command::Watch(arguments) => (ExitStatus::Free, arguments.run(devices()?, screen, out)?),
        Command::Run(arguments) => (ExitStatus::Free, arguments.run(devices()?, out)?),
        Command::Why(arguments) => arguments.run(devices()?, answers, screen, out)?,
        Command::Wait(arguments) => arguments.run(devices()?, answers, screen, out)?,
        Command::Release(arguments) => arguments.run(devices()?, answers, screen, out)?,
        Command::Doctor(arguments) => arguments.run(devices()?, answers, screen, out)?,
        Command::History(arguments) => arguments.run(screen, out)?,
        Command::Report(arguments) => arguments.run(out)?,
        Command::Completions(arguments) => (ExitStatus::Free, arguments.run(out)),
        Command::Man(arguments) => (ExitStatus::Free, arguments.run(out)),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("the answer could not be written to standard output")
        }
        _ => Ok(status),
    }
}

#[cfg(test)]
mod tests;

//! `gpu-tracer release`

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;

use super::Answers;
use super::screen::Screen;
use super::wait::duration;
use super::why::{Whom, view};
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::release::{ReleaseOptions, Talk};
use crate::render::text::escape_sentence;
use crate::render::{self, Format};

/// End the holders that can be ended, and wait for the release
///
/// First says whom it will end and what else that affects, and asks. Then SIGTERM, after a grace SIGKILL, each to the very process that was
/// diagnosed (a later process with its PID is not hit). Returns when the files are released and memory is back, with the status of `why`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    whom: Whom,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,

    /// Time from SIGTERM to SIGKILL, and for the release after that
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    grace: Duration,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    /// End those too that hold devices on purpose: persistence daemon, DCGM, displays, monitors
    #[arg(long)]
    include_infrastructure: bool,
}

/// Talks on standard error and asks on the terminal.
struct Terminal;

impl Talk for Terminal {
    fn say(&mut self, line: &str) {
        // Nobody may be listening; what was asked for is done all the same.
        let _ = writeln!(io::stderr(), "{}", escape_sentence(line));
    }

    fn confirm(&mut self, question: &str) -> io::Result<bool> {
        if !io::stdin().is_terminal() {
            return Err(io::Error::other(
                "there is no terminal to ask on: use --yes, or --dry-run to see the plan",
            ));
        }
        write!(io::stderr(), "{question} [y/N] ")?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

impl Arguments {
    /// The status afterwards, and whether it could be written.
    pub(super) fn run(
        &self,
        devices: Vec<ExtraDevice>,
        answers: &dyn Answers,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let options = ReleaseOptions {
            dry_run: self.dry_run,
            grace: self.grace,
            yes: self.yes,
            include_infrastructure: self.include_infrastructure,
        };
        let diagnosis = answers.release(&self.whom.question(devices), &options, &mut Terminal)?;
        let written = render::why::why(&diagnosis, Format::Table, &view(screen, false), out);
        Ok((diagnosis.exit_status(), written))
    }
}

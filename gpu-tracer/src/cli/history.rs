//! `gpu-tracer history`

use std::io;

use clap::Args;
use jiff::tz::TimeZone;

use super::holders::formats;
use super::record::{Part, moment};
use super::screen::Screen;
use crate::journal::{Asked, Reader, Reading};
use crate::model::ExitStatus;
use crate::render::{self, Format, View};

/// Say who held which GPU when, who ended them, and how long the release took
///
/// Reads what `gpu-tracer run` has written down; the daemon need not run, and the machine may have been restarted since. The last lines
/// say whether the record of that time is complete, or where it has gaps and why.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    part: Part,

    /// Only what this process held and did
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Who held what at this moment
    #[arg(long, value_name = "TIME", conflicts_with_all = ["since", "until"])]
    at: Option<String>,

    /// One process from beginning to end: opens, forks, hand-overs, signals, exit, release
    #[arg(long, value_name = "PID", conflicts_with_all = ["at", "pid", "gpus"])]
    story: Option<u32>,

    /// List infrastructure and this program's own helper one by one as well; csv and json have them always
    #[arg(long)]
    all: bool,

    /// What happened as well, event by event
    #[arg(long)]
    events: bool,

    /// At most so many events, the newest
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    limit: usize,

    /// Ask the journal in SQL; it can only be read (see docs/journal.md)
    #[arg(long, value_name = "QUERY", conflicts_with_all = ["gpus", "pid", "since", "until", "at", "story", "events"])]
    sql: Option<String>,

    /// How to print the answer
    ///
    /// table is for people. json is for programs (schema 1: fields are added, never renamed). csv has one row for each process and open file.
    #[arg(long, value_name = "FORMAT", default_value = "table", value_parser = formats())]
    format: Format,
}

impl Arguments {
    /// The status that the answer deserves, and whether it could be written.
    pub(super) fn run(
        &self,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let reader = self.part.open()?;
        if let Some(query) = &self.sql {
            let reading = reader.sql(query)?;
            return Ok((ExitStatus::Free, self.print_rows(&reading, screen, out)));
        }
        let history = match (self.story, &self.at) {
            (Some(pid), _) => {
                let window = self.part.has_time().then(|| self.part.window(&reader));
                let history = reader.history_of(pid, window.transpose()?)?;
                if history.lives.is_empty() && history.coverage.complete {
                    anyhow::bail!(
                        "the record knows no process {pid} that touched a GPU device; it goes back to {}",
                        reader.begin()
                    );
                }
                history
            }
            (None, Some(at)) => reader.history_at(moment(at, "--at")?, &self.asked(&reader)?)?,
            (None, None) => reader.history(self.part.window(&reader)?, &self.asked(&reader)?)?,
        };
        // What is long to print keeps nobody from writing.
        drop(reader);
        let view = View { width: screen.width, color: screen.color, expand: self.all, user: &|_| None };
        let written = render::history::history(&history, self.format, &TimeZone::system(), &view, out);
        Ok((render::history::exit_status(&history), written))
    }

    fn asked(&self, reader: &Reader) -> anyhow::Result<Asked> {
        let selection = self.part.selection(reader)?;
        let events = self.events || self.format == Format::Json;
        Ok(Asked { selection, pid: self.pid, events: if events { self.limit } else { 0 } })
    }

    fn print_rows(&self, reading: &Reading, screen: &Screen, out: &mut dyn io::Write) -> io::Result<()> {
        render::rows::write(&reading.columns, &reading.rows, self.format, screen.width, out)
    }
}

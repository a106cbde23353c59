//! `gpu-tracer history`

use std::io;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ZonedDateTime};

use super::holders::formats;
use super::screen::Screen;
use crate::daemon;
use crate::journal::{self, Asked, Reader, Reading, Window};
use crate::model::ExitStatus;
use crate::render::{self, Format, View};

/// Without `--since`.
const USUAL: SignedDuration = SignedDuration::from_hours(24);

/// Say who held which GPU when, who ended them, and how long the release took
///
/// Reads what `gpu-tracer run` has written down; the daemon need not run, and the machine may have been restarted since. The last lines
/// say whether the record of that time is complete, or where it has gaps and why.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// GPUs: index, range (0-3), UUID or its beginning, PCI bus id, /dev/... or "all" [default: all]
    #[arg(value_name = "GPU")]
    gpus: Vec<String>,

    #[command(flatten)]
    source: Source,

    /// Only what this process held and did
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// From this time on [default: 24 hours ago]
    ///
    /// 2026-11-29T03:12:00Z, "2026-11-29 03:12" (local time), 03:12 (the last time that the clock showed it), 1h30m (ago), now.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Until this time [default: now; with --journal the end of the record]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Who held what at this moment
    #[arg(long, value_name = "TIME", conflicts_with_all = ["since", "until"])]
    at: Option<String>,

    /// One process from beginning to end: opens, forks, hand-overs, signals, exit, release
    #[arg(long, value_name = "PID", conflicts_with_all = ["at", "pid", "gpus"])]
    story: Option<u32>,

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

/// Which journal.
#[derive(Args, Debug)]
pub(super) struct Source {
    /// Read this journal, which may be a copy from another machine
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,

    /// Read the journal in this directory [default: /var/lib/gpu-tracer]
    #[arg(long, value_name = "DIR", conflicts_with = "journal")]
    state_dir: Option<PathBuf>,
}

impl Source {
    /// Opens it.
    pub(super) fn open(&self) -> anyhow::Result<Reader> {
        let path = self.journal.clone().unwrap_or_else(|| {
            self.state_dir.clone().unwrap_or_else(|| daemon::USUAL_STATE_DIR.into()).join(journal::NAME)
        });
        Reader::open(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The end of what it can tell: of a copy its own, otherwise now.
    pub(super) fn now(&self, reader: &Reader) -> Timestamp {
        if self.journal.is_some() { reader.end() } else { Timestamp::now() }
    }

    /// The window that somebody means.
    pub(super) fn window(
        &self,
        reader: &Reader,
        since: Option<&str>,
        until: Option<&str>,
    ) -> anyhow::Result<Window> {
        let now = ZonedDateTime::now();
        let to = until.map(|text| journal::parse_time(text, &now).context("--until")).transpose()?;
        let to = to.unwrap_or_else(|| self.now(reader));
        let from = match since {
            Some(text) => journal::parse_time(text, &now).context("--since")?,
            // Nobody asked for more than there is.
            None => reader.begin().max(to.checked_sub(USUAL).unwrap_or(Timestamp::MIN)).min(to),
        };
        anyhow::ensure!(from <= to, "--since {from} is later than --until {to}");
        Ok(Window { from, to })
    }
}

impl Arguments {
    /// The status that the answer deserves, and whether it could be written.
    pub(super) fn run(
        &self,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let reader = self.source.open()?;
        if let Some(query) = &self.sql {
            let reading = reader.sql(query)?;
            return Ok((ExitStatus::Free, self.print_rows(&reading, screen, out)));
        }
        let history = match (self.story, &self.at) {
            (Some(pid), _) => {
                let asked = self.since.is_some() || self.until.is_some();
                let window =
                    asked.then(|| self.source.window(&reader, self.since.as_deref(), self.until.as_deref()));
                let history = reader.history_of(pid, window.transpose()?)?;
                if history.lives.is_empty() && history.coverage.complete {
                    anyhow::bail!(
                        "the record knows no process {pid} that touched a GPU device; it goes back to {}",
                        reader.begin()
                    );
                }
                history
            }
            (None, Some(at)) => {
                let at = journal::parse_time(at, &ZonedDateTime::now()).context("--at")?;
                reader.history_at(at, &self.asked(&reader)?)?
            }
            (None, None) => {
                let window = self.source.window(&reader, self.since.as_deref(), self.until.as_deref())?;
                reader.history(window, &self.asked(&reader)?)?
            }
        };
        // What is long to print keeps nobody from writing.
        drop(reader);
        let view = View { width: screen.width, color: screen.color, expand: false, user: &|_| None };
        let written = render::history::history(&history, self.format, &TimeZone::system(), &view, out);
        Ok((render::history::exit_status(&history), written))
    }

    fn asked(&self, reader: &Reader) -> anyhow::Result<Asked> {
        let selection = reader.select(&self.gpus)??;
        let events = self.events || self.format == Format::Json;
        Ok(Asked { selection, pid: self.pid, events: if events { self.limit } else { 0 } })
    }

    fn print_rows(&self, reading: &Reading, screen: &Screen, out: &mut dyn io::Write) -> io::Result<()> {
        render::rows::write(&reading.columns, &reading.rows, self.format, screen.width, out)
    }
}

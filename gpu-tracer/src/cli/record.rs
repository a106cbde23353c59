//! Which part of which record: what `history` and `report` have in common.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use jiff::{SignedDuration, Timestamp, ZonedDateTime};

use crate::daemon;
use crate::gpu::selector::Selection;
use crate::journal::{self, Reader, Window};

/// Without `--since`.
const USUAL: SignedDuration = SignedDuration::from_hours(24);

/// GPUs, a journal, and a time.
#[derive(Args, Debug)]
pub(super) struct Part {
    /// GPUs: index, range (0-3), UUID or its beginning, PCI bus id, /dev/... or "all" [default: all]
    #[arg(value_name = "GPU")]
    gpus: Vec<String>,

    /// Read this journal, which may be a copy from another machine
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,

    /// Read the journal in this directory [default: /var/lib/gpu-tracer]
    #[arg(long, value_name = "DIR", conflicts_with = "journal")]
    state_dir: Option<PathBuf>,

    /// From this time on [default: 24 hours ago]
    ///
    /// 2026-11-29T03:12:00Z, "2026-11-29 03:12" (local time), 03:12 (the last time that the clock showed it), 1h30m (ago), now.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Until this time [default: now; with --journal the end of the record]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Part {
    /// Opens the journal, to be read with what this site says of its programs.
    pub(super) fn open(&self) -> anyhow::Result<Reader> {
        let path = self.journal.clone().unwrap_or_else(|| {
            self.state_dir.clone().unwrap_or_else(|| daemon::USUAL_STATE_DIR.into()).join(journal::NAME)
        });
        let reader = Reader::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(reader.with_roles(super::roles()))
    }

    /// The GPUs, on the host that the record is of.
    pub(super) fn selection(&self, reader: &Reader) -> anyhow::Result<Selection> {
        Ok(reader.select(&self.gpus)??)
    }

    /// Has a time been asked for?
    pub(super) fn has_time(&self) -> bool {
        self.since.is_some() || self.until.is_some()
    }

    /// The time.
    pub(super) fn window(&self, reader: &Reader) -> anyhow::Result<Window> {
        // Of a copy the end is its own.
        let end = || if self.journal.is_some() { reader.end() } else { Timestamp::now() };
        let to = self.until.as_deref().map(|text| moment(text, "--until")).transpose()?.unwrap_or_else(end);
        let from = match self.since.as_deref() {
            Some(text) => moment(text, "--since")?,
            // Nobody asked for more than there is.
            None => reader.begin().max(to.checked_sub(USUAL).unwrap_or(Timestamp::MIN)).min(to),
        };
        anyhow::ensure!(from <= to, "--since {from} is later than --until {to}");
        Ok(Window { from, to })
    }
}

/// What somebody means who gives this option.
pub(super) fn moment(text: &str, option: &'static str) -> anyhow::Result<Timestamp> {
    journal::parse_time(text, &ZonedDateTime::now()).context(option)
}

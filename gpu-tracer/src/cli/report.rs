//! `gpu-tracer report`

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::ZonedDateTime;
use jiff::tz::TimeZone;

use super::history::Source;
use crate::journal::{self, Asked};
use crate::model::ExitStatus;
use crate::render;
use crate::render::page::Options;

/// Events that a report may have.
const EVENTS: usize = 50_000;

/// Write a report of an incident: who held which GPU when, who ended whom, drawn and told
///
/// One HTML file that needs no network: a timeline for each GPU, who held it at the chosen time, who is whose child, and every event. Or
/// a trace for the Perfetto UI.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// GPUs: index, range (0-3), UUID or its beginning, PCI bus id, /dev/... or "all" [default: all]
    #[arg(value_name = "GPU")]
    gpus: Vec<String>,

    #[command(flatten)]
    source: Source,

    /// Write it to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// From this time on [default: 24 hours ago]
    ///
    /// 2026-11-29T03:12:00Z, "2026-11-29 03:12" (local time), 03:12 (the last time that the clock showed it), 1h30m (ago), now.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Until this time [default: now; with --journal the end of the record]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Say who held what at this moment [default: the end]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// What to write: html for a browser, perfetto for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FORMAT", default_value = "html")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Html,
    Perfetto,
}

impl Arguments {
    /// The status that the record deserves, and whether what there is to say could be written.
    pub(super) fn run(&self, out: &mut dyn io::Write) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let reader = self.source.open()?;
        let window = self.source.window(&reader, self.since.as_deref(), self.until.as_deref())?;
        let at = self.at.as_deref();
        let at =
            at.map(|text| journal::parse_time(text, &ZonedDateTime::now()).context("--at")).transpose()?;
        let asked = Asked { selection: reader.select(&self.gpus)??, pid: None, events: EVENTS };
        let incident = reader.incident(window, at.unwrap_or(window.to), &asked)?;
        let mut document = Vec::new();
        match self.format {
            Format::Html => {
                let options =
                    Options { zone: TimeZone::system(), nonce: nonce(), version: env!("CARGO_PKG_VERSION") };
                document.extend(render::page::page(&incident, &options).into_bytes());
            }
            Format::Perfetto => render::perfetto::write(&incident, &mut document)?,
        }
        let status = render::history::exit_status(&incident.history);
        if self.out.as_os_str() == "-" {
            return Ok((status, out.write_all(&document)));
        }
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create(&self.out)?);
            file.write_all(&document)?;
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", self.out.display()))?;
        let said = writeln!(out, "{} written", render::text::escape_str(&self.out.display().to_string()));
        Ok((status, said))
    }
}

/// A number that no text in the record can know.
fn nonce() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

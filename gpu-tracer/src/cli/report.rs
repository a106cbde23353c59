//! `gpu-tracer report`

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::tz::TimeZone;

use super::record::{Part, moment};
use crate::journal::Asked;
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
    #[command(flatten)]
    part: Part,

    /// Write it to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Say who held what at this moment [default: the end]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// Show this program's own helper, which asks NVML, as well
    #[arg(long)]
    all: bool,

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
        let reader = self.part.open()?;
        let window = self.part.window(&reader)?;
        let at = self.at.as_deref().map(|text| moment(text, "--at")).transpose()?;
        let asked = Asked { selection: self.part.selection(&reader)?, pid: None, events: EVENTS };
        let mut incident = reader.incident(window, at.unwrap_or(window.to), &asked)?;
        if !self.all {
            incident.leave_out_own_helper();
        }
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

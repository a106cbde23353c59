//! `gpu-tracer watch`

use std::io::{self, BufRead as _};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::screen::Screen;
use crate::answer::{self, AskError};
use crate::daemon;
use crate::kernel::devices::ExtraDevice;
use crate::model::happening::Happening;
use crate::render;

/// Longest line that is believed to be one.
const LONGEST_LINE: u64 = 1 << 20;

/// Show what happens to the GPU devices, as it happens
///
/// One line for each thing: opened, inherited by fork, handed over, mapped, renamed, killed (by whom), exiting, detached, releasing,
/// released (how long after the signal). Where the daemon runs it tells; otherwise hooks are attached for as long as this runs.
/// "(by then)" marks what was found by a look: it happened some time before.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// How to print: table for people, json for programs (one document a line; fields are added, never renamed)
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,

    /// Do not ask the daemon: attach hooks for as long as this runs
    #[arg(long)]
    standalone: bool,

    /// Ask the daemon at this socket, and nobody else
    #[arg(long, value_name = "PATH", conflicts_with = "standalone")]
    socket: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl Arguments {
    /// Until there is nobody left to tell, or nothing to tell from; and whether it could be written.
    pub(super) fn run(
        &self,
        devices: Vec<ExtraDevice>,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<io::Result<()>> {
        // A daemon may watch other devices than those asked for here.
        let asked = !self.standalone && (devices.is_empty() || self.socket.is_some());
        if asked {
            match answer::stream(self.socket.as_deref()) {
                Ok(stream) => return self.pass_on(stream, screen, out),
                Err(AskError::Silent { .. }) if self.socket.is_none() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut watching = daemon::watch(devices)?;
        while let Some(line) = watching.next_line() {
            if let Err(error) = self.print(&line, screen, out) {
                return Ok(Err(error));
            }
        }
        watching.end()?;
        Ok(Ok(()))
    }

    fn pass_on(
        &self,
        mut stream: impl io::BufRead,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<io::Result<()>> {
        loop {
            let mut line = Vec::new();
            let read = io::Read::take(&mut stream, LONGEST_LINE).read_until(b'\n', &mut line)?;
            if read == 0 {
                anyhow::bail!("the daemon has ended; start again when it runs, or with --standalone");
            }
            if let Err(error) = self.print(&line, screen, out) {
                return Ok(Err(error));
            }
        }
    }

    fn print(&self, line: &[u8], screen: &Screen, out: &mut dyn io::Write) -> io::Result<()> {
        let happening: Happening = serde_json::from_slice(line)?;
        match self.format {
            Format::Json => render::json::write_line(&happening, out)?,
            Format::Table if happening.what == "listening" => {}
            Format::Table => writeln!(out, "{}", render::watch::line(&happening, screen.color))?,
        }
        out.flush()
    }
}

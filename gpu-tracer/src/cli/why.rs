//! `gpu-tracer why`

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::holders::formats;
use super::screen::Screen;
use super::{Answers, Question};
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::render::{self, Format, View};

/// Say what keeps each GPU, and what will make it let go
///
/// One verdict per GPU: free, held (and what will end it), stuck (SIGKILL will not help, and what it waits for), memory without a handle, or
/// unknown. Below it the holders with the facts that this rests on, what the memory says, and what to do, as commands to paste.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) whom: Whom,

    /// How to print the answer
    ///
    /// table is for people. json is for programs (schema 1: fields are added, never renamed). csv has one row per GPU.
    #[arg(long, value_name = "FORMAT", default_value = "table", value_parser = formats())]
    format: Format,

    /// Give every holder a row of its own instead of one to many that are alike
    #[arg(long)]
    expand: bool,

    /// Say a word about this process too (repeatable): is it a holder, a zombie, innocent?
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
}

/// What is asked about, and who answers.
#[derive(Args, Debug)]
pub(super) struct Whom {
    /// GPUs: index, range (0-3), UUID or its beginning, PCI bus id, /dev/... or "all" [default: all]
    ///
    /// As for `gpu-tracer holders`.
    #[arg(value_name = "GPU")]
    gpus: Vec<String>,

    /// Do not ask the daemon: look at the kernel directly
    #[arg(long)]
    standalone: bool,

    /// Ask the daemon at this socket
    #[arg(long, value_name = "PATH", conflicts_with = "standalone")]
    socket: Option<PathBuf>,
}

impl Whom {
    pub(super) fn question(&self, devices: Vec<ExtraDevice>) -> Question {
        Question {
            selectors: self.gpus.clone(),
            devices,
            socket: self.socket.clone(),
            standalone: self.standalone,
            roles: super::roles(),
        }
    }
}

/// What tables of diagnoses are printed on.
pub(super) fn view(screen: &Screen, expand: bool) -> View<'static> {
    View { width: screen.width, color: screen.color, expand, user: &|_| None }
}

impl Arguments {
    /// The status that the answer deserves, and whether it could be written.
    pub(super) fn run(
        &self,
        devices: Vec<ExtraDevice>,
        answers: &dyn Answers,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let diagnosis = answers.why(&self.whom.question(devices), &self.pids)?;
        let written = render::why::why(&diagnosis, self.format, &view(screen, self.expand), out);
        Ok((diagnosis.exit_status(), written))
    }
}

//! `gpu-tracer holders`

use std::io;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use super::screen::{Screen, Users};
use super::{Answers, Question};
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::render::{self, Format, View};

/// Say who holds which GPU device now
///
/// The first line answers the question. Below it stand what is known of each GPU, the holders (worst first, with what they hold and why
/// they still do), open files that no process holds, and whatever could not be seen, with what would help.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// GPUs: index, range (0-3), UUID or its beginning, PCI bus id, /dev/... or "all" [default: all]
    ///
    /// An index counts GPUs in PCI bus order, as nvidia-smi does; it need not be the number in /dev/nvidiaN. Several may be
    /// given, also separated by commas. /dev/nvidiaN means the GPU behind that device node.
    #[arg(value_name = "GPU")]
    gpus: Vec<String>,

    /// How to print the answer
    ///
    /// table is for people. json is for programs (schema 1: fields are added, never renamed). csv has one row per holder and device,
    /// safe to open in a spreadsheet; csv,noheader leaves out the column names.
    #[arg(long, value_name = "FORMAT", default_value = "table", value_parser = formats())]
    format: Format,

    /// Give every holder a row of its own instead of one to many that are alike
    #[arg(long)]
    expand: bool,

    /// Do not ask the daemon: look at the kernel directly
    #[arg(long)]
    standalone: bool,

    /// Ask the daemon at this socket
    #[arg(long, value_name = "PATH", conflicts_with = "standalone")]
    socket: Option<PathBuf>,
}

/// The names are listed for shells' completion.
pub(super) fn formats() -> impl clap::builder::TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::NAMES).try_map(|name| name.parse::<Format>())
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
        let question = Question {
            selectors: self.gpus.clone(),
            devices,
            socket: self.socket.clone(),
            standalone: self.standalone,
            roles: super::roles(),
        };
        let report = answers.holders(&question)?;
        let users = if self.format == Format::Table { Users::of_host() } else { Users::default() };
        let view = View {
            width: screen.width,
            color: screen.color,
            expand: self.expand,
            user: &|uid| users.name(uid),
        };
        Ok((render::exit_status(&report), render::holders(&report, self.format, &view, out)))
    }
}

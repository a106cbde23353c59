//! `gpu-tracer doctor`

use std::io;

use clap::{Args, ValueEnum};

use super::screen::Screen;
use super::{Answers, Question};
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::render::{self, View};

/// Say what works on this host, and what to do about the rest
///
/// Looks at the kernel, at privileges and at the devices, one check after another, without changing anything. Checks that matter and
/// do not hold come with what would help.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
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
        let report = answers.doctor(&Question { devices, ..Question::default() })?;
        let written = match self.format {
            Format::Json => render::json::write(&report, out),
            Format::Table => {
                let view = View { width: screen.width, color: screen.color, expand: false, user: &|_| None };
                out.write_all(render::doctor::doctor(&report, &view).as_bytes())
            }
        };
        Ok((report.exit_status(), written))
    }
}

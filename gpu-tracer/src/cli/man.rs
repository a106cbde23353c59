//! `gpu-tracer man`

use std::io;

use clap::Args;
use clap_mangen::Man;

use super::manual;

/// Print a man page: of the program, or of one of its commands
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The command whose page is wanted
    #[arg(value_name = "COMMAND", value_parser = manual::topics())]
    topic: Option<String>,
}

impl Arguments {
    pub(super) fn run(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let page = manual::page(self.topic.as_deref());
        let title = page.get_name().to_uppercase();
        let man = Man::new(page)
            .title(title)
            .section("1")
            .manual("gpu-tracer")
            .source(concat!("gpu-tracer ", env!("CARGO_PKG_VERSION")));
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        man.render_description_section(out)?;
        man.render_options_section(out)?;
        if self.topic.is_none() {
            man.render_subcommands_section(out)?;
        }
        manual::sections(self.topic.as_deref()).render_roff(out)
    }
}

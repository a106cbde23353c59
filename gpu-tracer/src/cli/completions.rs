//! `gpu-tracer completions`

use std::io;

use clap::Args;
use clap_complete::Shell;

/// Print the completion script for a shell
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Which shell
    shell: Shell,
}

impl Arguments {
    pub(super) fn run(&self, out: &mut dyn io::Write) -> io::Result<()> {
        // The generator panics where its output cannot be written: it gets a buffer.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "gpu-tracer", &mut script);
        out.write_all(&script)
    }
}

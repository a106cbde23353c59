//! Building the host's programs.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::child;
use crate::workspace::Workspace;

/// The programs that runs, tests and benchmarks start.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// `gpu-tracer` itself.
    pub(crate) gpu_tracer: PathBuf,
    /// The program that stages holders for tests and demonstrations.
    pub(crate) scenario: PathBuf,
}

impl Programs {
    /// The variables through which tests find them.
    pub(crate) fn environment(&self) -> [(&'static str, &Path); 2] {
        [("GPU_TRACER_BIN", &self.gpu_tracer), ("GPU_TRACER_SCENARIO_BIN", &self.scenario)]
    }
}

/// Builds `gpu-tracer` and the test programs in release mode; prints only what cargo has to say.
pub(crate) fn release(workspace: &Workspace) -> Result<Programs> {
    child::run(
        child::cargo()
            .current_dir(workspace.root())
            .args(["build", "--release", "--locked", "--quiet"])
            .args(["--package", "gpu-tracer", "--package", "gpu-tracer-tests", "--bins"]),
    )?;
    Ok(Programs {
        gpu_tracer: workspace.release_program("gpu-tracer"),
        scenario: workspace.release_program("scenario"),
    })
}

//! Who still holds this GPU, and what will make them let go: the program.

use std::process::ExitCode;

use anyhow::bail;
use gpu_tracer::cli::{self, Answers, Question};
use gpu_tracer::model::doctor::DoctorReport;
use gpu_tracer::model::report::Report;

fn main() -> ExitCode {
    cli::main(&Unanswered)
}

/// Until `answer` is there: says so, with the status of an error.
struct Unanswered;

impl Answers for Unanswered {
    fn holders(&self, _: &Question) -> anyhow::Result<Report> {
        bail!("this build cannot look at devices")
    }

    fn doctor(&self, _: &Question) -> anyhow::Result<DoctorReport> {
        bail!("this build cannot look at this host")
    }
}

//! Who still holds this GPU, and what will make them let go: the program.

use std::process::ExitCode;

use anyhow::bail;
use gpu_tracer::cli::{self, Answers, Question};
use gpu_tracer::gpu::helper::{HELPER_ARGUMENT, helper_main};
use gpu_tracer::model::doctor::DoctorReport;
use gpu_tracer::model::report::Report;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == HELPER_ARGUMENT) {
        return helper_main();
    }
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

//! Who still holds this GPU, and what will make them let go: the program.

use std::process::ExitCode;

use gpu_tracer::answer::{self, WaitOptions, Waited};
use gpu_tracer::cli::{self, Answers, Question};
use gpu_tracer::gpu::helper::{HELPER_ARGUMENT, helper_main};
use gpu_tracer::model::diagnosis::Diagnosis;
use gpu_tracer::model::doctor::DoctorReport;
use gpu_tracer::model::report::Report;
use gpu_tracer::release::{self, ReleaseOptions, Talk};

fn main() -> ExitCode {
    // Before anything else: the helper is this program, and must be nothing but the helper.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == HELPER_ARGUMENT) {
        return helper_main();
    }
    cli::main(&Live)
}

/// Answers from the running host.
struct Live;

impl Answers for Live {
    fn holders(&self, question: &Question) -> anyhow::Result<Report> {
        answer::holders(question)
    }

    fn why(&self, question: &Question, pids: &[u32]) -> anyhow::Result<Diagnosis> {
        answer::why(question, pids)
    }

    fn wait(
        &self,
        question: &Question,
        options: &WaitOptions,
        say: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Waited> {
        answer::wait(question, options, say)
    }

    fn release(
        &self,
        question: &Question,
        options: &ReleaseOptions,
        talk: &mut dyn Talk,
    ) -> anyhow::Result<Diagnosis> {
        release::release(question, options, talk)
    }

    fn doctor(&self, question: &Question) -> anyhow::Result<DoctorReport> {
        answer::doctor(question)
    }
}

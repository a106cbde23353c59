//! gpu-tracer

use std::process::ExitCode;

use gpu_tracer::gpu::helper::{HELPER_ARGUMENT, helper_main};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == HELPER_ARGUMENT) {
        return helper_main();
    }
    ExitCode::SUCCESS
}

//! The exam, for as long as `GPU_TRACER_EXAM_SECONDS` says (20), with a fresh seed that is printed: alone, then with a daemon.

use std::path::PathBuf;
use std::process::Command;

use gpu_tracer_tests::harness::{self, Tracer};

/// The program, from `GPU_TRACER_EXAM_BIN` or as it was built with this test; none where neither is here.
fn exam() -> Option<PathBuf> {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_exam"));
    let program = std::env::var_os("GPU_TRACER_EXAM_BIN").map_or_else(built, PathBuf::from);
    program.exists().then_some(program)
}

#[track_caller]
fn pass(arguments: &[&str]) {
    harness::require_root();
    let Some(exam) = exam() else {
        eprintln!("SKIPPED: no exam program here; name it in GPU_TRACER_EXAM_BIN");
        return;
    };
    let seconds = std::env::var("GPU_TRACER_EXAM_SECONDS").unwrap_or_else(|_| "20".to_owned());
    let mut command = Command::new(exam);
    command.args(["--seconds", &seconds]).args(arguments).env("GPU_TRACER_BIN", Tracer::program());
    let output = command.output().expect("the exam can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    // The seed, where the output of tests that pass is shown.
    println!("{}", said.lines().take(4).collect::<Vec<_>>().join("\n"));
    assert!(
        output.status.success(),
        "{}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn asked_alone_about_random_deeds_every_reference_is_right() {
    pass(&[]);
}

#[test]
fn a_daemon_asked_about_random_deeds_is_right_about_every_reference() {
    pass(&["--daemon"]);
}

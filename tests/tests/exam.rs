//! The exam with a fresh seed, which is printed: alone, and with a daemon. `GPU_TRACER_EXAM_SECONDS` says how long.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use gpu_tracer_tests::harness::{self, Tracer};

/// The program, from `GPU_TRACER_EXAM_BIN` or as it was built with this test; none where neither is here.
fn exam() -> Option<PathBuf> {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_exam"));
    let program = std::env::var_os("GPU_TRACER_EXAM_BIN").map_or_else(built, PathBuf::from);
    program.exists().then_some(program)
}

/// One at a time: each is to be about its own processes.
static SEAT: Mutex<()> = Mutex::new(());

/// Runs it; gives what it said, if it could be run.
#[track_caller]
fn pass(seconds: u32, arguments: &[&str]) -> Option<String> {
    harness::require_root();
    let _seat = SEAT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(exam) = exam() else {
        eprintln!("SKIPPED: no exam program here; name it in GPU_TRACER_EXAM_BIN");
        return None;
    };
    let seconds = std::env::var("GPU_TRACER_EXAM_SECONDS").unwrap_or_else(|_| seconds.to_string());
    let mut command = Command::new(exam);
    command.args(["--seconds", &seconds]).args(arguments).env("GPU_TRACER_BIN", Tracer::program());
    let output = command.output().expect("the exam can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // The seed, where the output of tests that pass is shown.
    println!("{}", said.lines().take(5).collect::<Vec<_>>().join("\n"));
    assert!(
        output.status.success(),
        "{}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Some(said)
}

#[test]
fn asked_alone_about_random_deeds_every_reference_is_right() {
    pass(15, &[]);
}

/// How often the daemon named an opener exactly, named one as likely, and named none.
fn openers(said: &str) -> [u64; 3] {
    let line = said.lines().find(|line| line.contains("openers were named")).expect("it says so");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn a_daemon_asked_about_random_deeds_is_right_about_every_reference_and_names_most_openers() {
    let Some(said) = pass(25, &["--daemon"]) else { return };
    let [exactly, likely, not] = openers(&said);
    assert!(exactly + likely >= not, "{said}");
}

/// Few processes: what one closes is what it opens next, at the same address. They rest, as each open is to be told.
#[test]
fn a_daemon_asked_about_few_processes_that_reuse_addresses_is_right_about_every_file() {
    let Some(said) = pass(20, &["--daemon", "--processes", "3", "--burst", "300", "--rest", "110"]) else {
        return;
    };
    let [exactly, likely, not] = openers(&said);
    // Not each, as others on this host may open the same device more often than can be told.
    assert!(exactly >= likely + not, "{said}");
}

#[test]
fn a_daemon_asked_about_hundreds_of_processes_is_right_about_every_reference() {
    pass(20, &["--daemon", "--processes", "300", "--start-with", "200", "--burst", "500"]);
}

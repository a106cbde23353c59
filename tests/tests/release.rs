//! Ending holders, and waiting for the release.

use std::time::Duration;

use gpu_tracer_tests::harness::{Device, Play, Tracer};
use gpu_tracer_tests::proc;

fn lives(pid: u32) -> bool {
    proc::processes().expect("/proc can be read").contains(&pid)
}

#[test]
fn without_a_terminal_nobody_is_asked_and_nobody_is_ended() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let done = Tracer::new(&play.device).run("release", &["0"]);
    assert_eq!(done.status, 2, "{}", done.err);
    assert!(done.err.contains("--yes"), "says what to do: {}", done.err);
    assert!(lives(play.truth.holders[0].pid));
}

#[test]
fn a_dry_run_says_whom_it_would_end_and_ends_nobody() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let pid = play.truth.holders[0].pid;
    let done = Tracer::new(&play.device).run("release", &["0", "--dry-run"]);
    assert_eq!(done.status, 1, "{}", done.err);
    assert!(done.err.contains(&format!("PID {pid} ")) && done.err.contains("SIGTERM"), "{}", done.err);
    assert!(lives(pid));
}

#[test]
fn a1_a_renamed_worker_is_ended_and_the_device_is_free() {
    let play = Play::stage_on(Device::nobodys(), "renamed-worker", &[]);
    let done = Tracer::new(&play.device).run("release", &["0", "--yes", "--grace", "2s"]);
    assert_eq!(done.status, 0, "{}\n{}", done.err, String::from_utf8_lossy(&done.out));
}

#[test]
fn b3_fifty_heirs_are_ended_together() {
    let play = Play::stage_on(Device::nobodys(), "inherited", &["1"]);
    let done = Tracer::new(&play.device).run("release", &["0", "--yes", "--grace", "5s"]);
    assert_eq!(done.status, 0, "{}\n{}", done.err, String::from_utf8_lossy(&done.out));
    let runs =
        |pid: u32| proc::state(pid, pid).ok().flatten().is_some_and(|state| !matches!(state, 'Z' | 'X'));
    let left: Vec<u32> = play.truth.holders.iter().map(|heir| heir.pid).filter(|pid| runs(*pid)).collect();
    assert!(left.is_empty(), "still running: {left:?}");
}

#[test]
fn b6_the_owner_of_the_receiving_end_is_ended() {
    let play = Play::stage_on(Device::nobodys(), "in-flight", &[]);
    let done = Tracer::new(&play.device).run("release", &["0", "--yes", "--grace", "2s"]);
    assert_eq!(done.status, 0, "{}\n{}", done.err, String::from_utf8_lossy(&done.out));
}

#[test]
fn b11_a_stopped_holder_is_ended() {
    let play = Play::stage_on(Device::nobodys(), "stopped", &[]);
    let done = Tracer::new(&play.device).run("release", &["0", "--yes", "--grace", "2s"]);
    assert_eq!(done.status, 0, "{}\n{}", done.err, String::from_utf8_lossy(&done.out));
}

#[test]
fn b1_a_stuck_thread_is_told_to_be_stuck_within_one_grace() {
    let play = Play::stage_on(Device::nobodys(), "frozen-thread", &["unmapped"]);
    let pid = play.truth.holders[0].pid;
    let done = Tracer::new(&play.device).run("release", &["0", "--yes", "--grace", "2s"]);
    assert_eq!(done.status, 4, "{}", done.err);
    assert!(done.err.contains(&format!("PID {pid} does not go: SIGKILL will not help")), "{}", done.err);
    let out = String::from_utf8_lossy(&done.out).into_owned();
    assert!(out.contains("fsfreeze -u /"), "says what will help\n{out}");
    assert!(done.took < Duration::from_secs(8), "took {:?}", done.took);
}

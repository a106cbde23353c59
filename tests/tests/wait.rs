//! Waiting for the release.

use std::process::Stdio;
use std::time::Duration;

use gpu_tracer_tests::harness::{Device, Play, Tracer, eventually};

#[test]
fn a_device_that_nobody_holds_is_not_waited_for() {
    let device = Device::nobodys();
    let waited = Tracer::new(&device).run("wait", &["0", "--timeout", "20s"]);
    assert_eq!((waited.status, waited.out.len()), (0, 0), "{}", waited.err);
}

#[test]
fn the_timeout_ends_with_the_status_and_words_of_why() {
    let play = Play::stage("plain", &[]);
    let waited = Tracer::new(&play.device).run("wait", &["0", "--timeout", "300ms"]);
    let out = String::from_utf8_lossy(&waited.out).into_owned();
    assert_eq!(waited.status, 1, "{out}\n{}", waited.err);
    assert!(out.contains(&play.truth.holders[0].pid.to_string()), "{out}");
    assert!(waited.err.contains("waiting: GPU 0 is held"), "{}", waited.err);
}

#[test]
fn waiting_ends_when_the_last_handle_is_released() {
    let mut play = Play::stage_on(Device::nobodys(), "in-flight", &[]);
    let mut command = Tracer::new(&play.device).subcommand("wait", &["0", "--timeout", "60s"]);
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    // Received, then closed.
    play.next("");
    assert_eq!(waiting.try_wait().expect("ours"), None, "received is not released");
    play.next("");
    let status =
        eventually("the end of the waiting", Duration::from_secs(30), || waiting.try_wait().expect("ours"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn memory_cannot_be_waited_for_where_nobody_tells_how_much_is_used() {
    let device = Device::nobodys();
    let waited = Tracer::new(&device).run("wait", &["0", "--below", "1GiB", "--timeout", "5s"]);
    if waited.status == 2 {
        assert!(waited.err.contains("NVML"), "{}", waited.err);
    } else {
        // NVML is there, and does not know of a made-up GPU.
        assert_eq!(waited.status, 3, "{}", waited.err);
    }
}

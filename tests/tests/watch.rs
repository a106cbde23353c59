//! What is told while it happens.

use gpu_tracer_tests::harness::{Daemon, Device, Play, Watch};
use serde_json::Value;

/// A line about this process.
fn is(line: &Value, what: &str, pid: u32) -> bool {
    line["what"] == what && line["process"]["pid"] == pid
}

/// From open through fork and SIGKILL to the release.
#[track_caller]
fn story(watch: &mut Watch, play: &mut Play) {
    // The parent is dead already, its children hold.
    let (parent, heir) = (play.truth.dead[0], play.truth.holders[0].pid);
    let opened = watch.await_line("the open", |line| is(line, "opened", parent));
    let file = opened["file"].as_u64().expect("a number");
    assert_eq!((opened["device"].as_str(), opened["gpu"].as_u64()), (Some("nvidia0"), Some(0)), "{opened}");
    watch.await_line("the inheritance", |line| {
        is(line, "inherited", heir) && line["file"] == file && line["from"][0]["pid"] == parent
    });
    watch.await_line("the new name", |line| is(line, "renamed", heir) && line["new"] == "heir-00");
    let killed = watch.await_line("who killed the parent", |line| is(line, "killed", parent));
    assert_eq!((killed["signal"].as_i64(), killed["by"][0]["uid"].as_u64()), (Some(9), Some(0)), "{killed}");
    assert!(!killed["by"][0]["comm"].as_str().unwrap().is_empty(), "{killed}");
    watch.await_line("how the parent ends", |line| is(line, "exiting", parent) && line["signal"] == 9);
    for _ in 0..50 {
        play.next("");
    }
    let released = watch.await_line("the release", |line| line["what"] == "released" && line["file"] == file);
    let after_us = released["after_kill_us"].as_u64().unwrap_or_else(|| panic!("no latency: {released}"));
    assert!(after_us < 60_000_000, "{released}");
    assert!(play.truth.dead.iter().any(|pid| released["process"]["pid"] == *pid), "{released}");
}

#[test]
fn the_daemon_tells_the_story_from_open_to_release() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let mut watch = daemon.watch();
    let mut play = Play::stage_on(device, "inherited", &["1"]);
    story(&mut watch, &mut play);
}

#[test]
fn without_a_daemon_hooks_are_attached_and_the_same_is_told() {
    let device = Device::one();
    let mut watch = Watch::standalone(&device);
    // A thing to see shows that it watches: touched again and again until it is told.
    let node = device.path().to_owned();
    let own = std::process::id();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let opener = std::thread::spawn(move || {
        while let Err(std::sync::mpsc::TryRecvError::Empty) = stopped.try_recv() {
            let kept = std::fs::File::open(&node).expect("anybody may open it");
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(kept);
            // The next open gets the same address: only a look in between tells the two files apart.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    });
    watch.await_line("an open of this process", |line| is(line, "opened", own));
    drop(stop);
    opener.join().unwrap();
    let mut play = Play::stage_on(device, "inherited", &["1"]);
    story(&mut watch, &mut play);
}

#[test]
fn a_mapping_and_the_end_of_the_descriptor_are_told() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let mut watch = daemon.watch();
    let play = Play::stage_on(device, "mapping", &[]);
    let pid = play.truth.holders[0].pid;
    // Who opened a file whose descriptor is closed again is not certain when others open the device at the same time.
    watch.await_line("the open", |line| is(line, "opened", pid) || is(line, "found", pid));
    daemon.check(&play);
    watch.await_line("the mapping", |line| is(line, "mapped", pid) || is(line, "opened", pid));
}

//! The scenarios themselves: what they claim is what `/proc` shows wherever it can show it, and they leave nothing.

use std::fs;

use gpu_tracer_tests::harness::{Device, Play};
use gpu_tracer_tests::truth::{Holds, Truth};
use gpu_tracer_tests::{proc, scenario};

/// Scenarios that need an argument here.
fn arguments(name: &str) -> &'static [&'static str] {
    match name {
        "many-handles" => &["3000"],
        "hostile-name" => &["6129205a2031"],
        "hostile-swarm" => &["50"],
        _ => &[],
    }
}

/// Plays a scenario step by step to its end and looks at each.
fn play_through(name: &str, mut look: impl FnMut(&Play)) {
    let mut play = Play::stage_on(Device::two(), name, arguments(name));
    look(&play);
    for _ in 0..steps(name) {
        play.next("");
        look(&play);
    }
}

/// How many steps follow the first.
fn steps(name: &str) -> u32 {
    match name {
        "plain" | "dup" | "exec-inherited" | "frozen-thread" | "zombie-leader" | "half-exited"
        | "dumping-core" | "stopped" | "frozen" | "frozen-v1" | "private-table" | "shared-table"
        | "shared-memory" | "broker" | "in-flight-nested" | "in-flight-shared" | "in-flight-dropped"
        | "io-uring" | "io-uring-inherited" => 1,
        "mapping" | "in-flight" | "in-flight-unaccepted" | "in-flight-netns" | "in-flight-deserted" => 2,
        "inherited" => 50,
        _ => 0,
    }
}

#[test]
fn every_truth_is_what_proc_shows_where_it_can() {
    for scenario in scenario::ALL {
        play_through(scenario.name, |play| {
            for holds in &play.truth.holders {
                compare_with_proc(play, holds);
            }
        });
    }
}

fn compare_with_proc(play: &Play, holds: &Holds) {
    let (truth, pid) = (&play.truth, holds.pid);
    for (device, counts) in &holds.devices {
        // A thread with a table of its own is looked at by itself; others share one table.
        let tables: &[u32] = if truth.scenario == "private-table" { &holds.tids } else { &holds.tids[..1] };
        let fds: u64 = tables
            .iter()
            .map(|tid| proc::visible_fds(pid, *tid, play.device.rdev(device)).expect("its descriptors"))
            .sum();
        assert_eq!(fds, counts.fds, "descriptors of {device} that /proc/{pid} shows; {truth:#?}");
        // These map a node that is not the test's own.
        if !["other-node", "deleted-node"].contains(&truth.scenario.as_str()) {
            let maps = proc::visible_maps(pid, holds.tids[0], play.device.path()).expect("its mappings");
            assert_eq!(maps, counts.maps, "mappings of {device} that /proc/{pid} shows; {truth:#?}");
        }
    }
    for tid in &holds.tids {
        let state = proc::state(pid, *tid).expect("/proc").expect("it lives");
        assert!(!['Z', 'X'].contains(&state), "task {tid} carries a handle and is {state}; {truth:#?}");
    }
    if let Some(state) = holds.state {
        assert_eq!(proc::state(pid, holds.tids[0]).expect("/proc"), Some(state), "{truth:#?}");
    }
    if let Some(state) = holds.leader_state {
        assert_eq!(proc::state(pid, pid).expect("/proc"), Some(state), "{truth:#?}");
    }
    if let Some(ppid) = holds.ppid {
        assert_eq!(proc::parent(pid).expect("/proc"), Some(ppid), "{truth:#?}");
    }
}

#[test]
fn the_dead_are_dead_and_the_innocent_show_no_device() {
    for scenario in scenario::ALL {
        play_through(scenario.name, |play| {
            let truth = &play.truth;
            for dead in &truth.dead {
                assert_eq!(proc::state(*dead, *dead).expect("/proc"), None, "{truth:#?}");
            }
            for innocent in truth.innocents.iter().filter(|_| scenario.name != "o-path") {
                let shown = proc::visible_fds(innocent.pid, innocent.pid, play.device.rdev("nvidia0"));
                // A zombie has no table to show.
                assert_eq!(shown.unwrap_or(0), 0, "{truth:#?}");
            }
        });
    }
}

#[test]
fn names_are_worn_as_claimed() {
    for name in ["renamed-worker", "hostile-name", "hostile-swarm"] {
        let play = Play::stage(name, arguments(name));
        for holds in &play.truth.holders {
            let hex = |file: &str| -> String {
                let bytes = fs::read(format!("/proc/{}/{file}", holds.pid)).expect("it lives");
                gpu_tracer_tests::truth::to_hex(&bytes)
            };
            let comm = hex("comm");
            assert_eq!(comm.strip_suffix("0a"), holds.comm_hex.as_deref(), "{holds:?}");
            let cmdline = hex("cmdline");
            let claimed = holds.cmdline_hex.as_deref().expect("it claims one");
            let tail = cmdline.strip_prefix(claimed).unwrap_or_else(|| panic!("{cmdline} for {holds:?}"));
            assert!(tail.bytes().all(|digit| digit == b'0'), "{cmdline} for {holds:?}");
        }
    }
}

#[test]
fn a_step_too_many_is_refused() {
    let refused = std::panic::catch_unwind(|| {
        let mut play = Play::stage("o-path", &[]);
        play.next("");
    });
    let message = refused.expect_err("there is no second step");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.contains("that was the last step"), "{message}");
}

/// Everything that a scenario could leave behind.
fn assert_nothing_left(play: &Play, family: &[u32], how: &str) {
    let truth: &Truth = &play.truth;
    for pid in family {
        assert_eq!(proc::parent(*pid).expect("/proc"), None, "process {pid} survived {how}; {truth:#?}");
    }
    let left: Vec<_> = fs::read_dir(play.device.dir())
        .expect("the device's directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| !name.to_string_lossy().starts_with("nvidia"))
        .collect();
    assert!(left.is_empty(), "{left:?} survived {how}; {truth:#?}");
    for disk in fs::read_dir("/sys/block").expect("/sys/block") {
        let backing = disk.expect("an entry").path().join("loop/backing_file");
        let backing = fs::read_to_string(backing).unwrap_or_default();
        let ours = backing.starts_with(&*play.device.dir().to_string_lossy());
        assert!(!ours, "a loop device on {backing} survived {how}; {truth:#?}");
    }
}

/// Stages each of the scenarios that make more than processes, ends it, and looks for leftovers.
fn end_and_look(how: &str, end: impl Fn(&mut Play)) {
    for name in
        ["frozen-thread", "half-exited", "dumping-core", "frozen", "frozen-v1", "inherited", "stopped"]
    {
        let mut play = Play::stage(name, &[]);
        let family: Vec<u32> = play.family().into_iter().collect();
        assert!(family.len() > 2, "{family:?}");
        end(&mut play);
        assert_nothing_left(&play, &family, how);
    }
}

#[test]
fn a_lost_parent_leaves_nothing() {
    end_and_look("the end of standard input", |play| assert_eq!(play.end(), Some(0)));
}

#[test]
fn sigterm_leaves_nothing() {
    end_and_look("SIGTERM", |play| {
        signal(play.pid(), libc::SIGTERM);
        assert_eq!(play.await_end(), Some(1));
    });
}

#[test]
fn the_conductors_sudden_death_leaves_nothing() {
    end_and_look("SIGKILL of the conductor", |play| {
        signal(play.truth.conductor, libc::SIGKILL);
        assert_eq!(play.await_end(), Some(1));
    });
}

fn signal(pid: u32, signal: i32) {
    gpu_tracer_tests::sys::process::kill(pid, signal).expect("it lives");
}

//! The record: what can be told after the fact, after the daemon, and after trouble.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Device, Finished, Play, eventually, programs_are_interrupted};
use gpu_tracer_tests::sys::mounts;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn json(finished: &Finished) -> Value {
    serde_json::from_slice(&finished.out).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Asks until the answer is as wanted: what happens is on the disk about a second later.
#[track_caller]
fn history_when(daemon: &Daemon, arguments: &[&str], what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--format", "json"]).collect();
    eventually(what, SOON, || {
        let finished = daemon.history(&arguments);
        serde_json::from_slice(&finished.out).ok().filter(|answer| wanted(answer))
    })
}

fn has_event(answer: &Value, what: &str, pid: u32) -> bool {
    let events = answer["events"].as_array();
    events.is_some_and(|events| {
        events.iter().any(|event| event["what"] == what && event["process"]["pid"] == pid)
    })
}

#[track_caller]
fn stop(daemon: &mut Daemon) {
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
}

#[test]
fn the_story_of_open_fork_kill_and_release_is_told_after_the_daemon_has_stopped() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    let mut play = Play::stage_on(device, "inherited", &["1"]);
    let (opener, heir) = (play.truth.dead[0], play.truth.holders[0].pid);
    let scenario = play.pid();
    // SIGKILL for the first heir; the others end by themselves.
    play.next("0");
    drop(play);
    let heirs = ["--pid", &heir.to_string(), "--since", "1h"];
    let answer =
        history_when(&daemon, &heirs, "that the heir let go", |answer| has_event(answer, "closed", heir));
    let file = answer["holdings"][0]["file"].clone();
    // The last of fifty takes the file with it.
    history_when(&daemon, &["--since", "1h", "--events"], "the release", |answer| {
        let released = |event: &Value| event["what"] == "released" && event["file"] == file;
        answer["events"].as_array().is_some_and(|events| events.iter().any(released))
    });
    stop(&mut daemon);

    let told = daemon.history(&["--story", &opener.to_string(), "--format", "json"]);
    let story = json(&told);
    for what in ["opened", "killed", "exiting"] {
        assert!(has_event(&story, what, opener), "{what}: {story:#}");
    }
    assert!(has_event(&story, "inherited", heir), "who got it from the opener: {story:#}");
    let story_of_heir = json(&daemon.history(&["--story", &heir.to_string(), "--format", "json"]));
    for what in ["inherited", "renamed", "exiting", "closed"] {
        assert!(has_event(&story_of_heir, what, heir), "{what}: {story_of_heir:#}");
    }
    let held = &story_of_heir["holdings"][0];
    assert_eq!((&held["how"], &held["from"]["pid"]), (&"inherited".into(), &opener.into()), "{held:#}");
    assert_eq!(story_of_heir["lives"][0]["over"], true, "{story_of_heir:#}");
    let coverage = &story_of_heir["coverage"];
    let missed = |hole: &Value| hole["cause"] == "missed" && programs_are_interrupted();
    assert!(coverage["holes"].as_array().is_some_and(|holes| holes.iter().all(missed)), "{story_of_heir:#}");
    let is_complete = coverage["complete"] == true;
    assert!(is_complete || programs_are_interrupted(), "{story_of_heir:#}");
    assert_eq!(story_of_heir["fates"][0]["signal"], libc::SIGKILL, "{story_of_heir:#}");
    let table = daemon.history(&["--story", &heir.to_string()]);
    let text = String::from_utf8(table.out.clone()).unwrap();
    assert_eq!(table.status, if is_complete { 0 } else { 3 }, "{text}");
    assert!(text.contains("by fork from") && text.contains("heir-"), "{text}");
    let last = text.trim_end().ends_with("The record of this time is complete.");
    assert_eq!(last, is_complete, "{text}");
    // Nobody who did not touch a device is in it; where something was missed that is not known.
    assert_eq!(daemon.history(&["--story", &scenario.to_string()]).status, if is_complete { 2 } else { 3 });
}

#[test]
fn who_executes_another_program_right_after_opening_has_first_one_name_and_then_the_other() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let line = "exec 3<\"$0\"; exec /usr/bin/sleep 600";
    let spawn = |_| Command::new("sh").args(["-c", line]).arg(device.path()).spawn().expect("sh");
    let mut children: Vec<Child> = (0..40).map(spawn).collect();
    let pids: BTreeSet<u64> = children.iter().map(|child| u64::from(child.id())).collect();
    let of_theirs = |answer: &Value, what: &str| -> Vec<Value> {
        let theirs = |event: &&Value| {
            event["what"] == what && event["process"]["pid"].as_u64().is_some_and(|pid| pids.contains(&pid))
        };
        answer["events"].as_array().into_iter().flatten().filter(theirs).cloned().collect()
    };
    let everything = ["--since", "1h", "--events", "--limit", "100000"];
    let answer = history_when(&daemon, &everything, "all that they executed", |answer| {
        of_theirs(answer, "execed").len() == pids.len() || programs_are_interrupted()
    });
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    for event in of_theirs(&answer, "renamed") {
        assert_eq!((&event["old"], &event["new"]), (&"sh".into(), &"sleep".into()), "{event:#}");
    }
    for event in of_theirs(&answer, "opened") {
        assert_eq!(event["process"]["comm"], "sh", "{event:#}");
    }
}

#[test]
fn after_a_kill_of_the_daemon_the_record_goes_on_with_a_gap_and_no_number_is_given_twice() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    let play = Play::stage_on(device, "plain", &[]);
    let pid = play.truth.holders[0].pid;
    let of_it = ["--pid", &pid.to_string(), "--since", "1h"];
    let before = history_when(&daemon, &of_it, "the holder", |answer| {
        answer["holdings"].as_array().is_some_and(|all| !all.is_empty())
    });
    daemon.kill();
    daemon.start_again();
    let after = history_when(&daemon, &of_it, "the holder found again", |answer| {
        answer["holdings"]
            .as_array()
            .is_some_and(|all| all.len() > before["holdings"].as_array().unwrap().len())
    });
    // What is opened now does not get a number that was given before, although the daemon could not write down the last ones.
    let another = Play::stage_on(Device::one(), "plain", &[]);
    let its_pid = another.truth.holders[0].pid.to_string();
    let later = history_when(&daemon, &["--pid", &its_pid, "--since", "1h"], "the next holder", |answer| {
        answer["holdings"].as_array().is_some_and(|all| !all.is_empty())
    });
    let files = |answer: &Value| -> BTreeSet<u64> {
        let holdings = answer["holdings"].as_array().unwrap();
        holdings.iter().filter_map(|held| held["file"].as_u64()).collect()
    };
    assert!(files(&after).is_disjoint(&files(&later)), "a number is never given twice: {after:#} {later:#}");
    let causes: Vec<&str> = after["coverage"]["holes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|hole| hole["cause"].as_str())
        .collect();
    assert!(causes.contains(&"not-running"), "{after:#}");
    assert_eq!(daemon.history(&of_it).status, 3);
    let began = before["holdings"][0]["since"].as_str().unwrap();
    let then = json(&daemon.history(&["--at", began, "--pid", &pid.to_string(), "--format", "json"]));
    assert_eq!(then["holdings"][0]["process"]["pid"], pid, "{then:#}");
}

#[test]
fn what_the_daemon_says_of_a_gpu_is_in_the_record_and_told_for_the_moment_asked_about() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let play = Play::stage_on(device, "plain", &[]);
    let pid = play.truth.holders[0].pid;
    let held = |answer: &Value| {
        let holds = |held: &Value| held["process"]["pid"] == pid;
        answer["holdings"].as_array().is_some_and(|all| all.iter().any(holds))
    };
    let said = |answer: &Value| {
        let verdicts = answer["verdicts"].as_array().cloned().unwrap_or_default();
        verdicts.into_iter().find(|given| given["gpu"] == 0 && given["verdict"] == "held")
    };
    let answer = history_when(&daemon, &["--at", "now"], "the holder and the verdict", |answer| {
        held(answer) && said(answer).is_some()
    });
    let said = said(&answer).expect("it was there");
    assert_eq!(said["status"], 1, "{said:#}");
    assert!(said["headline"].as_str().is_some_and(|line| line.starts_with("GPU 0 is held by")), "{said:#}");
    let table = daemon.history(&["--at", said["until"].as_str().expect("a time")]);
    let text = String::from_utf8_lossy(&table.out).into_owned();
    assert!(text.contains("held (exit status 1): GPU 0 is held by"), "{text}");
}

#[test]
fn a_full_disk_stops_the_history_and_nothing_else_and_it_goes_on_by_itself() {
    let device = Device::one();
    let full = |dir: &Path| dir.join("filler");
    let daemon = Daemon::start_prepared(&device, "journal-min-free-mib = 0\n", |state| {
        mounts::mount("tmpfs", state, "tmpfs", "size=4m").unwrap();
    });
    let state = daemon.state_dir();
    let journal =
        |daemon: &Daemon| daemon.status()["journal"]["state"].as_str().unwrap_or_default().to_owned();
    assert_eq!(journal(&daemon), "writing", "{}", daemon.said());
    fill(&full(&state));
    // Something to write.
    let play = Play::stage_on(Device::one(), "plain", &[]);
    let pid = play.truth.holders[0].pid;
    eventually("that history has stopped", SOON, || (journal(&daemon) == "halted").then_some(()));
    // A busy host may keep the daemon from answering in time.
    eventually("an answer of the daemon that names the holder", SOON, || {
        let answer = daemon.holders();
        (answer.report.plan == "lean" && answer.of(pid).count() == 1).then_some(())
    });
    let metrics = daemon.text_of("/metrics").unwrap();
    assert!(metrics.contains("gpu_tracer_journal_writing 0"), "{metrics}");
    std::fs::remove_file(full(&state)).unwrap();
    eventually("that history goes on", SOON, || (journal(&daemon) == "writing").then_some(()));
    let of_it = ["--pid", &pid.to_string(), "--since", "1h"];
    let answer = history_when(&daemon, &of_it, "the holder", |answer| {
        answer["holdings"].as_array().is_some_and(|all| !all.is_empty())
            && answer["coverage"]["holes"].as_array().is_some_and(|holes| holes.len() > 1)
    });
    let holes = answer["coverage"]["holes"].as_array().unwrap();
    assert!(holes.iter().any(|hole| hole["cause"] == "disk"), "{answer:#}");
}

/// Takes all the room that there is.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    for size in [65_536, 4_096, 1] {
        while file.write_all(&vec![b'x'; size]).is_ok() {}
    }
}

//! One verdict per predicament, from outside.

use std::process::Command;

use gpu_tracer_tests::harness::{Daemon, Device, Finished, Play, Tracer};
use serde_json::Value;

/// What `why --format json` said of GPU 0, and the exit status.
#[track_caller]
fn why(play: &Play, more: &[&str]) -> (i32, Value, String) {
    let arguments: Vec<&str> = ["--format", "json"].iter().chain(more).copied().collect();
    let Finished { status, out, err, .. } = Tracer::new(&play.device).run("why", &arguments);
    let text = String::from_utf8(out).expect("JSON is UTF-8");
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}\n{err}"));
    (status, document, text)
}

/// The finding on one process.
#[track_caller]
fn finding(document: &Value, pid: u32) -> &Value {
    let findings = document["gpus"][0]["holders"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["pid"] == pid);
    found.unwrap_or_else(|| panic!("process {pid} is not in\n{document:#}"))
}

/// Does nobody but this scenario hold the device? `/dev/zero` is used by other tests too, with holders of their own.
fn is_alone(play: &Play, document: &Value) -> bool {
    let family = play.family();
    let findings = document["gpus"][0]["holders"].as_array().expect("a list");
    findings.iter().all(|finding| finding["pid"].as_u64().is_some_and(|pid| family.contains(&(pid as u32))))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Every command of the advice.
fn commands(document: &Value) -> Vec<&str> {
    let advice = document["gpus"][0]["advice"].as_array().expect("a list");
    advice.iter().filter_map(|step| step["command"].as_str()).collect()
}

#[test]
fn b1_a_stuck_thread_is_stuck_and_the_file_system_is_to_blame() {
    let play = Play::stage("frozen-thread", &[]);
    let holder = &play.truth.holders[0];
    let (status, document, all) = why(&play, &[]);
    assert_eq!(status, 4, "{all}");
    let found = finding(&document, holder.pid);
    assert_eq!(found["tid"], holder.tids[0], "{all}");
    assert_eq!(found["killable"], false, "{all}");
    assert!(text(&found["waits"]).contains("waits in the file system, not in the GPU driver"), "{all}");
    assert!(text(&found["killable_because"]).contains("SIGKILL is already pending"), "{all}");
    let named = format!("thread {} of PID {}", holder.tids[0], holder.pid);
    let headline = text(&document["gpus"][0]["headline"]);
    assert!(!is_alone(&play, &document) || headline.contains(&named), "{headline}");
    let thaw = commands(&document).into_iter().any(|command| command.starts_with("fsfreeze -u /"));
    assert!(thaw, "the mount is named in {:?}", commands(&document));
    let printed = Tracer::new(&play.device).run("why", &[]);
    let printed = String::from_utf8_lossy(&printed.out).into_owned();
    assert!(printed.starts_with("GPU 0 is held by "), "the first line is the answer\n{printed}");
    assert!(printed.contains("What to do:"), "{printed}");
}

#[test]
fn b2_a_living_thread_of_a_zombie_leader_can_be_killed() {
    let play = Play::stage("zombie-leader", &[]);
    let (status, document, all) = why(&play, &[]);
    assert!(status == 1 || !is_alone(&play, &document), "{status}\n{all}");
    let found = finding(&document, play.truth.holders[0].pid);
    assert_eq!(found["killable"], true, "{all}");
    assert!(text(&found["killable_because"]).contains("leader is a zombie"), "{all}");
}

#[test]
fn b6_a_handle_in_flight_names_the_owner_of_the_receiving_end() {
    let play = Play::stage_on(Device::nobodys(), "in-flight", &[]);
    let pid = play.truth.holders[0].pid;
    let (status, document, all) = why(&play, &[]);
    assert_eq!(status, 1, "{all}");
    let headline = text(&document["gpus"][0]["headline"]);
    assert!(headline.contains("in flight") && headline.contains(&format!("PID {pid}")), "{headline}");
}

#[test]
fn b11_a_stopped_holder_can_be_killed_or_continued() {
    let play = Play::stage("stopped", &[]);
    let pid = play.truth.holders[0].pid;
    let (status, document, all) = why(&play, &[]);
    assert!(status == 1 || !is_alone(&play, &document), "{status}\n{all}");
    assert_eq!(finding(&document, pid)["killable"], true, "{all}");
    let go_on = format!("kill -CONT {pid}");
    assert!(!is_alone(&play, &document) || commands(&document).contains(&go_on.as_str()), "{all}");
}

#[test]
fn a_frozen_cgroup_is_killable_and_can_be_thawed() {
    let play = Play::stage("frozen", &[]);
    let (status, document, all) = why(&play, &[]);
    assert!(status == 1 || !is_alone(&play, &document), "{status}\n{all}");
    let thaw = commands(&document).into_iter().any(|command| command.ends_with("/cgroup.freeze"));
    assert!(thaw || !is_alone(&play, &document), "{all}");
}

#[test]
fn b18_a_task_half_way_through_exit_makes_the_answer_unknown() {
    let play = Play::stage_on(Device::nobodys(), "half-exited", &[]);
    let (status, document, all) = why(&play, &[]);
    assert_eq!(status, 3, "{all}");
    let pid = play.truth.half_exited[0].to_string();
    assert!(text(&document["gpus"][0]["headline"]).contains(&pid), "{all}");
}

#[test]
fn b4_a_zombie_that_is_asked_about_is_innocent() {
    let play = Play::stage_on(Device::nobodys(), "zombie", &[]);
    let pid = play.truth.innocents[0].pid;
    let (status, document, all) = why(&play, &["--pid", &pid.to_string()]);
    assert_eq!(status, 0, "{all}");
    assert_eq!(document["asked"][0]["what"], "zombie", "{all}");
    assert!(text(&document["asked"][0]["text"]).contains("it holds nothing"), "{all}");
}

#[test]
fn a1_a_renamed_worker_is_named_with_the_program_it_runs() {
    let play = Play::stage("renamed-worker", &[]);
    let (status, document, all) = why(&play, &[]);
    assert!(status == 1 || !is_alone(&play, &document), "{status}\n{all}");
    let found = finding(&document, play.truth.holders[0].pid);
    let facts = found["evidence"].as_array().expect("a list");
    assert!(facts.iter().any(|fact| text(&fact["text"]).contains("misses it")), "{all}");
}

#[test]
fn in_a_container_nobody_is_taken_for_a_process_that_has_the_same_number_there() {
    let play = Play::stage("frozen-thread", &[]);
    let daemon = Daemon::start(&play.device);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(Tracer::program()).arg("why");
    command.args(play.device.options()).arg("--socket").arg(daemon.socket()).args(["--format", "json"]);
    let out = command.output().expect("unshare runs");
    let all = String::from_utf8_lossy(&out.stdout).into_owned();
    let document: Value = serde_json::from_str(&all)
        .unwrap_or_else(|error| panic!("{error}\n{all}\n{}", String::from_utf8_lossy(&out.stderr)));
    assert_eq!(
        document["plan"],
        "lean",
        "the daemon answered\n{all}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let found = finding(&document, play.truth.holders[0].pid);
    assert!(!text(&found["killable_because"]).contains("It has ended"), "{all}");
}

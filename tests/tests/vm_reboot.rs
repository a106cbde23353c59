//! What the record is for: after the machine was restarted it tells what was, from the disk alone; and after somebody pulled
//! the plug it opens and has lost no more than it may.
//!
//! `cargo xtask vm --test vm_reboot` boots a guest three times with one disk. Tests named `boot_N_` run in boot N, `cut_N_` at its
//! end while the power is cut. What one of them knows and a later one needs is on the disk beside the record.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpu_tracer_tests::harness::{Daemon, Device, Tracer, eventually};
use gpu_tracer_tests::incident::driver::GPUS;
use gpu_tracer_tests::incident::gpu4::FULL;
use gpu_tracer_tests::incident::inquiry::Incident;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// A second of group commit, and as much again for a guest that is slow to take a look and to write.
const MAY_BE_LOST: Duration = Duration::from_secs(3);

/// The disk that outlives the boot; says so where there is none.
fn disk() -> Option<PathBuf> {
    let disk = std::env::var_os("GPU_TRACER_DISK").map(PathBuf::from);
    if disk.is_none() {
        eprintln!("SKIPPED: no disk outlives a boot here; run `cargo xtask vm --test vm_reboot`");
    }
    disk
}

fn wall_clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// `gpu-tracer` without a daemon.
#[track_caller]
fn ask(words: &[&str]) -> (i32, String) {
    let done = Command::new(Tracer::program()).args(words).output().expect("the tracer runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Documents are long; they are shown where they are not as they should be.
    let shown = if words.contains(&"json") { String::new() } else { text(&done.stdout) };
    println!("$ gpu-tracer {}\n{}{shown}", words.join(" "), text(&done.stderr));
    (done.status.code().expect("it ends by itself"), text(&done.stdout))
}

#[track_caller]
fn history(disk: &std::path::Path, words: &[&str]) -> Value {
    let state = disk.join("state");
    let state = state.to_str().expect("plain");
    let words = [&["history"], words, &["--state-dir", state, "--format", "json"]].concat();
    let (_, answer) = ask(&words);
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn all(answer: &Value, what: &str) -> Vec<Value> {
    answer[what].as_array().cloned().unwrap_or_default()
}

/// What the daemon has said of GPUs, one line each.
fn said(answer: &Value) -> Vec<String> {
    let line = |span: &Value| format!("{} {} {}", span["since"], span["until"], span["headline"]);
    all(answer, "verdicts").iter().map(line).collect()
}

fn has_event(answer: &Value, what: &str, pid: u32) -> bool {
    all(answer, "events").iter().any(|event| event["what"] == what && event["process"]["pid"] == pid)
}

/// PIDs that held a GPU, in order.
fn holders(answer: &Value, gpu: u32) -> Vec<u64> {
    let held = all(answer, "holdings");
    let mut pids: Vec<u64> = held
        .iter()
        .filter(|held| held["gpu"] == gpu)
        .filter_map(|held| held["process"]["pid"].as_u64())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// A moment of which the record knows what came after it.
fn moment(daemon: &Daemon, device: &str) -> String {
    let now = wall_clock();
    let records = || daemon.status()["journal"]["records"].as_u64().unwrap_or_default();
    let before = records();
    eventually("that something later is on the disk", SOON, || {
        // Nobody knows it any more: an open that is over in a moment.
        drop(fs::File::open(device));
        (records() > before && wall_clock() > now + 2.0).then_some(())
    });
    format!("@{now:.6}")
}

#[test]
fn boot_1_both_incidents_are_recorded() {
    let Some(disk) = disk() else { return };
    let _ = fs::remove_dir_all(disk.join("state"));
    let mut daemon = Daemon::of_driver_leaving("full", &disk.join("state"));
    let recorded = |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        eventually(what, SOON, || {
            let answer = history(&disk, &["--since", "1h", "--events"]);
            let is_there = wanted(&answer).then_some(());
            // A guest is slow: others are to get on as well.
            if is_there.is_none() {
                println!("not yet: {what}; {}", said(&answer).join(" | "));
                std::thread::sleep(Duration::from_millis(500));
            }
            is_there
        });
    };

    // A1: the pattern finds the server and its helper, and not the workers.
    let mut renamed = Incident::stage("incident-renamed", &[]);
    let before = renamed.holders();
    assert!(
        Command::new("pkill").args(["-9", "-f", "python3.*vllm"]).status().expect("pkill runs").success()
    );
    renamed.play.next("");
    let workers = renamed.holders();
    let killed: Vec<u32> = before.into_iter().filter(|pid| !workers.contains(pid)).collect();
    recorded("the end of server and helper", &|answer| {
        killed.iter().all(|pid| has_event(answer, "killed", *pid) && has_event(answer, "exiting", *pid))
    });
    recorded("what the workers run", &|answer| {
        let of_workers = |held: &&Value| {
            let pid = held["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            pid.is_some_and(|pid| workers.contains(&pid))
        };
        let held = all(answer, "holdings");
        held.iter().filter(of_workers).all(|held| held["exe"].is_string())
    });
    let first = moment(&daemon, "/dev/nvidiactl");
    drop(renamed);

    // A2: a thread of a dead leader, asleep in the driver.
    let stuck = Incident::stage("incident-gpu4", &["thread"]);
    let (pid, tid) = (stuck.holder(), stuck.play.truth.holders[0].tids[0]);
    recorded("the verdict on GPU 4", &|answer| {
        let verdicts = all(answer, "verdicts");
        let stuck = |given: &Value| given["gpu"] == FULL && given["verdict"] == "stuck";
        has_event(answer, "killed", pid) && verdicts.iter().any(stuck)
    });
    let second = moment(&daemon, "/dev/nvidiactl");
    let told = json!({
        "boot": fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it can be read").trim(),
        "workers": workers, "killed": killed, "first": first, "pid": pid, "tid": tid, "second": second,
    });
    fs::write(disk.join("told.json"), told.to_string()).expect("there is room");
    // It stays stuck until there is nobody to write down more; then the machine goes down.
    daemon.kill();
}

#[test]
fn boot_2_both_incidents_are_told_from_the_disk_alone() {
    let Some(disk) = disk() else { return };
    let told: Value =
        serde_json::from_slice(&fs::read(disk.join("told.json")).expect("boot 1 wrote it")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it can be read");
    assert_ne!(told["boot"], boot.trim(), "the machine was restarted");
    let word = |name: &str| told[name].as_str().expect("text").to_owned();
    let pids = |name: &str| all(&told, name).iter().filter_map(Value::as_u64).collect::<Vec<_>>();

    // A1: who had the GPUs after the pattern had missed them, and who ended the others.
    let then = history(&disk, &["all", "--at", &word("first")]);
    let workers = pids("workers");
    for gpu in 0..GPUS {
        assert_eq!(holders(&then, gpu), workers, "GPU {gpu}: {then:#}");
    }
    for held in all(&then, "holdings").iter().filter(|held| !held["gpu"].is_null()) {
        let name = held["process"]["comm"].as_str().unwrap_or_default();
        assert!(name.starts_with("VLLM::Worker_T"), "the name that it wore: {held:#}");
        assert!(held["exe"].as_str().is_some_and(|exe| exe.contains("python3.12")), "what it ran: {held:#}");
    }
    for pid in pids("killed") {
        let story = history(&disk, &["--story", &pid.to_string()]);
        let killed = all(&story, "events").into_iter().find(|event| event["what"] == "killed");
        assert_eq!(killed.expect("who killed it")["by"][0]["comm"], "pkill", "{story:#}");
        assert_eq!(story["fates"][0]["signal"], libc::SIGKILL, "{story:#}");
    }
    let one = u32::try_from(workers[0]).expect("a PID");
    let story = history(&disk, &["--story", &one.to_string()]);
    assert!(has_event(&story, "renamed", one) && has_event(&story, "opened", one), "{story:#}");

    // A2: which process pins GPU 4, since when, and that SIGKILL had not ended it.
    let (pid, tid) = (told["pid"].as_u64().expect("a PID"), told["tid"].as_u64().expect("a TID"));
    let gpu = FULL.to_string();
    let then = history(&disk, &[&gpu, "--at", &word("second")]);
    assert_eq!(holders(&then, FULL), [pid], "{then:#}");
    let fate = all(&then, "fates").into_iter().find(|fate| fate["pid"] == pid).expect("it was killed");
    assert_eq!((&fate["pending"], &fate["signal"]), (&true.into(), &libc::SIGKILL.into()), "{then:#}");
    let verdict = all(&then, "verdicts").into_iter().find(|given| given["gpu"] == FULL).expect("one");
    assert_eq!((&verdict["verdict"], &verdict["status"]), (&"stuck".into(), &4.into()), "{verdict:#}");
    let headline = verdict["headline"].as_str().unwrap_or_default();
    assert!(headline.contains(&format!("thread {tid} of PID {pid} (python3)")), "{headline}");
    let story = history(&disk, &["--story", &pid.to_string()]);
    let pid_number = u32::try_from(pid).expect("a PID");
    for what in ["opened", "killed", "exiting"] {
        assert!(has_event(&story, what, pid_number), "{what}: {story:#}");
    }
    assert!(all(&story, "holdings").iter().any(|held| held["gpu"] == FULL), "{story:#}");
    assert_eq!(story["lives"][0]["over"], false, "nobody saw the end of it: {story:#}");

    // The same for people, and as a page.
    let state = disk.join("state");
    let state = state.to_str().expect("plain");
    let (_, text) = ask(&["history", &gpu, "--at", &word("second"), "--state-dir", state]);
    assert!(text.contains(headline) && text.contains("SIGKILL"), "{text}");
    let page = disk.join("incident.html");
    let page_name = page.to_str().expect("plain");
    let (status, _) =
        ask(&["report", "--out", page_name, "--since", "1h", "--at", &word("second"), "--state-dir", state]);
    assert!([0, 3].contains(&status), "{status}");
    let html = fs::read_to_string(&page).expect("it was written");
    for words in [&format!("<strong>PID {pid}</strong>"), "card stuck", &format!("thread {tid} of PID {pid}")]
    {
        assert!(html.contains(words), "{words:?} is not in\n{html}");
    }
}

/// Opens a device again and again and writes down how far the daemon is, until the machine is gone.
#[test]
fn cut_2_while_a_process_opens_a_device_again_and_again() {
    let Some(disk) = disk() else { return };
    let device = Device::one();
    let daemon = Daemon::start_leaving(&device, &disk.join("state"));
    let mut notes = fs::File::create(disk.join("notes")).expect("there is room");
    let mut held = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        held.push(fs::File::open(device.path()).expect("it can be opened"));
        let status = daemon.status();
        let (told, written) = (&status["counts"]["changes"], &status["journal"]["records"]);
        let (pid, now) = (std::process::id(), wall_clock());
        writeln!(notes, "{pid} {} {now:.6} {told} {written}", held.len()).expect("there is room");
        notes.sync_all().expect("a disk");
        // In the middle of it, and after enough of it.
        if written.as_u64() > Some(30) && begun.elapsed() > 2 * MAY_BE_LOST {
            fs::write("/run/cut", "").expect("it can be written");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("nobody has pulled the plug");
}

/// What was so at some moment before the cut.
#[derive(Clone, Copy, Debug)]
struct Note {
    pid: u64,
    /// Files that the process had open.
    open: u64,
    at: f64,
    /// Changes that the daemon had told, and those of them that were on the disk.
    told: u64,
    written: u64,
}

impl Note {
    fn read(line: &str) -> Option<Self> {
        let [pid, open, at, told, written] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let number = |text: &str| text.parse().ok();
        Some(Self {
            pid: number(pid)?,
            open: number(open)?,
            at: at.parse().ok()?,
            told: number(told)?,
            written: number(written)?,
        })
    }
}

#[test]
fn boot_3_after_the_power_cut_it_opens_and_no_more_than_the_last_second_is_lost() {
    let Some(disk) = disk() else { return };
    let notes = fs::read_to_string(disk.join("notes")).expect("boot 2 wrote them");
    let notes: Vec<Note> = notes.lines().filter_map(Note::read).collect();
    let last = *notes.last().expect("it had begun");
    let long_before = |note: &&Note| note.at < last.at - MAY_BE_LOST.as_secs_f64();
    let safe = *notes.iter().rfind(long_before).expect("it went on for a while");
    let state = disk.join("state");
    let count = "SELECT count(*) FROM event WHERE boot = (SELECT max(id) FROM boot)";
    let (_, counted) =
        ask(&["history", "--state-dir", state.to_str().expect("plain"), "--sql", count, "--format", "csv"]);
    let events: u64 = counted.lines().nth(1).and_then(|line| line.parse().ok()).expect("a number");
    println!("{events} events in the record; before the cut {safe:?}, at last {last:?}");
    assert!(events >= last.written, "what was on the disk is lost");
    assert!(events >= safe.told, "more than the last second is lost");
    let pid = last.pid;
    let answer = history(&disk, &["--pid", &pid.to_string(), "--since", "1h"]);
    let held = all(&answer, "holdings");
    assert!(!held.is_empty() && held.len() as u64 <= last.open + 1, "{} held: {answer:#}", held.len());
    for held in &held {
        assert_eq!(held["until"], Value::Null, "nobody saw it end: {held:#}");
    }

    // And it goes on: nothing is moved aside, what was left is over, the boot before is still told.
    let mut daemon = Daemon::start_leaving(&Device::one(), &disk.join("state"));
    let journal = daemon.status()["journal"].clone();
    assert_eq!(
        (&journal["state"], &journal["moved_aside"]),
        (&"writing".into(), &Value::Null),
        "{journal:#}"
    );
    let answer = history(&disk, &["--pid", &pid.to_string(), "--since", "1h"]);
    for held in all(&answer, "holdings") {
        assert_eq!(held["ended"], "unseen", "{held:#}");
        assert!(held["since_ns"].as_i64() <= held["until_ns"].as_i64(), "{held:#}");
    }
    let holes = all(&answer["coverage"], "holes");
    assert!(holes.iter().any(|hole| hole["cause"] == "reboot"), "{answer:#}");
    let told: Value =
        serde_json::from_slice(&fs::read(disk.join("told.json")).expect("boot 1 wrote it")).unwrap();
    let second = told["second"].as_str().expect("a time");
    let then = history(&disk, &["--at", second]);
    assert_eq!(holders(&then, FULL), [told["pid"].as_u64().expect("a PID")], "{then:#}");
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
}

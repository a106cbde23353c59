//! The driver's own functions followed by kprobes: SCENARIOS B14 and B17, in a guest with the stand-in driver.

#[path = "vm_driver/half_a_minute.rs"]
mod half_a_minute;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpu_tracer_tests::harness::{
    Answer, Daemon, HeldFile, Holder, Watch, eventually, kernel_line, programs_are_interrupted,
};
use gpu_tracer_tests::incident::driver;
use gpu_tracer_tests::proc;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// What an emulated machine with others on it may make anybody wait.
const LATE: Duration = Duration::from_secs(10);
const DEVICE: &str = "nvidia3";

fn standin_driver() -> Option<driver::Knobs> {
    driver::Knobs::take("vm_driver")
}

/// A process that opens devices and waits.
struct Holding(Child);

impl Holding {
    /// When this returns it has all of them open.
    fn open(devices: &[&str]) -> Self {
        let mut process = Self::start(devices);
        let mut line = String::new();
        let out = process.0.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("it can be read");
        assert_eq!(line.trim(), "open", "{devices:?}");
        process
    }

    /// It may fail, or have to wait.
    fn start(devices: &[&str]) -> Self {
        let mut command = Command::new("driver-client");
        command.arg("hold").args(devices.iter().map(|device| format!("/dev/{device}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("it is in the guest"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Has it do what `driver-client hold` does at such a line.
    fn tell(&self, what: &str) {
        use std::io::Write as _;
        let mut input = self.0.stdin.as_ref().expect("piped");
        writeln!(input, "{what}").expect("it reads");
    }

    /// SIGKILL, and not waited for.
    fn kill(&mut self) {
        self.0.kill().expect("it is ours");
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = driver::tell("clear");
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A daemon that follows the driver.
fn daemon() -> Daemon {
    let daemon = Daemon::of_driver("full");
    eventually("the plan full", SOON, || (daemon.status()["plan"] == "full").then_some(()));
    daemon
}

/// The line that tells of this, about this device.
#[track_caller]
fn line(watch: &mut Watch, what: &str, device: &str) -> Value {
    watch.await_line(&format!("{what} {device}"), |line| line["what"] == what && line["device"] == device)
}

fn files<'a>(answer: &'a Answer, device: &str) -> Vec<&'a HeldFile> {
    answer.report.files.iter().filter(|file| file.device == device).collect()
}

#[track_caller]
fn answer_with_state(daemon: &Daemon, device: &str, state: &str) -> Answer {
    eventually(&format!("{device} {state}"), SOON, || {
        Some(daemon.holders()).filter(|answer| files(answer, device).iter().any(|file| file.state == state))
    })
}

#[track_caller]
fn holder(answer: &Answer, pid: u32) -> &Holder {
    let found = answer.report.holders.iter().find(|holder| holder.pid == pid);
    found.unwrap_or_else(|| panic!("no holder {pid} in\n{}", answer.text))
}

/// What was lost and need not have been.
fn losses(daemon: &Daemon) -> u64 {
    let status = daemon.status();
    let by_cause = status["losses"].as_object().expect("by cause");
    let avoidable = by_cause.iter().filter(|(cause, _)| *cause != "missed" || !programs_are_interrupted());
    avoidable.filter_map(|(_, count)| count.as_u64()).sum()
}

/// Blocks the release of a killed process in one way, and compares what is told with what is.
#[track_caller]
fn check_blocked_release(mode: &str, state: &str, frames: &[&str]) {
    let daemon = daemon();
    let mut watch = daemon.watch();
    let mut process = Holding::open(&[DEVICE]);
    let pid = process.pid();
    let opened = line(&mut watch, "opened", DEVICE);
    assert_eq!(
        (opened["exact"].as_bool(), opened["process"]["pid"].as_u64()),
        (Some(true), Some(pid.into()))
    );
    driver::tell(&format!("release 3 {mode}")).expect("the driver listens");
    let killed_ns = boot_ns();
    process.kill();
    let releasing = line(&mut watch, "releasing", DEVICE);
    assert_eq!(releasing["process"]["pid"].as_u64(), Some(pid.into()), "{releasing}");
    let began_ns = releasing["at_ns"].as_u64().expect("a time");
    assert!(began_ns >= killed_ns && began_ns - killed_ns < LATE.as_nanos() as u64, "{releasing}");

    let answer = answer_with_state(&daemon, DEVICE, "releasing");
    assert_ne!(answer.status, 0, "it is not free\n{}", answer.text);
    let file = files(&answer, DEVICE)[0];
    assert!(file.since.is_some(), "{}", answer.text);
    let stuck = holder(&answer, pid);
    assert_eq!((stuck.tid, stuck.exiting, stuck.state.as_str()), (pid, true, state), "{}", answer.text);
    for frame in frames {
        assert!(stuck.stack.iter().any(|function| function.contains(frame)), "{:?}", stuck.stack);
    }
    let why = daemon.run_with("why", &[], &[]);
    let why = String::from_utf8_lossy(&why.out).into_owned();
    let (right, wrong) = match state {
        "R" => (format!("Task {pid} runs in the GPU driver"), "waits"),
        _ => (format!("Task {pid} waits in the GPU driver"), "runs"),
    };
    assert!(why.contains(&right) && !why.contains(&format!("Task {pid} {wrong}")), "{why}");
    // It stays so, however often and late somebody asks.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let answer = daemon.holders();
        assert_eq!(files(&answer, DEVICE)[0].state, "releasing", "{}", answer.text);
    }

    let let_go_ns = boot_ns();
    driver::tell("clear").expect("the driver listens");
    let released = line(&mut watch, "released", DEVICE);
    let at_ns = released["at_ns"].as_u64().expect("a time");
    assert_eq!((released["cause"].as_str(), released["exact"].as_bool()), (Some("seen"), Some(true)));
    assert!(at_ns >= let_go_ns && at_ns - let_go_ns < LATE.as_nanos() as u64, "{released}");
    println!("{mode}: told of the release {} us after it could go on", (at_ns - let_go_ns) / 1000);
    let after_kill = released["after_kill_us"].as_u64().expect("it was killed");
    assert!(after_kill >= 2_000_000, "it was held up for two seconds at least: {released}");
    eventually("nobody", SOON, || files(&daemon.holders(), DEVICE).is_empty().then_some(()));
    assert_eq!(losses(&daemon), 0, "{}", daemon.status());
}

#[test]
fn b14_a_release_that_sleeps_in_the_driver_is_told_with_its_task_its_age_and_its_stack() {
    let Some(_knobs) = standin_driver() else { return };
    check_blocked_release("block", "D", &["os_acquire_semaphore", "nvidia_close"]);
}

#[test]
fn b14_a_release_that_polls_in_the_driver_is_told_as_running() {
    let Some(_knobs) = standin_driver() else { return };
    // The kernel does not give the stack of a task that is running.
    check_blocked_release("spin", "R", &[]);
}

#[test]
fn b14_a_release_left_to_a_kernel_thread_is_deferred_until_that_has_done_it() {
    let Some(_knobs) = standin_driver() else { return };
    for (device, knob) in [(DEVICE, "3"), ("nvidia-uvm", "uvm")] {
        let daemon = daemon();
        let mut watch = daemon.watch();
        driver::tell(&format!("defer-close {knob} 0\nrelease {knob} block")).expect("the driver listens");
        let mut process = Holding::open(&[device]);
        let pid = process.pid();
        process.kill();
        process.0.wait().expect("it is ours");
        let deferred = line(&mut watch, "deferred", device);
        assert!(
            proc::state(pid, pid).expect("/proc can be read").is_none(),
            "the process is gone altogether"
        );
        // Somebody opens it again, and is likely to get the address of the file that was closed.
        driver::tell(&format!("defer-close {knob} off")).expect("the driver listens");
        let second = Holding::open(&[device]);
        let answer = answer_with_state(&daemon, device, "deferred");
        assert_eq!(files(&answer, device).len(), 2, "{}", answer.text);
        assert_ne!(answer.status, 0, "{}", answer.text);
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            answer_with_state(&daemon, device, "deferred");
        }
        let let_go_ns = boot_ns();
        driver::tell("clear").expect("the driver listens");
        let same = |line: &Value| line["what"] == "released" && line["file"] == deferred["file"];
        let released = watch.await_line("the end of what was deferred", same);
        assert_eq!(released["cause"], "seen", "{released} {}", daemon.status());
        assert!(released["at_ns"].as_u64().is_some_and(|at_ns| at_ns >= let_go_ns), "{released}");
        let answer = daemon.holders();
        assert_eq!(files(&answer, device).len(), 1, "{}", answer.text);
        assert_eq!(holder(&answer, second.pid()).devices[0].fds, 1, "{}", answer.text);
        drop(second);
        assert_eq!(losses(&daemon), 0, "{}", daemon.status());
    }
}

#[test]
fn an_open_that_blocks_in_the_driver_is_told_before_there_is_any_descriptor() {
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    driver::tell("open 3 block").expect("the driver listens");
    let process = Holding::start(&[DEVICE]);
    let opening = line(&mut watch, "opening", DEVICE);
    assert_eq!(opening["process"]["pid"].as_u64(), Some(process.pid().into()), "{opening}");
    let answer = answer_with_state(&daemon, DEVICE, "opening");
    assert_ne!(answer.status, 0, "{}", answer.text);
    driver::tell("clear").expect("the driver listens");
    let opened = line(&mut watch, "opened", DEVICE);
    assert_eq!((opened["exact"].as_bool(), &opened["file"]), (Some(true), &opening["file"]), "{opened}");
    let answer = answer_with_state(&daemon, DEVICE, "open");
    assert_eq!(holder(&answer, process.pid()).devices[0].fds, 1, "{}", answer.text);
}

#[test]
fn a_mapping_is_told_to_the_moment_with_who_made_it() {
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    let process = Holding::open(&[DEVICE]);
    let pid = process.pid();
    line(&mut watch, "opened", DEVICE);
    // Everything that an open asks to be looked at has been by then.
    std::thread::sleep(Duration::from_secs(2));
    let before_ns = boot_ns();
    process.tell("map");
    let mapped = line(&mut watch, "mapped", DEVICE);
    let at_ns = mapped["at_ns"].as_u64().expect("a time");
    assert_eq!(
        (mapped["exact"].as_bool(), mapped["process"]["pid"].as_u64()),
        (Some(true), Some(pid.into()))
    );
    assert!(at_ns >= before_ns && at_ns <= boot_ns(), "{mapped}");
    let answer = daemon.holders();
    let held = &holder(&answer, pid).devices[0];
    assert_eq!((held.fds, held.maps), (1, 1), "{}", answer.text);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(told_of(&mut watch, "mapped"), 1, "told once");
}

/// How often this was told of the device; what is on its way is awaited.
fn told_of(watch: &mut Watch, what: &str) -> usize {
    // What comes after it says that it has come.
    let _mark = Holding::open(&["nvidia5"]);
    line(watch, "opened", "nvidia5");
    watch.told.iter().filter(|line| line["what"] == what && line["device"] == DEVICE).count()
}

#[test]
fn an_open_that_was_in_progress_before_anybody_followed_the_driver_is_not_overlooked() {
    let Some(_knobs) = standin_driver() else { return };
    driver::tell("open 3 block").expect("the driver listens");
    let process = Holding::start(&[DEVICE]);
    let waits = || proc::state(process.pid(), process.pid()).expect("/proc can be read") == Some('D');
    eventually("a task that waits in the open", SOON, || waits().then_some(()));
    let of_it = |answer: &Answer| {
        let missing = answer.report.coverage.missing.iter();
        missing
            .filter(|missing| missing.what == "opening" && missing.why.contains(&process.pid().to_string()))
            .count()
    };
    let daemon = daemon();
    let answer = daemon.holders();
    assert_eq!((of_it(&answer), answer.status), (1, 3), "{}", answer.text);
    driver::tell("clear").expect("the driver listens");
    let answer = answer_with_state(&daemon, DEVICE, "open");
    assert_eq!(of_it(&answer), 0, "{}", answer.text);
    assert_eq!(holder(&answer, process.pid()).devices[0].fds, 1, "{}", answer.text);
}

#[test]
fn an_open_that_fails_leaves_no_file_behind() {
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    driver::tell("fail-open 3 5").expect("the driver listens");
    let mut process = Holding::start(&[DEVICE]);
    let failed = line(&mut watch, "open-failed", DEVICE);
    assert_eq!(failed["errno"], 5, "{failed}");
    process.0.wait().expect("it is ours");
    assert!(files(&daemon.holders(), DEVICE).is_empty());
}

/// Before Linux 6.2 the kernel goes through all of its symbols, several times for each hook: on Ubuntu, which has 150,000, an emulated
/// processor takes more than a second for that alone.
fn searches_symbols_slowly() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").map_or(0, |text| text.lines().count());
    kernel_line() < (6, 2) && symbols > 120_000
}

#[test]
fn b17_the_driver_can_be_unloaded_and_the_hooks_come_back_with_it() {
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    let mut back_after = Vec::new();
    let mut pids = Vec::new();
    // More often than hooks of what has been unloaded are kept.
    for round in 0..5 {
        // A module cannot be unloaded for the moment in which a probe is being attached to it, nor in which a file is let go of.
        eventually("the driver unloaded, which the tracer must not keep", SOON, || {
            let unloaded = Command::new("standin-driver").arg("unload").status().expect("it runs");
            unloaded.success().then_some(())
        });
        eventually("the plan lean", SOON, || (daemon.status()["plan"] == "lean").then_some(()));
        let loaded = Command::new("standin-driver").arg("load").status().expect("it runs");
        assert!(loaded.success());
        let begun = Instant::now();
        eventually("the plan full", SOON, || (daemon.status()["plan"] == "full").then_some(()));
        back_after.push(begun.elapsed());
        let process = Holding::open(&[DEVICE, "nvidia-uvm"]);
        let pid = u64::from(process.pid());
        let mut told = |what: &str, device: &str| {
            watch.await_line(&format!("{what} {device} by {pid}"), |line| {
                line["what"] == what && line["device"] == device && line["process"]["pid"] == pid
            })
        };
        for device in [DEVICE, "nvidia-uvm"] {
            let opened = told("opened", device);
            assert_eq!(opened["exact"], true, "round {round}: {opened}");
        }
        drop(process);
        for device in [DEVICE, "nvidia-uvm"] {
            assert_eq!(told("released", device)["cause"], "seen", "round {round}");
        }
        pids.push(pid);
    }
    back_after.sort();
    println!("the hooks are back after {back_after:?}");
    let limit = Duration::from_secs(if searches_symbols_slowly() { 2 } else { 1 });
    assert!(back_after[back_after.len() / 2] < limit, "{back_after:?}");
    // What was seen by a look while it was let go of does not come back.
    let ended =
        |line: &&Value| line["what"] == "released" && pids.iter().any(|pid| line["process"]["pid"] == *pid);
    assert_eq!(watch.told.iter().filter(ended).count(), 2 * pids.len(), "{:?}", watch.told);
    // A gap is over, and listed, with the next look that sees everything: older kernels may have none.
    if daemon.holders().report.coverage.complete {
        let status = daemon.status();
        let gaps = status["gaps"].as_array().expect("a list");
        let of_module = |gap: &&Value| gap["cause"].as_str().is_some_and(|cause| cause.contains("nvidia"));
        assert!(gaps.iter().any(|gap| of_module(&gap)), "{status}");
    }
}

#[test]
fn every_file_of_a_killed_process_is_told_to_the_moment() {
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    const EACH: usize = 300;
    let devices: Vec<String> = (0..EACH).map(|index| format!("nvidia{}", index % 8)).collect();
    let mut process = Holding::open(&devices.iter().map(String::as_str).collect::<Vec<_>>());
    let pid = u64::from(process.pid());
    process.kill();
    let released = |watch: &Watch| {
        let of_it =
            |line: &&Value| line["what"] == "released" && line["process"]["pid"].as_u64() == Some(pid);
        watch.told.iter().filter(of_it).cloned().collect::<Vec<Value>>()
    };
    while released(&watch).len() < EACH {
        let before = watch.told.len();
        watch.await_next();
        assert!(watch.told.len() > before);
    }
    let inexact: Vec<Value> = released(&watch).into_iter().filter(|line| line["cause"] != "seen").collect();
    assert!(inexact.is_empty(), "{inexact:?}");
    assert_eq!(losses(&daemon), 0, "{}", daemon.status());
}

/// The kernel makes a note of where a hooked call is to return to, and has room for ten or so.
#[test]
fn more_tasks_stuck_than_the_kernel_keeps_notes_of_are_all_told_and_what_was_not_seen_is_counted() {
    let Some(_knobs) = standin_driver() else { return };
    const MANY: usize = 24;
    let daemon = daemon();
    let mut watch = daemon.watch();
    driver::tell("release 3 block").expect("the driver listens");
    let mut processes: Vec<Holding> = (0..MANY).map(|_| Holding::open(&[DEVICE])).collect();
    processes.iter_mut().for_each(Holding::kill);
    let told = |watch: &mut Watch, what: &str| {
        let of_it = |line: &&Value| line["what"] == what && line["device"] == DEVICE;
        while watch.told.iter().filter(of_it).count() < MANY {
            watch.await_next();
        }
        watch.told.iter().filter(of_it).cloned().collect::<Vec<Value>>()
    };
    assert_eq!(told(&mut watch, "releasing").len(), MANY);
    driver::tell("clear").expect("the driver listens");
    let released = told(&mut watch, "released");
    let unseen = released.iter().filter(|line| line["cause"] != "seen").count();
    println!("{unseen} of {MANY} returns were not told by the kernel");
    // Reaped, so that whoever was not seen to return is known to have.
    drop(processes);
    if unseen > 0 {
        eventually("a count of what was not told", SOON, || (losses(&daemon) > 0).then_some(()));
    }
    eventually("nobody", SOON, || files(&daemon.holders(), DEVICE).is_empty().then_some(()));
}

#[test]
fn a_release_that_began_before_the_daemon_was_killed_is_known_to_the_next_one() {
    let Some(_knobs) = standin_driver() else { return };
    let mut daemon = daemon();
    let mut watch = daemon.watch();
    let mut process = Holding::open(&[DEVICE]);
    driver::tell("release 3 block").expect("the driver listens");
    process.kill();
    line(&mut watch, "releasing", DEVICE);
    drop(watch);
    daemon.kill();
    daemon.start_again();
    let resumed = daemon.status();
    eventually("the plan full", SOON, || (daemon.status()["plan"] == "full").then_some(()));
    let answer = daemon.holders();
    if resumed["start"] == "resumed" && links_can_be_kept() {
        let file = files(&answer, DEVICE)[0];
        assert_eq!(file.state, "releasing", "{}", answer.text);
    }
    assert_ne!(answer.status, 0, "whatever it knows, it is not free\n{}", answer.text);
    driver::tell("clear").expect("the driver listens");
    let answer = eventually("nobody", SOON, || {
        Some(daemon.holders()).filter(|answer| files(answer, DEVICE).is_empty())
    });
    // A gap is over, and listed, with the next look that sees everything: older kernels have none.
    if answer.report.coverage.complete {
        eventually("the gap", SOON, || {
            daemon.status()["gaps"].to_string().contains("not-running").then_some(())
        });
    }
}

/// Links of perf events exist since Linux 5.15.
fn links_can_be_kept() -> bool {
    kernel_line() >= (5, 15)
}

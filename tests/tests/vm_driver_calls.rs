//! Calls into the driver that have not returned, and what else a daemon is told to follow: in a guest with the stand-in driver.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Watch, eventually};
use gpu_tracer_tests::incident::driver;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
const DEVICE: &str = "nvidia3";
/// Tasks whose ids differ by this have the same place among the calls in progress.
const PLACES: u32 = 2048;

fn driver_is_loaded() -> bool {
    let loaded = std::path::Path::new("/proc/driver/standin-nvidia").exists();
    if !loaded {
        eprintln!("SKIPPED: the stand-in driver is not loaded here; run `cargo xtask vm --test vm_driver`");
    }
    loaded
}

/// A process that has the device open.
struct Holding(Child);

impl Holding {
    fn open() -> Self {
        let mut command = Command::new("driver-client");
        command.arg("hold").arg(format!("/dev/{DEVICE}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it is in the guest");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        std::io::BufReader::new(out).read_line(&mut line).expect("it can be read");
        assert_eq!(line.trim(), "open");
        Self(child)
    }

    /// One with this PID.
    fn open_as(pid: u32) -> Self {
        let mut made = Vec::new();
        for _ in 0..50 {
            std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may");
            let one = Self::open();
            if one.0.id() == pid {
                return one;
            }
            made.push(one);
        }
        panic!("no process could be given the PID {pid}");
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = driver::tell("clear");
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn line_of(watch: &mut Watch, what: &str, pid: u32) -> Value {
    let wanted =
        |line: &Value| line["what"] == what && line["device"] == DEVICE && line["process"]["pid"] == pid;
    watch.await_line(&format!("{what} of {pid}"), wanted)
}

#[test]
fn two_releases_that_want_the_same_place_are_both_followed_to_their_end() {
    if !driver_is_loaded() {
        return;
    }
    let daemon = Daemon::of_driver("full");
    eventually("the plan full", SOON, || (daemon.status()["plan"] == "full").then_some(()));
    let mut watch = daemon.watch();
    let first = Holding::open();
    let second = Holding::open_as(first.0.id() + PLACES);
    let mut both = [first, second];
    let pids = both.each_ref().map(|one| one.0.id());
    driver::tell("release 3 block").expect("the driver listens");
    for one in &mut both {
        one.0.kill().expect("it is ours");
        line_of(&mut watch, "releasing", one.0.id());
    }
    driver::tell("clear").expect("the driver listens");
    for pid in pids {
        assert_eq!(line_of(&mut watch, "released", pid)["cause"], "seen");
    }
    // Whether the second would be left to a thread could not have been told.
    let lost = || daemon.status()["losses"]["calls-full"].as_u64();
    eventually("a count of what was in doubt", SOON, || (lost() == Some(1)).then_some(()));
}

#[test]
fn plan_exhaustive_follows_the_driver_as_well() {
    if !driver_is_loaded() {
        return;
    }
    let daemon = Daemon::of_driver("exhaustive");
    let hooks = daemon.status()["hooks"].clone();
    let works = |name: &str| {
        hooks.as_array().expect("a list").iter().any(|hook| hook["hook"] == name && hook["works"] == true)
    };
    assert!(works("nvidia:nvidia_close") && works("sys_enter") && works("sys_exit"), "{hooks:#}");
    let mut watch = daemon.watch();
    let mut holding = Holding::open();
    let pid = holding.0.id();
    assert_eq!(line_of(&mut watch, "opened", pid)["exact"], true);
    drop(holding.0.stdin.take());
    assert_eq!(line_of(&mut watch, "released", pid)["cause"], "seen");
}

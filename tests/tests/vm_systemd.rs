//! The unit as systemd runs it: with no more capabilities, system calls and file systems than it is given. In a guest whose
//! first process is systemd.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpu_tracer_tests::harness::{Tracer, eventually, text_from};
use serde_json::Value;

const UNIT: &str = "gpu-tracer.service";
const SOCKET: &str = "/run/gpu-tracer/gpu-tracer.sock";
/// Where the guest has the unit's standard error go.
const SAID: &str = "/run/said";
const SOON: Duration = Duration::from_secs(60);

/// Is systemd the first process here, of this guest? Says so where not.
fn is_systemd_first() -> bool {
    let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    let here = std::env::var_os("GPU_TRACER_VM").is_some() && first.trim() == "systemd";
    if !here {
        eprintln!("SKIPPED: this is no guest that systemd runs; run `cargo xtask vm --test vm_systemd`");
    }
    here
}

#[track_caller]
fn systemctl(arguments: &[&str]) -> String {
    let done = Command::new("systemctl").args(arguments).output().expect("it is in the guest");
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(done.status.success(), "systemctl {arguments:?}: {said}");
    said
}

fn property(name: &str) -> String {
    systemctl(&["show", UNIT, "--value", "-p", name]).trim().to_owned()
}

fn said() -> String {
    fs::read_to_string(SAID).unwrap_or_default()
}

fn status() -> Option<Value> {
    serde_json::from_str(&text_from(Path::new(SOCKET), "/v1/status")?).ok()
}

/// `gpu-tracer holders` as a user types it: through the daemon.
#[track_caller]
fn holders() -> (i32, Value) {
    let done =
        Command::new(Tracer::program()).args(["holders", "--format", "json"]).output().expect("it runs");
    let report = serde_json::from_slice(&done.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&done.stderr)));
    (done.status.code().expect("no signal ends it"), report)
}

/// When it follows the driver, its status.
#[track_caller]
fn followed() -> Value {
    eventually(&format!("the plan full, after\n{}", said()), SOON, || {
        status().filter(|status| status["plan"] == "full" && property("StatusText").starts_with("plan full"))
    })
}

#[test]
fn the_unit_is_ready_and_lacks_nothing() {
    if !is_systemd_first() {
        return;
    }
    followed();
    assert_eq!(property("ActiveState"), "active");
    let said = said();
    for complaint in ["hooks will not outlive", "no hook at", "no history"] {
        assert!(!said.contains(complaint), "{said}");
    }
    // Those of the driver that are not there are not there for anybody. The others are hooked one after the other.
    let of_the_driver = |hook: &&Value| {
        hook["detail"].as_str().is_some_and(|why| why.contains("this driver does not have it"))
    };
    eventually("all hooks", SOON, || {
        let hooks = status()?["hooks"].clone();
        let missing: Vec<&Value> = hooks.as_array()?.iter().filter(|hook| hook["works"] == false).collect();
        missing.iter().all(of_the_driver).then_some(())
    });
    let (free, report) = holders();
    assert_eq!((free, report["coverage"]["complete"].as_bool()), (0, Some(true)), "{report:#}");
    assert_eq!(report["plan"], "full", "through the daemon\n{report:#}");
    assert!(Path::new("/var/lib/gpu-tracer/journal.db").exists(), "{said}");
}

#[test]
fn what_was_opened_before_it_was_killed_is_known_to_the_one_that_systemd_starts_again() {
    if !is_systemd_first() {
        return;
    }
    followed();
    let _held = File::open("/dev/nvidia3").expect("the driver is loaded");
    let opener = || {
        let (status, report) = holders();
        assert_eq!(status, 1, "{report:#}");
        report["files"][0]["opener"]["pid"].as_u64()
    };
    let own = Some(u64::from(std::process::id()));
    eventually("the opener", SOON, || (opener() == own).then_some(()));
    // It is written down within a second or so.
    let kept = || fs::read_to_string("/var/lib/gpu-tracer/open-files.json").unwrap_or_default();
    eventually("it written down", SOON, || {
        kept().contains(&format!("[{},", std::process::id())).then_some(())
    });
    let before: u32 = property("NRestarts").parse().expect("a number");
    systemctl(&["kill", "--signal", "KILL", UNIT]);
    eventually("another start", SOON, || (property("NRestarts").parse() == Ok(before + 1)).then_some(()));
    let status = followed();
    assert_eq!(status["start"], "resumed", "the hooks were there all the time\n{status:#}");
    assert_eq!(opener(), own, "{}", said());
}

#[test]
fn zz_reloaded_it_goes_on_and_stopped_it_ends_well() {
    if !is_systemd_first() {
        return;
    }
    followed();
    let pid = property("MainPID");
    systemctl(&["reload", UNIT]);
    eventually("an answer", SOON, status);
    assert_eq!(property("MainPID"), pid);
    systemctl(&["stop", UNIT]);
    assert_eq!((property("ActiveState"), property("Result")), ("inactive".to_owned(), "success".to_owned()));
    assert!(!Path::new(SOCKET).exists());
}

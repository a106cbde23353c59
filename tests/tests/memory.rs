//! What NVML claims, beside what the kernel says: with a stand-in NVML that answers what it is told to.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Device, Finished, Play, Tracer, eventually};
use gpu_tracer_tests::sys::process::as_user;
use serde_json::{Value, json};

/// The library, which Cargo has built beside this test.
fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("a test knows its own path");
    let library = tests.with_file_name("libnvidia_ml.so");
    assert!(library.exists(), "{} should have been built with this test", library.display());
    library
}

/// Runs the tracer with an NVML that says this of GPU 0.
#[track_caller]
fn run(device: &Device, arguments: &[&str], gpu: &Value, faults: &Value) -> Finished {
    with_nvml(gpu, faults, |environment| {
        Tracer::new(device).run_with(arguments[0], &arguments[1..], environment)
    })
}

/// Runs something in an environment with such an NVML.
fn with_nvml(gpu: &Value, faults: &Value, run: impl FnOnce(&[(&str, &OsStr)]) -> Finished) -> Finished {
    let mut world = tempfile::NamedTempFile::new().expect("a file");
    write!(world, "{}", json!({"gpus": [gpu], "faults": faults})).expect("it can be written");
    let library = library();
    run(&[("GPU_TRACER_NVML_LIBRARY", library.as_os_str()), ("STANDIN_NVML", world.path().as_os_str())])
}

fn gpu(used: u64, processes: &Value) -> Value {
    json!({"uuid": "GPU-0000", "bus_id": "00000000:00:06.0", "minor": 0, "name": "H200", "used_mib": used,
           "total_mib": 143_771, "processes": processes})
}

#[track_caller]
fn verdict(finished: &Finished) -> (i32, Value) {
    let text = String::from_utf8_lossy(&finished.out);
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}\n{}", finished.err));
    (finished.status, document["gpus"][0].clone())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

const WHY: [&str; 4] = ["why", "0", "--format", "json"];

#[test]
fn a2b_memory_of_a_dead_creator_is_put_down_to_its_heirs() {
    let play = Play::stage_on(Device::nobodys(), "inherited", &["1"]);
    let dead = play.truth.dead[0];
    let finished = run(&play.device, &WHY, &gpu(93_699, &json!([{"pid": dead, "mib": 93_600}])), &json!([]));
    let (status, verdict) = verdict(&finished);
    assert_eq!(status, 1, "{verdict:#}");
    let claim = &verdict["memory"]["claims"][0];
    assert_eq!(claim["resolved"], "dead", "{verdict:#}");
    let heirs = claim["kept_by"].as_array().expect("a list");
    assert_eq!(heirs.len(), play.truth.holders.len(), "{verdict:#}");
    assert_eq!(verdict["innocents"][0]["what"], "dead", "{verdict:#}");
    let headline = text(&verdict["headline"]);
    assert!(
        headline.contains("50 processes") && headline.contains(&format!("created by dead PID {dead}")),
        "{verdict:#}"
    );
    // Each of them began a session of its own: nothing shows from whom it descends.
    assert!(!headline.contains("inherited"), "{verdict:#}");
}

#[test]
fn a2e_memory_that_nobody_holds_is_no_handle() {
    let device = Device::nobodys();
    let finished = run(&device, &WHY, &gpu(93_699, &json!([])), &json!([]));
    let (status, verdict) = verdict(&finished);
    assert_eq!((status, text(&verdict["verdict"])), (5, "no-handle"), "{verdict:#}");
    assert_eq!(verdict["advice"][0]["command"], "nvidia-smi --gpu-reset -i 0", "{verdict:#}");
}

#[test]
fn a_little_memory_without_a_holder_is_free_and_named_for_what_it_is() {
    let device = Device::nobodys();
    for used in [1, 3, 99] {
        let finished = run(&device, &WHY, &gpu(used, &json!([])), &json!([]));
        let (status, verdict) = verdict(&finished);
        assert_eq!(status, 0, "{verdict:#}");
        assert!(text(&verdict["headline"]).contains(&format!("{used} MiB")), "{verdict:#}");
    }
}

#[test]
fn b15_a_hanging_nvml_does_not_keep_the_kernels_answer_back() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let hang = json!([{"call": "memory", "do": "deadlock"}]);
    let healthy = run(&play.device, &WHY, &gpu(5, &json!([])), &json!([]));
    let finished = run(&play.device, &WHY, &gpu(5, &json!([])), &hang);
    let (status, verdict) = verdict(&finished);
    assert_eq!(status, 1, "{verdict:#}");
    assert_eq!(verdict["holders"][0]["pid"], play.truth.holders[0].pid, "{verdict:#}");
    let all = String::from_utf8_lossy(&finished.out).into_owned();
    assert!(all.contains("\"hung\""), "{all}");
    // Two seconds for NVML beside what it takes anyway, which a loaded or emulated machine needs far longer for.
    let limit = healthy.took * 3 + Duration::from_secs(4);
    assert!(
        finished.took < limit,
        "took {:?}, and {:?} with an NVML that answers",
        finished.took,
        healthy.took
    );
}

#[test]
fn b15_a_thread_id_and_an_innocent_with_an_old_pid_are_resolved() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let innocent = Sleeper(Command::new("sleep").arg("1000").spawn().expect("sleep runs"));
    let claims = json!([{"pid": innocent.0.id(), "mib": 7000}]);
    let finished = run(&play.device, &WHY, &gpu(7100, &claims), &json!([]));
    let (_, verdict) = verdict(&finished);
    assert_eq!(verdict["memory"]["claims"][0]["resolved"], "other", "{verdict:#}");
    assert_eq!(verdict["innocents"][0]["what"], "not-a-holder", "{verdict:#}");
    let accused =
        verdict["holders"].as_array().expect("a list").iter().any(|one| one["pid"] == innocent.0.id());
    assert!(!accused, "{verdict:#}");
}

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of this name that has the device open.
fn program_that_holds(device: &Device, program: &Path) -> Sleeper {
    fs::copy("/usr/bin/sleep", program).expect("sleep can be copied");
    let held = fs::File::open(device.path()).expect("the device opens");
    // A program that was just written may still be open for writing in a child that another test forked.
    let child = eventually("a start", Duration::from_secs(20), || {
        let stdin = Stdio::from(held.try_clone().expect("a descriptor"));
        Command::new(program).arg("1000").stdin(stdin).spawn().ok()
    });
    Sleeper(child)
}

#[test]
fn b16_infrastructure_is_named_can_be_ignored_and_is_not_ended() {
    let device = Device::nobodys();
    let dir = tempfile::tempdir().expect("a directory");
    let mut daemon = program_that_holds(&device, &dir.path().join("nvidia-persistenced"));
    let nothing = gpu(3, &json!([]));
    let (status, verdict) = verdict(&run(&device, &WHY, &nothing, &json!([])));
    assert_eq!(status, 1, "{verdict:#}");
    assert!(text(&verdict["headline"]).contains("only by infrastructure"), "{verdict:#}");
    let wait = ["wait", "0", "--timeout", "5s", "--ignore", "infrastructure"];
    let waited = run(&device, &wait, &nothing, &json!([]));
    assert_eq!(waited.status, 0, "{}", waited.err);
    let spared = run(&device, &["release", "0", "--yes"], &nothing, &json!([]));
    assert_eq!(spared.status, 1, "{}", spared.err);
    assert!(spared.err.contains("--include-infrastructure"), "{}", spared.err);
    assert!(daemon.0.try_wait().expect("ours").is_none(), "it lives");
    // Reaped as soon as it ends: the release waits for the file, not for that.
    let ended = run(&device, &["release", "0", "--yes", "--include-infrastructure"], &nothing, &json!([]));
    assert_eq!(ended.status, 0, "{}", ended.err);
}

#[test]
fn memory_below_a_limit_is_enough_whoever_holds() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let wait = ["wait", "0", "--timeout", "300ms", "--below", "1GiB"];
    let waited = run(&play.device, &wait, &gpu(900, &json!([])), &json!([]));
    assert_eq!(waited.status, 0, "{}", waited.err);
    let waited = run(&play.device, &wait, &gpu(1500, &json!([])), &json!([]));
    assert_eq!(waited.status, 1, "{}", waited.err);
    assert!(waited.err.contains("1500 MiB are used, not less than 1024"), "{}", waited.err);
}

#[test]
fn roles_of_this_site_are_believed_and_a_spoilt_configuration_keeps_no_answer_back() {
    let device = Device::nobodys();
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("my-exporter");
    let exporter = program_that_holds(&device, &program);
    let config = dir.path().join("gpu-tracer.toml");
    let ask = |role: &str| {
        let rule = format!("[[role]]\nname = \"{role}\"\nexe = \"{}\"\n", program.display());
        fs::write(&config, rule).expect("it can be written");
        let environment: [(&str, &OsStr); 1] = [("GPU_TRACER_CONFIG", config.as_os_str())];
        let answer = Tracer::new(&device).run_with(WHY[0], &WHY[1..], &environment);
        let (status, verdict) = verdict(&answer);
        assert_eq!((status, &verdict["holders"][0]["pid"]), (1, &json!(exporter.0.id())), "{verdict:#}");
        (text(&verdict["holders"][0]["role"]).to_owned(), text(&verdict["headline"]).to_owned(), answer.err)
    };
    let (role, headline, err) = ask("monitor");
    assert_eq!((role.as_str(), err.as_str()), ("monitor", ""), "{headline}");
    assert!(headline.contains("only by infrastructure and monitors"), "{headline}");
    let (role, _, err) = ask("montior");
    assert_eq!(role, "unknown");
    assert!(err.contains("is `monitor` meant?") && err.contains("roles are the built-in ones"), "{err}");
}

#[test]
fn what_an_idle_gpu_showed_is_remembered_by_the_daemon_and_tells_a_leak_from_that() {
    let device = Device::nobodys();
    let mut daemon = Daemon::start(&device);
    let ask = |daemon: &Daemon, used: u64| {
        let gpu = gpu(used, &json!([]));
        let finished = with_nvml(&gpu, &json!([]), |nvml| daemon.run_with(WHY[0], &WHY[1..], nvml));
        verdict(&finished)
    };
    // Nothing is known: so much may be the driver's own.
    let (status, first) = ask(&daemon, 300);
    assert_eq!((status, &first["memory"]["baseline_mib"]), (0, &Value::Null), "{first:#}");
    let (_, second) = ask(&daemon, 3);
    assert_eq!(second["memory"]["baseline_mib"], 300, "{second:#}");
    daemon.kill();
    daemon.start_again();
    let (status, third) = ask(&daemon, 3);
    assert_eq!((status, &third["memory"]["baseline_mib"]), (0, &json!(3)), "the least counts: {third:#}");
    let headline = text(&third["headline"]);
    assert!(headline.contains("3 MiB is what this GPU has shown when it was idle"), "{headline}");
    let (status, leak) = ask(&daemon, 300);
    assert_eq!((status, text(&leak["verdict"])), (5, "no-handle"), "{leak:#}");
    assert!(leak["memory"]["story"].to_string().contains("3 MiB is what this GPU showed"), "{leak:#}");
}

#[test]
fn a_held_gpu_is_not_idle_whatever_is_told_and_only_root_is_believed() {
    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let daemon = Daemon::start(&play.device);
    let told = |by: u32| {
        let body = json!({"gpus": [{"gpu": 0, "mib": 1}]}).to_string();
        let request = format!("POST /v1/idle HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let socket = daemon.socket();
        let ask = move || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(socket)?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = as_user(by, ask).expect("it may").expect("the daemon answers");
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((told(65_534).as_str(), told(0).as_str()), ("403", "204"));
    let idle = &daemon.get("/v1/holders").expect("it answers")["gpus"][0]["idle_mib"];
    assert_eq!(idle, &Value::Null);
    drop(play);
    let free = || daemon.holders().report.holders.is_empty().then_some(());
    eventually("the release", Duration::from_secs(30), free);
    assert_eq!(told(0), "204");
    assert_eq!(daemon.get("/v1/holders").expect("it answers")["gpus"][0]["idle_mib"], 1);
}

//! The examples below `deploy/examples`, run as they are: only paths, and times to wait, are put in their place.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Device, Play, Tracer};
use gpu_tracer_tests::proc;
use yaml_rust2::{Yaml, YamlLoader};

/// As they are when this is compiled: a guest that runs the tests does not have the sources.
const UNIT: &str = include_str!("../../deploy/gpu-tracer.service");
const INFERENCE: &str = include_str!("../../deploy/examples/inference.service");
const PROLOG: &str = include_str!("../../deploy/examples/slurm-prolog.sh");
const EPILOG: &str = include_str!("../../deploy/examples/slurm-epilog.sh");
const POD: &str = include_str!("../../deploy/examples/kubernetes-init-container.yaml");

/// With this program instead of the installed one, and without waiting for long.
fn adapted(text: &str) -> String {
    let program = Tracer::program();
    let text = text.replace("/usr/bin/gpu-tracer", &program.display().to_string());
    ["120s", "60s", "10s"]
        .iter()
        .fold(text, |text, time| text.replace(&format!("--timeout {time}"), "--timeout 2s"))
}

/// `--device` for a program whose arguments are not ours.
fn devices(device: &Device) -> (&'static str, String) {
    let options = device.options();
    let given: Vec<&str> =
        options.iter().map(String::as_str).filter(|option| *option != "--device").collect();
    ("GPU_TRACER_DEVICES", given.join(","))
}

#[track_caller]
fn run(mut command: Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = [stdout, stderr].concat();
    (status.code().expect("no signal ends it"), String::from_utf8_lossy(&said).into_owned())
}

/// The values of a key in a unit file.
fn values<'a>(unit: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='))
}

/// The line of `ExecStartPre=`, as systemd splits it: at blanks.
fn start_pre(device: &Device) -> Command {
    let lines: Vec<&str> = values(INFERENCE, "ExecStartPre").collect();
    let [line] = lines[..] else { panic!("one line, not {lines:?}") };
    assert!(!line.contains(['$', '"', '\'', ';', '|', '&', '%', '\\']), "nothing for a shell: {line}");
    let line = adapted(line);
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).envs([devices(device)]);
    command
}

fn script(text: &str, device: &Device, gpus: Option<&str>) -> Command {
    let mut command = Command::new("sh");
    // Slurm gives its scripts next to no environment.
    command.args(["-c", &adapted(text)]).env_clear().envs([devices(device)]);
    command.envs(gpus.map(|gpus| ("SLURM_JOB_GPUS", gpus)));
    command
}

fn lives(pid: u32) -> bool {
    proc::state(pid, pid).expect("/proc can be read").is_some_and(|state| !"ZX".contains(state))
}

#[test]
fn a_service_starts_on_free_gpus_and_fails_to_on_held_ones_with_the_reason() {
    let device = Device::nobodys();
    assert_eq!(run(start_pre(&device)), (0, String::new()));
    let play = Play::stage_on(device, "plain", &[]);
    let (status, said) = run(start_pre(&play.device));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains(&play.truth.holders[0].pid.to_string()), "the journal says who: {said}");
}

#[test]
fn a_service_is_given_longer_to_start_than_it_waits_for() {
    let seconds = |text: &str| text.trim_end_matches('s').parse::<u64>().expect("seconds");
    let start = values(INFERENCE, "TimeoutStartSec").map(seconds).next().expect("the default is too short");
    let line = values(INFERENCE, "ExecStartPre").next().expect("a line");
    let timeout = line.split(' ').skip_while(|word| *word != "--timeout").nth(1).expect("a time");
    assert!(start > seconds(timeout), "{start} s to start, {timeout} to wait");
}

#[test]
fn systemd_accepts_the_units() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [("gpu-tracer.service", UNIT), ("inference.service", INFERENCE)] {
        let text = adapted(text).replace("/usr/bin/inference-server", "/bin/true");
        fs::write(dir.path().join(name), text).expect("it can be written");
    }
    for name in ["gpu-tracer.service", "inference.service"] {
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(dir.path().join(name))
            .env("SYSTEMD_UNIT_PATH", format!("{}:", dir.path().display()))
            .output();
        let Ok(verified) = verified else {
            eprintln!("skipped: there is no systemd-analyze here (cargo xtask setup installs it)");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        let complaints: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
        assert!(complaints.is_empty(), "{said}");
    }
}

#[test]
fn a_prolog_lets_a_job_start_on_free_gpus_only() {
    let device = Device::nobodys();
    assert_eq!(run(script(PROLOG, &device, Some("0"))), (0, String::new()));
    assert_eq!(run(script(PROLOG, &device, None)), (0, String::new()), "a job without GPUs");
    let play = Play::stage_on(device, "plain", &[]);
    let (status, said) = run(script(PROLOG, &play.device, Some("0")));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains(&play.truth.holders[0].pid.to_string()), "{said}");
    assert!(lives(play.truth.holders[0].pid), "a prolog ends nobody");
}

#[test]
fn an_epilog_ends_what_a_job_has_left() {
    let play = Play::stage_on(Device::nobodys(), "renamed-worker", &[]);
    let (status, said) = run(script(EPILOG, &play.device, Some("0")));
    assert_eq!(status, 0, "{said}");
    assert!(!lives(play.truth.holders[0].pid), "{said}");
    assert_eq!(run(script(EPILOG, &play.device, None)), (0, String::new()), "a job without GPUs");
}

#[test]
fn an_init_container_waits_through_the_socket_of_the_nodes_daemon() {
    let pod = YamlLoader::load_from_str(POD).expect("it is YAML");
    let pod = &pod[0]["spec"];
    let init = &pod["initContainers"][0];
    let words: Vec<&str> =
        init["command"].as_vec().expect("a list").iter().filter_map(Yaml::as_str).collect();
    // The socket is where the volume is mounted, and both are the same directory of the node.
    let mount = init["volumeMounts"][0]["mountPath"].as_str().expect("a path");
    assert_eq!(pod["volumes"][0]["hostPath"]["path"].as_str(), Some(mount));
    assert_eq!(pod["volumes"][0]["name"], init["volumeMounts"][0]["name"]);
    let limit = |container: &Yaml| container["resources"]["limits"]["nvidia.com/gpu"].as_i64();
    assert_eq!(limit(init), limit(&pod["containers"][0]), "the same GPUs");

    let play = Play::stage_on(Device::nobodys(), "plain", &[]);
    let daemon = Daemon::start(&play.device);
    let socket = format!("--socket {mount}/gpu-tracer.sock");
    assert!(words[2].contains(&socket), "{words:?}");
    let here = format!("--socket {}", daemon.socket().display());
    let line = adapted(&words[2].replace(&socket, &here));
    let bin = Tracer::program();
    let path = format!("{}:/usr/bin:/bin", bin.parent().expect("a folder").display());
    let container = || {
        // Its PIDs are its own.
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).args(&words[..2]).arg(&line);
        command.env("PATH", &path).env("NVIDIA_VISIBLE_DEVICES", "0").envs([devices(&play.device)]);
        command
    };
    let (status, said) = run(container());
    assert_eq!(status, 1, "{said}");
    assert!(said.contains(&play.truth.holders[0].pid.to_string()), "{said}");
    gpu_tracer_tests::sys::process::kill(play.truth.holders[0].pid, libc::SIGKILL).expect("it lives");
    gpu_tracer_tests::harness::eventually("the release", Duration::from_secs(30), || {
        daemon.holders().report.holders.is_empty().then_some(())
    });
    assert_eq!(run(container()), (0, String::new()));
}

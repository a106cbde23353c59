//! The real helper process against the stand-in library, which misbehaves on demand.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpu_tracer::gpu::claims::{NvmlAnswer, NvmlStatus};
use gpu_tracer::gpu::facts::Question;
use gpu_tracer::gpu::nvml::Helper;
use serde_json::{Value, json};

/// For questions that hang: long enough for a busy machine to get to the question.
const DEADLINE: Duration = Duration::from_secs(2);

/// For questions that do not: far beyond what they take, so that the machine's load cannot fail a test.
const AMPLE: Duration = Duration::from_secs(30);

/// What a machine with more work than processors may add to a deadline.
const SLACK: Duration = Duration::from_millis(1500);

fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("a test knows its own path");
    let library = tests.with_file_name("libnvidia_ml.so");
    assert!(library.exists(), "{} should have been built with this test", library.display());
    library
}

struct Machine {
    world: tempfile::NamedTempFile,
}

impl Machine {
    fn new(world: &Value) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(file.path(), world.to_string()).expect("it can be written");
        Self { world: file }
    }

    fn helper(&self) -> Helper {
        Helper::default()
            .program(env!("CARGO_BIN_EXE_gpu-tracer"))
            .library(library())
            .env("STANDIN_NVML", self.world.path())
    }

    fn ask(&self, deadline: Duration) -> NvmlAnswer {
        self.helper().start().finish(deadline)
    }
}

/// Two GPUs; the first is held by a PID that does not exist, one without a figure, and a desktop.
fn two_gpus() -> Value {
    json!({
        "driver_version": "580.159.04",
        "gpus": [
            {"uuid": "GPU-aaaa", "bus_id": "00000000:0F:00.0", "minor": 1, "name": "NVIDIA H200", "mig": false,
             "used_mib": 103_019, "total_mib": 143_771,
             "processes": [{"pid": 4_000_000, "mib": 103_010}, {"pid": 4_000_000, "mib": 103_010, "kind": "graphics"}]},
            {"uuid": "GPU-bbbb", "bus_id": "00000000:1A:00.0", "minor": 0, "name": "NVIDIA H200",
             "used_mib": 70, "total_mib": 143_771,
             "processes": [{"pid": 12, "mib": null}, {"pid": 13, "mib": 66, "kind": "mps"}]}
        ]
    })
}

fn with_faults(faults: Value) -> Value {
    let mut world = two_gpus();
    world["faults"] = faults;
    world
}

fn used(answer: &NvmlAnswer) -> Vec<Option<u64>> {
    answer.gpus.iter().map(|gpu| gpu.memory.used_mib).collect()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Polls until `ready`, and fails with `what` after a time that no working machine takes.
fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < AMPLE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_figure_comes_through() {
    let answer = Machine::new(&two_gpus()).ask(AMPLE);
    assert_eq!(answer.status, NvmlStatus::Complete, "{answer:#?}");
    assert_eq!(answer.driver.as_deref(), Some("580.159.04"));
    let first = answer.gpu(0).expect("GPU 0");
    assert_eq!(first.identity.bus_id.as_deref(), Some("0000:0f:00.0"));
    assert_eq!((first.identity.minor, first.identity.uuid.as_deref()), (Some(1), Some("GPU-aaaa")));
    assert_eq!((first.memory.used_mib, first.memory.total_mib), (Some(103_019), Some(143_771)));
    assert_eq!(first.memory.processes.len(), 1, "a PID in two lists is one process: {first:#?}");
    assert_eq!(first.attribution().unattributed_mib, Some(9));
    assert_eq!(first.mig, Some(false));
    let second = answer.gpu(1).expect("GPU 1");
    let figures: Vec<_> = second.memory.processes.iter().map(|process| (process.pid, process.mib)).collect();
    assert_eq!(figures, [(12, None), (13, Some(66))]);
    assert!(second.uses[1].mps_client, "{second:#?}");
    assert_eq!((second.attribution().unattributed_mib, second.mig), (None, None));
    assert!(answer.helper_gone);
    assert!(!is_alive(answer.helper_pid.expect("a helper ran")), "the helper was reaped");
}

#[test]
fn a_hang_in_a_process_list_keeps_the_memory_of_every_gpu() {
    let machine = Machine::new(&with_faults(json!([{"call": "processes", "gpu": 0, "do": "hang"}])));
    let started = Instant::now();
    let answer = machine.ask(DEADLINE);
    let took = started.elapsed();
    assert!(took >= DEADLINE && took < DEADLINE + SLACK, "it took {took:?}");
    let NvmlStatus::Hung { after, during } = &answer.status else { panic!("{answer:#?}") };
    assert_eq!(during, "compute process list of GPU 0");
    assert!(*after >= DEADLINE);
    assert_eq!(used(&answer), [Some(103_019), Some(70)]);
    assert!(!answer.gpus[0].processes_complete && answer.gpus[1].processes_complete, "{answer:#?}");
    assert_eq!(answer.gpus[0].attribution().unattributed_mib, None);
    assert!(answer.helper_gone, "a helper that can be killed is reaped");
}

#[test]
fn a_process_list_that_keeps_the_drivers_lock_does_not_cost_a_memory_figure() {
    let machine = Machine::new(&with_faults(json!([{"call": "memory", "gpu": 1, "do": "sleep", "ms": 50},
                                                   {"call": "processes", "gpu": 0, "do": "deadlock"}])));
    let answer = machine.ask(DEADLINE);
    assert!(matches!(&answer.status, NvmlStatus::Hung { .. }), "{answer:#?}");
    assert_eq!(used(&answer), [Some(103_019), Some(70)], "{:?}", answer.status);
}

#[test]
fn a_hang_in_a_memory_query_keeps_the_other_gpus() {
    let machine = Machine::new(&with_faults(json!([{"call": "memory", "gpu": 0, "do": "hang"}])));
    let started = Instant::now();
    let answer = machine.ask(DEADLINE);
    assert!(started.elapsed() < DEADLINE + SLACK, "it took {:?}", started.elapsed());
    assert!(
        matches!(&answer.status, NvmlStatus::Hung { during, .. } if during == "memory figures of GPU 0"),
        "{answer:#?}"
    );
    assert_eq!(used(&answer), [None, Some(70)]);
    assert!(answer.gpus[1].processes_complete, "GPU 1 does not wait for GPU 0 for ever: {answer:#?}");
    assert_eq!(answer.gpus[0].identity.uuid.as_deref(), Some("GPU-aaaa"));
}

#[test]
fn a_hang_in_initialisation_is_named() {
    let machine = Machine::new(&with_faults(json!([{"call": "init", "do": "hang"}])));
    let started = Instant::now();
    let answer = machine.ask(Duration::from_millis(500));
    assert!(started.elapsed() < Duration::from_millis(500) + SLACK, "it took {:?}", started.elapsed());
    assert!(
        matches!(&answer.status, NvmlStatus::Hung { during, .. } if during == "initialisation"),
        "{answer:#?}"
    );
    assert_eq!(answer.gpus, []);
}

#[test]
fn what_was_said_before_a_late_caller_came_is_still_read() {
    let machine = Machine::new(&two_gpus());
    let asking = machine.helper().start();
    let pid = asking.pid().expect("a helper runs");
    // A zombie: it has said everything and ended, and nobody has asked yet.
    eventually("the helper should end by itself", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    });
    assert_eq!(asking.finish(Duration::ZERO).status, NvmlStatus::Complete);
}

#[test]
fn a_refused_call_is_partial_and_says_which() {
    let machine =
        Machine::new(&with_faults(json!([{"call": "memory", "gpu": 1, "do": "error", "status": 15}])));
    let answer = machine.ask(AMPLE);
    assert!(
        matches!(&answer.status, NvmlStatus::Partial(why) if why.contains("memory figures of GPU 1")),
        "{answer:#?}"
    );
    assert_eq!(used(&answer), [Some(103_019), None]);
    assert_eq!(answer.refusals.iter().filter(|refusal| refusal.question == Question::Memory).count(), 1);
}

#[test]
fn a_gpu_off_the_bus_does_not_hide_the_others() {
    let machine =
        Machine::new(&with_faults(json!([{"call": "identity", "gpu": 0, "do": "error", "status": 15}])));
    let answer = machine.ask(AMPLE);
    assert!(
        matches!(&answer.status, NvmlStatus::Partial(why) if why.contains("identity of GPU 0")),
        "{answer:#?}"
    );
    assert_eq!(answer.gpus.iter().map(|gpu| gpu.identity.index).collect::<Vec<_>>(), [1]);
}

#[test]
fn older_drivers_are_asked_by_their_own_calls() {
    let machine = Machine::new(&with_faults(json!([
        {"call": "nvmlDeviceGetMemoryInfo_v2", "do": "old"},
        {"call": "nvmlDeviceGetComputeRunningProcesses_v3", "do": "absent"},
        {"call": "nvmlDeviceGetGraphicsRunningProcesses_v3", "do": "absent"},
        {"call": "nvmlDeviceGetMPSComputeRunningProcesses_v3", "do": "absent"},
    ])));
    let answer = machine.ask(AMPLE);
    assert_eq!(answer.status, NvmlStatus::Complete, "{answer:#?}");
    assert_eq!(used(&answer), [Some(103_019), Some(70)]);
    assert_eq!(answer.gpus[0].memory.processes[0].mib, Some(103_010));
    assert_eq!(answer.gpus[1].memory.processes[1].mib, Some(66), "the MPS client: {answer:#?}");
}

#[test]
fn the_535_drivers_with_larger_entries_do_not_yield_nonsense() {
    let mut world = two_gpus();
    world["driver_version"] = json!("535.54.03");
    let processes: Vec<Value> = (100..108).map(|pid| json!({"pid": pid, "mib": 1000 + pid})).collect();
    world["gpus"][0]["processes"] = json!(processes);
    let answer = Machine::new(&world).ask(AMPLE);
    let figures: Vec<_> =
        answer.gpus[0].memory.processes.iter().map(|process| (process.pid, process.mib)).collect();
    let expected: Vec<_> = (100..108).map(|pid| (pid, Some(1000 + u64::from(pid)))).collect();
    assert_eq!(figures, expected);
}

#[test]
fn memory_that_is_not_available_is_unknown_and_not_zero() {
    let mut world = two_gpus();
    world["gpus"][1]["used_mib"] = Value::Null;
    let answer = Machine::new(&world).ask(AMPLE);
    assert_eq!(answer.status, NvmlStatus::Complete, "the GPU has no such figure: {answer:#?}");
    assert_eq!(used(&answer), [Some(103_019), None]);
}

#[test]
fn a_driver_that_is_not_loaded_is_absent_and_one_that_does_not_fit_is_a_failure() {
    let absent = Machine::new(&with_faults(json!([{"call": "init", "do": "error", "status": 9}]))).ask(AMPLE);
    assert!(matches!(&absent.status, NvmlStatus::Absent(why) if why.contains("not loaded")), "{absent:#?}");
    let unfit = Machine::new(&with_faults(json!([{"call": "init", "do": "error", "status": 18}]))).ask(AMPLE);
    assert!(matches!(&unfit.status, NvmlStatus::Failed(why) if why.contains("reboot")), "{unfit:#?}");
}

#[test]
fn a_file_that_is_no_library_is_absent_with_the_loaders_reason() {
    let machine = Machine::new(&two_gpus());
    let answer = machine.helper().library(machine.world.path()).start().finish(AMPLE);
    let path = machine.world.path().display().to_string();
    assert!(matches!(&answer.status, NvmlStatus::Absent(why) if why.contains(&path)), "{answer:#?}");
}

#[test]
fn a_library_that_crashes_leaves_what_was_said() {
    let machine = Machine::new(&with_faults(json!([{"call": "processes", "gpu": 1, "do": "crash"},
                                                   {"call": "processes", "gpu": 0, "do": "hang"}])));
    let answer = machine.ask(AMPLE);
    assert!(
        matches!(&answer.status, NvmlStatus::Partial(why) if why.contains("died of signal 11")),
        "{answer:#?}"
    );
    assert_eq!(used(&answer), [Some(103_019), Some(70)]);
}

#[test]
fn a_library_that_prints_does_not_disturb_the_answer() {
    let forged = "loading\n{\"fact\":\"done\"}";
    let faults = json!([{"call": "identity", "do": "chatter", "text": forged}]);
    let answer = Machine::new(&with_faults(faults)).ask(AMPLE);
    assert_eq!(answer.status, NvmlStatus::Complete, "{answer:#?}");
    assert_eq!(used(&answer), [Some(103_019), Some(70)]);
}

#[test]
fn an_endless_answer_is_cut_off() {
    let mut world = two_gpus();
    let crowd: Vec<Value> = (0..60_000).map(|pid| json!({"pid": pid, "mib": 1_000})).collect();
    world["gpus"][1]["processes"] = json!(crowd);
    let answer = Machine::new(&world).ask(AMPLE);
    assert!(
        matches!(&answer.status, NvmlStatus::Partial(why) if why.contains("1048576 bytes")),
        "{:?}",
        answer.status
    );
    assert_eq!(used(&answer), [Some(103_019), Some(70)]);
}

#[test]
fn figures_follow_the_table_of_the_stand_in_driver() {
    let table = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(table.path(), "gpu 0 used 93699 total 97871\nclient 0 77 93690\n").expect("it can be written");
    let mut world = two_gpus();
    world["driver"] = json!(table.path());
    let machine = Machine::new(&world);
    let before = machine.ask(AMPLE);
    assert_eq!(used(&before), [Some(93_699), Some(70)], "{before:#?}");
    assert_eq!(before.gpus[0].attribution().unattributed_mib, Some(9));
    fs::write(table.path(), "gpu 0 used 9 total 97871\n").expect("it can be written");
    assert_eq!(used(&machine.ask(AMPLE)), [Some(9), Some(70)]);
}

#[test]
fn the_helper_keeps_no_inherited_file_and_no_input() {
    let inherited = fs::File::open("/etc/passwd").expect("every machine has it");
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())
        .expect("close-on-exec can be taken off");
    let machine = Machine::new(&with_faults(json!([{"call": "init", "do": "hang"}])));
    let asking = machine.helper().start();
    let files = PathBuf::from(format!("/proc/{}/fd", asking.pid().expect("a helper runs")));
    eventually("the helper should load the library", || {
        fs::read_to_string(files.with_file_name("maps")).is_ok_and(|maps| maps.contains("libnvidia_ml"))
    });
    let open: Vec<(String, PathBuf)> = fs::read_dir(&files)
        .expect("it lives")
        .filter_map(|entry| {
            Some((
                entry.as_ref().ok()?.file_name().into_string().ok()?,
                fs::read_link(entry.ok()?.path()).ok()?,
            ))
        })
        .collect();
    assert!(
        open.iter().all(|(_, file)| file != Path::new("/etc/passwd")),
        "fd {}: {open:?}",
        inherited.as_raw_fd()
    );
    let input = open.iter().find(|(fd, _)| fd == "0").map(|(_, file)| file.as_path());
    assert_eq!(input, Some(Path::new("/dev/null")), "{open:?}");
    drop(asking);
}

#[test]
fn a_question_that_is_dropped_leaves_no_helper() {
    let machine = Machine::new(&with_faults(json!([{"call": "init", "do": "hang"}])));
    let asking = machine.helper().start();
    let pid = asking.pid().expect("a helper runs");
    drop(asking);
    eventually("the helper should be gone", || !is_alive(pid));
}

/// Kills a process that is nobody's child any more.
struct EndOf(u32);

impl Drop for EndOf {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
    }
}

#[test]
fn the_helper_dies_with_its_parent() {
    let machine = Machine::new(&with_faults(json!([{"call": "init", "do": "hang"}])));
    let mut parent = Command::new("/bin/sh")
        .args(["-c", r#""$0" __nvml-helper $$ "$1" > /dev/null & echo $!; wait"#])
        .args([Path::new(env!("CARGO_BIN_EXE_gpu-tracer")), &library()])
        .env("STANDIN_NVML", machine.world.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("every machine has a shell");
    let mut said = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(parent.stdout.as_mut().expect("it is a pipe")),
        &mut said,
    )
    .expect("the shell says the PID");
    let helper: u32 = said.trim().parse().expect("it is a PID");
    eventually("the helper should load the library", || {
        fs::read_to_string(format!("/proc/{helper}/maps")).is_ok_and(|maps| maps.contains("libnvidia_ml"))
    });
    // Both are gone after this test, also when it fails.
    let _end = EndOf(helper);
    parent.kill().expect("it lives");
    parent.wait().expect("it is a child");
    eventually("the helper should be gone with its parent", || {
        // Nobody may be there to reap it: a zombie is as dead as can be.
        fs::read_to_string(format!("/proc/{helper}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn a_helper_whose_parent_is_another_does_not_run() {
    let helper = Command::new(env!("CARGO_BIN_EXE_gpu-tracer"))
        .args(["__nvml-helper", "1"])
        .arg(library())
        .output()
        .expect("it starts");
    assert!(!helper.status.success() && helper.stdout.is_empty(), "{helper:?}");
}

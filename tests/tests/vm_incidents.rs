//! The two incidents end to end: SCENARIOS A1 and A2 a-e, in a guest with the stand-in driver.

use std::process::Command;
use std::time::Duration;

use gpu_tracer_tests::harness::eventually;
use gpu_tracer_tests::incident::driver::{self, GPUS};
use gpu_tracer_tests::incident::gpu4::{BASELINES, FULL, FULL_MIB, IDLE, IDLE_MIB};
use gpu_tracer_tests::incident::inquiry::{Incident, Why, answer, start};
use gpu_tracer_tests::incident::renamed::{ALLOCATED_MIB, UNATTRIBUTED_MIB};
use gpu_tracer_tests::proc;

/// Ends what a person's pattern finds.
fn pkill(pattern: &str) {
    let status = Command::new("pkill").args(["-9", "-f", pattern]).status().expect("pkill runs");
    assert!(status.success(), "the pattern finds the server and its helper");
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
}

fn lives(pid: u32) -> bool {
    // A zombie that its parent has not reaped is listed, and holds nothing.
    proc::state(pid, pid).expect("/proc can be read").is_some_and(|state| !"ZX".contains(state))
}

#[test]
fn a1_renamed_workers_are_named_and_ended_and_memory_is_back() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let mut incident = Incident::stage("incident-renamed", &[]);
    pkill("python3.*vllm");
    incident.play.next("");
    let workers = incident.holders();
    assert_eq!(workers.len(), GPUS as usize);
    assert!(workers.iter().all(|pid| lives(*pid)), "the pattern misses them");

    let why = Why::ask("all");
    let all = &why.text();
    assert_eq!(why.status, 1, "{all}");
    let used = ALLOCATED_MIB + UNATTRIBUTED_MIB;
    for gpu in 0..GPUS {
        assert_eq!(why.pids(gpu), workers, "{all}");
        assert_eq!(why.gpu(gpu)["memory"]["used_mib"], used, "{all}");
        says(why.headline(gpu), &["8 processes", "can be killed", &format!("{used} MiB"), "VLLM::Worker_T"]);
        for finding in why.gpu(gpu)["holders"].as_array().expect("a list") {
            assert_eq!((&finding["killable"], &finding["tid"]), (&true.into(), &finding["pid"]), "{all}");
            says(&finding["killable_because"].to_string(), &["It lives and SIGKILL ends it"]);
            let exe = incident.exe.to_string_lossy();
            says(&finding["evidence"].to_string(), &["It calls itself `VLLM::Worker_T", &exe, "misses it"]);
        }
    }
    says(&why.advice(0), &["gpu-tracer release 0", "kill -9"]);

    // What a service would wait with before it starts anew; and a driver that takes its time to let go of one GPU.
    let mut waiting = start(&["wait", "all", "--timeout", "120s"]);
    driver::tell("defer-close 7 1500").expect("the driver listens");
    assert_eq!(waiting.try_wait().expect("ours"), None, "eight workers are something to wait for");
    let released = answer(&["release", "all", "--yes", "--grace", "20s"]);
    let used = driver::used().expect("the driver tells");
    assert!(used.values().all(|mib| *mib == 0), "returned too early: {used:?}\n{}", released.err);
    assert_eq!((released.status, used.len()), (0, GPUS as usize), "{}\n{}", released.err, released.out);
    assert!(!workers.iter().any(|pid| lives(*pid)));
    let waited =
        eventually("the end of the waiting", Duration::from_secs(60), || waiting.try_wait().expect("ours"));
    assert_eq!(waited.code(), Some(0));
}

/// The cards beside GPU 4, which nobody may call stuck. `certain` is whether everything can be seen: if not, they may be
/// called unknown.
#[track_caller]
fn check_the_other_cards(incident: &Incident, certain: bool) {
    let why = Why::ask("0-3,5-7");
    let all = &why.text();
    let idle = incident.play.truth.innocents[0].pid;
    assert_eq!(why.status, 1, "the idle context can be ended\n{all}");
    assert_eq!((&why.gpu(IDLE)["verdict"], why.pids(IDLE)), (&"held".into(), vec![idle]), "{all}");
    says(why.headline(IDLE), &["initialised, not used", &format!("PID {idle}"), &format!("{IDLE_MIB} MiB")]);
    for (gpu, mib) in BASELINES {
        let verdict = &why.gpu(gpu)["verdict"];
        assert!(verdict == "free" || !certain && verdict == "unknown", "{all}");
        assert_eq!(why.pids(gpu), [0u32; 0], "{all}");
        says(why.headline(gpu), &[&format!("{mib} MiB")]);
    }
}

#[test]
fn a2a_a_thread_of_a_dead_leader_inside_the_driver_is_stuck() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let mut incident = Incident::stage("incident-gpu4", &["thread"]);
    let pid = incident.holder();
    let tid = incident.play.truth.holders[0].tids[0];
    let why = Why::ask("4");
    assert_eq!(why.status, 4, "{}", why.text());
    assert_eq!(why.pids(FULL), [pid]);
    let headline = format!(
        "GPU 4 is held by thread {tid} of PID {pid} (python3), {FULL_MIB} MiB, which SIGKILL does not end."
    );
    says(why.headline(FULL), &[&headline, "waits in the GPU driver"]);
    says(&why.text(), &["SIGKILL is already pending", "is in state Z"]);
    // The call in which the thread is stuck keeps a reference to a file that every GPU needs. It has a name.
    check_the_other_cards(&incident, true);
    // Nobody can end it; it can only be said, and within the grace.
    let released = answer(&["release", "4", "--yes", "--grace", "2s"]);
    assert_eq!(released.status, 4, "{}", released.err);
    says(&released.err, &["SIGKILL will not help"]);

    incident.play.next("");
    assert_eq!(Why::ask("4").status, 0, "it is free as soon as the thread is let go");
}

#[test]
fn a2b_a_child_with_inherited_handles_is_named_and_not_its_dead_parent() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let incident = Incident::stage("incident-gpu4", &["inherited"]);
    let (pid, dead) = (incident.holder(), incident.play.truth.dead[0]);
    let why = Why::ask("4");
    assert_eq!(why.status, 1, "{}", why.text());
    assert_eq!(why.pids(FULL), [pid]);
    says(why.headline(FULL), &[&format!("PID {pid} (data-loader), {FULL_MIB} MiB"), "can be killed"]);
    says(
        &why.memory(FULL),
        &[&format!("created by PID {dead}, which is dead"), &format!("kept now by PID {pid}")],
    );
    check_the_other_cards(&incident, true);
    let released = answer(&["release", "4", "--yes", "--grace", "5s"]);
    assert_eq!((released.status, lives(pid)), (0, false), "{}\n{}", released.err, released.out);
    assert_eq!(driver::used().expect("the driver tells")[&FULL], 0);
}

#[test]
fn a2c_a_task_inside_the_drivers_release_is_named_and_never_called_free() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let mut incident = Incident::stage("incident-gpu4", &["releasing"]);
    let pid = incident.play.truth.half_exited[0];
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or_default();
    assert_eq!(
        (fds, proc::state(pid, pid).expect("it can be read")),
        (0, Some('D')),
        "its descriptors are gone"
    );
    let why = Why::ask("4");
    let all = &why.text();
    assert_eq!(why.status, 4, "{all}");
    assert_eq!(why.pids(FULL), [pid], "{all}");
    says(why.headline(FULL), &[&format!("PID {pid}"), "SIGKILL does not end", "waits in the GPU driver"]);
    says(all, &["half-way through exit", "os_acquire_semaphore", "nvidia_close"]);
    check_the_other_cards(&incident, false);

    incident.play.next("");
    assert_eq!(Why::ask("4").status, 0, "it is free as soon as the driver goes on");
}

#[test]
fn a2d_a_handle_in_flight_names_its_receiver() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let incident = Incident::stage("incident-gpu4", &["in-flight"]);
    let pid = incident.holder();
    let why = Why::ask("4");
    assert_eq!(why.status, 1, "{}", why.text());
    assert_eq!(why.pids(FULL), [pid]);
    let headline = "GPU 4 is held by a handle in flight";
    says(
        why.headline(FULL),
        &[headline, &format!("PID {pid} (cache-server) and not received"), "can be killed"],
    );
    says(&why.memory(FULL), &["exported memory whose handle is in flight"]);
    check_the_other_cards(&incident, true);
    let released = answer(&["release", "4", "--yes", "--grace", "5s"]);
    assert_eq!((released.status, lives(pid)), (0, false), "{}\n{}", released.err, released.out);
    assert_eq!(driver::used().expect("the driver tells")[&FULL], 0);
}

#[test]
fn a2e_memory_that_the_driver_kept_is_nobodys() {
    if !driver::is_loaded("vm_incidents") {
        return;
    }
    let incident = Incident::stage("incident-gpu4", &["leak"]);
    let why = Why::ask("4");
    let all = &why.text();
    assert_eq!(why.status, 5, "{all}");
    assert_eq!(why.pids(FULL), [0u32; 0], "{all}");
    says(why.headline(FULL), &[&format!("{FULL_MIB} MiB"), "no process can be killed"]);
    let idle = incident.play.truth.innocents[0].pid;
    says(&why.advice(FULL), &["nvidia-smi --gpu-reset -i 4", "nobody else is on it", "still in use: GPU 3"]);
    assert!(!why.advice(FULL).contains("kill -9"), "{idle} is innocent\n{all}");
    check_the_other_cards(&incident, true);
    let released = answer(&["release", "4", "--yes", "--grace", "2s"]);
    assert_eq!(released.status, 5, "{}\n{}", released.err, released.out);
    assert!(lives(idle), "whoever is innocent is left alone");
}

//! Every class of situation gets its own verdict, and no input whatsoever a wrong "free".

mod headlines;
mod incidents;

use proptest::prelude::*;

use super::input::{Claim, HalfGone, Obstacle, Resolved, Wait};
use super::{Input, diagnose};
use crate::gpu::NvmlStatus;
use crate::model::ExitStatus;
use crate::model::diagnosis::{Diagnosis, GpuVerdict, Verdict};
use crate::model::report::{
    Cost, Coverage, FileReport, GpuReport, HeldDevice, HeldMemory, Holder, MissingReport, Opener, Report,
    SCHEMA, TaskReport,
};

pub(crate) fn report(gpus: u32) -> Report {
    let gpu = |index| GpuReport { index, minor: Some(index), ..GpuReport::default() };
    Report {
        schema: SCHEMA,
        taken_at: "2026-11-29T15:02:11.123Z".to_owned(),
        boot_id: String::new(),
        plan: "snapshot".to_owned(),
        coverage: Coverage { complete: true, missing: Vec::new() },
        cost: Cost::default(),
        gpus: (0..gpus).map(gpu).collect(),
        files: Vec::new(),
        holders: Vec::new(),
    }
}

fn held(device: &str, fds: u64, maps: u64, file: u64) -> HeldDevice {
    let gpu = device.strip_prefix("nvidia").and_then(|digits| digits.parse().ok());
    HeldDevice { device: device.to_owned(), gpu, fds, maps, files: vec![file], ..HeldDevice::default() }
}

pub(crate) fn holder(pid: u32, gpu: u32) -> Holder {
    Holder {
        pid,
        tid: pid,
        tids: vec![pid],
        start_ns: u64::from(pid) * 1_000_000_000,
        started_at: Some("2026-11-29T12:57:05.000Z".to_owned()),
        comm: "python3".into(),
        cmdline: "python3 train.py".into(),
        exe: Some("/usr/bin/python3.12".into()),
        state: "S".to_owned(),
        leader_state: "S".to_owned(),
        role: "compute".to_owned(),
        why: vec!["live".to_owned()],
        devices: vec![held(&format!("nvidia{gpu}"), 20, 3, u64::from(gpu)), held("nvidiactl", 1, 27, 100)],
        ..Holder::default()
    }
}

/// Used memory of each GPU; NVML answered in full.
pub(crate) fn with_memory(mut report: Report, used: &[u64]) -> Input {
    for (gpu, used) in report.gpus.iter_mut().zip(used) {
        gpu.memory_used_mib = Some(*used);
        gpu.memory_total_mib = Some(143_771);
    }
    Input { nvml: NvmlStatus::Complete, ..Input::of(report) }
}

pub(crate) fn claim(gpu: u32, pid: u32, mib: u64, resolved: Resolved) -> Claim {
    Claim { gpu, pid, mib: Some(mib), mps_client: false, resolved }
}

fn process(pid: u32) -> Resolved {
    Resolved::Process { comm: "python3".into(), start_ns: u64::from(pid) * 1_000_000_000, leader_dead: false }
}

fn of(diagnosis: &Diagnosis, gpu: u32) -> &GpuVerdict {
    diagnosis.gpus.iter().find(|verdict| verdict.gpu == Some(gpu)).expect("it was asked about")
}

fn commands(verdict: &GpuVerdict) -> Vec<&str> {
    verdict.advice.iter().filter_map(|step| step.command.as_deref()).collect()
}

/// A task that was still there, and had not moved, when a second look was taken.
pub(crate) fn lasting() -> Wait {
    Wait { over_ms: 1000, unmoved: true, ..Wait::default() }
}

#[track_caller]
fn expect(input: &Input, gpu: u32, verdict: Verdict, words: &[&str]) -> GpuVerdict {
    let diagnosis = diagnose(input);
    let found = of(&diagnosis, gpu).clone();
    assert_eq!(found.verdict, verdict, "{found:#?}");
    for word in words {
        assert!(found.headline.contains(word), "{word:?} is not in {:?}", found.headline);
    }
    found
}

pub(crate) fn stuck_thread(gpu: u32) -> Holder {
    Holder {
        tid: 440,
        tids: vec![440],
        state: "D".to_owned(),
        leader_state: "Z".to_owned(),
        sigkill_pending: true,
        wchan: Some("percpu_rwsem_wait".to_owned()),
        stack: ["percpu_rwsem_wait", "__percpu_down_read", "vfs_write"].map(str::to_owned).to_vec(),
        why: vec!["thread-of-defunct".to_owned(), "stuck-in-kernel".to_owned()],
        memory: vec![HeldMemory { gpu, mib: 93_600, source: "nvml".to_owned() }],
        ..holder(428, gpu)
    }
}

#[test]
fn each_reason_gets_its_own_words() {
    let with = |edit: fn(&mut Holder)| {
        let mut one = holder(428, 0);
        edit(&mut one);
        Input::of(Report { holders: vec![one], ..report(1) })
    };
    let cases: Vec<(Input, Verdict, &str)> = vec![
        (with(|_| ()), Verdict::Held, "lives and can be killed"),
        (with(|one| one.why = vec!["inherited".to_owned()]), Verdict::Held, "inherited the handles"),
        (
            with(|one| (one.why, one.state) = (vec!["stopped".to_owned()], "T".to_owned())),
            Verdict::Held,
            "stopped",
        ),
        (with(|one| one.why = vec!["frozen".to_owned()]), Verdict::Held, "frozen"),
        (
            with(|one| (one.why, one.state) = (vec!["frozen".to_owned()], "D".to_owned())),
            Verdict::Stuck,
            "frozen",
        ),
        (with(|one| one.why = vec!["dumping-core".to_owned()]), Verdict::Held, "core dump"),
        (
            with(|one| (one.why, one.tid) = (vec!["thread-of-defunct".to_owned()], 440)),
            Verdict::Held,
            "leader is a zombie",
        ),
        (
            with(|one| (one.why, one.exiting) = (vec!["exiting".to_owned()], true)),
            Verdict::Held,
            "on its way out. Ask again",
        ),
        (
            with(|one| (one.sigkill_pending, one.state) = (true, "D".to_owned())),
            Verdict::Held,
            "on its way out",
        ),
        (with(|one| one.role = "infrastructure".to_owned()), Verdict::Held, "only by infrastructure"),
        (with(|one| one.role = "monitor".to_owned()), Verdict::Held, "only by infrastructure and monitors"),
        (with(|one| one.role = "initialised".to_owned()), Verdict::Held, "initialised, not used"),
        (with(|one| one.role = "mps-server".to_owned()), Verdict::Held, "MPS server"),
    ];
    for (input, verdict, words) in cases {
        expect(&input, 0, verdict, &[words]);
    }
}

#[test]
fn innocents_are_named_as_such() {
    let mut input = with_memory(Report { holders: vec![holder(481, 0)], ..report(1) }, &[103_019]);
    input.report.holders.push(Holder { role: "monitor".to_owned(), comm: "watcher".into(), ..holder(77, 0) });
    input.report.holders.push(Holder { role: "initialised".to_owned(), ..holder(78, 0) });
    input.claims = vec![
        claim(0, 430, 1, Resolved::Dead),
        claim(0, 431, 1, Resolved::Zombie { comm: "python3".into(), ppid: 7 }),
        claim(0, 432, 1, Resolved::Process { comm: "bash".into(), start_ns: 9, leader_dead: false }),
    ];
    input.asked = vec![(999, Resolved::Zombie { comm: "x".into(), ppid: 7 })];
    let diagnosis = diagnose(&input);
    let innocents: Vec<(u32, &str)> =
        diagnosis.gpus[0].innocents.iter().map(|innocent| (innocent.pid, innocent.what.as_str())).collect();
    assert_eq!(
        innocents,
        [(430, "dead"), (431, "zombie"), (432, "not-a-holder"), (78, "initialised"), (77, "monitor")]
    );
    assert!(diagnosis.asked[0].text.contains("zombie: it holds nothing"), "{:?}", diagnosis.asked);
    // Nobody is cleared by a look that did not see everything.
    input.report.coverage.complete = false;
    let unsure = diagnose(&input);
    assert!(
        unsure.gpus[0].innocents.iter().all(|innocent| innocent.pid != 432),
        "{:?}",
        unsure.gpus[0].innocents
    );
}

#[test]
fn a_hanging_nvml_leaves_handles_to_speak_and_an_empty_answer_unknown() {
    let hung = NvmlStatus::Hung { after: std::time::Duration::from_secs(2), during: "processes".to_owned() };
    let input = Input { nvml: hung, ..Input::of(report(1)) };
    expect(&input, 0, Verdict::Unknown, &["NVML hung"]);
    let held = Input { report: Report { holders: vec![holder(428, 0)], ..report(1) }, ..input };
    expect(&held, 0, Verdict::Held, &["PID 428"]);
    expect(&Input::of(report(1)), 0, Verdict::Free, &["no NVML"]);
}

#[test]
fn a_recorded_baseline_tells_a_leak_from_the_drivers_own_use() {
    let mut input = with_memory(report(1), &[900]);
    expect(&input, 0, Verdict::Free, &["900 MiB"]);
    input.baselines.insert(0, 10);
    expect(&input, 0, Verdict::NoHandle, &["900 MiB"]);
    input.baselines.insert(0, 880);
    let about = ["900 MiB is about what this GPU has shown when it was idle (880 MiB)"];
    let found = expect(&input, 0, Verdict::Free, &about);
    assert_eq!(found.memory.baseline_mib, Some(880));
    let story = found.memory.story.join("\n");
    assert!(story.contains("880 MiB is what this GPU showed when it was idle"), "{story}");
    input.baselines.insert(0, 900);
    expect(&input, 0, Verdict::Free, &["900 MiB is what this GPU has shown when it was idle"]);
}

#[test]
fn a_file_that_the_driver_still_releases_is_neither_free_nor_a_leak() {
    for state in ["releasing", "deferred", "detached", "unreferenced"] {
        let mut input = with_memory(report(1), &[50_000]);
        input.report.files = vec![FileReport {
            since: None,
            for_ms: None,
            task: None,
            id: 1,
            device: "nvidia0".into(),
            gpu: Some(0),
            state: state.into(),
            references: Some(0),
            unexplained: 0,
            driver_pins: 0,
            opened_at: None,
            opened_exact: false,
            opener: None,
        }];
        let found = expect(&input, 0, Verdict::Stuck, &["still being released", "1 handle"]);
        assert!(commands(&found).contains(&"gpu-tracer wait 0 --timeout 60s"), "{found:#?}");
        // For an instant that is how every process ends.
        input.report.files[0].since = Some("2026-11-29T15:02:10.963Z".parse().unwrap());
        expect(&input, 0, Verdict::Held, &["being released by the driver just now (1 handle)"]);
        input.report.files[0].since = Some("2026-11-29T15:02:10.100Z".parse().unwrap());
        expect(&input, 0, Verdict::Stuck, &["still being released"]);
        input.report.files[0].state = "open".into();
        expect(&input, 0, Verdict::Unknown, &["nobody can be named"]);
        input.report.files[0].state = "opening".into();
        input.report.files[0].task = Some(TaskReport { pid: 442, tid: 443 });
        expect(&input, 0, Verdict::Unknown, &["being opened by task 443 of PID 442"]);
    }
}

#[test]
fn shared_devices_matter_only_where_there_is_memory_to_keep() {
    let mut keeper = holder(7, 0);
    keeper.devices.remove(0);
    let input = with_memory(Report { holders: vec![keeper], ..report(2) }, &[4, 50_000]);
    expect(&input, 0, Verdict::Free, &[]);
    expect(&input, 1, Verdict::Held, &["PID 7"]);
}

#[test]
fn the_file_systems_and_servers_in_the_way_are_named() {
    let stuck = |wchan: &str| Holder { wchan: Some(wchan.to_owned()), stack: Vec::new(), ..stuck_thread(0) };
    let advice = |wchan: &str, obstacle: Obstacle| {
        let mut input = Input::of(Report { holders: vec![stuck(wchan)], ..report(1) });
        input.waits.insert(440, Wait { obstacle: Some(obstacle), ..lasting() });
        let found = expect(&input, 0, Verdict::Stuck, &[]);
        commands(&found)[0].to_owned()
    };
    let fuse =
        Obstacle { fuse_connection: Some(41), file_system: "fuse.sshfs".to_owned(), ..Obstacle::default() };
    assert_eq!(advice("request_wait_answer", fuse), "echo 1 > /sys/fs/fuse/connections/41/abort");
    let nfs = Obstacle { mount: Some("/home".into()), file_system: "nfs4".to_owned(), ..Obstacle::default() };
    assert_eq!(advice("rpc_wait_bit_killable", nfs), "umount -f -l /home");
    assert_eq!(advice("percpu_rwsem_wait", Obstacle::default()), "fsfreeze -u MOUNTPOINT");
    assert_eq!(advice("something_else", Obstacle::default()), "cat /proc/428/task/440/stack");
}

#[test]
fn without_gpus_the_devices_themselves_are_judged() {
    let mut one = holder(7, 0);
    one.devices =
        vec![HeldDevice { device: "kfd".to_owned(), fds: 1, files: vec![1], ..HeldDevice::default() }];
    let diagnosis = diagnose(&Input::of(Report { holders: vec![one], ..report(0) }));
    assert_eq!((diagnosis.gpus[0].gpu, diagnosis.gpus[0].verdict), (None, Verdict::Held));
    assert_eq!(diagnose(&Input::of(report(0))).exit_status(), ExitStatus::Free);
}

fn any_resolved() -> impl Strategy<Value = Resolved> {
    prop_oneof![
        Just(Resolved::Dead),
        Just(Resolved::Unchecked),
        any::<u32>().prop_map(|ppid| Resolved::Zombie { comm: "z".into(), ppid }),
        (0..9u64).prop_map(|start| Resolved::Process {
            comm: "p".into(),
            start_ns: start,
            leader_dead: false
        }),
        (0..9u32).prop_map(|pid| Resolved::ThreadOf { pid, comm: "t".into() }),
        Just(Resolved::Exiting { comm: "e".into() }),
    ]
}

prop_compose! {
    fn any_claim()(gpu in 0..3u32, pid in 0..9u32, mib in any::<Option<u64>>(), resolved in any_resolved()) -> Claim {
        Claim { gpu, pid, mib, mps_client: pid % 2 == 0, resolved }
    }
}

prop_compose! {
    fn any_half_gone()(pid in 0..9u32, driver in any::<bool>()) -> HalfGone {
        let stack = if driver { vec!["nvidia_close [nvidia]".to_owned()] } else { vec!["filp_flush".to_owned()] };
        HalfGone { pid, tid: pid, state: "D".to_owned(), stack, ..HalfGone::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn free_means_that_everything_was_seen_and_nothing_is_there(
        report in crate::render::tests::hostile::report(),
        claims in prop::collection::vec(any_claim(), 0..4),
        half_gone in prop::collection::vec(any_half_gone(), 0..2),
        hung in any::<bool>(),
    ) {
        let nvml = if hung {
            NvmlStatus::Hung { after: std::time::Duration::ZERO, during: String::new() }
        } else {
            NvmlStatus::Complete
        };
        let input = Input { claims, half_gone, nvml, ..Input::of(report) };
        let diagnosis = diagnose(&input);
        prop_assert!(!diagnosis.gpus.is_empty());
        for verdict in &diagnosis.gpus {
            let own = input.report.files.iter().any(|file| file.gpu.is_some() && file.gpu == verdict.gpu);
            let direct = input.report.holders.iter().flat_map(|holder| &holder.devices).any(|held| held.gpu.is_some() && held.gpu == verdict.gpu);
            if matches!(verdict.verdict, Verdict::Free | Verdict::NoHandle) {
                prop_assert!(input.report.coverage.complete, "{verdict:#?}");
                prop_assert!(!own && !direct, "{verdict:#?}");
                prop_assert!(verdict.doubts.is_empty() && verdict.holders.is_empty());
            }
            prop_assert!(!verdict.headline.is_empty());
        }
    }
}

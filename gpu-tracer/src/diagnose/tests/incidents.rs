//! The two incidents, and what `/proc` shows of the second without a record.

use super::*;

/// A2: eight GPUs after an escalating cleanup.
fn a2() -> Report {
    report(8)
}

const A2_USED: [u64; 8] = [1, 1, 1, 99, 93_699, 99, 3, 3];

#[track_caller]
fn a2_others_are_named_for_what_they_are(input: &Input) {
    let diagnosis = diagnose(input);
    for (gpu, used) in [(0, 1), (3, 99), (5, 99), (7, 3)] {
        let verdict = of(&diagnosis, gpu);
        assert_eq!(verdict.verdict, Verdict::Free, "{verdict:#?}");
        assert!(verdict.headline.contains(&format!("{used} MiB")), "{}", verdict.headline);
    }
}

#[test]
fn a2a_a_thread_of_a_defunct_leader_waits_in_the_file_system() {
    let mut input = with_memory(Report { holders: vec![stuck_thread(4)], ..a2() }, &A2_USED);
    input.claims = vec![claim(
        4,
        428,
        93_600,
        Resolved::Process { comm: "python3".into(), start_ns: 428_000_000_000, leader_dead: true },
    )];
    let obstacle =
        Obstacle { mount: Some("/scratch".into()), file_system: "ext4".to_owned(), ..Obstacle::default() };
    input.waits.insert(440, Wait { obstacle: Some(obstacle), ..lasting() });
    let found = expect(
        &input,
        4,
        Verdict::Stuck,
        &["thread 440 of PID 428 (python3), 93600 MiB, which SIGKILL does not end"],
    );
    let waits = found.holders[0].waits.as_deref().unwrap_or_default();
    assert!(waits.contains("waits in the file system, not in the GPU driver"), "{waits}");
    assert_eq!(commands(&found)[0], "fsfreeze -u /scratch");
    assert!(found.holders[0].killable_because.contains("SIGKILL is already pending"));
    a2_others_are_named_for_what_they_are(&input);
    assert_eq!(diagnose(&input).exit_status(), ExitStatus::Stuck);
}

#[test]
fn a2b_a_forked_child_of_another_name_keeps_the_memory_of_a_dead_creator() {
    let child = Holder {
        comm: "cleanup".into(),
        cmdline: "cleanup".into(),
        why: vec!["live".to_owned(), "inherited".to_owned()],
        ..holder(481, 4)
    };
    let mut input = with_memory(Report { holders: vec![child], ..a2() }, &A2_USED);
    input.claims = vec![claim(4, 430, 93_600, Resolved::Dead)];
    let found = expect(&input, 4, Verdict::Held, &["PID 481 (cleanup)", "93600 MiB", "inherited"]);
    let story = found.memory.story.join("\n");
    assert!(story.contains("created by PID 430, which is dead; kept now by PID 481 (inferred"), "{story}");
    assert!(found.holders[0].evidence.iter().any(|fact| fact.inferred), "{:#?}", found.holders[0].evidence);
    assert_eq!(found.innocents[0].what, "dead");
    assert!(found.headline.contains("inherited from PID 430, which is dead"), "{}", found.headline);
    // With the record of the opening it is a fact.
    input.report.files = vec![FileReport {
        since: None,
        for_ms: None,
        task: None,
        id: 4,
        device: "nvidia4".into(),
        gpu: Some(4),
        state: "open".into(),
        references: Some(1),
        unexplained: 0,
        driver_pins: 0,
        opened_at: None,
        opened_exact: false,
        opener: Some(Opener {
            pid: 430,
            start_ns: 1,
            comm: "python3".into(),
            cmdline: "python3 train.py".into(),
            alive: false,
        }),
    }];
    let found = expect(&input, 4, Verdict::Held, &[]);
    let story = found.memory.story.join("\n");
    assert!(story.contains("kept now by PID 481 (recorded"), "{story}");
    a2_others_are_named_for_what_they_are(&input);
    assert_eq!(diagnose(&input).exit_status(), ExitStatus::Held);
}

#[test]
fn a2b_without_a_record_inherited_is_said_only_where_the_descent_is_shown() {
    let told = |edit: fn(&mut Holder), creator: Resolved| {
        let mut child = holder(481, 4);
        edit(&mut child);
        let mut input = with_memory(Report { holders: vec![child], ..a2() }, &A2_USED);
        input.claims = vec![claim(4, 430, 93_600, creator)];
        expect(&input, 4, Verdict::Held, &["PID 481 (python3), 93600 MiB"])
    };
    let says = |found: &GpuVerdict| {
        let evidence = found.holders[0].evidence.iter().map(|fact| fact.text.as_str());
        std::iter::once(found.headline.as_str()).chain(evidence).collect::<Vec<_>>().join("\n")
    };
    let inherits = |found: &GpuVerdict| found.holders[0].why.iter().any(|why| why == "inherited");
    // The session was begun by the dead process: nobody but its descendants is in it.
    let found = told(|child| child.session = 430, Resolved::Dead);
    assert!(
        inherits(&found) && found.headline.contains("inherited from PID 430, which is dead"),
        "{found:#?}"
    );
    assert!(says(&found).contains("descends from it"), "{}", says(&found));
    // Its parent is gone, and it has a session of its own: what NVML says is all that is known.
    for creator in [Resolved::Dead, Resolved::Zombie { comm: "python3".into(), ppid: 7 }] {
        let found = told(|child| (child.ppid, child.session) = (1, 481), creator);
        assert!(!inherits(&found) && !says(&found).contains("inherited"), "{}", says(&found));
        assert!(found.headline.contains("created by PID 430, which is dead"), "{}", found.headline);
        assert!(says(&found).contains("did not create that memory"), "{}", says(&found));
        assert_eq!(found.holders[0].created_by, Some(430));
    }
    // It is its own, whatever its session.
    let found = told(|child| child.session = 430, process(481));
    assert!(!inherits(&found) && !found.headline.contains("430"), "{}", says(&found));
}

#[test]
fn references_to_the_driver_that_no_file_explains_are_no_leak_and_do_not_matter_to_an_idle_gpu() {
    let mut input = with_memory(a2(), &A2_USED);
    let why = "module nvidia has 1 reference without an open file: a handle, or a kernel client".to_owned();
    input.report.coverage = Coverage {
        complete: false,
        missing: vec![MissingReport { what: "module-references".to_owned(), why }],
    };
    let found = expect(&input, 4, Verdict::Unknown, &["93699 MiB", "module nvidia has 1 reference"]);
    assert!(found.headline.chars().count() <= 120, "{}", found.headline);
    assert!(commands(&found).iter().any(|command| command.contains("/proc/modules")), "{:#?}", found.advice);
    a2_others_are_named_for_what_they_are(&input);
    // Without NVML nothing tells a GPU that is idle from one that is not.
    input.nvml = crate::gpu::NvmlStatus::Absent("it is not there".to_owned());
    input.report.gpus.iter_mut().for_each(|gpu| gpu.memory_used_mib = None);
    expect(&input, 0, Verdict::Unknown, &["module nvidia has 1 reference"]);
}

#[test]
fn a2c_a_task_inside_the_drivers_release_is_stuck_not_leaked() {
    let mut input = with_memory(a2(), &A2_USED);
    let why = "PID 428 (state D) is half-way through its exit".to_owned();
    input.report.coverage = Coverage {
        complete: false,
        missing: vec![MissingReport { what: "half-exited-task".to_owned(), why }],
    };
    input.half_gone = vec![HalfGone {
        pid: 428,
        tid: 428,
        start_ns: 5,
        comm: "python3".into(),
        state: "D".to_owned(),
        wchan: Some("down".to_owned()),
        stack: ["down", "os_acquire_semaphore [nvidia]", "nvidia_close [nvidia]", "__fput"]
            .map(str::to_owned)
            .to_vec(),
    }];
    // As long as it may be an ordinary exit it is not called stuck, and not free.
    let leaving = expect(&input, 4, Verdict::Held, &["PID 428 (python3)", "on its way out"]);
    assert!(leaving.holders[0].ending && leaving.holders[0].killable, "{:#?}", leaving.holders);
    assert_eq!(commands(&leaving)[0], "gpu-tracer wait 4 --timeout 60s");
    assert!(!commands(&leaving).iter().any(|command| command.contains("kill")), "{:#?}", leaving.advice);
    input.waits.insert(428, lasting());
    let inferred = expect(&input, 4, Verdict::Stuck, &["PID 428 (python3)", "waits in the GPU driver"]);
    assert!(
        inferred.holders[0].evidence[0].inferred,
        "no record, no claim: {:#?}",
        inferred.holders[0].evidence
    );
    input.claims = vec![claim(4, 428, 93_600, Resolved::Exiting { comm: "python3".into() })];
    let found = expect(&input, 4, Verdict::Stuck, &["PID 428 (python3)", "93600 MiB"]);
    assert!(!found.holders[0].evidence[0].inferred);
    assert!(commands(&found).contains(&"nvidia-smi --gpu-reset -i 4"), "{found:#?}");
    // The others are not called stuck, and not called free either: it may hold them too.
    let other = expect(&input, 3, Verdict::Unknown, &["99 MiB", "half-way through its exit"]);
    assert!(other.holders.is_empty());
    assert_eq!(diagnose(&input).exit_status(), ExitStatus::Stuck);
}

#[test]
fn a2d_a_handle_in_flight_names_the_owner_of_the_receiving_end() {
    let mut owner = holder(436, 4);
    owner.devices = vec![HeldDevice { in_flight: 1, fds: 0, maps: 0, ..held("nvidiactl", 0, 0, 100) }];
    let mut input = with_memory(Report { holders: vec![owner], ..a2() }, &A2_USED);
    input.report.gpus[4].unattributed_mib = Some(93_699);
    let found = expect(&input, 4, Verdict::Held, &["in flight", "PID 436 (python3)", "not received"]);
    assert!(found.memory.story.join("\n").contains("in flight"), "{:?}", found.memory.story);
    a2_others_are_named_for_what_they_are(&input);
    assert_eq!(diagnose(&input).exit_status(), ExitStatus::Held);
}

#[test]
fn a2e_nothing_at_all_is_a_leak_that_no_kill_frees() {
    let mut input = with_memory(Report { holders: vec![holder(900, 2)], ..a2() }, &A2_USED);
    input.report.holders[0].role = "infrastructure".to_owned();
    let found = expect(&input, 4, Verdict::NoHandle, &["93699 MiB", "no process can be killed"]);
    assert_eq!(commands(&found)[0], "nvidia-smi --gpu-reset -i 4");
    let text: Vec<&str> = found.advice.iter().map(|step| step.text.as_str()).collect();
    assert!(
        text.iter().any(|text| text.contains("GPU 2 (1 process)")),
        "who still touches the others: {text:?}"
    );
    assert_eq!(diagnose(&input).exit_status(), ExitStatus::NoHandle);
    // A leak is concluded only where everything was seen.
    input.report.coverage.complete = false;
    expect(&input, 4, Verdict::Unknown, &["93699 MiB"]);
}

#[test]
fn a1_renamed_workers_live_are_named_and_a_name_pattern_would_miss_them() {
    let worker = |number: u32| Holder {
        comm: format!("VLLM::Worker_TP{number}").as_str().into(),
        cmdline: format!("VLLM::Worker_TP{number}").as_str().into(),
        memory: vec![HeldMemory { gpu: 0, mib: 96_610, source: "nvml".to_owned() }],
        ..holder(500 + number, 0)
    };
    let mut input = with_memory(Report { holders: (0..8).map(worker).collect(), ..report(1) }, &[96_619]);
    input.claims = (0..8).map(|number| claim(0, 500 + number, 96_610, process(500 + number))).collect();
    let found = expect(&input, 0, Verdict::Held, &["8 processes", "VLLM::Worker_TP0"]);
    let facts = &found.holders[0].evidence;
    assert!(
        facts.iter().any(|fact| fact.text.contains("pkill -f python") && fact.text.contains("misses it")),
        "{facts:?}"
    );
    assert!(commands(&found).contains(&"kill -9 500 501 502 503 504 505 506 507"), "{found:#?}");
}

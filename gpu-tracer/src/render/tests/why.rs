use proptest::prelude::*;

use super::*;
use crate::diagnose::input::{Obstacle, Resolved, Wait};
use crate::diagnose::tests::{claim, holder, lasting, report, stuck_thread, with_memory};
use crate::diagnose::{Input, diagnose};
use crate::gpu::NvmlStatus;
use crate::model::report::{HeldMemory, Holder, Report};
use crate::render::text::columns;

fn view(width: Option<usize>) -> View<'static> {
    View { width, color: false, expand: false, user: &|_| None }
}

fn printed(input: &Input) -> String {
    table(&diagnose(input), &view(Some(110)))
}

#[test]
fn a_stuck_thread_among_eight_gpus() {
    let used = [1, 1, 1, 99, 93_699, 99, 3, 3];
    let mut input = with_memory(Report { holders: vec![stuck_thread(4)], ..report(8) }, &used);
    let obstacle = Obstacle {
        path: Some("/scratch/out.bin".into()),
        mount: Some("/scratch".into()),
        file_system: "ext4".to_owned(),
        fuse_connection: None,
    };
    input.waits.insert(440, Wait { obstacle: Some(obstacle), ..lasting() });
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn a_child_that_keeps_the_memory_of_its_dead_parent() {
    let child = Holder {
        comm: "cleanup".into(),
        why: vec!["live".to_owned(), "inherited".to_owned()],
        ..holder(481, 0)
    };
    let mut input = with_memory(Report { holders: vec![child], ..report(1) }, &[103_019]);
    input.claims = vec![claim(0, 430, 103_010, Resolved::Dead)];
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn memory_without_a_handle() {
    let mut input = with_memory(Report { holders: vec![holder(900, 1)], ..report(2) }, &[93_699, 50]);
    input.report.holders[0].role = "infrastructure".to_owned();
    input.hints = vec!["30 s ago: NVRM: Xid (PCI:0000:0f:00): 119, pid=428, name=python3".to_owned()];
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn eight_workers_that_hold_eight_gpus() {
    let worker = |number: u32| {
        let gpus = (0..8).map(|gpu| holder(500 + number, gpu).devices.remove(0));
        Holder {
            comm: format!("VLLM::Worker_TP{number}").as_str().into(),
            cmdline: format!("VLLM::Worker_TP{number}").as_str().into(),
            devices: gpus.collect(),
            memory: vec![HeldMemory { gpu: number, mib: 96_610, source: "nvml".to_owned() }],
            ..holder(500 + number, 0)
        }
    };
    let input = with_memory(Report { holders: (0..8).map(worker).collect(), ..report(8) }, &[96_619; 8]);
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn of_workers_that_have_both_gpus_open_each_has_its_memory_on_one() {
    let worker = |number: u32| Holder {
        devices: (0..2).map(|gpu| holder(500 + number, gpu).devices.remove(0)).collect(),
        memory: vec![HeldMemory { gpu: number, mib: 5546, source: "nvml".to_owned() }],
        ..holder(500 + number, 0)
    };
    let both = with_memory(Report { holders: vec![worker(0), worker(1)], ..report(2) }, &[5554, 5554]);
    let text = printed(&both);
    for cells in ["500  5546 on GPU 0", "501  5546 on GPU 1"] {
        assert!(text.contains(cells), "{cells}: {text}");
    }
    // The other one has been killed, and this one keeps something of what they had in common.
    let one = with_memory(Report { holders: vec![worker(1)], ..report(2) }, &[291, 5554]);
    let text = printed(&one);
    assert!(text.starts_with("GPU 1 is held by PID 501 (python3), 5546 MiB"), "{text}");
    assert!(text.contains("\nThe same processes hold GPU 0.\n"), "{text}");
    assert!(text.contains("501  5546 on GPU 1"), "{text}");
}

#[test]
fn who_computes_on_one_gpu_has_only_contexts_on_the_others() {
    let mut one = holder(500, 0);
    one.devices = (0..4).map(|gpu| holder(500, gpu).devices.remove(0)).collect();
    one.memory = vec![HeldMemory { gpu: 2, mib: 60_518, source: "nvml".to_owned() }];
    let input = with_memory(Report { holders: vec![one], ..report(4) }, &[3, 3, 60_526, 3]);
    let text = printed(&input);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("GPU 2 is held by PID 500"), "{text}");
    assert_eq!(lines[1], "Of GPU 0,1,3 they have no more than an idle context.");
    assert!(text.contains("gpu-tracer release 0-3"), "{text}");
}

#[test]
fn an_unknown_answer_says_why() {
    let mut input = Input::of(report(1));
    input.nvml = NvmlStatus::Hung {
        after: std::time::Duration::from_secs(2),
        during: "asking for processes".to_owned(),
    };
    input.report.coverage.complete = false;
    input.report.coverage.missing = vec![crate::model::report::MissingReport {
        what: "other-users".to_owned(),
        why: "descriptors of other users' processes cannot be read; run it as root".to_owned(),
    }];
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn a_name_that_is_no_text_looks_the_same_in_sentences_as_in_the_table() {
    let one = Holder {
        comm: crate::model::RawText::from(b"caf\xe9\\xe9".to_vec()),
        cmdline: "".into(),
        ..holder(7, 0)
    };
    let text = printed(&Input::of(Report { holders: vec![one], ..report(1) }));
    assert_eq!(text.matches("caf\\xe9\\\\xe9").count(), text.matches("caf").count(), "{text}");
    assert!(text.matches("caf").count() > 1, "{text}");
}

#[test]
fn gpus_that_are_unknown_for_the_same_reason_are_told_of_once() {
    let mut input = with_memory(report(4), &[1, 1, 3, 99]);
    input.report.coverage.complete = false;
    input.report.coverage.missing = vec![crate::model::report::MissingReport {
        what: "half-exited-task".to_owned(),
        why: "PID 428 (state D) is half-way through its exit: no scan can see what it has not released yet"
            .to_owned(),
    }];
    input.half_gone = vec![crate::diagnose::input::HalfGone {
        pid: 428,
        tid: 428,
        comm: "python3".into(),
        state: "D".to_owned(),
        stack: vec!["os_acquire_semaphore [nvidia]".to_owned()],
        ..Default::default()
    }];
    input.waits.insert(428, lasting());
    insta::assert_snapshot!(printed(&input));
}

#[test]
fn rows_are_one_per_gpu() {
    let mut input = with_memory(Report { holders: vec![stuck_thread(1)], ..report(2) }, &[1, 93_699]);
    input.waits.insert(440, lasting());
    let mut out = Vec::new();
    why(&diagnose(&input), Format::Csv { header: true }, &view(None), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_report_can_spoil_the_diagnosis(
        report in crate::render::tests::hostile::report(),
        width in prop::option::of(20..200usize),
    ) {
        let diagnosis = diagnose(&Input::of(report));
        let text = table(&diagnosis, &view(width));
        prop_assert_eq!(text.lines().find_map(crate::render::tests::hostile::first_deceptive), None);
        let mut out = Vec::new();
        for format in [Format::Json, Format::Csv { header: true }] {
            why(&diagnosis, format, &view(width), &mut out).unwrap();
        }
        if let Some(width) = width {
            // Commands are to be pasted: they alone may be wider.
            let too_wide = text.lines().filter(|line| !line.starts_with("       ")).find(|line| columns(line) > width);
            prop_assert_eq!(too_wide, None);
        }
    }
}

use super::*;
use proptest::prelude::*;

const WHOLE: &str = r#"{"fact":"asking","question":"load"}
{"fact":"library","name":"libnvidia-ml.so.1","driver":"580.159.04"}
{"fact":"asking","question":"count"}
{"fact":"count","gpus":1}
{"fact":"asking","question":"identity","gpu":0}
{"fact":"gpu","gpu":0,"minor":3,"uuid":"GPU-aa","bus_id":"00000000:0F:00.0","name":"NVIDIA H200"}
{"fact":"asking","question":"memory","gpu":0}
{"fact":"memory","gpu":0,"used":108030590976,"total":150754820096}
{"fact":"asking","question":"compute","gpu":0}
{"fact":"processes","gpu":0,"question":"compute","list":[{"pid":430,"bytes":108015910912}]}
{"fact":"asking","question":"graphics","gpu":0}
{"fact":"processes","gpu":0,"question":"graphics","list":[]}
{"fact":"asking","question":"mps","gpu":0}
{"fact":"refused","question":"mps","gpu":0,"reason":"not available","unsupported":true}
{"fact":"done"}
"#;

fn read(text: &[u8], ending: Ending) -> NvmlAnswer {
    let mut reading = Reading::default();
    reading.feed(text);
    reading.into_answer(ending)
}

fn closed() -> Ending {
    Ending::Closed("ended".to_owned())
}

#[test]
fn a_whole_conversation_is_complete_and_in_mib() {
    let answer = read(WHOLE.as_bytes(), closed());
    assert_eq!(answer.status, NvmlStatus::Complete);
    let gpu = &answer.gpus[0];
    assert_eq!(gpu.identity.bus_id.as_deref(), Some("0000:0f:00.0"));
    assert_eq!((gpu.identity.index, gpu.identity.minor), (0, Some(3)));
    assert_eq!((gpu.memory.used_mib, gpu.memory.total_mib), (Some(103_026), Some(143_771)));
    assert_eq!(gpu.memory.processes, [ProcessMemory { pid: 430, mib: Some(103_012) }]);
    assert!(gpu.processes_complete, "an MPS list that does not exist is not missing: {gpu:?}");
    assert_eq!(gpu.attribution().unattributed_mib, Some(14));
}

#[test]
fn figures_told_before_the_silence_are_kept_and_the_question_is_named() {
    let cut = WHOLE.find(r#"{"fact":"processes"#).expect("the text has it");
    let answer = read(&WHOLE.as_bytes()[..cut], Ending::Deadline(Duration::from_secs(2)));
    let during = "compute process list of GPU 0".to_owned();
    assert_eq!(answer.status, NvmlStatus::Hung { after: Duration::from_secs(2), during });
    assert_eq!(answer.gpus[0].memory.used_mib, Some(103_026));
    assert!(!answer.gpus[0].processes_complete);
    assert_eq!(answer.gpus[0].attribution().unattributed_mib, None, "nobody said who uses it");
}

#[test]
fn a_line_cut_short_is_not_believed() {
    let text = br#"{"fact":"library","name":"x","driver":null}
{"fact":"memory","gpu":0,"used":1048576,"total":2097152}"#;
    let answer = read(text, closed());
    assert!(answer.gpus.is_empty(), "{:?}", answer.gpus);
    assert!(matches!(answer.status, NvmlStatus::Failed(_)), "{:?}", answer.status);
}

#[test]
fn a_helper_that_dies_says_when() {
    let cut = WHOLE.find(r#"{"fact":"processes"#).expect("the text has it");
    let answer = read(&WHOLE.as_bytes()[..cut], Ending::Closed("died of signal 11".to_owned()));
    let expected = "the helper died of signal 11 during compute process list of GPU 0";
    assert_eq!(answer.status, NvmlStatus::Partial(expected.to_owned()));
}

#[test]
fn one_pid_in_two_lists_is_counted_once_and_in_two_instances_twice() {
    let text = r#"{"fact":"library","name":"x","driver":null}
{"fact":"count","gpus":1}
{"fact":"memory","gpu":0,"used":104857600,"total":209715200}
{"fact":"processes","gpu":0,"question":"compute","list":[{"pid":7,"bytes":10485760},{"pid":7,"bytes":10485760},{"pid":8,"bytes":1048576,"gpu_instance":1},{"pid":8,"bytes":2097152,"gpu_instance":2},{"pid":9,"bytes":null}]}
{"fact":"processes","gpu":0,"question":"graphics","list":[{"pid":7,"bytes":null}]}
{"fact":"processes","gpu":0,"question":"mps","list":[{"pid":8,"bytes":1048576,"gpu_instance":1}]}
{"fact":"done"}
"#;
    let answer = read(text.as_bytes(), closed());
    let figures: Vec<_> = answer.gpus[0].memory.processes.iter().map(|one| (one.pid, one.mib)).collect();
    assert_eq!(figures, [(7, Some(10)), (8, Some(3)), (9, None)]);
    let seven = answer.gpus[0].uses[0];
    assert!(seven.compute && seven.graphics && !seven.mps_client, "{seven:?}");
    assert!(answer.gpus[0].uses[1].mps_client);
}

#[test]
fn impossible_figures_are_unknown_and_said_aloud() {
    let text = format!(
        "{}\n{}\n{}\n{}\n",
        r#"{"fact":"library","name":"x","driver":null}"#,
        r#"{"fact":"count","gpus":1}"#,
        r#"{"fact":"memory","gpu":0,"used":18446744073709551615,"total":150754820096}"#,
        r#"{"fact":"done"}"#
    );
    let answer = read(text.as_bytes(), closed());
    assert!(answer.gpus.iter().all(|gpu| gpu.memory.used_mib.is_none()), "{:?}", answer.gpus);
    assert!(
        matches!(&answer.status, NvmlStatus::Partial(why) if why.contains("17592186044415 MiB used")),
        "{:?}",
        answer.status
    );
}

#[test]
fn nonsense_lines_are_counted_and_the_rest_is_kept() {
    let hostile = [
        "",
        "not json",
        "{\"fact\":\"memory\",\"gpu\":-1,\"used\":1,\"total\":2}",
        "{\"fact\":\"memory\",\"gpu\":4000000000,\"used\":1,\"total\":2}",
        "{\"fact\":\"weather\"}",
        "[[[[[[[[",
        "{\"fact\":\"gpu\",\"gpu\":0,\"uuid\":7}",
    ];
    let text =
        WHOLE.replace("{\"fact\":\"done\"}", &format!("{}\n{{\"fact\":\"done\"}}", hostile.join("\n")));
    let answer = read(text.as_bytes(), closed());
    assert_eq!(answer.status, NvmlStatus::Partial("7 lines of the helper made no sense".to_owned()));
    assert_eq!(answer.gpus.len(), 1);
    assert_eq!(answer.gpus[0].memory.used_mib, Some(103_026));
}

#[test]
fn nothing_after_the_last_fact_changes_the_answer() {
    let text = format!("{WHOLE}{}\n", r#"{"fact":"memory","gpu":0,"used":0,"total":2097152}"#);
    assert_eq!(read(text.as_bytes(), closed()).gpus[0].memory.used_mib, Some(103_026));
}

#[test]
fn control_characters_and_length_do_not_survive() {
    let name = format!("H200\u{1b}[31m{}", "x".repeat(10_000));
    let fact = Fact::Gpu { gpu: 0, minor: None, uuid: None, bus_id: Some("\n".into()), name: Some(name) };
    let line = format!("{}\n", serde_json::to_string(&fact).expect("a fact is JSON"));
    let gpu = &read(line.as_bytes(), closed()).gpus[0].identity;
    let name = gpu.name.as_deref().expect("a name");
    assert!(name.chars().count() <= LONGEST_TEXT && !name.chars().any(char::is_control), "{name:?}");
    assert_eq!(gpu.bus_id, None);
}

#[test]
fn a_gpu_that_was_counted_and_never_described_is_missing() {
    let text = WHOLE.replace("\"gpus\":1", "\"gpus\":2");
    let answer = read(text.as_bytes(), closed());
    assert_eq!(answer.status, NvmlStatus::Partial("some GPUs were not described".to_owned()));
}

#[test]
fn a_status_spells_out_a_few_reasons_only() {
    let mut reading = Reading::default();
    for gpu in 0..200 {
        let refused = Fact::Refused {
            question: Question::Memory,
            gpu: Some(gpu),
            reason: "gone".into(),
            unsupported: false,
        };
        reading.fact(refused);
    }
    let answer = reading.into_answer(closed());
    let text = answer.status.to_string();
    assert!(text.len() < 500 && text.ends_with("and 193 more"), "{text}");
    assert_eq!(answer.refusals.len(), 200, "nothing is dropped from the list itself");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fail(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let answer = read(&bytes, closed());
        prop_assert!(!matches!(answer.status, NvmlStatus::Complete), "{:?}", answer);
    }

    #[test]
    fn where_the_pipe_splits_the_text_does_not_matter(cuts in prop::collection::vec(0..WHOLE.len(), 0..20)) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let mut reading = Reading::default();
        let mut from = 0;
        for cut in cuts {
            reading.feed(&WHOLE.as_bytes()[from..cut]);
            from = cut;
        }
        reading.feed(&WHOLE.as_bytes()[from..]);
        prop_assert_eq!(reading.into_answer(closed()), read(WHOLE.as_bytes(), closed()));
    }

    #[test]
    fn an_early_end_is_never_complete(end in 0..WHOLE.len() - 1) {
        let answer = read(&WHOLE.as_bytes()[..end], closed());
        prop_assert!(!matches!(answer.status, NvmlStatus::Complete), "{end}: {:?}", answer.status);
    }

    #[test]
    fn attribution_never_exceeds_what_is_used(used: u64, total: u64, figures in prop::collection::vec(any::<Option<u64>>(), 0..8)) {
        let list = figures.iter().map(|bytes| ListedProcess { pid: 1, bytes: *bytes, gpu_instance: None, compute_instance: None }).collect();
        let mut reading = Reading::default();
        reading.fact(Fact::Memory { gpu: 0, used, total });
        for question in [Question::Compute, Question::Graphics, Question::Mps] {
            reading.fact(Fact::Processes { gpu: 0, question, list: Vec::clone(&list) });
        }
        let answer = reading.into_answer(closed());
        if let Some(rest) = answer.gpus[0].attribution().unattributed_mib {
            prop_assert!(rest <= used >> 20, "{rest} of {used}");
        }
    }
}

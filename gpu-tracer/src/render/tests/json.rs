use proptest::prelude::*;

use super::*;
use crate::model::report::Report;
use crate::render::tests::hostile;

fn written(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    write(value, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// What is given away in pieces.
fn whole(write: impl FnOnce(&mut dyn FnMut(Vec<u8>)) -> std::io::Result<()>) -> Vec<u8> {
    let mut all = Vec::new();
    write(&mut |piece| all.extend(piece)).unwrap();
    all
}

#[test]
fn deceptive_characters_are_escaped_and_others_are_not() {
    let text = "a\u{7f}\u{9b}\u{202e}\u{2028}\u{e0041}\x1b\"\\ Größe 日本";
    assert_eq!(written(&text), "\"a\\u007f\\u009b\\u202e\\u2028\\udb40\\udc41\\u001b\\\"\\\\ Größe 日本\"\n");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_printable_json_and_reads_back(bytes in hostile::hostile_bytes()) {
        let text = String::from_utf8_lossy(&bytes);
        let json = written(&text);
        prop_assert_eq!(hostile::first_deceptive(json.trim_end_matches('\n')), None, "{}", json);
        prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_report_is_printable_json_and_loses_no_holder(report in hostile::report()) {
        let json = written(&report);
        for line in json.lines() {
            prop_assert_eq!(hostile::first_deceptive(line), None, "{}", line);
        }
        let read: Report = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(written(&read), json, "what was read is written the same way");
        let pids = |report: &Report| report.holders.iter().map(|holder| holder.pid).collect::<Vec<_>>();
        prop_assert_eq!(pids(&read), pids(&report));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_line_of_an_answer_is_what_any_other_writer_of_the_contract_writes(mut report in hostile::report()) {
        // Files in a row that are alike, as thousands are: what is written of one must not be taken for another.
        report.files = report.files.iter().flat_map(|file| [file.clone(), file.clone()]).collect();
        let line = |value: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            value(&mut out);
            String::from_utf8(out).unwrap()
        };
        let expected = line(&|out| write_line(&report, out).unwrap());
        prop_assert_eq!(String::from_utf8(whole(|give| answer::report(&report, give))).unwrap(), expected);
        let mut fewer = serde_json::to_value(&report).unwrap();
        for member in ["cost", "gpus", "holders"] {
            fewer.as_object_mut().unwrap().remove(member);
        }
        let files: serde_json::Value = serde_json::from_slice(&whole(|give| answer::files(&report, give))).unwrap();
        prop_assert_eq!(files, fewer);
    }
}

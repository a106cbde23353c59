use proptest::prelude::*;

use super::*;
use crate::model::report::Report;
use crate::render::tests::hostile;

fn written(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    write(value, &mut out).unwrap();
    String::from_utf8(out).unwrap()
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

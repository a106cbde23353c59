use super::*;
use crate::render::history::tests::incident;

#[test]
fn every_slice_that_begins_ends_and_every_track_has_a_name() {
    let mut out = Vec::new();
    write(&incident("</script>\u{202e}"), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains('\u{202e}'));
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    assert_eq!((of("b").len(), of("e").len(), of("i").len(), of("C").len()), (1, 1, 1, 2));
    assert_eq!(of("b")[0]["id"], of("e")[0]["id"]);
    assert!(of("b")[0]["ts"].as_f64() < of("e")[0]["ts"].as_f64());
    assert_eq!(of("M")[0]["args"]["name"], "GPU 4");
    let named = of("M").iter().any(|event| event["name"] == "thread_name" && event["tid"] == 440);
    assert!(named, "{text}");
}

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::render::history::tests::incident;

fn trace(incident: &Incident) -> Vec<Value> {
    let mut out = Vec::new();
    write(incident, &mut out).unwrap();
    let document: Value = serde_json::from_slice(&out).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

fn of<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["ph"] == phase).collect()
}

/// A giver and a heir on the same GPU, the heir with files that overlap, and one that comes later.
fn handed_over() -> Incident {
    let mut incident = incident("worker");
    let first = incident.history.holdings[0].clone();
    let mut held = |pid: u32, from: Option<u32>, file: u64, since: &str, until: Option<&str>| {
        let mut held = first.clone();
        (held.process.pid, held.process.start_ns) = (pid, 7);
        held.from = from.map(|pid| Party { pid, start_ns: 7, ..Party::default() });
        (held.file, held.since) = (file, since.parse().unwrap());
        held.until = until.map(|until| until.parse().unwrap());
        incident.history.holdings.push(held);
    };
    held(991, None, 20, "2026-11-29T02:30:00Z", None);
    held(500, Some(991), 20, "2026-11-29T02:40:00Z", Some("2026-11-29T02:50:00Z"));
    held(500, None, 21, "2026-11-29T02:45:00Z", Some("2026-11-29T02:55:00Z"));
    held(500, None, 22, "2026-11-29T03:30:00Z", None);
    // Longer than the window.
    held(600, None, 23, "2026-11-28T00:00:00Z", None);
    incident
}

/// What the format demands of each event, by its phase.
fn check(events: &[Value]) {
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{key}: {event}"));
    let mut last = 0.0;
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let (mut named, mut used) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let phase = event["ph"].as_str().expect("a phase");
        assert!(event["name"].is_string() && event["pid"].as_u64().is_some_and(|pid| pid > 0), "{event}");
        if phase == "M" {
            assert_eq!(last, 0.0, "names come first: {event}");
            assert!(event["args"].is_object(), "{event}");
            named.insert((
                event["name"].as_str().unwrap().to_owned(),
                event["pid"].clone().to_string(),
                event["tid"].to_string(),
            ));
            continue;
        }
        let ts = number(event, "ts");
        assert!(ts >= last && ts > 1e15 && ts < 1e16, "us since 1970, in order: {event}");
        last = ts;
        let needs = |keys: &[&str]| {
            for key in keys {
                assert!(!event[*key].is_null(), "{key}: {event}");
            }
        };
        match phase {
            "X" => {
                needs(&["dur", "tid", "cat"]);
                let key = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                tracks.entry(key).or_default().push((ts, ts + number(event, "dur")));
                assert!(number(event, "dur") >= 0.0, "{event}");
                used.insert((event["pid"].to_string(), event["tid"].to_string()));
            }
            "i" => assert!(["g", "p", "t"].contains(&event["s"].as_str().unwrap()), "{event}"),
            "C" => assert!(event["args"].as_object().unwrap().values().all(Value::is_number), "{event}"),
            "s" => needs(&["id", "cat", "tid"]),
            "f" => {
                needs(&["id", "cat", "tid"]);
                assert_eq!(event["bp"], "e", "{event}");
            }
            other => panic!("phase {other}: {event}"),
        }
    }
    for (track, slices) in &tracks {
        for pair in slices.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "slices of track {track:?} overlap: {pair:?}");
        }
    }
    for (pid, tid) in used {
        assert!(named.contains(&("process_name".to_owned(), pid.clone(), "null".to_owned())), "{pid}");
        assert!(named.contains(&("thread_name".to_owned(), pid.clone(), tid.clone())), "{pid} {tid}");
    }
    // An arrow has both ends, and each is in a slice.
    let ends =
        |phase: &str| of(events, phase).iter().map(|event| event["id"].to_string()).collect::<Vec<_>>();
    assert_eq!(ends("s"), ends("f"));
    for end in of(events, "s").into_iter().chain(of(events, "f")) {
        let key = (end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap());
        let ts = end["ts"].as_f64().unwrap();
        assert!(tracks[&key].iter().any(|(from, to)| (*from..=*to).contains(&ts)), "{end}");
    }
}

#[test]
fn a_trace_keeps_the_rules_of_the_format_whatever_processes_are_called() {
    for name in ["worker", "</script>\u{202e}", "\"\n\\"] {
        let events = trace(&incident(name));
        check(&events);
        let text = serde_json::to_string(&events).unwrap();
        assert!(!text.contains('\u{202e}'), "{text}");
    }
    check(&trace(&handed_over()));
}

#[test]
fn gpus_are_groups_with_a_track_for_what_was_said_and_one_for_each_holder() {
    let events = trace(&handed_over());
    let named = |what: &str| -> Vec<&str> {
        let named = of(&events, "M").into_iter().filter(|event| event["name"] == what);
        named.filter_map(|event| event["args"]["name"].as_str()).collect()
    };
    assert_eq!(named("process_name"), ["GPU 4"]);
    // In the order in which they came.
    assert_eq!(
        named("thread_name"),
        ["verdict", "worker [600]", "worker [991]", "worker [500]", "worker [440]"]
    );
    let slices =
        |name: &str| of(&events, "X").into_iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let of_500 = slices("worker [500]");
    assert_eq!(of_500.len(), 2, "files that overlap are one slice");
    assert_eq!(of_500[0]["dur"], 15.0 * 60.0 * 1e6);
    assert!(of_500[0]["args"]["files"].as_str().unwrap().contains("#20"), "{}", of_500[0]);
    assert_eq!(slices("worker [600]")[0]["dur"], 2.0 * 3600.0 * 1e6, "no longer than the time asked about");
    assert_eq!(slices("stuck")[0]["args"]["exit status"], 4);
    assert_eq!((of(&events, "s").len(), of(&events, "C").len()), (1, 2));
    let killed = of(&events, "i")[0];
    assert_eq!(
        (&killed["name"], &killed["s"]),
        (&"killed".into(), &"t".into()),
        "on the track of whoever was killed"
    );
}

use jiff::tz::TimeZone;

use super::*;
use crate::model::happening::Happening;
use crate::model::history::{AtMoment, MemorySample};
use crate::render::text::is_deceptive;

fn moment(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// One holder that was killed, as the journal of an incident has it.
pub(crate) fn sample(name: &str) -> History {
    let by = Party { pid: 991, uid: Some(0), comm: name.into(), ..Party::default() };
    let process =
        Party { pid: 440, start_ns: 7, uid: Some(1000), comm: name.into(), cmdline: Some(name.into()) };
    let held = Holding {
        boot_id: "boot".to_owned(),
        device: "nvidia4".to_owned(),
        gpu: Some(4),
        file: 9,
        process: process.clone(),
        exe: Some(name.into()),
        cgroup: Some(name.into()),
        role: "compute".to_owned(),
        how: "inherited".to_owned(),
        from: Some(by.clone()),
        since: moment("2026-11-29T03:00:00Z"),
        since_ns: 1,
        until: Some(moment("2026-11-29T03:12:00.5Z")),
        until_ns: Some(2),
        ended: Some("exit".to_owned()),
        row: 1,
        boot: 1,
    };
    let fate = Fate {
        pid: 440,
        start_ns: 7,
        boot_id: "boot".to_owned(),
        at: Some(moment("2026-11-29T03:12:00Z")),
        signal: Some(9),
        by: Some(by.clone()),
        released_us: Some(160_432),
        ..Fate::default()
    };
    let killed = Happening {
        at: "2026-11-29T03:12:00.000Z".to_owned(),
        what: "killed".to_owned(),
        process: Some(process.clone()),
        by: vec![by.clone()],
        signal: Some(9),
        exact: true,
        ..Happening::default()
    };
    let life = Life {
        process,
        boot_id: "boot".to_owned(),
        names: vec![name.into(), "other".into()],
        exe: Some(name.into()),
        cgroup: Some(name.into()),
        ancestors: vec![by],
        from: moment("2026-11-29T03:00:00Z"),
        to: moment("2026-11-29T03:12:00.5Z"),
        over: true,
    };
    History {
        schema: 1,
        host: Some(name.to_owned()),
        from: moment("2026-11-29T02:00:00Z"),
        to: moment("2026-11-29T04:00:00Z"),
        at: None,
        coverage: Coverage { complete: true, holes: Vec::new() },
        holdings: vec![held],
        unheld: Vec::new(),
        verdicts: vec![VerdictSpan {
            boot_id: "boot".to_owned(),
            gpu: Some(4),
            since: moment("2026-11-29T03:00:01Z"),
            until: moment("2026-11-29T03:11:51Z"),
            verdict: "stuck".to_owned(),
            status: 4,
            headline: format!("GPU 4 is held by PID 440 ({name}), which SIGKILL does not end."),
        }],
        fates: vec![fate],
        events: vec![killed],
        lives: vec![life],
        more_events: false,
    }
}

/// The same as an incident, for reports.
pub(crate) fn incident(name: &str) -> crate::model::history::Incident {
    let history = sample(name);
    let asked = moment("2026-11-29T03:05:00Z");
    let then = History { at: Some(AtMoment { asked, answered: Some(asked) }), ..history.clone() };
    let used = |at: &str, mib| MemorySample {
        at: moment(at),
        gpu: 4,
        used_mib: Some(mib),
        total_mib: Some(143_771),
    };
    crate::model::history::Incident {
        lives: history.lives.clone(),
        history,
        then,
        samples: vec![used("2026-11-29T03:00:00Z", 1), used("2026-11-29T03:10:00Z", 93_699)],
        helpers: 0,
        gpus: vec![crate::model::Gpu {
            index: 4,
            name: Some(name.to_owned()),
            ..crate::model::Gpu::default()
        }],
        boots: vec![crate::model::history::BootFacts {
            boot_id: name.to_owned(),
            host: Some(name.to_owned()),
            kernel: Some(name.to_owned()),
            from: moment("2026-11-29T02:00:00Z"),
            to: moment("2026-11-29T04:00:00Z"),
            daemons: vec![name.to_owned()],
        }],
        record_begin: moment("2026-11-29T02:00:00Z"),
        record_end: moment("2026-11-29T04:00:00Z"),
    }
}

fn printed(history: &History, format: Format, width: Option<usize>) -> String {
    let view = View { width, color: false, expand: false, user: &|_| None };
    let mut out = Vec::new();
    super::history(history, format, &TimeZone::UTC, &view, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_killed_holder_reads_in_one_line_with_who_ended_it_and_how_long_the_release_took() {
    let history = History { lives: Vec::new(), events: Vec::new(), ..sample("worker") };
    let text = printed(&history, Format::Table, None);
    for wanted in [
        "1 process held GPU 4 between 2026-11-29 02:00:00.000 and 2026-11-29 04:00:00.000.",
        "440",
        "2026-11-29 03:00:00.000  2026-11-29 03:12:00.500  12m 0s",
        "inherited from worker[991]",
        "SIGKILL from worker[991], released 160 ms later",
        "The record of this time is complete.",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[test]
fn the_last_lines_are_the_gaps_and_the_status_is_3() {
    let hole = Hole {
        from: moment("2026-11-29T03:00:00Z"),
        to: moment("2026-11-29T03:01:00Z"),
        cause: "ring-full".to_owned(),
        events: Some(12),
    };
    let coverage = Coverage { complete: false, holes: vec![hole] };
    let history =
        History { coverage, holdings: Vec::new(), lives: Vec::new(), events: Vec::new(), ..sample("x") };
    let text = printed(&history, Format::Table, None);
    assert!(text.starts_with("Nobody is known to have held a device"), "{text}");
    assert!(
        text.ends_with(
            "1 gap:\n  2026-11-29 03:00:00.000 to 2026-11-29 03:01:00.000  ring-full, 12 events\n"
        ),
        "{text}"
    );
    assert_eq!(exit_status(&history), ExitStatus::Unknown);
    assert_eq!(exit_status(&sample("x")), ExitStatus::Free);
}

#[test]
fn what_was_said_of_a_gpu_is_told_with_its_status_and_a_gpu_that_was_only_free_is_not() {
    let mut history = History { lives: Vec::new(), events: Vec::new(), ..sample("worker") };
    let free = VerdictSpan {
        gpu: Some(0),
        verdict: "free".to_owned(),
        status: 0,
        headline: "GPU 0 is free.".to_owned(),
        ..history.verdicts[0].clone()
    };
    history.verdicts.push(free);
    let text = printed(&history, Format::Table, None);
    let line =
        "2026-11-29 03:00:01.000 to 2026-11-29 03:11:51.000  stuck (exit status 4): GPU 4 is held by PID 440";
    assert!(text.contains(line) && !text.contains("GPU 0 is free"), "{text}");
    let asked = moment("2026-11-29T03:05:00Z");
    let then = History { at: Some(AtMoment { asked, answered: Some(asked) }), ..history };
    assert!(printed(&then, Format::Table, None).contains("GPU 0 is free"));
}

#[test]
fn infrastructure_and_our_own_helper_are_counted_and_listed_when_asked_for() {
    let mut history =
        History { lives: Vec::new(), events: Vec::new(), verdicts: Vec::new(), ..sample("worker") };
    let mut add = |pid: u32, comm: &str, role: &str, until: Option<&str>| {
        let mut held = history.holdings[0].clone();
        (held.process.pid, held.process.comm) = (pid, comm.into());
        (held.role, held.until) = (role.to_owned(), until.map(moment));
        history.holdings.push(held);
    };
    add(812, "nvidia-persiste", "infrastructure", None);
    add(900, "gpu-tracer-nvml", "own-helper", Some("2026-11-29T03:00:01Z"));
    add(901, "gpu-tracer-nvml", "own-helper", Some("2026-11-29T03:00:02Z"));
    // It should have been gone long ago.
    add(902, "gpu-tracer-nvml", "own-helper", None);
    let text = printed(&history, Format::Table, None);
    assert!(text.starts_with("2 processes held GPU 4"), "{text}");
    let line = "Not listed: 1 process of infrastructure (nvidia-persiste[812]), and 2 short-lived processes in which this \
                program asked NVML. --all lists everything.";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n902") || text.contains(" 902"), "{text}");
    let view = View { width: None, color: false, expand: true, user: &|_| None };
    let mut out = Vec::new();
    super::history(&history, Format::Table, &TimeZone::UTC, &view, &mut out).unwrap();
    let all = String::from_utf8(out).unwrap();
    assert!(all.starts_with("5 processes") && !all.contains("Not listed"), "{all}");
    let json = printed(&history, Format::Json, None);
    assert!(json.contains("812") && json.contains("900"), "programs get everything: {json}");
    history.holdings.retain(|held| held.role == "infrastructure");
    let text = printed(&history, Format::Table, None);
    assert!(text.starts_with("Nobody but infrastructure held GPU 4"), "never a plain nobody: {text}");
}

#[test]
fn a_moment_in_a_gap_is_answered_with_what_was_known_before_and_says_so() {
    let (asked, answered) = (moment("2026-11-29T03:05:00Z"), moment("2026-11-29T03:00:00Z"));
    let coverage = Coverage { complete: false, holes: Vec::new() };
    let at = Some(AtMoment { asked, answered: Some(answered) });
    let history = History { at, coverage, lives: Vec::new(), ..sample("x") };
    let text = printed(&history, Format::Table, None);
    assert!(
        text.starts_with(
            "Of 2026-11-29 03:05:00.000 nothing is known. 1 process held GPU 4 at 2026-11-29 03:00:00.000, the last"
        ),
        "{text}"
    );
    let never = History { at: Some(AtMoment { asked, answered: None }), ..history };
    assert!(printed(&never, Format::Table, None).contains("does not go back so far"));
}

#[test]
fn no_name_reaches_the_terminal_or_a_spreadsheet_as_it_is() {
    let evil = "=\x1b[2J\u{202e}\n\",;";
    for history in [sample(evil), History { lives: Vec::new(), ..sample(evil) }] {
        for (format, width) in [
            (Format::Table, None),
            (Format::Table, Some(80)),
            (Format::Json, None),
            (Format::Csv { header: true }, None),
        ] {
            let text = printed(&history, format, width);
            assert!(!text.chars().any(|ch| ch != '\n' && is_deceptive(ch)), "{format:?}: {text:?}");
        }
    }
    let csv = printed(&sample(evil), Format::Csv { header: false }, None);
    assert_eq!(csv.lines().count(), 1, "{csv}");
    assert!(csv.contains("\"'=\\x1b[2J"), "no formula: {csv}");
}

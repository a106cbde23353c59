//! What the answers look like, and that no report whatsoever can spoil them.

pub(crate) mod hostile;
mod samples;

use proptest::prelude::*;

use super::text::{columns, is_deceptive};
use super::*;
use crate::model::report::{FileReport, Holder};

fn user(uid: u32) -> Option<String> {
    match uid {
        0 => Some("root".to_owned()),
        1000 => Some("alice".to_owned()),
        _ => None,
    }
}

fn view(width: Option<usize>) -> View<'static> {
    View { width, color: false, expand: false, user: &user }
}

fn piped(report: &Report) -> String {
    table::holders(report, &view(None))
}

fn on_terminal(report: &Report, width: usize) -> String {
    table::holders(report, &view(Some(width)))
}

fn live() -> Report {
    Report { holders: vec![samples::python(428)], ..samples::empty(1) }
}

fn stuck() -> Report {
    Report {
        holders: vec![samples::stuck_thread()],
        ..samples::with_memory(samples::empty(1), &[102_927], &[9])
    }
}

#[test]
fn nobody() {
    insta::assert_snapshot!(piped(&samples::empty(8)));
}

#[test]
fn nobody_with_memory_figures() {
    insta::assert_snapshot!(piped(&samples::with_memory(samples::empty(2), &[1, 93_699], &[1, 93_699])));
}

#[test]
fn nobody_on_a_host_without_gpus() {
    insta::assert_snapshot!(piped(&samples::empty(0)));
}

#[test]
fn unknown() {
    insta::assert_snapshot!(on_terminal(&samples::incomplete(samples::empty(8)), 80));
}

#[test]
fn held_and_perhaps_by_more() {
    insta::assert_snapshot!(piped(&samples::incomplete(live())));
}

#[test]
fn one_live_holder() {
    insta::assert_snapshot!(piped(&live()));
}

#[test]
fn one_live_holder_on_80_columns() {
    insta::assert_snapshot!(on_terminal(&live(), 80));
}

#[test]
fn thread_of_a_defunct_leader_in_d_state() {
    insta::assert_snapshot!(piped(&stuck()));
}

#[test]
fn thread_of_a_defunct_leader_in_d_state_on_80_columns() {
    insta::assert_snapshot!(on_terminal(&stuck(), 80));
}

#[test]
fn thread_of_a_defunct_leader_in_d_state_on_40_columns() {
    insta::assert_snapshot!(on_terminal(&stuck(), 40));
}

#[test]
fn fifty_children_of_a_dead_parent() {
    insta::assert_snapshot!(on_terminal(&samples::children(false), 120));
}

#[test]
fn fifty_renamed_children_with_scattered_pids() {
    insta::assert_snapshot!(on_terminal(&samples::children(true), 120));
}

#[test]
fn in_flight_only() {
    insta::assert_snapshot!(on_terminal(&samples::in_flight(), 100));
}

#[test]
fn eight_renamed_workers_on_eight_gpus() {
    insta::assert_snapshot!(on_terminal(&samples::renamed_workers(), 120));
}

#[test]
fn eight_renamed_workers_into_a_pipe() {
    insta::assert_snapshot!(piped(&samples::renamed_workers()));
}

#[test]
fn eight_renamed_workers_unfolded() {
    let view = View { expand: true, ..view(Some(160)) };
    insta::assert_snapshot!(table::holders(&samples::renamed_workers(), &view));
}

#[test]
fn eight_gpus_in_different_conditions() {
    insta::assert_snapshot!(on_terminal(&samples::mixed(), 100));
}

#[test]
fn hostile_names() {
    insta::assert_snapshot!(on_terminal(&samples::hostile(), 100));
}

#[test]
fn hostile_names_as_csv() {
    let mut out = Vec::new();
    holders(&samples::hostile(), Format::Csv { header: true }, &view(None), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn released_files_without_a_process() {
    let mut report = samples::mixed();
    report.holders.clear();
    report.files.retain(|file| file.state == "releasing");
    report.coverage.complete = true;
    insta::assert_snapshot!(piped(&report));
}

#[test]
fn colours_mark_what_matters() {
    let view = View { color: true, ..view(Some(100)) };
    insta::assert_snapshot!(table::holders(&stuck(), &view).replace('\x1b', "ESC"));
}

#[test]
fn the_first_line_answers_the_question() {
    let first = |report: &Report| piped(report).lines().next().unwrap_or_default().to_owned();
    let shared = Report {
        holders: vec![Holder {
            devices: vec![samples::device("nvidiactl", None, 1, 0)],
            ..samples::python(9)
        }],
        ..samples::empty(2)
    };
    let other_device = Report {
        gpus: Vec::new(),
        holders: vec![Holder {
            devices: vec![samples::device("dri/renderD128", None, 1, 0)],
            ..samples::python(9)
        }],
        ..samples::empty(0)
    };
    let dying = Holder { exiting: true, sigkill_pending: true, ..samples::python(430) };
    let three = Report {
        holders: vec![samples::stuck_thread(), dying.clone(), samples::python(431)],
        ..samples::empty(2)
    };
    let cases = [
        (samples::empty(1), "Nobody holds GPU 0."),
        (samples::empty(3), "Nobody holds GPU 0-2."),
        (live(), "GPU 0 is held by 1 process."),
        (stuck(), "GPU 0 is held by 1 process (it will not react to SIGKILL)."),
        (
            Report { holders: vec![dying], ..samples::empty(1) },
            "GPU 0 is held by 1 process (it is already dying).",
        ),
        (
            three,
            "GPU 0 is held by 3 processes (1 will not react to SIGKILL, 1 is already dying). Nobody holds GPU 1.",
        ),
        (
            shared,
            "No GPU's own device is held, but nvidiactl is, by 1 process, and can keep memory of any GPU in use.",
        ),
        (other_device, "dri/renderD128 is held by 1 process."),
    ];
    for (report, expected) in cases {
        assert_eq!(first(&report), expected);
    }
}

#[test]
fn exit_status_is_held_whenever_anything_is_open_and_free_only_after_a_complete_look() {
    let orphan: FileReport = samples::in_flight().files.remove(0);
    let unexplained = FileReport { unexplained: 1, ..orphan.clone() };
    let mut without_reason = samples::empty(1);
    without_reason.coverage.complete = false;
    let cases = [
        (samples::empty(1), ExitStatus::Free),
        (samples::incomplete(samples::empty(1)), ExitStatus::Unknown),
        (without_reason, ExitStatus::Unknown),
        (live(), ExitStatus::Held),
        (samples::incomplete(live()), ExitStatus::Held),
        (Report { files: vec![orphan], ..samples::empty(1) }, ExitStatus::Held),
        (samples::incomplete(Report { files: vec![unexplained], ..samples::empty(1) }), ExitStatus::Held),
    ];
    for (report, expected) in cases {
        assert_eq!(exit_status(&report), expected, "{report:?}");
    }
}

#[test]
fn formats_are_known_by_their_names_only() {
    for name in Format::NAMES {
        assert!(name.parse::<Format>().is_ok(), "{name}");
    }
    let error = "csv,\x1b[2J".parse::<Format>().unwrap_err().to_string();
    assert_eq!(error, "`csv,\\x1b[2J` is no format: use table, json, csv or csv,noheader");
}

#[test]
fn every_pid_is_in_the_table_folded_or_not() {
    let report = samples::children(true);
    let unfolded = table::holders(&report, &View { expand: true, ..view(Some(80)) });
    for holder in &report.holders {
        assert!(unfolded.contains(&holder.pid.to_string()), "{} is missing in\n{unfolded}", holder.pid);
    }
}

#[test]
fn running_and_sleeping_workers_are_alike_and_dying_ones_are_not() {
    let mut report = samples::children(false);
    for (holder, state) in report.holders.iter_mut().zip(["S", "R", "R"].into_iter().cycle()) {
        holder.state = state.to_owned();
    }
    let text = piped(&report);
    assert!(text.contains("50 x 481-530  alice  S, R"), "{text}");
    report.holders[7].state = "R".to_owned();
    report.holders[7].exiting = true;
    let text = piped(&report);
    assert!(text.contains("R exiting") && text.contains("49 x"), "{text}");
}

#[test]
fn twenty_thousand_holders_with_names_of_their_own_are_no_burden() {
    let names =
        (0..20_000).map(|at| Holder { comm: format!("{at}x").as_str().into(), ..samples::python(1000 + at) });
    let report = Report { holders: names.collect(), ..samples::empty(1) };
    let begun = std::time::Instant::now();
    let text = on_terminal(&report, 100);
    assert!(text.contains("20000 x 1000-20999"), "{text}");
    // Quadratic work takes minutes here.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_report_can_break_the_table(report in hostile::report(), width in 20_usize..200, expand in any::<bool>()) {
        let bounded = table::holders(&report, &View { expand, ..view(Some(width)) });
        let unbounded = table::holders(&report, &View { expand, ..view(None) });
        for text in [&bounded, &unbounded] {
            prop_assert_eq!(text.chars().find(|ch| *ch != '\n' && is_deceptive(*ch)), None, "{}", text);
            prop_assert!(text.ends_with('\n') && !text.starts_with('\n'));
        }
        for line in bounded.lines() {
            prop_assert!(columns(line) <= width, "{} of {} columns: {}", columns(line), width, line);
            prop_assert_eq!(line, line.trim_end());
        }
        // The answer on the first line agrees with the exit status.
        let says = |word: &str| unbounded.starts_with(word);
        match exit_status(&report) {
            ExitStatus::Free => prop_assert!(says("Nobody holds"), "{}", unbounded),
            ExitStatus::Unknown => prop_assert!(says("Unknown:"), "{}", unbounded),
            _ => prop_assert!(!says("Nobody") && !says("Unknown"), "{}", unbounded),
        }
    }

    #[test]
    fn no_holder_is_lost_in_the_unfolded_table(report in hostile::report()) {
        let text = table::holders(&report, &View { expand: true, ..view(None) });
        for holder in &report.holders {
            prop_assert!(text.contains(&holder.pid.to_string()), "{} is missing in\n{}", holder.pid, text);
        }
    }
}

#[test]
fn a_long_answer_comes_in_pieces_of_which_none_is_long() {
    let mut report = samples::in_flight();
    report.files = vec![report.files[0].clone(); 10_000];
    let mut lengths = Vec::new();
    super::json::answer::report(&report, |piece| lengths.push(piece.len())).unwrap();
    assert!(lengths.len() > 10 && lengths.iter().all(|length| *length <= 64 << 10), "{lengths:?}");
}

//! What works here, as a table. The first line is the outcome; what to do stands below each check that needs it.

use super::View;
use super::columns::{Cell, Column, Detail, Place, Row, Tone, lay_out};
use super::text::{escape_str, wrap};
use crate::model::doctor::{Ability, Answer, Check, DoctorReport, FoundDevice, Need};

const CHECKS: [Column; 4] = [
    Column { title: "CHECK", label: "check", place: Place::Fixed, cap: 30, right: false, free: false },
    Column { title: "WORKS", label: "works", place: Place::Fixed, cap: 10, right: false, free: false },
    Column { title: "NEEDED", label: "needed", place: Place::Short(2), cap: 10, right: false, free: false },
    Column { title: "DETAIL", label: "detail", place: Place::Flow(1), cap: 120, right: false, free: false },
];

const DEVICES: [Column; 4] = [
    Column { title: "DEVICE", label: "device", place: Place::Fixed, cap: 40, right: false, free: false },
    Column { title: "NUMBER", label: "number", place: Place::Fixed, cap: 20, right: false, free: false },
    Column { title: "GPU", label: "GPU", place: Place::Short(2), cap: 8, right: false, free: false },
    Column {
        title: "KNOWN FROM",
        label: "known from",
        place: Place::Short(1),
        cap: 40,
        right: false,
        free: false,
    },
];

/// The whole answer to `gpu-tracer doctor`, ending in a line feed.
#[must_use]
pub fn doctor(report: &DoctorReport, view: &View<'_>) -> String {
    let mut out = headline(report, view);
    if !report.checks.is_empty() {
        let rows: Vec<Row> = report.checks.iter().map(check).collect();
        out.push('\n');
        out.push_str(&lay_out(&CHECKS, &rows, view));
    }
    out.push('\n');
    if report.devices.is_empty() {
        let text = "No GPU devices are known here. `--device MAJOR:MINOR=NAME` makes any character device count as one.";
        out.push_str(&lines(text, Tone::Warn, view));
    } else {
        let rows: Vec<Row> = report.devices.iter().map(device).collect();
        out.push_str(&lay_out(&DEVICES, &rows, view));
    }
    out
}

fn headline(report: &DoctorReport, view: &View<'_>) -> String {
    let (verdict, tone) = match report.ability {
        Ability::Full => ("Fully able.", Tone::Good),
        Ability::Degraded => ("Degraded: some answers will be \"unknown\".", Tone::Warn),
        Ability::Unable => ("Cannot work here.", Tone::Bad),
    };
    let text = format!(
        "{verdict} Plan: {}. Kernel {}, gpu-tracer {}.",
        escape_str(&report.plan),
        escape_str(&report.kernel),
        escape_str(&report.version)
    );
    lines(&text, tone, view)
}

fn lines(text: &str, tone: Tone, view: &View<'_>) -> String {
    let lines = view.width.map_or_else(|| vec![text.to_owned()], |width| wrap(text, width));
    lines.iter().map(|line| tone.paint(line, view.color) + "\n").collect()
}

fn check(check: &Check) -> Row {
    let (word, tone) = match (check.answer, check.need) {
        (Answer::Yes, _) => ("yes", Tone::Good),
        (Answer::No, Need::Optional) => ("no", Tone::Plain),
        (Answer::No, _) => ("no", Tone::Bad),
        (Answer::Denied, Need::Optional) => ("denied", Tone::Plain),
        (Answer::Denied, _) => ("denied", Tone::Bad),
        (Answer::Degraded, _) => ("degraded", Tone::Warn),
    };
    let need = match check.need {
        Need::Essential => "essential",
        Need::Wanted => "wanted",
        Need::Optional => "optional",
    };
    let cells = vec![
        escape_str(&check.name).into(),
        Cell { text: word.to_owned(), tone },
        need.to_owned().into(),
        escape_str(&check.detail).into(),
    ];
    let remedy = check.remedy.as_deref().map(|remedy| Detail::new("to do", escape_str(remedy)));
    Row { cells, details: remedy.into_iter().collect() }
}

fn device(device: &FoundDevice) -> Row {
    let gpu = device.gpu.map_or_else(|| "shared".to_owned(), |gpu| gpu.to_string());
    let texts = [escape_str(&device.name), escape_str(&device.number), gpu, escape_str(&device.source)];
    Row { cells: texts.into_iter().map(Cell::from).collect(), details: Vec::new() }
}

#[cfg(test)]
#[path = "tests/doctor.rs"]
mod tests;

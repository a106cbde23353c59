//! What the answer cannot vouch for: open files that nobody holds, references that nobody explains, places that could not be looked at.

use std::collections::BTreeMap;

use super::super::View;
use super::super::columns::Tone;
use super::super::ranges::ranges;
use super::super::text::escape_str;
use super::{Summary, paragraph};
use crate::model::report::FileReport;
use crate::model::{counted, seconds};

/// Open files that no holder refers to.
pub(super) fn orphans(summary: &Summary<'_>, view: &View<'_>) -> String {
    if summary.orphans.is_empty() {
        return String::new();
    }
    let mut by_state: BTreeMap<(&str, &str), Vec<&FileReport>> = BTreeMap::new();
    for file in &summary.orphans {
        by_state.entry((&file.device, &file.state)).or_default().push(file);
    }
    let mut out = paragraph("Open files that no process holds:", 0, Tone::Bad, view);
    for ((device, state), files) in by_state {
        let mut text = format!(
            "{}: {}, {}",
            escape_str(device),
            counted(files.len(), "open file", "open files"),
            escape_str(state)
        );
        if let Some((task, ms)) = files.iter().find_map(|file| Some((file.task?, file.for_ms?))) {
            text.push_str(&format!(" by task {} of PID {} for {}", task.tid, task.pid, seconds(ms)));
        } else if let Some(ms) = files.iter().filter_map(|file| file.for_ms).max() {
            text.push_str(&format!(" for {}", seconds(ms)));
        }
        let openers: Vec<String> = files
            .iter()
            .filter_map(|file| file.opener.as_ref())
            .map(|opener| opener.pid.to_string())
            .collect();
        if let Some(pid) = openers.first() {
            let all = openers.iter().all(|other| other == pid);
            text.push_str(&format!(", opened by PID {pid}{}", if all { "" } else { " and others" }));
        }
        out.push_str(&paragraph(&text, 2, Tone::Plain, view));
    }
    out
}

/// Everything that keeps the answer from being complete, and what would help.
pub(super) fn section(summary: &Summary<'_>, view: &View<'_>) -> String {
    if summary.complete {
        return String::new();
    }
    let mut out = paragraph("NOT EVERYTHING COULD BE SEEN:", 0, Tone::Warn, view);
    let unexplained = unexplained(summary);
    let mut reasons: Vec<String> = Vec::new();
    // What is said below of each device need not be said of all together.
    let told = |what: &str| what == "unexplained-references" && !unexplained.is_empty();
    for missing in summary.report.coverage.missing.iter().filter(|missing| !told(&missing.what)) {
        let text = format!("{}: {}", escape_str(&missing.what), escape_str(&missing.why));
        if !reasons.contains(&text) {
            reasons.push(text);
        }
    }
    reasons.extend(unexplained);
    if reasons.is_empty() {
        reasons.push("no reason is recorded; `gpu-tracer doctor` says what works here".to_owned());
    }
    for reason in reasons {
        out.push_str(&paragraph(&reason, 2, Tone::Plain, view));
    }
    out
}

fn unexplained(summary: &Summary<'_>) -> Vec<String> {
    let mut by_device: BTreeMap<&str, Vec<&FileReport>> = BTreeMap::new();
    for file in summary.report.files.iter().filter(|file| file.unexplained > 0) {
        by_device.entry(&file.device).or_default().push(file);
    }
    let describe = |(device, files): (&str, Vec<&FileReport>)| {
        let left = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.unexplained));
        let all = files.iter().try_fold(0_u64, |sum, file| Some(sum.saturating_add(file.references?)));
        let of = all.map_or_else(String::new, |all| format!(" of {all}"));
        let which = ranges(files.iter().map(|file| file.id));
        let belong = if left == 1 { "belongs" } else { "belong" };
        let noun = if files.len() == 1 { "open file" } else { "open files" };
        format!(
            "references: {left}{of} to {} ({noun} {which}) {belong} to nobody that could be named: the kernel itself, a task half-way \
             through its exit, or a queue that cannot be walked. Ask again in a second: what stays is real.",
            escape_str(device)
        )
    };
    by_device.into_iter().map(describe).collect()
}

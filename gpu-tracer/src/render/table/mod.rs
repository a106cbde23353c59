//! The answer for people. The first line answers the question; everything below it is why.
//!
//! In order: who holds what in one sentence; one line per GPU where there is more to say (equal GPUs together); the holders, worst first,
//! holders that are alike in one row; open files that no process holds; what could not be seen and what would help.
//!
//! On a terminal nothing is wider than the terminal. Into a pipe or a file every holder is one line of whatever length, followed by
//! indented lines with what has no column.

mod cells;
mod gpus;
mod groups;
mod headline;
mod holders;
mod unseen;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::View;
use super::columns::Tone;
use super::text::wrap;
use crate::model::report::{FileReport, Holder, Report};

/// The whole answer to `gpu-tracer holders`, ending in a line feed.
#[must_use]
pub fn holders(report: &Report, view: &View<'_>) -> String {
    let summary = Summary::of(report);
    let sections = [
        headline::section(&summary, view),
        gpus::section(&summary, view),
        holders::section(report, view),
        unseen::orphans(&summary, view),
        unseen::section(&summary, view),
    ];
    let sections: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
    sections.join("\n")
}

/// What the sections need to know of the whole report.
struct Summary<'a> {
    report: &'a Report,
    /// Was everything seen and explained?
    complete: bool,
    /// GPUs whose own node is held, by whom: places in `report.holders`.
    by_gpu: BTreeMap<u32, Vec<usize>>,
    /// Holders of nothing but devices that all GPUs share.
    shared_only: Vec<usize>,
    /// Open files that no holder refers to.
    orphans: Vec<&'a FileReport>,
}

impl<'a> Summary<'a> {
    fn of(report: &'a Report) -> Self {
        let mut by_gpu: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut shared_only = Vec::new();
        for (at, holder) in report.holders.iter().enumerate() {
            let gpus: BTreeSet<u32> = holder.devices.iter().filter_map(|device| device.gpu).collect();
            if gpus.is_empty() {
                shared_only.push(at);
            }
            for gpu in gpus {
                by_gpu.entry(gpu).or_default().push(at);
            }
        }
        let held: HashSet<u64> = report
            .holders
            .iter()
            .flat_map(|holder| &holder.devices)
            .flat_map(|device| &device.files)
            .copied()
            .collect();
        let orphans = report.files.iter().filter(|file| !held.contains(&file.id)).collect();
        Self { report, complete: super::is_complete(report), by_gpu, shared_only, orphans }
    }

    /// Processes among these holders; a process may appear more than once, with threads that have fd tables of their own.
    fn processes(&self, holders: impl IntoIterator<Item = usize>) -> BTreeSet<(u32, u64)> {
        holders
            .into_iter()
            .map(|at| &self.report.holders[at])
            .map(|holder| (holder.pid, holder.start_ns))
            .collect()
    }

    /// The GPUs asked about, and those that turned out to be held.
    fn gpus(&self) -> BTreeSet<u32> {
        self.report.gpus.iter().map(|gpu| gpu.index).chain(self.by_gpu.keys().copied()).collect()
    }
}

/// Will a SIGKILL do nothing?
fn is_stuck(holder: &Holder) -> bool {
    let said = |word: &str| holder.why.iter().any(|why| why == word);
    said("stuck-in-kernel") || (holder.sigkill_pending && !holder.exiting && holder.state == "D")
}

/// Is it on its way out already?
fn is_dying(holder: &Holder) -> bool {
    let said = |word: &str| holder.why.iter().any(|why| why == word);
    !is_stuck(holder) && (holder.exiting || holder.sigkill_pending || said("exiting") || said("releasing"))
}

/// Running text in lines that fit, in one tone.
fn paragraph(text: &str, indent: usize, tone: Tone, view: &View<'_>) -> String {
    let lines = match view.width {
        Some(width) => wrap(text, width.saturating_sub(indent)),
        None => vec![text.trim_end().to_owned()],
    };
    lines.iter().map(|line| format!("{:indent$}{}\n", "", tone.paint(line, view.color))).collect()
}

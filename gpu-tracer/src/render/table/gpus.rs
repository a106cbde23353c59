//! One line per GPU; GPUs of which the same is to be said share one.

use super::super::View;
use super::super::columns::{Cell, Column, Place, Row, Tone, lay_out};
use super::super::ranges::ranges;
use super::super::text::escape_str;
use super::{Summary, is_stuck};
use crate::model::counted;
use crate::model::report::GpuReport;

const COLUMNS: [Column; 6] = [
    Column { title: "GPU", label: "GPU", place: Place::Fixed, cap: 24, right: false, free: false },
    Column { title: "NODE", label: "node", place: Place::Short(2), cap: 20, right: false, free: false },
    Column { title: "NAME", label: "name", place: Place::Short(4), cap: 30, right: false, free: true },
    Column {
        title: "MiB USED",
        label: "MiB used",
        place: Place::Short(1),
        cap: 30,
        right: true,
        free: false,
    },
    Column {
        title: "UNATTRIBUTED",
        label: "unattributed",
        place: Place::Short(3),
        cap: 30,
        right: true,
        free: false,
    },
    Column { title: "HELD BY", label: "held by", place: Place::Fixed, cap: 80, right: false, free: false },
];

/// What is known of each GPU; empty where the first line has said it all.
pub(super) fn section(summary: &Summary<'_>, view: &View<'_>) -> String {
    let mut lines: Vec<(Vec<u32>, Vec<Cell>)> = Vec::new();
    for index in summary.gpus() {
        let cells = cells(summary, index);
        match lines
            .iter_mut()
            .find(|(_, known)| known.iter().map(|cell| &cell.text).eq(cells.iter().map(|cell| &cell.text)))
        {
            Some((gpus, _)) => gpus.push(index),
            None => lines.push((vec![index], cells)),
        }
    }
    let memory_known = summary.report.gpus.iter().any(|gpu| gpu.memory_used_mib.is_some());
    if lines.len() < 2 && !memory_known {
        return String::new();
    }
    let rows: Vec<Row> = lines
        .into_iter()
        .map(|(gpus, rest)| {
            let first = Cell::from(ranges(gpus.into_iter().map(u64::from)));
            Row { cells: std::iter::once(first).chain(rest).collect(), details: Vec::new() }
        })
        .collect();
    lay_out(&COLUMNS, &rows, view)
}

/// Everything but the index.
fn cells(summary: &Summary<'_>, index: u32) -> Vec<Cell> {
    let unknown = GpuReport { index, ..GpuReport::default() };
    let gpu = summary.report.gpus.iter().find(|gpu| gpu.index == index).unwrap_or(&unknown);
    // Index and minor are different numbers; only where they differ is it worth a column.
    let node = gpu
        .minor
        .filter(|minor| *minor != index)
        .map_or_else(String::new, |minor| format!("/dev/nvidia{minor}"));
    let name = gpu.name.as_deref().map(escape_str).unwrap_or_default();
    let used = match (gpu.memory_used_mib, gpu.memory_total_mib) {
        (Some(used), Some(total)) => format!("{used} of {total}"),
        (Some(used), None) => used.to_string(),
        (None, _) => String::new(),
    };
    let unattributed = gpu.unattributed_mib.map_or_else(String::new, |mib| mib.to_string());
    vec![node.into(), name.into(), used.into(), unattributed.into(), held_by(summary, index)]
}

fn held_by(summary: &Summary<'_>, index: u32) -> Cell {
    let holders = summary.by_gpu.get(&index).cloned().unwrap_or_default();
    let stuck =
        summary.processes(holders.iter().copied().filter(|at| is_stuck(&summary.report.holders[*at]))).len();
    let processes = summary.processes(holders).len();
    let orphans = summary.orphans.iter().filter(|file| file.gpu == Some(index)).count();
    let mut parts = Vec::new();
    if processes > 0 {
        parts.push(counted(processes, "process", "processes"));
    }
    match stuck {
        0 => {}
        all if all == processes => {
            parts.push(if all == 1 { "stuck".to_owned() } else { "all stuck".to_owned() })
        }
        some => parts.push(format!("{some} of them stuck")),
    }
    if orphans > 0 {
        parts.push(format!("{} of no process", counted(orphans, "open file", "open files")));
    }
    let (text, tone) = match () {
        () if !parts.is_empty() => {
            (parts.join(", "), if stuck + orphans > 0 { Tone::Bad } else { Tone::Plain })
        }
        () if !summary.complete => ("nobody that could be seen".to_owned(), Tone::Warn),
        // Whoever holds a shared device may well keep this GPU's memory: that is not free.
        () if !summary.shared_only.is_empty() => ("nobody directly".to_owned(), Tone::Warn),
        () => ("nobody".to_owned(), Tone::Good),
    };
    Cell { text, tone }
}

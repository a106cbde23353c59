//! The table of holders, worst first.

use std::collections::HashMap;

use super::super::View;
use super::super::columns::{Cell, Column, Detail, Place, Row, Tone, lay_out};
use super::super::text::escape_str;
use super::{cells, groups, is_dying, is_stuck};
use crate::model::report::{FileReport, Holder, Report};

const COLUMNS: [Column; 13] = [
    Column { title: "GPU", label: "GPU", place: Place::Fixed, cap: 16, right: false, free: false },
    Column { title: "PID", label: "PID", place: Place::Fixed, cap: 30, right: false, free: false },
    Column { title: "TID", label: "thread", place: Place::Fixed, cap: 10, right: false, free: false },
    Column {
        title: "NSPID",
        label: "PID in its namespace",
        place: Place::Short(6),
        cap: 10,
        right: false,
        free: false,
    },
    Column { title: "USER", label: "user", place: Place::Short(3), cap: 16, right: false, free: true },
    Column { title: "STATE", label: "state", place: Place::Fixed, cap: 24, right: false, free: true },
    Column { title: "MiB", label: "memory", place: Place::Short(1), cap: 30, right: true, free: false },
    Column { title: "AGE", label: "age", place: Place::Short(5), cap: 16, right: true, free: false },
    Column { title: "WHY", label: "why", place: Place::Movable(2), cap: 60, right: false, free: true },
    Column { title: "HOLDS", label: "holds", place: Place::Movable(10), cap: 72, right: false, free: false },
    Column { title: "WHERE", label: "where", place: Place::Movable(9), cap: 56, right: false, free: true },
    Column { title: "EXECUTABLE", label: "exe", place: Place::Movable(8), cap: 48, right: false, free: true },
    Column {
        title: "COMMAND",
        label: "command",
        place: Place::Stretch(7),
        cap: 60,
        right: false,
        free: true,
    },
];

/// The holders; empty where there are none.
pub(super) fn section(report: &Report, view: &View<'_>) -> String {
    if report.holders.is_empty() {
        return String::new();
    }
    let files: HashMap<u64, &FileReport> = report.files.iter().map(|file| (file.id, file)).collect();
    let mut holders: Vec<&Holder> = report.holders.iter().collect();
    holders.sort_by_cached_key(|holder| {
        let gpu = holder.devices.iter().filter_map(|device| device.gpu).min().unwrap_or(u32::MAX);
        (urgency(holder), std::cmp::Reverse(cells::memory_total(holder)), gpu, holder.pid, holder.tid)
    });
    let groups = groups::group(&holders, view.expand);
    let rows: Vec<Row> = groups.iter().map(|group| row(group, &files, report, view)).collect();
    lay_out(&COLUMNS, &rows, view)
}

/// Lower comes first.
fn urgency(holder: &Holder) -> u8 {
    match () {
        () if is_stuck(holder) => 0,
        () if holder.role == "infrastructure" || holder.why.iter().any(|why| why == "infrastructure") => 2,
        () => 1,
    }
}

fn row(group: &[&Holder], files: &HashMap<u64, &FileReport>, report: &Report, view: &View<'_>) -> Row {
    let first = group[0];
    let tone = match () {
        () if is_stuck(first) => Tone::Bad,
        () if is_dying(first) => Tone::Warn,
        () => Tone::Plain,
    };
    let (pids, long_pids) = groups::pids(group);
    let one = |number: u32| {
        if group.len() == 1 && number != first.pid { number.to_string() } else { String::new() }
    };
    let user = (view.user)(first.uid).map_or_else(|| first.uid.to_string(), |name| escape_str(&name));
    let ages: Vec<u64> = group.iter().filter_map(|holder| cells::age_s(holder, &report.taken_at)).collect();
    let exes = group.iter().find_map(|holder| cells::other_exe(holder));
    let inside = if first.pid_in_ns == 0 { String::new() } else { one(first.pid_in_ns) };
    let cells = vec![
        cells::gpus(first).into(),
        Cell { text: pids, tone: Tone::Strong },
        one(first.tid).into(),
        inside.into(),
        user.into(),
        Cell { text: groups::each(group, cells::state), tone },
        memory(group).into(),
        groups::span(&ages, cells::age, "").into(),
        Cell { text: cells::why(first), tone },
        cells::held(first).into(),
        cells::place(first).into(),
        exes.unwrap_or_default().into(),
        groups::each(group, cells::command).into(),
    ];
    let mut details = details(group, files);
    details.extend(long_pids.map(|pids| Detail::new("PIDs", pids)));
    Row { cells, details }
}

fn memory(group: &[&Holder]) -> String {
    match group {
        [one] => cells::memory(one),
        _ => {
            let figures: Vec<u64> = group
                .iter()
                .filter(|holder| !holder.memory.is_empty())
                .map(|holder| cells::memory_total(holder))
                .collect();
            groups::span(&figures, |mib| mib.to_string(), " each")
        }
    }
}

/// What has no column: where it waits, who opened what it holds.
fn details(group: &[&Holder], files: &HashMap<u64, &FileReport>) -> Vec<Detail> {
    let first = group[0];
    let mut details = Vec::new();
    if is_stuck(first) || is_dying(first) || first.state == "D" {
        let waits = cells::waits(first).map(|text| Detail { tone: Tone::Bad, ..Detail::new("waits", text) });
        details.extend(waits);
        details.extend(cells::stack(first).map(|text| Detail::new("stack", text)));
    }
    if first.tid != first.pid && first.tids.len() > 1 {
        let tids = super::super::ranges::ranges(first.tids.iter().copied().map(u64::from));
        details.push(Detail::new("threads", tids));
    }
    let held = group.iter().flat_map(|holder| &holder.devices).flat_map(|device| &device.files);
    let mut ids: Vec<u64> = held.copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let held: Vec<&FileReport> = ids.iter().filter_map(|id| files.get(id).copied()).collect();
    details.extend(
        cells::openers(first, &held).map(|text| Detail { free: true, ..Detail::new("opened", text) }),
    );
    details
}

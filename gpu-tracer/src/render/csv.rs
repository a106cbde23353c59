//! One row per holder and device, for spreadsheets and scripts.
//!
//! * Text is escaped as on a terminal ([`super::text`]), so a row is always one line. Lines end with a line feed.
//! * Quoting follows RFC 4180; a field with a semicolon is quoted as well, because some spreadsheets split there.
//! * A text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-`, `@`, a tab or a carriage return) gets a `'` in
//!   front. So does a text that begins with `'`: dropping one leading `'` always gives the text back.
//! * `memory_mib` stands once per holder and GPU, in the first row of that GPU, so the column can be summed up. Memory on a GPU
//!   whose node the holder does not have open gets a row without a device.

use std::collections::BTreeMap;
use std::io;

use super::text::escape;
use crate::model::RawText;
use crate::model::report::{HeldDevice, Holder, Report};

/// The columns, in order.
pub const COLUMNS: [&str; 22] = [
    "gpu",
    "device",
    "pid",
    "tid",
    "state",
    "leader_state",
    "uid",
    "comm",
    "cmdline",
    "exe",
    "container",
    "unit",
    "job",
    "role",
    "why",
    "fds",
    "maps",
    "in_flight",
    "io_uring",
    "memory_mib",
    "started_at",
    "cgroup",
];

/// Writes the holders of a report, with or without the line of column names.
///
/// # Errors
/// What `out` says.
pub fn write(report: &Report, header: bool, out: &mut dyn io::Write) -> io::Result<()> {
    if header {
        writeln!(out, "{}", COLUMNS.join(","))?;
    }
    for holder in &report.holders {
        for (device, memory) in rows(holder) {
            writeln!(out, "{}", row(holder, &device, memory).join(","))?;
        }
    }
    Ok(())
}

fn row(holder: &Holder, device: &HeldDevice, memory: Option<u64>) -> [String; 22] {
    let known = |text: &Option<RawText>| text.as_ref().map_or_else(String::new, |text| field(&text.0));
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    [
        number(device.gpu.map(u64::from)),
        field(device.device.as_bytes()),
        holder.pid.to_string(),
        holder.tid.to_string(),
        field(holder.state.as_bytes()),
        field(holder.leader_state.as_bytes()),
        holder.uid.to_string(),
        field(&holder.comm.0),
        field(&holder.cmdline.0),
        known(&holder.exe),
        known(&holder.container),
        known(&holder.unit),
        known(&holder.job),
        field(holder.role.as_bytes()),
        field(holder.why.join(" ").as_bytes()),
        device.fds.to_string(),
        device.maps.to_string(),
        device.in_flight.to_string(),
        device.io_uring.to_string(),
        number(memory),
        field(holder.started_at.as_deref().unwrap_or_default().as_bytes()),
        known(&holder.cgroup),
    ]
}

/// Each device with what stands in its `memory_mib`. At least one row: a holder is never lost.
fn rows(holder: &Holder) -> Vec<(HeldDevice, Option<u64>)> {
    let mut memory: BTreeMap<u32, u64> = BTreeMap::new();
    for held in &holder.memory {
        let sum = memory.entry(held.gpu).or_default();
        *sum = sum.saturating_add(held.mib);
    }
    let with_device = holder.devices.iter().map(|device| {
        let mib = device.gpu.and_then(|gpu| memory.remove(&gpu));
        (device.clone(), mib)
    });
    let mut rows: Vec<_> = with_device.collect();
    rows.extend(
        memory
            .into_iter()
            .map(|(gpu, mib)| (HeldDevice { gpu: Some(gpu), ..HeldDevice::default() }, Some(mib))),
    );
    if rows.is_empty() {
        rows.push((HeldDevice::default(), None));
    }
    rows
}

/// One text field: escaped, safe from formulas, quoted where needed.
pub(super) fn field(bytes: &[u8]) -> String {
    let mut text = escape(bytes);
    if would_calculate(bytes) {
        text.insert(0, '\'');
    }
    if text.contains([',', '"', ';']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Would a spreadsheet take this for a formula? The full-width signs count too: some locales type them.
fn would_calculate(bytes: &[u8]) -> bool {
    let first = bytes.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
    matches!(first, Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\'' | '＝' | '＋' | '－' | '＠'))
}

#[cfg(test)]
#[path = "tests/csv.rs"]
mod tests;

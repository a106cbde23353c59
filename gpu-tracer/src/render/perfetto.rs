//! An incident as a trace that <https://ui.perfetto.dev> opens: the JSON trace event format, a process for each GPU, a thread
//! for each holder.

use std::collections::BTreeSet;
use std::io;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::text::{escape, escape_str};
use super::watch;
use crate::model::RawText;
use crate::model::history::{Holding, Incident};

/// Shared devices are shown as the GPU of this number.
const SHARED: u32 = 1_000;

/// Writes it.
///
/// # Errors
/// What `out` says.
pub fn write(incident: &Incident, out: &mut dyn io::Write) -> io::Result<()> {
    let mut events: Vec<Value> = Vec::new();
    let mut named = BTreeSet::new();
    for held in &incident.history.holdings {
        let (gpu, pid) = (held.gpu.unwrap_or(SHARED), held.process.pid);
        if named.insert((gpu, None)) {
            let name = held.gpu.map_or_else(|| "shared devices".to_owned(), |gpu| format!("GPU {gpu}"));
            events.push(json!({"ph": "M", "name": "process_name", "pid": gpu, "args": {"name": name}}));
        }
        if named.insert((gpu, Some(pid))) {
            let name = format!("{} [{pid}]", text(&held.process.comm));
            events.push(
                json!({"ph": "M", "name": "thread_name", "pid": gpu, "tid": pid, "args": {"name": name}}),
            );
        }
        events.extend(slice(held, gpu, incident));
    }
    for event in &incident.history.events {
        let Ok(at) = event.at.parse::<Timestamp>() else { continue };
        let (scope, gpu) = event.gpu.map_or(("g", SHARED), |gpu| ("t", gpu));
        events.push(json!({
            "ph": "i", "s": scope, "name": escape_str(&event.what), "ts": us(at), "pid": gpu,
            "tid": event.process.as_ref().map_or(0, |process| process.pid),
            "args": {"what": watch::who_and_more(event)},
        }));
    }
    for sample in &incident.samples {
        if let Some(mib) = sample.used_mib {
            let args = json!({"MiB": mib});
            events.push(json!({"ph": "C", "name": "memory used", "ts": us(sample.at), "pid": sample.gpu, "args": args}));
        }
    }
    let host = incident.history.host.as_deref().map(escape_str);
    let document = json!({
        "displayTimeUnit": "ms",
        "otherData": {"host": host, "complete": incident.history.coverage.complete},
        "traceEvents": events,
    });
    super::json::write_line(&document, out)
}

/// Files of one process overlap, which slices of one thread must not: asynchronous ones may.
fn slice(held: &Holding, gpu: u32, incident: &Incident) -> [Value; 2] {
    let id = format!("{}-{}-{}", held.file, held.process.pid, held.since_ns);
    let until = held.until.unwrap_or(incident.history.to);
    let event = |phase: &str, at: Timestamp| {
        json!({
            "ph": phase, "cat": "holding", "id": id, "name": format!("{} [{}] {}", text(&held.process.comm), held.process.pid,
            escape_str(&held.device)), "ts": us(at), "pid": gpu, "tid": held.process.pid,
            "args": {"file": held.file, "how": held.how, "ended": held.ended, "role": held.role,
                     "command": held.process.cmdline.as_ref().map(text)},
        })
    };
    [event("b", held.since.max(incident.history.from)), event("e", until.max(held.since))]
}

/// µs since 1970, with the digits of ns.
fn us(at: Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e3
}

fn text(raw: &RawText) -> String {
    escape(&raw.0)
}

#[cfg(test)]
#[path = "tests/perfetto.rs"]
mod tests;

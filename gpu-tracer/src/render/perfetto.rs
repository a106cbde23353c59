//! An incident as a trace that <https://ui.perfetto.dev> opens: the JSON trace event format, with a group of tracks for each
//! GPU and in it one track for what was said of it, one for each holder, and one for its memory.
//!
//! A slice is the time for which a process held the GPU, by however many files; an arrow leads from whoever gave a file away
//! to whoever got it. Times are us since 1970. Track numbers are ours: a PID may be used again, and a process holds several
//! GPUs.

use std::collections::{BTreeMap, HashMap};
use std::io;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::text::{escape, escape_str};
use super::watch;
use crate::model::RawText;
use crate::model::happening::Party;
use crate::model::history::{Holding, Incident, VerdictSpan};

/// Devices that all GPUs share come after all GPUs.
const SHARED: u32 = 1_000;

/// Writes it.
///
/// # Errors
/// What `out` says.
pub fn write(incident: &Incident, out: &mut dyn io::Write) -> io::Result<()> {
    let host = incident.history.host.as_deref().map(escape_str);
    let document = json!({
        "displayTimeUnit": "ms",
        "otherData": {"host": host, "complete": incident.history.coverage.complete},
        "traceEvents": Trace::of(incident).events(),
    });
    super::json::write_line(&document, out)
}

/// A boot's process: its number, and its start.
type Who<'a> = (&'a str, u32, u64);

/// A stretch for which a process held a GPU.
struct Slice<'a> {
    from: Timestamp,
    to: Timestamp,
    held: Vec<&'a Holding>,
}

struct Trace<'a> {
    incident: &'a Incident,
    /// Metadata, which comes first.
    names: Vec<Value>,
    /// The rest, by time.
    timed: Vec<(Timestamp, Value)>,
    /// Numbers of tracks, from 1.
    tracks: HashMap<(u32, Option<Who<'a>>), usize>,
    /// Of these processes, by PID and start.
    places: HashMap<(u32, u64), Vec<(u32, usize)>>,
    /// Slices of a track.
    spans: HashMap<usize, Vec<(Timestamp, Timestamp)>>,
    arrows: usize,
}

impl<'a> Trace<'a> {
    fn of(incident: &'a Incident) -> Self {
        let (names, timed, tracks) = (Vec::new(), Vec::new(), HashMap::new());
        let (places, spans) = (HashMap::new(), HashMap::new());
        let mut trace = Self { incident, names, timed, tracks, places, spans, arrows: 0 };
        let mut gpus: BTreeMap<u32, BTreeMap<Who<'a>, Vec<&'a Holding>>> = BTreeMap::new();
        for held in &incident.history.holdings {
            let who = (held.boot_id.as_str(), held.process.pid, held.process.start_ns);
            gpus.entry(group(held.gpu)).or_default().entry(who).or_default().push(held);
        }
        for span in &incident.history.verdicts {
            gpus.entry(group(span.gpu)).or_default();
        }
        for (gpu, processes) in &gpus {
            trace.begin_group(*gpu);
            let mut processes: Vec<_> = processes.iter().collect();
            processes.sort_by_key(|(who, held)| (held.iter().map(|held| held.since).min(), **who));
            for (order, (who, held)) in processes.into_iter().enumerate() {
                let name = held.last().map_or_else(String::new, |last| name(&last.process));
                let track = trace.begin_track(*gpu, Some(*who), &name, order + 1);
                for slice in trace.slices(held) {
                    trace.hold(*gpu, track, &slice);
                }
            }
        }
        for span in &incident.history.verdicts {
            trace.say(span);
        }
        for held in &incident.history.holdings {
            trace.hand_over(held);
        }
        trace.happen();
        trace.measure();
        trace
    }

    fn events(mut self) -> Vec<Value> {
        // What encloses comes before what is enclosed, which was added later.
        self.timed.sort_by_key(|(at, _)| *at);
        self.names.into_iter().chain(self.timed.into_iter().map(|(_, event)| event)).collect()
    }

    fn begin_group(&mut self, gpu: u32) {
        let known = self.incident.gpus.iter().find(|known| known.index == gpu);
        let label = known.map(|gpu| {
            let parts = [&gpu.name, &gpu.uuid, &gpu.bus_id].into_iter().flatten();
            parts.map(|text| escape_str(text)).collect::<Vec<_>>().join(", ")
        });
        let name = if gpu == SHARED { "Shared devices".to_owned() } else { format!("GPU {gpu}") };
        self.metadata("process_name", gpu, None, json!({"name": name}));
        self.metadata("process_sort_index", gpu, None, json!({"sort_index": gpu}));
        if let Some(label) = label.filter(|label| !label.is_empty()) {
            self.metadata("process_labels", gpu, None, json!({"labels": label}));
        }
        self.begin_track(gpu, None, "verdict", 0);
    }

    fn begin_track(&mut self, gpu: u32, who: Option<Who<'a>>, name: &str, order: usize) -> usize {
        let track = self.tracks.len() + 1;
        self.tracks.insert((gpu, who), track);
        if let Some((_, pid, start_ns)) = who {
            self.places.entry((pid, start_ns)).or_default().push((gpu, track));
        }
        self.metadata("thread_name", gpu, Some(track), json!({"name": name}));
        self.metadata("thread_sort_index", gpu, Some(track), json!({"sort_index": order}));
        track
    }

    fn metadata(&mut self, what: &str, gpu: u32, track: Option<usize>, args: Value) {
        let mut event = json!({"ph": "M", "name": what, "pid": pid(gpu), "args": args});
        if let Some(track) = track {
            event["tid"] = track.into();
        }
        self.names.push(event);
    }

    /// Files of one process overlap, which slices of one track must not: files that do are one slice.
    fn slices(&self, held: &[&'a Holding]) -> Vec<Slice<'a>> {
        let history = &self.incident.history;
        let mut held: Vec<&Holding> = held.to_vec();
        held.sort_by_key(|held| (held.since, held.file));
        let mut slices: Vec<Slice<'a>> = Vec::new();
        for held in held {
            let from = held.since.max(history.from);
            let to = held.until.unwrap_or(history.to).min(history.to).max(from);
            match slices.last_mut() {
                Some(last) if last.to >= from => {
                    last.to = last.to.max(to);
                    last.held.push(held);
                }
                _ => slices.push(Slice { from, to, held: vec![held] }),
            }
        }
        slices
    }

    fn hold(&mut self, gpu: u32, track: usize, slice: &Slice<'_>) {
        let Some(last) = slice.held.last() else { return };
        let files: Vec<String> = slice
            .held
            .iter()
            .map(|held| {
                let ended = held.ended.as_deref().map_or_else(|| "still held".to_owned(), escape_str);
                format!("{} #{} ({}; {ended})", escape_str(&held.device), held.file, escape_str(&held.how))
            })
            .collect();
        let args = json!({
            "pid": last.process.pid, "user id": last.process.uid, "files": files.join(", "), "role": escape_str(&last.role),
            "command": last.process.cmdline.as_ref().map(text), "executable": last.exe.as_ref().map(text),
        });
        self.span(gpu, track, "holding", &name(&last.process), (slice.from, slice.to), &args);
    }

    fn say(&mut self, span: &VerdictSpan) {
        let gpu = group(span.gpu);
        let Some(track) = self.tracks.get(&(gpu, None)).copied() else { return };
        let history = &self.incident.history;
        let from = span.since.max(history.from);
        let to = span.until.min(history.to).max(from);
        let args = json!({"headline": escape_str(&span.headline), "exit status": span.status});
        self.span(gpu, track, "verdict", &escape_str(&span.verdict), (from, to), &args);
    }

    fn span(
        &mut self,
        gpu: u32,
        track: usize,
        category: &str,
        name: &str,
        (from, to): (Timestamp, Timestamp),
        args: &Value,
    ) {
        let lasted = (to.as_nanosecond() - from.as_nanosecond()) as f64 / 1e3;
        let event = json!({
            "ph": "X", "cat": category, "name": name, "ts": us(from), "dur": lasted, "pid": pid(gpu), "tid": track, "args": args,
        });
        self.timed.push((from, event));
        self.spans.entry(track).or_default().push((from, to));
    }

    /// An arrow from whoever gave the file away, where both held the GPU in this time.
    fn hand_over(&mut self, held: &'a Holding) {
        let history = &self.incident.history;
        let Some(giver) = &held.from else { return };
        let gpu = group(held.gpu);
        let track =
            |pid, start_ns| self.tracks.get(&(gpu, Some((held.boot_id.as_str(), pid, start_ns)))).copied();
        let (from, to) = (track(giver.pid, giver.start_ns), track(held.process.pid, held.process.start_ns));
        let (Some(from), Some(to)) = (from, to) else { return };
        let covers = |track: &usize| {
            self.spans
                .get(track)
                .is_some_and(|spans| spans.iter().any(|(begin, end)| (*begin..=*end).contains(&held.since)))
        };
        if held.since < history.from || !covers(&from) || !covers(&to) {
            return;
        }
        self.arrows += 1;
        for (phase, track) in [("s", from), ("f", to)] {
            let mut event = json!({
                "ph": phase, "cat": "hand-over", "name": escape_str(&held.how), "id": self.arrows, "ts": us(held.since),
                "pid": pid(gpu), "tid": track,
            });
            if phase == "f" {
                // To the slice that it is in, not to the next one.
                event["bp"] = "e".into();
            }
            self.timed.push((held.since, event));
        }
    }

    /// Where a process is known on a GPU, on its track there; otherwise on all of it.
    fn happen(&mut self) {
        let incident = self.incident;
        for event in &incident.history.events {
            let Ok(at) = event.at.parse::<Timestamp>() else { continue };
            let who = event.process.as_ref().map(|process| (process.pid, process.start_ns));
            let known = who.and_then(|who| self.places.get(&who)).into_iter().flatten();
            let places: Vec<(u32, usize)> =
                known.filter(|(gpu, _)| event.gpu.is_none_or(|of| of == *gpu)).copied().collect();
            let mut line = json!({
                "ph": "i", "cat": "event", "name": escape_str(&event.what), "ts": us(at),
                "args": {"what": watch::who_and_more(event)},
            });
            if places.is_empty() {
                (line["s"], line["pid"], line["tid"]) = ("g".into(), pid(group(event.gpu)).into(), 0.into());
                self.timed.push((at, line));
                continue;
            }
            for (gpu, track) in places {
                (line["s"], line["pid"], line["tid"]) = ("t".into(), pid(gpu).into(), track.into());
                self.timed.push((at, line.clone()));
            }
        }
    }

    fn measure(&mut self) {
        let incident = self.incident;
        for sample in &incident.samples {
            let Some(mib) = sample.used_mib else { continue };
            let event = json!({
                "ph": "C", "name": "memory used", "ts": us(sample.at), "pid": pid(sample.gpu), "args": {"MiB": mib},
            });
            self.timed.push((sample.at, event));
        }
    }
}

fn group(gpu: Option<u32>) -> u32 {
    gpu.unwrap_or(SHARED)
}

/// The number of a group: 0 would be the kernel's idle task.
fn pid(gpu: u32) -> u32 {
    gpu + 1
}

/// us since 1970, with the digits of ns.
fn us(at: Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e3
}

fn name(process: &Party) -> String {
    format!("{} [{}]", text(&process.comm), process.pid)
}

fn text(raw: &RawText) -> String {
    escape(&raw.0)
}

#[cfg(test)]
#[path = "tests/perfetto.rs"]
mod tests;

//! `/metrics`: the status in the Prometheus text format. No process appears in it: their names would be labels without
//! number, and others may read it.

use std::fmt::Write as _;

use super::status::Status;

/// The document.
pub(super) fn text(status: &Status) -> String {
    let mut page = Page(String::new());
    page.head("gpu_tracer_build_info", "gauge", "Version and plan of the running daemon.");
    page.line("gpu_tracer_build_info", &[("version", &status.version), ("plan", &status.plan)], 1.0);
    page.head("gpu_tracer_complete", "gauge", "1 if the last look could see everything.");
    page.line("gpu_tracer_complete", &[], f64::from(u8::from(status.coverage.complete)));
    page.head("gpu_tracer_open_files", "gauge", "Open files of GPU devices, by state.");
    for (device, states) in &status.files {
        for (state, count) in states {
            page.line("gpu_tracer_open_files", &[("device", device), ("state", state)], *count as f64);
        }
    }
    page.head("gpu_tracer_holders", "gauge", "Processes that hold a GPU device.");
    for (device, count) in &status.holders {
        page.line("gpu_tracer_holders", &[("device", device)], *count as f64);
    }
    page.head("gpu_tracer_events_lost_total", "counter", "Events that were not told, by cause.");
    for (cause, count) in &status.losses {
        page.line("gpu_tracer_events_lost_total", &[("cause", cause)], *count as f64);
    }
    page.head(
        "gpu_tracer_drift_total",
        "counter",
        "Differences between the record and what was found, by kind.",
    );
    let drift = &status.drift;
    for (kind, count) in [
        ("unannounced", drift.unannounced),
        ("vanished", drift.vanished),
        ("replaced", drift.replaced),
        ("racing", drift.racing),
        ("dangling", drift.dangling),
        ("stale", drift.stale),
    ] {
        page.line("gpu_tracer_drift_total", &[("kind", kind)], count as f64);
    }
    page.head(
        "gpu_tracer_gap_open_since_seconds",
        "gauge",
        "Since when the record lacks something, Unix time, by cause; none while nothing is missing.",
    );
    for gap in &status.open_gaps {
        page.line("gpu_tracer_gap_open_since_seconds", &[("cause", &gap.cause)], gap.since_unix);
    }
    let journal = &status.journal;
    let writing = u8::from(journal.state == crate::journal::State::Writing);
    page.head(
        "gpu_tracer_journal_writing",
        "gauge",
        "1 while history is written; 0: halted, or none is kept.",
    );
    page.line("gpu_tracer_journal_writing", &[], f64::from(writing));
    let counts = &status.counts;
    for (name, kind, help, value) in [
        ("gpu_tracer_files_pending", "gauge", "Open files on their way out.", counts.pending as f64),
        (
            "gpu_tracer_processes_tracked",
            "gauge",
            "Processes that the kernel tells of.",
            counts.tracked as f64,
        ),
        ("gpu_tracer_subscribers", "gauge", "Readers of the stream of events.", counts.subscribers as f64),
        ("gpu_tracer_events_total", "counter", "Events taken in.", counts.events as f64),
        ("gpu_tracer_changes_total", "counter", "Changes told.", counts.changes as f64),
        ("gpu_tracer_looks_total", "counter", "Looks at the kernel.", counts.looks as f64),
        ("gpu_tracer_rechecks_total", "counter", "Looks at files on their way out.", counts.rechecks as f64),
        ("gpu_tracer_answers_total", "counter", "Answers to who holds what.", counts.answers as f64),
        (
            "gpu_tracer_gaps_total",
            "counter",
            "Holes in the record that a look has closed.",
            counts.gaps as f64,
        ),
        (
            "gpu_tracer_last_look_seconds",
            "gauge",
            "How long the last look took.",
            status.last_look.took_us as f64 / 1e6,
        ),
        ("gpu_tracer_journal_records_total", "counter", "Records committed.", journal.records as f64),
        (
            "gpu_tracer_journal_dropped_total",
            "counter",
            "Records not kept; each is in a gap.",
            journal.dropped as f64,
        ),
        ("gpu_tracer_journal_bytes", "gauge", "Size of the journal.", journal.bytes as f64),
        ("process_resident_memory_bytes", "gauge", "Memory in use.", status.rss_kib as f64 * 1024.0),
        ("process_cpu_seconds_total", "counter", "Processor time used.", status.cpu_seconds),
    ] {
        page.head(name, kind, help);
        page.line(name, &[], value);
    }
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// As the format demands.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_every_series_has_a_type() {
        let mut page = Page(String::new());
        page.head("x_total", "counter", "Some.");
        page.line("x_total", &[("device", "a\"b\\c\nd")], 3.0);
        page.line("x_total", &[], 0.5);
        assert_eq!(
            page.0,
            "# HELP x_total Some.\n# TYPE x_total counter\nx_total{device=\"a\\\"b\\\\c\\nd\"} 3\nx_total 0.5\n"
        );
    }
}

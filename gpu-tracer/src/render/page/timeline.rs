//! The drawing: a lane for each GPU, a bar for each process that held it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{colour, html, verdict};
use crate::model::history::{Holding, Incident, MemorySample};
use crate::render::history::time;

/// Where bars begin: names stand to the left.
const LEFT: f64 = 230.0;
const WIDTH: f64 = 960.0;
const ROW: f64 = 20.0;
const CURVE: f64 = 46.0;
const TICKS: usize = 7;
/// Processes that get a row of their own in a lane.
const ROWS: usize = 40;

/// A lane grows downwards.
struct Drawing<'a> {
    incident: &'a Incident,
    zone: &'a TimeZone,
    out: String,
    y: f64,
}

pub(super) fn section(incident: &Incident, zone: &TimeZone) -> String {
    let mut lanes: BTreeMap<Option<u32>, BTreeMap<(&str, u32, u64), Vec<&Holding>>> = BTreeMap::new();
    for held in &incident.history.holdings {
        let process = (held.boot_id.as_str(), held.process.pid, held.process.start_ns);
        lanes.entry(held.gpu).or_default().entry(process).or_default().push(held);
    }
    let mut out = "<section aria-labelledby=\"when\">\n<h2 id=\"when\">When</h2>\n".to_owned();
    if lanes.is_empty() {
        out.push_str("<p>Nobody held a device in this time, as far as the record goes.</p>\n</section>\n");
        return out;
    }
    out.push_str(LEGEND);
    let mut drawing = Drawing { incident, zone, out: String::new(), y: 34.0 };
    // Devices that all GPUs share come last.
    let (shared, own): (Vec<_>, Vec<_>) = lanes.iter().partition(|(gpu, _)| gpu.is_none());
    for (gpu, processes) in own.into_iter().chain(shared) {
        drawing.lane(*gpu, processes);
    }
    let height = drawing.y + 10.0;
    let body = drawing.out;
    let (from, to) = (incident.history.from.as_millisecond(), incident.history.to.as_millisecond());
    let _ = write!(
        out,
        "<div class=\"scroll\"><svg id=\"timeline\" tabindex=\"0\" role=\"img\" aria-label=\"Timeline of holders for each GPU; the table \
         below says the same\" width=\"{0}\" height=\"{height}\" viewBox=\"0 0 {0} {height}\" data-left=\"{LEFT}\" data-width=\"{WIDTH}\" \
         data-from=\"{from}\" data-to=\"{to}\">\n<defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"7\" fill=\"#b88a3a\"/></pattern><clipPath id=\"inside\"><rect x=\"{LEFT}\" y=\"0\" width=\"{WIDTH}\" height=\"{height}\"/></clipPath></defs>\n{1}{body}{2}</svg></div>\n</section>\n",
        LEFT + WIDTH + 20.0,
        axis(incident, zone, height),
        over(incident, height),
    );
    out
}

const LEGEND: &str = "<ul class=\"legend\"><li><span class=\"compute\"></span>compute</li><li><span class=\"infrastructure\"></span>infrastructure</li>\
<li><span class=\"monitor\"></span>monitor</li><li><span class=\"display\"></span>display</li><li><span class=\"other\"></span>other</li>\
<li><span class=\"bad\"></span>after SIGKILL, or exiting, and not released</li><li><span class=\"gapkey\"></span>gap in the record</li></ul>\n\
<div class=\"controls\" role=\"group\" aria-label=\"Zoom\"><button type=\"button\" data-do=\"in\">Zoom in (+)</button>\
<button type=\"button\" data-do=\"out\">Zoom out (-)</button><button type=\"button\" data-do=\"left\">Earlier</button>\
<button type=\"button\" data-do=\"right\">Later</button><button type=\"button\" data-do=\"all\">All (0)</button>\
<span class=\"dim\">or Ctrl and the wheel; when zoomed, times are UTC</span></div>\n";

impl Drawing<'_> {
    fn lane(&mut self, gpu: Option<u32>, processes: &BTreeMap<(&str, u32, u64), Vec<&Holding>>) {
        let title = gpu.map_or_else(|| "shared devices".to_owned(), |gpu| format!("GPU {gpu}"));
        self.y += 8.0;
        let y = self.y;
        let _ = writeln!(
            self.out,
            "<line class=\"grid\" x1=\"0\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/><text class=\"lane\" x=\"6\" y=\"{}\">{title}</text>",
            LEFT + WIDTH,
            y + 15.0
        );
        self.y += ROW;
        if let Some(gpu) = gpu {
            self.curve(gpu);
        }
        let mut rows: Vec<&Vec<&Holding>> = processes.values().collect();
        // Those that held longest first; bars of a moment are what is left out where there are too many.
        rows.sort_by_key(|held| std::cmp::Reverse(self.length(held)));
        let left_out = rows.len().saturating_sub(ROWS);
        rows.truncate(ROWS);
        rows.sort_by_key(|held| held.iter().map(|held| held.since).min());
        for held in rows {
            self.row(held);
        }
        if left_out > 0 {
            let _ = writeln!(
                self.out,
                "<text class=\"tick\" x=\"20\" y=\"{}\">and {left_out} more that held it for a shorter time</text>",
                self.y + 14.0
            );
            self.y += ROW;
        }
    }

    fn length(&self, held: &[&Holding]) -> i128 {
        let end = |held: &Holding| held.until.unwrap_or(self.incident.history.to);
        held.iter().map(|held| end(held).as_nanosecond() - held.since.as_nanosecond()).max().unwrap_or(0)
    }

    fn row(&mut self, held: &[&Holding]) {
        let Some(last) = held.last() else { return };
        let y = self.y;
        let name = format!("{} [{}]", html(&shortened(&last.process.comm.to_text())), last.process.pid);
        let _ = writeln!(self.out, "<text x=\"20\" y=\"{}\">{name}</text>", y + 14.0);
        let end = |held: &Holding| held.until.unwrap_or(self.incident.history.to);
        // Files of one process overlap: what is drawn is from the first to the last of those that touch.
        let mut spans: Vec<(Timestamp, Timestamp, bool)> = Vec::new();
        let mut sorted: Vec<&&Holding> = held.iter().collect();
        sorted.sort_by_key(|held| (held.how == "dropping", held.since));
        for held in sorted {
            let dropping = held.how == "dropping";
            match spans.last_mut() {
                Some((_, until, bad)) if *bad == dropping && held.since <= *until => {
                    *until = (*until).max(end(held))
                }
                _ => spans.push((held.since, end(held), dropping)),
            }
        }
        let fate = verdict::fate(self.incident, last);
        let killed = self.killed(last);
        for (since, until, dropping) in spans {
            let role = if dropping { "bad" } else { colour(&last.role) };
            self.bar(since, until, role, last);
            if let Some(killed) = killed.filter(|killed| *killed < until && !dropping) {
                self.bar(killed.max(since), until, "bad", last);
            }
        }
        if let Some(at) = killed.or(fate.and_then(|fate| fate.at)) {
            let x = x_of(self.incident, at);
            let _ = writeln!(
                self.out,
                "<g data-a=\"{}\" transform=\"translate({} 0)\"><path class=\"mark\" d=\"M-4 {} l8 8 m0 -8 l-8 8\"/></g>",
                fraction(self.incident, at),
                number(x),
                y + 6.0
            );
        }
        self.y += ROW;
    }

    /// When SIGKILL was sent to it.
    fn killed(&self, held: &Holding) -> Option<Timestamp> {
        let event = self.incident.history.events.iter().find(|event| {
            event.what == "killed"
                && event.process.as_ref().is_some_and(|process| {
                    (process.pid, process.start_ns) == (held.process.pid, held.process.start_ns)
                })
        });
        event.and_then(|event| event.at.parse().ok())
    }

    fn bar(&mut self, since: Timestamp, until: Timestamp, class: &str, held: &Holding) {
        let (a, b) = (fraction(self.incident, since), fraction(self.incident, until));
        let (x0, x1) = (x_of(self.incident, since), x_of(self.incident, until));
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" data-a=\"{a}\" data-b=\"{b}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{} [{}], {}: {} to {}</title></rect>",
            number(x0),
            self.y + 3.0,
            number((x1 - x0).max(2.0)),
            ROW - 6.0,
            super::raw(&held.process.comm),
            held.process.pid,
            html(&held.role),
            time(since, self.zone),
            time(until, self.zone)
        );
    }

    /// Used memory, where anybody measured it.
    fn curve(&mut self, gpu: u32) {
        let samples: Vec<&MemorySample> = self
            .incident
            .samples
            .iter()
            .filter(|sample| sample.gpu == gpu && sample.used_mib.is_some())
            .collect();
        let Some(most) = samples.iter().filter_map(|sample| sample.total_mib.or(sample.used_mib)).max()
        else {
            return;
        };
        let most = most.max(1) as f64;
        let height = |mib: u64| self.y + CURVE - 6.0 - mib as f64 / most * (CURVE - 12.0);
        let points = |x: &dyn Fn(Timestamp) -> f64| {
            let point = |sample: &&MemorySample| {
                Some(format!("{},{}", x(sample.at), number(height(sample.used_mib?))))
            };
            samples.iter().filter_map(point).collect::<Vec<_>>().join(" ")
        };
        let drawn = points(&|at| number(x_of(self.incident, at)));
        let exact = points(&|at| fraction(self.incident, at));
        let peak = samples.iter().filter_map(|sample| sample.used_mib).max().unwrap_or(0);
        let _ = writeln!(
            self.out,
            "<text class=\"tick\" x=\"20\" y=\"{}\">memory, at most {peak} MiB</text><polyline class=\"curve\" clip-path=\"url(#inside)\" data-points=\"{exact}\" points=\"{drawn}\"/>",
            self.y + 18.0
        );
        self.y += CURVE;
    }
}

fn axis(incident: &Incident, zone: &TimeZone, height: f64) -> String {
    let (from, to) = (incident.history.from, incident.history.to);
    let span = to.duration_since(from);
    let mut out = "<g id=\"ticks\">\n".to_owned();
    for tick in 0..TICKS {
        let part = tick as f64 / (TICKS - 1) as f64;
        let at = from.checked_add(span.mul_f64(part)).unwrap_or(to);
        let x = LEFT + WIDTH * part;
        let text = time(at, zone);
        let text = if span.as_secs() < 86_400 { text.get(11..19) } else { text.get(5..16) };
        let anchor = if tick + 1 == TICKS { "end" } else { "middle" };
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{0}\" x2=\"{0}\" y1=\"24\" y2=\"{height}\"/><text class=\"tick\" x=\"{0}\" y=\"16\" text-anchor=\"{anchor}\">{1}</text>",
            number(x),
            text.unwrap_or_default()
        );
    }
    out.push_str("</g>\n");
    out
}

/// Gaps, and the chosen moment, over everything.
fn over(incident: &Incident, height: f64) -> String {
    let mut out = String::new();
    for hole in &incident.history.coverage.holes {
        let (x0, x1) = (x_of(incident, hole.from), x_of(incident, hole.to));
        let _ = writeln!(
            out,
            "<rect class=\"gap\" data-a=\"{}\" data-b=\"{}\" x=\"{}\" y=\"24\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            fraction(incident, hole.from),
            fraction(incident, hole.to),
            number(x0),
            number((x1 - x0).max(2.0)),
            height - 24.0,
            html(&crate::render::history::why(hole))
        );
    }
    if let Some(at) =
        incident.then.at.filter(|at| at.asked >= incident.history.from && at.asked <= incident.history.to)
    {
        let _ = writeln!(
            out,
            "<g data-a=\"{}\" transform=\"translate({} 0)\"><line class=\"then\" x1=\"0\" x2=\"0\" y1=\"22\" y2=\"{height}\"/></g>",
            fraction(incident, at.asked),
            number(x_of(incident, at.asked))
        );
    }
    out
}

/// Where in the window a moment is, 0 to 1.
fn fraction(incident: &Incident, at: Timestamp) -> f64 {
    let (from, to) = (incident.history.from.as_nanosecond(), incident.history.to.as_nanosecond());
    let part = (at.as_nanosecond() - from) as f64 / ((to - from) as f64).max(1.0);
    (part.clamp(0.0, 1.0) * 1e9).round() / 1e9
}

fn x_of(incident: &Incident, at: Timestamp) -> f64 {
    LEFT + fraction(incident, at) * WIDTH
}

fn number(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// A name that fits to the left of the bars.
fn shortened(name: &str) -> String {
    let mut short: String = name.chars().take(20).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

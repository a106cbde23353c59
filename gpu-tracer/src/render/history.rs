//! `gpu-tracer history` for people, and for spreadsheets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::columns::{Cell, Column, Detail, Place, Row, Tone, lay_out};
use super::csv::field;
use super::folding::{Folded, fold};
use super::ranges::ranges;
use super::text::{escape, escape_str};
use super::watch;
use super::{Format, View};
use crate::model::ExitStatus;
use crate::model::RawText;
use crate::model::happening::Party;
use crate::model::history::{Coverage, Fate, History, Holding, Hole, Life, VerdictSpan};

/// What the answer tells its caller: 0, or 3 where the record has holes.
#[must_use]
pub fn exit_status(history: &History) -> ExitStatus {
    if history.coverage.complete { ExitStatus::Free } else { ExitStatus::Unknown }
}

/// Writes it.
///
/// # Errors
/// What `out` says.
pub fn history(
    history: &History,
    format: Format,
    zone: &TimeZone,
    view: &View<'_>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    match format {
        Format::Json => super::json::write(history, out),
        Format::Csv { header } => csv(history, header, out),
        Format::Table => out.write_all(table(history, zone, view).as_bytes()),
    }
}

/// Verdicts that are listed.
const VERDICTS: usize = 20;

const COLUMNS: [Column; 9] = [
    column("PID", "pid", Place::Fixed, 12, true),
    column("GPU", "gpu", Place::Fixed, 24, false),
    column("SINCE", "since", Place::Fixed, 24, false),
    column("UNTIL", "until", Place::Fixed, 24, false),
    column("FOR", "for", Place::Short(2), 12, true),
    column("FILES", "files", Place::Short(3), 8, true),
    column("HOW", "how", Place::Movable(1), 40, false),
    column("ENDED", "ended", Place::Movable(0), 60, false),
    Column { free: true, ..column("COMMAND", "command", Place::Stretch(4), usize::MAX, false) },
];

const fn column(title: &'static str, label: &'static str, place: Place, cap: usize, right: bool) -> Column {
    Column { title, label, place, cap, right, free: false }
}

fn table(history: &History, zone: &TimeZone, view: &View<'_>) -> String {
    // A story is about whoever was asked for.
    let all = view.expand || !history.lives.is_empty();
    let (history, folded) = if all { (history.clone(), Folded::default()) } else { fold(history) };
    let history = &history;
    let mut sections = vec![headline(history, &folded, zone, view)];
    sections.extend(history.lives.iter().map(|life| portrait(life, zone)));
    let rows: Vec<Row> = groups(history).values().map(|group| row(group, history, zone)).collect();
    if !rows.is_empty() && history.lives.is_empty() {
        sections.push(lay_out(&COLUMNS, &rows, view));
    }
    sections.extend(folded.line());
    sections.extend(verdicts(history, zone, view));
    if !history.unheld.is_empty() {
        let files: Vec<String> = history
            .unheld
            .iter()
            .map(|file| {
                format!("  {} #{}, since {}\n", escape_str(&file.device), file.file, time(file.since, zone))
            })
            .collect();
        let title = "Open, and held by nobody who is known (on their way out, or held unseen):";
        sections.push(format!("{}\n{}", Tone::Warn.paint(title, view.color), files.concat()));
    }
    if !history.events.is_empty() {
        let mut lines = String::new();
        let mut day = None;
        for event in &history.events {
            // The lines have the time of day, in UTC.
            let date = escape_str(event.at.get(..10).unwrap_or_default());
            if day.as_ref() != Some(&date) {
                lines.push_str(&format!("{date} (UTC)\n"));
                day = Some(date);
            }
            lines.push_str(&watch::line(event, view.color));
            lines.push('\n');
        }
        if history.more_events {
            lines.insert_str(0, "Earlier events are not shown: ask for less time, or more with --limit.\n");
        }
        sections.push(lines);
    }
    sections.push(coverage(&history.coverage, zone, view));
    sections.join("\n")
}

/// What the daemon said of GPUs. A GPU of which nothing was said but that it is free is left out where a time was asked about.
fn verdicts(history: &History, zone: &TimeZone, view: &View<'_>) -> Option<String> {
    let told: BTreeSet<Option<u32>> = history
        .verdicts
        .iter()
        .filter(|span| history.at.is_some() || span.verdict != "free")
        .map(|span| span.gpu)
        .collect();
    let spans: Vec<&VerdictSpan> = history.verdicts.iter().filter(|span| told.contains(&span.gpu)).collect();
    let last = spans.get(spans.len().saturating_sub(VERDICTS)..).filter(|last| !last.is_empty())?;
    let mut text = Tone::Strong.paint("What the daemon said, and from when until when:", view.color);
    if last.len() < spans.len() {
        text.push_str(&format!(
            "\n  {} earlier verdicts are not shown: --format json has all.",
            spans.len() - last.len()
        ));
    }
    for span in last {
        let (since, until) = (time(span.since, zone), time(span.until, zone));
        let (word, says) = (escape_str(&span.verdict), escape_str(&span.headline));
        let tone = if span.verdict == "stuck" { Tone::Warn } else { Tone::Plain };
        let words = format!("{word} (exit status {}): {says}", span.status);
        text.push_str(&format!("\n  {since} to {until}  {}", tone.paint(&words, view.color)));
    }
    Some(text + "\n")
}

fn headline(history: &History, folded: &Folded, zone: &TimeZone, view: &View<'_>) -> String {
    let processes: BTreeSet<(&str, u32, u64)> = history
        .holdings
        .iter()
        .map(|held| (held.boot_id.as_str(), held.process.pid, held.process.start_ns))
        .collect();
    let who = match processes.len() {
        0 if !history.unheld.is_empty() => "Nobody who is known".to_owned(),
        0 => folded.nobody_but().unwrap_or("Nobody").to_owned(),
        1 => "1 process".to_owned(),
        many => format!("{many} processes"),
    };
    let gpus: BTreeSet<u32> = history.holdings.iter().filter_map(|held| held.gpu).collect();
    let what = match folded.gpus() {
        _ if !gpus.is_empty() => format!("GPU {}", ranges(gpus.into_iter().map(u64::from))),
        Some(gpus) => format!("GPU {gpus}"),
        None => "a device".to_owned(),
    };
    let offset = zone.to_offset(history.to);
    let text = match history.at {
        Some(at) => match at.answered {
            None => {
                format!("Nothing is known of {}: the record does not go back so far.", time(at.asked, zone))
            }
            Some(answered) if answered != at.asked && !history.coverage.complete => format!(
                "Of {} nothing is known. {who} held {what} at {}, the last moment before it that is.",
                time(at.asked, zone),
                time(answered, zone)
            ),
            Some(_) => format!("{who} held {what} at {}.", time(at.asked, zone)),
        },
        None if history.lives.is_empty() => {
            format!("{who} held {what} between {} and {}.", time(history.from, zone), time(history.to, zone))
        }
        None => match history.lives.len() {
            1 => "The story of 1 process:".to_owned(),
            many => format!("The PID was used {many} times:"),
        },
    };
    let text = if history.holdings.is_empty() && !history.coverage.complete && history.at.is_none() {
        text.replacen("Nobody held", "Nobody is known to have held", 1)
    } else {
        text
    };
    format!("{}\n", Tone::Strong.paint(&format!("{text} Times are local (UTC{offset})."), view.color))
}

fn portrait(life: &Life, zone: &TimeZone) -> String {
    let mut lines = vec![format!("PID {} ({})", life.process.pid, text(&life.process.comm))];
    let mut add = |label: &str, text: String| {
        if !text.is_empty() {
            lines.push(format!("    {label:<9}{text}"));
        }
    };
    add("started", life.process.cmdline.as_ref().map(text).unwrap_or_default());
    if life.names.len() > 1 {
        add("names", life.names.iter().map(text).collect::<Vec<_>>().join(" -> "));
    }
    add("exe", life.exe.as_ref().map(text).unwrap_or_default());
    add("cgroup", life.cgroup.as_ref().map(text).unwrap_or_default());
    let ancestors: Vec<String> = life.ancestors.iter().map(party).collect();
    add("child of", ancestors.join(" < "));
    let end = if life.over { time(life.to, zone) } else { "(not over in this record)".to_owned() };
    add("known", format!("{} to {end}", time(life.from, zone)));
    lines.join("\n") + "\n"
}

/// Holdings of one process.
fn groups(history: &History) -> BTreeMap<(Timestamp, u32, u64), Vec<&Holding>> {
    let mut by_process: BTreeMap<(&str, u32, u64), Vec<&Holding>> = BTreeMap::new();
    for held in &history.holdings {
        let key = (held.boot_id.as_str(), held.process.pid, held.process.start_ns);
        by_process.entry(key).or_default().push(held);
    }
    let first = |held: &[&Holding]| held.iter().map(|held| held.since).min().unwrap_or_default();
    by_process.into_iter().map(|((_, pid, start), held)| ((first(&held), pid, start), held)).collect()
}

fn row(held: &[&Holding], history: &History, zone: &TimeZone) -> Row {
    let Some(last) = held.last() else { return Row::default() };
    let gpus: BTreeSet<u32> = held.iter().filter_map(|held| held.gpu).collect();
    let devices: BTreeSet<&str> =
        held.iter().filter(|held| held.gpu.is_none()).map(|held| held.device.as_str()).collect();
    let what = if gpus.is_empty() {
        devices.iter().map(|device| escape_str(device)).collect::<Vec<_>>().join(" ")
    } else {
        ranges(gpus.into_iter().map(u64::from))
    };
    let since = held.iter().map(|held| held.since).min().unwrap_or_default();
    let until: Option<Timestamp> =
        held.iter().map(|held| held.until).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    let files: BTreeSet<u64> = held.iter().map(|held| held.file).collect();
    let lasted = until.unwrap_or(history.to).duration_since(since);
    let fate = history.fates.iter().find(|fate| {
        (fate.pid, fate.start_ns, &fate.boot_id) == (last.process.pid, last.process.start_ns, &last.boot_id)
    });
    let ended = ended(held, until, fate);
    let how: BTreeSet<String> = held.iter().map(|held| how(held)).collect();
    let mut details = Vec::new();
    if until.is_some() && ended.contains("unseen") {
        details.push(Detail::new("note", "it had ended when somebody looked again: see the gaps".to_owned()));
    }
    let command = match &last.process.cmdline {
        Some(cmdline) if !cmdline.is_empty() => format!("{}: {}", text(&last.process.comm), text(cmdline)),
        _ => text(&last.process.comm),
    };
    let tone = if until.is_none() { Tone::Warn } else { Tone::Plain };
    let cells = [
        last.process.pid.to_string(),
        what,
        time(since, zone),
        until.map_or_else(|| "(still)".to_owned(), |until| time(until, zone)),
        duration(lasted),
        files.len().to_string(),
        how.into_iter().collect::<Vec<_>>().join(", "),
        ended,
        command,
    ];
    let cells = cells.into_iter().map(|text| Cell { text, tone }).collect();
    Row { cells, details }
}

fn how(held: &Holding) -> String {
    match &held.from {
        Some(from) => format!("{} from {}", escape_str(&held.how), party(from)),
        None => escape_str(&held.how),
    }
}

pub(super) fn ended(held: &[&Holding], until: Option<Timestamp>, fate: Option<&Fate>) -> String {
    let Some(fate) = fate else {
        let causes: BTreeSet<String> =
            held.iter().filter_map(|held| held.ended.as_deref().map(escape_str)).collect();
        return if until.is_some() {
            causes.into_iter().collect::<Vec<_>>().join(", ")
        } else {
            String::new()
        };
    };
    let by = match (&fate.by, fate.by_kernel.as_deref()) {
        (Some(by), _) => format!(" from {}", party(by)),
        (None, Some("out-of-memory")) => " from the kernel: memory ran out".to_owned(),
        (None, Some(_)) => " from the kernel".to_owned(),
        (None, None) => String::new(),
    };
    let what = match (fate.signal, fate.exit_status) {
        (Some(signal), _) => format!("{}{by}", watch::signal_name(signal)),
        (None, Some(status)) => format!("exit {status}"),
        (None, None) => "exit".to_owned(),
    };
    let pending = if fate.pending { ", and it has not ended" } else { "" };
    let released = fate
        .released_us
        .map(|us| format!(", released {} later", watch::milliseconds(us)))
        .unwrap_or_default();
    format!("{what}{pending}{released}")
}

/// The last line: what the answer is worth.
fn coverage(coverage: &Coverage, zone: &TimeZone, view: &View<'_>) -> String {
    if coverage.complete {
        return format!("{}\n", Tone::Good.paint("The record of this time is complete.", view.color));
    }
    let mut lines = match coverage.holes.len() {
        1 => "The record of this time has 1 gap:\n".to_owned(),
        many => format!("The record of this time has {many} gaps:\n"),
    };
    lines = Tone::Warn.paint(lines.trim_end(), view.color) + "\n";
    for hole in &coverage.holes {
        lines.push_str(&format!("  {} to {}  {}\n", time(hole.from, zone), time(hole.to, zone), why(hole)));
    }
    lines
}

/// Why the record has a hole, for a person.
#[must_use]
pub fn why(hole: &Hole) -> String {
    let events = hole
        .events
        .filter(|events| *events > 0)
        .map(|events| format!(", {events} events"))
        .unwrap_or_default();
    let why = match hole.cause.as_str() {
        "no-record" => "the record begins later",
        "not-running" => "the daemon was not running",
        "reboot" => "the machine was restarted, or the daemon was not running before or after that",
        "no-sign-of-life" => "the daemon does not run, or its record is copied from then",
        "journal-overflow" => "more happened than the disk could take",
        "disk" | "disk-full" => "the journal could not be written: see the daemon's own log",
        "journal-broken" => "the journal was broken and a new one begun",
        other => return format!("{}{events}", escape_str(other)),
    };
    format!("{why} ({}){events}", escape_str(&hole.cause))
}

/// Local time, to the millisecond.
#[must_use]
pub fn time(moment: Timestamp, zone: &TimeZone) -> String {
    zone.to_datetime(moment).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// `3.2 s`, `5m 10s`, `2h 3m`, `4d 1h`
#[must_use]
pub fn duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn text(raw: &RawText) -> String {
    escape(&raw.0)
}

fn party(party: &Party) -> String {
    let name = if party.comm.is_empty() { "?".to_owned() } else { text(&party.comm) };
    format!("{name}[{}]", party.pid)
}

const CSV: [&str; 15] = [
    "gpu", "device", "file", "pid", "uid", "comm", "cmdline", "exe", "role", "how", "from_pid", "since",
    "until", "ended", "boot_id",
];

fn csv(history: &History, header: bool, out: &mut dyn io::Write) -> io::Result<()> {
    if header {
        writeln!(out, "{}", CSV.join(","))?;
    }
    let known = |text: &Option<RawText>| text.as_ref().map_or_else(String::new, |text| field(&text.0));
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    for held in &history.holdings {
        let row = [
            number(held.gpu),
            field(held.device.as_bytes()),
            held.file.to_string(),
            held.process.pid.to_string(),
            number(held.process.uid),
            field(&held.process.comm.0),
            known(&held.process.cmdline),
            known(&held.exe),
            field(held.role.as_bytes()),
            field(held.how.as_bytes()),
            number(held.from.as_ref().map(|from| from.pid)),
            format!("{:.3}", held.since),
            held.until.map_or_else(String::new, |until| format!("{until:.3}")),
            field(held.ended.as_deref().unwrap_or_default().as_bytes()),
            field(held.boot_id.as_bytes()),
        ];
        writeln!(out, "{}", row.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/history.rs"]
pub(super) mod tests;

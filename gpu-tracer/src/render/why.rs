//! The diagnosis for people. The first line is the answer; then the holders; then what to do.
//!
//! GPUs that are held alike by the same processes share one section. Sentences of a diagnosis may contain names that processes
//! chose for themselves: everything is escaped here.

use std::collections::BTreeMap;
use std::io;

use super::columns::{Cell, Column, Detail, Place, Row, Tone, lay_out};
use super::memory::mib_on;
use super::ranges::ranges;
use super::text::{escape, escape_sentence, escape_str, wrap};
use super::{Format, View, csv, json};
use crate::model::RawText;
use crate::model::diagnosis::{Advice, Diagnosis, Finding, GpuVerdict, Verdict};

/// Findings shown one by one; more of them that are alike are folded.
const FOLD: usize = 3;
/// Facts shown of one holder.
const FACTS: usize = 6;

const fn column(title: &'static str, label: &'static str, place: Place, cap: usize) -> Column {
    Column { title, label, place, cap, right: false, free: true }
}

const COLUMNS: [Column; 8] = [
    column("PID", "PID", Place::Fixed, 30),
    column("TID", "thread", Place::Fixed, 10),
    Column { right: true, ..column("MiB", "memory", Place::Short(2), 32) },
    column("GOES", "goes", Place::Fixed, 20),
    column("WHY", "why", Place::Movable(3), 48),
    column("HOLDS", "holds", Place::Movable(4), 48),
    column("WHERE", "where", Place::Movable(5), 48),
    column("COMMAND", "command", Place::Stretch(6), 60),
];

/// Writes a diagnosis.
///
/// # Errors
/// What `out` says.
pub fn why(
    diagnosis: &Diagnosis,
    format: Format,
    view: &View<'_>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    match format {
        Format::Table => out.write_all(table(diagnosis, view).as_bytes()),
        Format::Json => json::write(diagnosis, out),
        Format::Csv { header } => rows(diagnosis, header, out),
    }
}

/// The answer for people, ending in a line feed.
#[must_use]
pub fn table(diagnosis: &Diagnosis, view: &View<'_>) -> String {
    let groups = groups(&diagnosis.gpus);
    let mut sections = Vec::new();
    if groups.len() > 1 {
        sections.push(summary(&groups, view));
    }
    let (free, others): (Vec<_>, Vec<_>) =
        groups.iter().partition(|group| group[0].verdict == Verdict::Free && group[0].holders.is_empty());
    sections.extend(others.iter().map(|group| section(group, view)));
    let free: String = free
        .iter()
        .flat_map(|group| group.iter())
        .map(|gpu| paragraph(&gpu.headline, 0, Tone::Good, view))
        .collect();
    sections.push(free);
    sections.push(asked(diagnosis, view));
    sections.push(footer(diagnosis, view));
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

/// GPUs that are held alike by the same, in order.
fn groups(gpus: &[GpuVerdict]) -> Vec<Vec<&GpuVerdict>> {
    let mut groups: Vec<Vec<&GpuVerdict>> = Vec::new();
    for gpu in gpus {
        let alike = |group: &&mut Vec<&GpuVerdict>| {
            let first = group[0];
            let ids = |gpu: &GpuVerdict| -> Vec<(u32, u32)> {
                gpu.holders.iter().map(|finding| (finding.pid, finding.tid)).collect()
            };
            let mut sorted = [ids(first), ids(gpu)];
            sorted.iter_mut().for_each(|ids| ids.sort_unstable());
            // What nobody holds is alike only in what is known of it.
            let same = match gpu.verdict {
                Verdict::Free => true,
                Verdict::Unknown => gpu.doubts == first.doubts && gpu.advice == first.advice,
                _ => gpu.headline == first.headline,
            };
            first.verdict == gpu.verdict && sorted[0] == sorted[1] && (same || !gpu.holders.is_empty())
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    // What is used speaks for those that are only initialised, or that somebody else has used.
    let uses = |gpu: &GpuVerdict| gpu.holders.iter().any(|finding| finding.memory_mib.is_some());
    groups.iter_mut().for_each(|group| group.sort_by_key(|gpu| (gpu.idle_contexts, !uses(gpu))));
    groups.sort_by_key(|group| {
        let worst = [Verdict::Stuck, Verdict::NoHandle, Verdict::Held, Verdict::Unknown, Verdict::Free];
        worst.iter().position(|verdict| *verdict == group[0].verdict)
    });
    groups
}

fn names(group: &[&GpuVerdict]) -> String {
    let indexes = ranges(group.iter().filter_map(|gpu| gpu.gpu).map(u64::from));
    if indexes.is_empty() { "The devices".to_owned() } else { format!("GPU {indexes}") }
}

fn summary(groups: &[Vec<&GpuVerdict>], view: &View<'_>) -> String {
    let mut parts: Vec<(Verdict, Vec<&GpuVerdict>)> = Vec::new();
    for group in groups {
        match parts.iter_mut().find(|(verdict, _)| *verdict == group[0].verdict) {
            Some((_, all)) => all.extend(group),
            None => parts.push((group[0].verdict, group.clone())),
        }
    }
    let words: Vec<String> =
        parts.iter().map(|(verdict, all)| format!("{}: {}", names(all), plain(*verdict))).collect();
    paragraph(&format!("{}.", words.join("; ")), 0, tone(parts[0].0), view)
}

fn plain(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Free => "free",
        Verdict::Held => "held, and can be freed",
        Verdict::Stuck => "stuck, SIGKILL will not help",
        Verdict::NoHandle => "memory in use and no handle",
        Verdict::Unknown => "unknown",
    }
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Free => Tone::Good,
        Verdict::Held => Tone::Strong,
        Verdict::Stuck | Verdict::NoHandle => Tone::Bad,
        Verdict::Unknown => Tone::Warn,
    }
}

fn section(group: &[&GpuVerdict], view: &View<'_>) -> String {
    let first = group[0];
    let mut out = paragraph(&first.headline, 0, tone(first.verdict), view);
    out.extend(first.details.iter().map(|detail| paragraph(detail, 0, Tone::Plain, view)));
    let alike = |gpu: &&&GpuVerdict| gpu.idle_contexts == first.idle_contexts;
    let (alike, idle): (Vec<&GpuVerdict>, Vec<&GpuVerdict>) = group[1..].iter().partition(alike);
    if !alike.is_empty() {
        let same = if first.holders.is_empty() { "The same is true of" } else { "The same processes hold" };
        out.push_str(&paragraph(&format!("{same} {}.", names(&alike)), 0, Tone::Plain, view));
    }
    if !idle.is_empty() {
        let only = format!("Of {} they have no more than an idle context.", names(&idle));
        out.push_str(&paragraph(&only, 0, Tone::Plain, view));
    }
    if !first.holders.is_empty() {
        out.push('\n');
        out.push_str(&holders(group, view));
    }
    let mut told = stories(group);
    told.extend(first.innocents.iter().map(|innocent| innocent.text.clone()));
    out.push_str(&listed("Memory and innocents:", &told, view));
    out.push_str(&listed("Not certain, because:", &first.doubts, view));
    out.push_str(&advice(group, view));
    out
}

/// What is known of the memory of these GPUs; what is true of several is said once.
fn stories(group: &[&GpuVerdict]) -> Vec<String> {
    let mut stories: Vec<(&str, Vec<&GpuVerdict>)> = Vec::new();
    for gpu in group {
        for line in &gpu.memory.story {
            match stories.iter_mut().find(|(known, _)| known == line) {
                Some((_, gpus)) => gpus.push(gpu),
                None => stories.push((line, vec![gpu])),
            }
        }
    }
    let told = |(line, gpus): (&str, Vec<&GpuVerdict>)| match group.len() {
        1 => line.to_owned(),
        _ => format!("{}: {line}", names(&gpus)),
    };
    stories.into_iter().map(told).collect()
}

fn holders(gpus: &[&GpuVerdict], view: &View<'_>) -> String {
    let rows: Vec<Row> =
        fold(gpus[0], view.expand).iter().map(|alike| row(alike, memory(gpus, alike))).collect();
    lay_out(&COLUMNS, &rows, view)
}

/// What these have of the GPUs of a section together, in MiB.
fn memory(gpus: &[&GpuVerdict], alike: &[&Finding]) -> String {
    let is_one = |other: &&Finding| alike.iter().any(|one| (one.pid, one.tid) == (other.pid, other.tid));
    let figures: BTreeMap<u32, u64> = gpus
        .iter()
        .filter_map(|gpu| {
            let each = gpu.holders.iter().filter(is_one).filter_map(|finding| finding.memory_mib);
            Some((gpu.gpu?, each.reduce(u64::saturating_add)?))
        })
        .collect();
    let only = if let [one] = gpus { one.gpu } else { None };
    mib_on(&figures.into_iter().collect::<Vec<_>>(), only)
}

/// Findings that are alike, together.
fn fold(gpu: &GpuVerdict, expand: bool) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in &gpu.holders {
        let alike = |group: &&mut Vec<&Finding>| {
            let first = group[0];
            !expand
                && finding.killable
                && finding.tid == finding.pid
                && first.tid == first.pid
                && first.why == finding.why
                && first.killable_because == finding.killable_because
                && first.exe == finding.exe
                && (first.fds, first.maps, first.in_flight, first.io_uring)
                    == (finding.fds, finding.maps, finding.in_flight, finding.io_uring)
                && place(first) == place(finding)
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    let mut out = Vec::new();
    for group in groups {
        if group.len() < FOLD {
            out.extend(group.into_iter().map(|one| vec![one]));
        } else {
            out.push(group);
        }
    }
    out
}

fn row(group: &[&Finding], memory: String) -> Row {
    let first = group[0];
    let single = group.len() == 1;
    let pids = ranges(group.iter().map(|finding| u64::from(finding.pid)));
    let (pids, long) =
        if pids.len() > 24 { (format!("{} processes", group.len()), Some(pids)) } else { (pids, None) };
    let goes = match (first.killable, first.ending) {
        (true, false) => Cell { text: "by SIGKILL".to_owned(), tone: Tone::Plain },
        (true, true) => Cell { text: "by itself".to_owned(), tone: Tone::Warn },
        (false, _) => Cell { text: "not by SIGKILL".to_owned(), tone: Tone::Bad },
    };
    let mut why = first.why.clone();
    if !matches!(first.role.as_str(), "compute" | "unknown" | "") && !why.contains(&first.role) {
        why.push(first.role.clone());
    }
    let cells = vec![
        Cell { text: pids, tone: Tone::Strong },
        (if single && first.tid != first.pid { first.tid.to_string() } else { String::new() }).into(),
        memory.into(),
        goes,
        escape_str(&why.join(", ")).into(),
        held(first).into(),
        place(first).into(),
        command(first).into(),
    ];
    let mut details = Vec::new();
    details.extend(long.map(|pids| Detail::new("PIDs", pids)));
    if !first.killable || first.killable_because != "It lives and SIGKILL ends it." {
        let tone = if first.killable { Tone::Plain } else { Tone::Bad };
        details.push(Detail { tone, ..Detail::new("goes", escape_sentence(&first.killable_because)) });
    }
    details.extend(first.waits.as_deref().map(|waits| Detail::new("waits", escape_sentence(waits))));
    for fact in first.evidence.iter().take(FACTS) {
        details
            .push(Detail::new(if fact.inferred { "inferred" } else { "fact" }, escape_sentence(&fact.text)));
    }
    Row { cells, details }
}

fn held(finding: &Finding) -> String {
    let counts = [
        (finding.fds, "fd"),
        (finding.maps, "map"),
        (finding.in_flight, "in flight"),
        (finding.io_uring, "io_uring"),
    ];
    let named: Vec<String> = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    let shared = if finding.direct || named.is_empty() { "" } else { " of shared devices" };
    format!("{}{shared}", named.join(" "))
}

fn place(finding: &Finding) -> String {
    let known =
        |text: &Option<RawText>| text.as_ref().filter(|text| !text.is_empty()).map(|text| escape(&text.0));
    let unit = finding.container.is_none().then(|| known(&finding.unit)).flatten();
    let parts = [
        known(&finding.job),
        known(&finding.container),
        known(&finding.pod).map(|pod| format!("pod:{pod}")),
        unit,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn command(finding: &Finding) -> String {
    let end = finding.cmdline.0.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
    let line = &finding.cmdline.0[..end];
    if line.is_empty() { escape(&finding.comm.0) } else { escape(line) }
}

fn listed(title: &str, lines: &[String], view: &View<'_>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}", paragraph(title, 0, Tone::Strong, view));
    out.extend(lines.iter().map(|line| paragraph(line, 2, Tone::Plain, view)));
    out
}

fn advice(group: &[&GpuVerdict], view: &View<'_>) -> String {
    let first = group[0];
    if first.advice.is_empty() {
        return String::new();
    }
    let selectors = ranges(group.iter().filter_map(|gpu| gpu.gpu).map(u64::from));
    let mut out = format!("\n{}", paragraph("What to do:", 0, Tone::Strong, view));
    let within = |step: &&Advice| {
        !step.affects.is_empty()
            && step.affects.iter().all(|other| group.iter().any(|gpu| gpu.gpu == Some(*other)))
    };
    let steps = first.advice.iter().filter(|step| !within(step));
    for (number, step) in steps.enumerate() {
        out.push_str(&paragraph(&format!("{}. {}", number + 1, step.text), 2, Tone::Plain, view));
        if let Some(command) = &step.command {
            let own = first.gpu.map(|gpu| format!("gpu-tracer release {gpu}"));
            let command = if group.len() > 1 && own.as_ref() == Some(command) {
                format!("gpu-tracer release {selectors}")
            } else {
                command.clone()
            };
            // A command is never broken: it is to be pasted.
            out.push_str(&format!("{:7}{}\n", "", Tone::Strong.paint(&escape_str(&command), view.color)));
        }
    }
    out
}

fn asked(diagnosis: &Diagnosis, view: &View<'_>) -> String {
    diagnosis.asked.iter().map(|innocent| paragraph(&innocent.text, 0, Tone::Plain, view)).collect()
}

fn footer(diagnosis: &Diagnosis, view: &View<'_>) -> String {
    let mut out = String::new();
    if !matches!(diagnosis.nvml.state.as_str(), "complete" | "absent") {
        let held = diagnosis.gpus.iter().any(|gpu| !gpu.holders.is_empty());
        let word = if held { " The holders above are the kernel's own word all the same." } else { "" };
        out.push_str(&paragraph(&format!("{}.{word}", diagnosis.nvml.text), 0, Tone::Warn, view));
    }
    if !diagnosis.hints.is_empty() {
        out.push_str(&paragraph("The kernel log has (a hint, no proof):", 0, Tone::Strong, view));
        out.extend(diagnosis.hints.iter().map(|hint| paragraph(hint, 2, Tone::Plain, view)));
    }
    out
}

/// Escapes; then running text in lines that fit, in one tone.
fn paragraph(text: &str, indent: usize, tone: Tone, view: &View<'_>) -> String {
    let text = escape_sentence(text);
    let lines = match view.width {
        Some(width) => wrap(&text, width.saturating_sub(indent)),
        None => vec![text],
    };
    lines.iter().map(|line| format!("{:indent$}{}\n", "", tone.paint(line, view.color))).collect()
}

/// One row per GPU.
fn rows(diagnosis: &Diagnosis, header: bool, out: &mut dyn io::Write) -> io::Result<()> {
    if header {
        writeln!(out, "gpu,verdict,headline,used_mib,pids,first_step,command")?;
    }
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    for gpu in &diagnosis.gpus {
        let mut pids: Vec<u32> = gpu.holders.iter().map(|finding| finding.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let step = gpu.advice.first();
        let text = |text: &str| csv::field(text.as_bytes());
        let fields = [
            number(gpu.gpu.map(u64::from)),
            gpu.verdict.word().to_owned(),
            text(&gpu.headline),
            number(gpu.memory.used_mib),
            text(&pids.join(" ")),
            text(step.map_or("", |step| &step.text)),
            text(step.and_then(|step| step.command.as_deref()).unwrap_or_default()),
        ];
        writeln!(out, "{}", fields.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/why.rs"]
mod tests;

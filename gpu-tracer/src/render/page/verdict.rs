//! What each GPU was held by at the chosen moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::tz::TimeZone;

use super::{html, party, raw};
use crate::diagnose::is_infrastructure;
use crate::model::history::{Fate, Holding, Incident};
use crate::render::history::{duration, time};

/// Holders that are described one by one; the others are counted.
const DESCRIBED: usize = 12;

pub(super) fn section(incident: &Incident, zone: &TimeZone) -> String {
    let Some(at) = incident.then.at else { return String::new() };
    let mut out =
        format!("<section aria-labelledby=\"then\">\n<h2 id=\"then\">At {}</h2>\n", time(at.asked, zone));
    let known = incident.then.coverage.complete;
    match at.answered {
        None => out.push_str("<p>Nothing is known of this moment: the record does not go back so far.</p>\n"),
        Some(answered) if !known => {
            let _ = writeln!(
                out,
                "<p>This moment is in a gap of the record. What follows was so at {}, the last moment before it that is known.</p>",
                time(answered, zone)
            );
        }
        Some(_) => {}
    }
    out.push_str("<div class=\"cards\">\n");
    let mut by_gpu: BTreeMap<u32, Vec<&Holding>> = BTreeMap::new();
    for gpu in &incident.gpus {
        by_gpu.entry(gpu.index).or_default();
    }
    for held in &incident.then.holdings {
        if let Some(gpu) = held.gpu {
            by_gpu.entry(gpu).or_default().push(held);
        }
    }
    for (gpu, held) in by_gpu {
        out.push_str(&card(incident, gpu, &held, known && at.answered.is_some(), zone));
    }
    out.push_str("</div>\n</section>\n");
    out
}

/// Was it beyond a SIGKILL's reach at that moment: sent, and the process still held?
pub(super) fn fate<'a>(incident: &'a Incident, held: &Holding) -> Option<&'a Fate> {
    let mut fates = incident.then.fates.iter().chain(&incident.history.fates);
    fates.find(|fate| {
        (fate.pid, fate.start_ns, &fate.boot_id) == (held.process.pid, held.process.start_ns, &held.boot_id)
    })
}

fn card(incident: &Incident, gpu: u32, held: &[&Holding], known: bool, zone: &TimeZone) -> String {
    let mut processes: BTreeMap<(u32, u64), Vec<&Holding>> = BTreeMap::new();
    for held in held {
        processes.entry((held.process.pid, held.process.start_ns)).or_default().push(held);
    }
    let stuck = held
        .iter()
        .any(|held| held.how == "dropping" || fate(incident, held).is_some_and(|fate| fate.pending));
    let unheld = incident.then.unheld.iter().filter(|file| file.gpu == Some(gpu)).count();
    let said = incident.then.verdicts.iter().find(|span| span.gpu == Some(gpu));
    let stuck = stuck || said.is_some_and(|span| span.verdict == "stuck");
    let (class, verdict) = match (processes.len(), known, stuck) {
        (0, _, _) if unheld > 0 => ("unknown", format!("{unheld} open files, and nobody known to hold them")),
        (0, true, _) => ("free", "nobody held it".to_owned()),
        (0, false, _) => ("unknown", "unknown".to_owned()),
        (1, _, true) => ("stuck", "held by 1 process that SIGKILL did not end".to_owned()),
        (many, _, true) => ("stuck", format!("held by {many} processes, not all of which SIGKILL ended")),
        (_, _, false) if held.iter().all(|held| is_infrastructure(&held.role)) => {
            ("idle", "held only by what keeps it open on purpose".to_owned())
        }
        (1, _, false) => ("held", "held by 1 process".to_owned()),
        (many, _, false) => ("held", format!("held by {many} processes")),
    };
    let memory = incident
        .samples
        .iter()
        .rfind(|sample| sample.gpu == gpu && incident.then.at.is_some_and(|at| sample.at <= at.asked))
        .and_then(|sample| Some(format!(", {} MiB used", sample.used_mib?)))
        .unwrap_or_default();
    let mut out = format!("<div class=\"card {class}\">\n<h3>GPU {gpu}: {verdict}{memory}</h3>\n");
    if let Some(span) = said {
        let _ = writeln!(
            out,
            "<p>The daemon said from {} to {}: <q>{}</q> ({}, exit status {})</p>",
            time(span.since, zone),
            time(span.until, zone),
            html(&span.headline),
            html(&span.verdict),
            span.status
        );
    }
    if !processes.is_empty() {
        out.push_str("<ul>\n");
    }
    for held in processes.values().take(DESCRIBED) {
        let _ = writeln!(out, "<li>{}</li>", holder(incident, held, zone));
    }
    if processes.len() > DESCRIBED {
        let _ = writeln!(out, "<li>and {} more: see the table</li>", processes.len() - DESCRIBED);
    }
    if !processes.is_empty() {
        out.push_str("</ul>\n");
    }
    out.push_str("</div>\n");
    out
}

fn holder(incident: &Incident, held: &[&Holding], zone: &TimeZone) -> String {
    let Some(first) = held.first() else { return String::new() };
    let since = held.iter().map(|held| held.since).min().unwrap_or(first.since);
    let moment = incident.then.at.map_or(incident.history.to, |at| at.asked);
    let mut text = format!(
        "<strong>PID {}</strong> ({}), since {}, for {}",
        first.process.pid,
        raw(&first.process.comm),
        time(since, zone),
        duration(moment.duration_since(since))
    );
    let how: BTreeSet<String> = held
        .iter()
        .map(|held| match &held.from {
            Some(from) => format!("{} from {}", html(&held.how), party(from)),
            None => html(&held.how),
        })
        .collect();
    let _ = write!(text, "; {}", how.into_iter().collect::<Vec<_>>().join(", "));
    if held.iter().any(|held| held.how == "dropping") {
        text.push_str("; it was exiting and had not released it");
    }
    if let Some(cmdline) = first.process.cmdline.as_ref().filter(|cmdline| !cmdline.is_empty()) {
        let _ = write!(text, "; started as <code>{}</code>", raw(cmdline));
    }
    if let Some(fate) = fate(incident, first).filter(|fate| fate.pending) {
        let by = fate.by.as_ref().map(|by| format!(" from {}", party(by))).unwrap_or_default();
        let _ = write!(text, "; <strong>SIGKILL{by} had been sent and did not end it</strong>");
    }
    text
}

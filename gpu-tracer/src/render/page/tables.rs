//! What the drawing shows, in words; what happened; and where.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::tz::TimeZone;

use super::{html, party, raw, verdict};
use crate::model::history::{Holding, Incident};
use crate::render::history::{duration, ended, time};
use crate::render::ranges::ranges;
use crate::render::watch;

/// Rows of a table; a browser has to show them all.
const MOST: usize = 5_000;

pub(super) fn holders(incident: &Incident, zone: &TimeZone) -> String {
    let mut processes: BTreeMap<(&str, u32, u64), Vec<&Holding>> = BTreeMap::new();
    for held in &incident.history.holdings {
        let key = (held.boot_id.as_str(), held.process.pid, held.process.start_ns);
        processes.entry(key).or_default().push(held);
    }
    let mut rows: Vec<&Vec<&Holding>> = processes.values().collect();
    rows.sort_by_key(|held| held.iter().map(|held| held.since).min());
    let mut out = format!(
        "<section aria-labelledby=\"holders\">\n<h2 id=\"holders\">Who</h2>\n<table>\n<caption>{} processes held a device in this time{}.</caption>\n\
         <thead><tr><th scope=\"col\">PID</th><th scope=\"col\">GPU</th><th scope=\"col\">Since</th><th scope=\"col\">Until</th>\
         <th scope=\"col\">For</th><th scope=\"col\">Role</th><th scope=\"col\">How it came to it</th><th scope=\"col\">How it ended</th>\
         <th scope=\"col\">Command</th></tr></thead>\n<tbody>\n",
        rows.len(),
        match (rows.len() > MOST, incident.helpers) {
            (true, _) => "; the first 5,000 are listed".to_owned(),
            (false, 0) => String::new(),
            (false, helpers) =>
                format!("; {helpers} short-lived ones in which gpu-tracer asked NVML are left out"),
        }
    );
    for held in rows.into_iter().take(MOST) {
        out.push_str(&holder(incident, held, zone));
    }
    out.push_str("</tbody>\n</table>\n</section>\n");
    out
}

fn holder(incident: &Incident, held: &[&Holding], zone: &TimeZone) -> String {
    let Some(last) = held.last() else { return String::new() };
    let gpus: BTreeSet<u64> = held.iter().filter_map(|held| held.gpu.map(u64::from)).collect();
    let gpus = if gpus.is_empty() { html(&last.device) } else { ranges(gpus) };
    let since = held.iter().map(|held| held.since).min().unwrap_or(last.since);
    let until =
        held.iter().map(|held| held.until).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    let how: BTreeSet<String> = held
        .iter()
        .map(|held| match &held.from {
            Some(from) => format!("{} from {}", html(&held.how), party(from)),
            None => html(&held.how),
        })
        .collect();
    let command = match last.process.cmdline.as_ref().filter(|cmdline| !cmdline.is_empty()) {
        Some(cmdline) => format!("{}: <code>{}</code>", raw(&last.process.comm), raw(cmdline)),
        None => raw(&last.process.comm),
    };
    let ended = html(&ended(held, until, verdict::fate(incident, last)));
    format!(
        "<tr><th scope=\"row\">{}</th><td>{gpus}</td><td class=\"time\">{}</td><td class=\"time\">{}</td><td class=\"num\">{}</td><td>{}</td>\
         <td>{}</td><td>{ended}</td><td class=\"cmd\">{command}</td></tr>\n",
        last.process.pid,
        time(since, zone),
        until.map_or_else(|| "still held".to_owned(), |until| time(until, zone)),
        duration(until.unwrap_or(incident.history.to).duration_since(since)),
        html(&last.role),
        how.into_iter().collect::<Vec<_>>().join(", "),
    )
}

pub(super) fn events(incident: &Incident, zone: &TimeZone) -> String {
    let history = &incident.history;
    let events = &history.events[history.events.len().saturating_sub(MOST)..];
    let words: BTreeSet<&str> = events.iter().map(|event| event.what.as_str()).collect();
    let gpus: BTreeSet<u32> = events.iter().filter_map(|event| event.gpu).collect();
    let option = |value: &str, text: &str| format!("<option value=\"{value}\">{text}</option>");
    let words: String = words.iter().map(|word| option(&html(word), &html(word))).collect();
    let gpus: String = gpus.iter().map(|gpu| option(&gpu.to_string(), &format!("GPU {gpu}"))).collect();
    let more = if history.more_events || events.len() < history.events.len() {
        " Earlier ones are not in this report: ask for less time."
    } else {
        ""
    };
    let mut out = format!(
        "<section aria-labelledby=\"what-happened\">\n<h2 id=\"what-happened\">What happened</h2>\n<div class=\"controls\">\
         <label>What <select id=\"what\"><option value=\"\">everything</option>{words}</select></label>\
         <label>GPU <select id=\"gpu\"><option value=\"\">all</option>{gpus}</select></label>\
         <label>With <input id=\"words\" type=\"search\" placeholder=\"name, PID, ...\"></label>\
         <output id=\"shown\" class=\"dim\"></output></div>\n<table id=\"events\">\n\
         <caption>{} events.{more} &quot;By then&quot;: found by a look, so it happened some time before.</caption>\n\
         <thead><tr><th scope=\"col\">When</th><th scope=\"col\">What</th><th scope=\"col\">File</th><th scope=\"col\">Who, and more</th></tr></thead>\n<tbody>\n",
        events.len()
    );
    for event in events {
        let at = event.at.parse().map_or_else(|_| html(&event.at), |at| time(at, zone));
        let file = event.file.map(|file| format!(" #{file}")).unwrap_or_default();
        let by_then = if event.exact { "" } else { " (by then)" };
        let bad = matches!(event.what.as_str(), "killed" | "detached" | "gap");
        let _ = writeln!(
            out,
            "<tr data-what=\"{0}\" data-gpu=\"{1}\"{2}><td class=\"time\">{at}</td><td>{0}</td><td>{3}{file}</td><td class=\"cmd\">{4}{by_then}</td></tr>",
            html(&event.what),
            event.gpu.map(|gpu| gpu.to_string()).unwrap_or_default(),
            if bad { " data-bad" } else { "" },
            html(event.device.as_deref().unwrap_or_default()),
            html(&watch::who_and_more(event)),
        );
    }
    out.push_str("</tbody>\n</table>\n</section>\n");
    out
}

pub(super) fn environment(incident: &Incident, zone: &TimeZone, version: &str) -> String {
    let mut facts: Vec<(String, String)> = vec![(
        "Record".to_owned(),
        format!("{} to {}", time(incident.record_begin, zone), time(incident.record_end, zone)),
    )];
    for boot in &incident.boots {
        let known = |text: &Option<String>| html(text.as_deref().unwrap_or("unknown"));
        facts.push((
            format!("Boot {}", html(&boot.boot_id)),
            format!(
                "host {}, Linux {}, recorded {} to {} by gpu-tracer {}",
                known(&boot.host),
                known(&boot.kernel),
                time(boot.from, zone),
                time(boot.to, zone),
                html(&boot.daemons.join("; "))
            ),
        ));
    }
    for gpu in &incident.gpus {
        let parts: Vec<String> =
            [&gpu.name, &gpu.uuid, &gpu.bus_id].into_iter().flatten().map(|text| html(text)).collect();
        let parts = if parts.is_empty() { "nothing more is known".to_owned() } else { parts.join(", ") };
        facts.push((format!("GPU {}", gpu.index), parts));
    }
    facts.push(("Report".to_owned(), format!("made by gpu-tracer {}", html(version))));
    let facts: String =
        facts.into_iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{text}</dd>\n")).collect();
    format!(
        "<section aria-labelledby=\"where\">\n<h2 id=\"where\">Where</h2>\n<dl>\n{facts}</dl>\n</section>\n"
    )
}

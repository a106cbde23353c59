//! A report of an incident as one HTML file: no network, nothing that a name in it could do.
//!
//! Everything that came from a process is escaped twice over: what could fool a reader ([`super::text`]), then what HTML gives a
//! meaning. The page's own policy allows its one script by a number that no text of it can know, and nothing from elsewhere.
//! Without the script (and on paper) all of it is there; the script zooms and filters.

mod lineage;
mod tables;
mod timeline;
mod verdict;

use std::fmt::Write as _;

use jiff::tz::TimeZone;

use super::history::{time, why};
use super::text::escape_str;
use crate::model::RawText;
use crate::model::happening::Party;
use crate::model::history::Incident;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// What a page is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// For times of day.
    pub zone: TimeZone,
    /// A number that is used once.
    pub nonce: u64,
    /// Of this program.
    pub version: &'static str,
}

/// The page.
#[must_use]
pub fn page(incident: &Incident, options: &Options) -> String {
    let zone = &options.zone;
    let history = &incident.history;
    let host = html(history.host.as_deref().unwrap_or("an unknown host"));
    let (from, to) = (time(history.from, zone), time(history.to, zone));
    let nonce = format!("{:016x}", options.nonce);
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'nonce-{nonce}'; \
         script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>GPU incident on {host}, {from}</title>\n\
         <style nonce=\"{nonce}\">\n{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#holders\">Skip the drawing: who held what, as a table</a>\n\
         <header>\n<h1>Who held the GPUs of {host}</h1>\n\
         <p class=\"dim\">{from} to {to} (UTC{})</p>\n{}</header>\n<main>\n",
        zone.to_offset(history.to),
        banner(incident, zone),
    );
    page.push_str(&verdict::section(incident, zone));
    page.push_str(&timeline::section(incident, zone));
    page.push_str(&tables::holders(incident, zone));
    page.push_str(&lineage::section(incident));
    page.push_str(&tables::events(incident, zone));
    page.push_str(&tables::environment(incident, zone, options.version));
    let _ = write!(page, "</main>\n<script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn banner(incident: &Incident, zone: &TimeZone) -> String {
    let coverage = &incident.history.coverage;
    if coverage.complete {
        return "<p class=\"banner\">The record of this time is complete.</p>\n".to_owned();
    }
    let holes: Vec<String> = coverage
        .holes
        .iter()
        .map(|hole| {
            format!("<li>{} to {}: {}</li>", time(hole.from, zone), time(hole.to, zone), html(&why(hole)))
        })
        .collect();
    format!(
        "<div class=\"banner gaps\"><strong>The record of this time has gaps.</strong> What happened in them is not known.\n\
         <ul>{}</ul></div>\n",
        holes.join("\n")
    )
}

/// Text for HTML, between tags or in a quoted attribute.
fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in escape_str(text).chars() {
        match ch {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            ch => out.push(ch),
        }
    }
    out
}

fn raw(text: &RawText) -> String {
    html(&text.to_text())
}

/// `name[PID]`
fn party(party: &Party) -> String {
    if party.comm.is_empty() {
        format!("?[{}]", party.pid)
    } else {
        format!("{}[{}]", raw(&party.comm), party.pid)
    }
}

/// The class that colours a role.
fn colour(role: &str) -> &'static str {
    match role {
        "compute" | "initialised" => "compute",
        "infrastructure" | "container-hook" | "mps-control" | "mps-server" => "infrastructure",
        "display" => "display",
        "monitor" => "monitor",
        _ => "other",
    }
}

#[cfg(test)]
#[path = "../tests/page.rs"]
mod tests;

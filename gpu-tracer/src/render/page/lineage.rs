//! Who is whose child, among those that held something.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{party, raw};
use crate::model::happening::Party;
use crate::model::history::{Incident, Life};

/// A process: (PID, start).
type Key = (u32, u64);

/// The deepest that is drawn.
const DEPTH: usize = 24;

pub(super) fn section(incident: &Incident) -> String {
    if incident.lives.is_empty() {
        return String::new();
    }
    let mut parties: BTreeMap<Key, Party> = BTreeMap::new();
    let mut children: BTreeMap<Option<Key>, BTreeSet<Key>> = BTreeMap::new();
    let lives: BTreeMap<Key, &Life> = incident.lives.iter().map(|life| (key(&life.process), life)).collect();
    for life in &incident.lives {
        let chain: Vec<&Party> = std::iter::once(&life.process).chain(&life.ancestors).collect();
        for (at, one) in chain.iter().enumerate() {
            parties.entry(key(one)).or_insert_with(|| (*one).clone());
            let parent = chain.get(at + 1).map(|parent| key(parent));
            children.entry(parent).or_default().insert(key(one));
        }
    }
    let mut out =
        "<section aria-labelledby=\"lineage\">\n<h2 id=\"lineage\">Whose children</h2>\n".to_owned();
    let tree = Tree { parties, children, lives };
    tree.push(&mut out, None, 0);
    out.push_str("</section>\n");
    out
}

struct Tree<'a> {
    parties: BTreeMap<Key, Party>,
    children: BTreeMap<Option<Key>, BTreeSet<Key>>,
    lives: BTreeMap<Key, &'a Life>,
}

impl Tree<'_> {
    fn push(&self, out: &mut String, of: Option<Key>, depth: usize) {
        let Some(children) = self.children.get(&of).filter(|_| depth < DEPTH) else { return };
        out.push_str(if depth == 0 { "<ul class=\"tree\">\n" } else { "<ul>\n" });
        for child in children {
            let Some(one) = self.parties.get(child) else { continue };
            let _ = write!(out, "<li>{}", self.line(*child, one));
            self.push(out, Some(*child), depth + 1);
            out.push_str("</li>\n");
        }
        out.push_str("</ul>\n");
    }

    fn line(&self, key: Key, one: &Party) -> String {
        let Some(life) = self.lives.get(&key) else {
            return format!("{} <span class=\"dim\">held nothing in this time</span>", party(one));
        };
        let mut text = format!("<strong>{}</strong>", party(&life.process));
        if life.names.len() > 1 {
            let names: Vec<String> = life.names.iter().map(raw).collect();
            let _ = write!(text, ", called {}", names.join(", then "));
        }
        if let Some(cmdline) = life.process.cmdline.as_ref().filter(|cmdline| !cmdline.is_empty()) {
            let _ = write!(text, ", started as <code>{}</code>", raw(cmdline));
        }
        text
    }
}

fn key(party: &Party) -> Key {
    (party.pid, party.start_ns)
}

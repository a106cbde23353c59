//! The story of one process: what it was, what it held, what happened to it, and what went on from it to others.

use std::collections::BTreeSet;
use std::rc::Rc;

use jiff::Timestamp;

use super::{Event, Process, Reader, Window, events};
use crate::journal::JournalError;
use crate::model::history::Holding;

/// Events of one process that are told.
const MOST: usize = 100_000;

/// One process from beginning to end.
#[derive(Clone, Debug)]
pub struct Story {
    /// Who.
    pub process: Process,
    /// Which boot.
    pub boot_id: String,
    /// Parents that the record knows, nearest first.
    pub ancestors: Vec<Process>,
    /// What it held.
    pub holdings: Vec<Holding>,
    /// What happened to it, and who got what it held.
    pub events: Vec<Event>,
    /// From the first to the last of it; until the end of the record while it is not over.
    pub window: Window,
    /// The record has its end, and that of all it held.
    pub over: bool,
}

impl Reader {
    /// The stories of all processes that had this PID in a window, oldest first.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn stories(&self, pid: u32, window: Option<Window>) -> Result<Vec<Story>, JournalError> {
        let mut select = self.db.prepare("SELECT id FROM process WHERE pid = ?1 ORDER BY boot, start_ns")?;
        let rows: Vec<i64> = select.query_map([pid], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let mut stories = Vec::new();
        for row in rows {
            let process = self.names.process(&self.db, row)?;
            if let Some(story) = self.story(&process)? {
                let inside =
                    |window: Window| story.window.from <= window.to && story.window.to >= window.from;
                if window.is_none_or(inside) {
                    stories.push(story);
                }
            }
        }
        Ok(stories)
    }

    fn story(&self, process: &Rc<Process>) -> Result<Option<Story>, JournalError> {
        let Some(boot) = self.boot(process.boot) else { return Ok(None) };
        let holdings = self.holdings_of(process)?;
        let mut told: Vec<Event> = Vec::new();
        let mut seen = BTreeSet::new();
        // Its own, and what others got from it. By number: those need no sorting and are found by an index.
        for condition in [
            "event.process = ?1",
            "event.what IN (SELECT id FROM word WHERE word IN ('inherited', 'handed-over')) AND event.process IN \
             (SELECT heir.process FROM holding AS heir WHERE heir.giver = ?1) \
             AND event.file IN (SELECT heir.file FROM holding AS heir WHERE heir.giver = ?1)",
        ] {
            let sql = format!("{} WHERE {condition} ORDER BY event.id LIMIT {MOST}", events::SELECT);
            let mut select = self.db.prepare_cached(&sql)?;
            let mut rows = select.query([process.row])?;
            while let Some(row) = rows.next()? {
                if seen.insert(row.get::<_, i64>(0)?) {
                    told.push(self.event(boot, row)?);
                }
            }
        }
        told.sort_by_key(|event| (event.line.at_ns, event.id));
        if told.is_empty() && holdings.is_empty() {
            return Ok(None);
        }
        // Its reaping may come when nobody follows it any more; one that exits and holds nothing has nothing more to tell.
        let ended = |event: &Event| {
            matches!(event.line.what.as_str(), "exited" | "exiting")
                && event.line.process.as_ref().is_some_and(|of| of.pid == process.pid)
        };
        let over = told.iter().any(ended) && holdings.iter().all(|held| held.until.is_some());
        let ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let moments = told
            .iter()
            .map(|event| ns(event.line.at_ns))
            .chain(holdings.iter().flat_map(|held| [Some(held.since_ns), held.until_ns]).flatten());
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        for moment in moments {
            (first, last) = (first.min(moment), last.max(moment));
        }
        // What was found by the first look began before it, and nobody can say when.
        let known = boot.runs.first().map_or(first, |run| run.0);
        let to =
            if over { boot.wall(last) } else { boot.end().unwrap_or(Timestamp::MAX).max(boot.wall(last)) };
        let window = Window { from: boot.wall(first.max(known)), to };
        Ok(Some(Story {
            ancestors: self.ancestors(process)?,
            process: (**process).clone(),
            boot_id: boot.boot_id.clone(),
            holdings,
            events: told,
            window,
            over,
        }))
    }

    pub(super) fn ancestors(&self, process: &Process) -> Result<Vec<Process>, JournalError> {
        let mut ancestors: Vec<Process> = Vec::new();
        let mut next = process.parent;
        while let Some(row) = next {
            let parent = self.names.process(&self.db, row)?;
            if ancestors.len() >= 64 || ancestors.iter().any(|known| known.row == row) {
                break;
            }
            next = parent.parent;
            ancestors.push((*parent).clone());
        }
        Ok(ancestors)
    }
}

//! The answer as one document: what was asked, who held what, what happened, and what that is worth.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Event, Reader, Story, Window};
use crate::gpu::selector::Selection;
use crate::journal::JournalError;
use crate::journal::detail::Detail;
use crate::journal::schema::word_number;
use crate::model::happening::Party;
use crate::model::history::{AtMoment, Coverage, Fate, History, Holding, Life};
use crate::model::report::SCHEMA;

/// Processes whose ends are looked up.
const FATES: usize = 10_000;

/// What of the record is wanted.
#[derive(Clone, Debug)]
pub struct Asked {
    /// These GPUs and devices.
    pub selection: Selection,
    /// This process only.
    pub pid: Option<u32>,
    /// At most so many events; 0: none.
    pub events: usize,
}

impl Reader {
    /// Who held what at any time in a window.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn history(&self, window: Window, asked: &Asked) -> Result<History, JournalError> {
        let holdings = self.holdings(window, &asked.selection, asked.pid)?;
        let (events, more_events) = match asked.events {
            0 => (Vec::new(), false),
            limit => self.events(window, &asked.selection, asked.pid, limit)?,
        };
        let coverage = self.coverage(window)?;
        let document = self.document(window, coverage, holdings)?;
        let verdicts =
            if asked.pid.is_some() { Vec::new() } else { self.verdicts(window, &asked.selection)? };
        Ok(History { events: lines(events), more_events, verdicts, ..document })
    }

    /// Who held what at a moment.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn history_at(&self, at: Timestamp, asked: &Asked) -> Result<History, JournalError> {
        let then = self.at(at, &asked.selection, asked.pid)?;
        let moment = AtMoment { asked: at, answered: then.answered };
        let mut document = self.document(Window { from: at, to: at }, then.coverage, then.holdings)?;
        // What came later was not known then, and is told all the same: it is why one asks.
        document.at = Some(moment);
        document.unheld = then.unheld;
        document.verdicts = then.verdicts;
        Ok(document)
    }

    /// The story of a process, and of others that had its PID; only those of a window, if there is one.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn history_of(&self, pid: u32, window: Option<Window>) -> Result<History, JournalError> {
        let stories = self.stories(pid, window)?;
        let from = stories.iter().map(|story| story.window.from).min();
        let to = stories.iter().map(|story| story.window.to).max();
        let whole = Window { from: from.unwrap_or(self.begin()), to: to.unwrap_or(self.end()) };
        let mut holes = Vec::new();
        for story in &stories {
            holes.extend(self.coverage(story.window)?.holes);
        }
        if stories.is_empty() {
            holes = self.coverage(window.unwrap_or(whole))?.holes;
        }
        holes.dedup();
        let coverage = Coverage { complete: holes.is_empty(), holes };
        let holdings = stories.iter().flat_map(|story| story.holdings.clone()).collect();
        let mut document = self.document(window.unwrap_or(whole), coverage, holdings)?;
        document.lives = stories.iter().map(|story| self.life(story)).collect();
        document.events = stories.into_iter().flat_map(|story| lines(story.events)).collect();
        Ok(document)
    }

    fn document(
        &self,
        window: Window,
        coverage: Coverage,
        holdings: Vec<Holding>,
    ) -> Result<History, JournalError> {
        let processes: BTreeSet<(i64, i64)> = holdings.iter().map(|held| (held.boot, held.row)).collect();
        let mut fates = Vec::new();
        for (boot, row) in processes.into_iter().take(FATES) {
            fates.extend(self.fate(boot, row)?);
        }
        Ok(History {
            schema: SCHEMA,
            host: self.hosts().first().map(|(host, ..)| host.clone()),
            from: window.from,
            to: window.to,
            at: None,
            coverage,
            holdings,
            unheld: Vec::new(),
            verdicts: Vec::new(),
            fates,
            events: Vec::new(),
            lives: Vec::new(),
            more_events: false,
        })
    }

    fn life(&self, story: &Story) -> Life {
        let parties = story.ancestors.iter().map(|ancestor| ancestor.party(i64::MAX));
        Life {
            process: story.process.party(i64::MAX),
            boot_id: story.boot_id.clone(),
            names: story.process.names(),
            exe: story.process.exe.clone(),
            cgroup: story.process.cgroup.clone(),
            ancestors: parties.collect(),
            from: story.window.from,
            to: story.window.to,
            over: story.over,
        }
    }

    /// How a process ended, or is about to, as far as anybody saw.
    fn fate(&self, boot: i64, row: i64) -> Result<Option<Fate>, JournalError> {
        let Some(boot) = self.boot(boot) else { return Ok(None) };
        let number = |word: &str| word_number(word).unwrap_or_default();
        let (killed, exiting, released) = (number("killed"), number("exiting"), number("released"));
        // Without the joins of a whole event: there may be thousands of processes.
        let mut select = self.db.prepare_cached(
            "SELECT at_ns, what, detail FROM event WHERE process = ?1 AND what IN (?2, ?3, ?4) ORDER BY at_ns",
        )?;
        let mut rows = select.query((row, killed, exiting, released))?;
        let process = self.names.process(&self.db, row)?;
        let (pid, start_ns) = (process.pid, process.start_ns);
        let mut fate = Fate { pid, start_ns, boot_id: boot.boot_id.clone(), ..Fate::default() };
        let mut known = false;
        while let Some(row) = rows.next()? {
            let (at_ns, what): (i64, i64) = (row.get(0)?, row.get(1)?);
            let detail = Detail::parse(row.get_ref(2)?.as_str_or_null().map_err(rusqlite::Error::from)?);
            let by = |detail: &Detail| -> Result<Option<Party>, JournalError> {
                let Some(row) = detail.by.first() else { return Ok(None) };
                Ok(Some(self.names.process(&self.db, *row)?.party(at_ns)))
            };
            if what == killed && !known {
                (known, fate.pending) = (true, true);
                (fate.signal, fate.by) = (detail.signal, by(&detail)?);
                fate.by_kernel = detail.by_kernel;
            } else if what == exiting && (detail.tid.is_none() || fate.pending) {
                // A leader that is dead is not the end of a process whose other threads are not.
                (known, fate.pending) = (true, fate.pending && detail.others_left);
                fate.at = fate.at.or(Some(boot.wall(at_ns)));
                fate.signal = detail.signal.or(fate.signal);
                fate.exit_status = detail.exit_status;
                if fate.by.is_none() {
                    fate.by = by(&detail)?;
                }
                fate.by_kernel = fate.by_kernel.or(detail.by_kernel);
            } else if what == released {
                fate.released_us = fate.released_us.max(detail.after_kill_us.or(detail.after_exit_us));
            }
        }
        Ok(known.then_some(fate))
    }
}

fn lines(events: Vec<Event>) -> Vec<crate::model::happening::Happening> {
    events.into_iter().map(|event| event.line).collect()
}

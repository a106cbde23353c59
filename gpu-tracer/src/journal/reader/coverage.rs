//! What a record is worth: where in a window nobody looked, or what was seen was not kept.

use jiff::{SignedDuration, Timestamp};

use super::{Boot, Reader, Window};
use crate::journal::JournalError;
use crate::model::history::{Coverage, Hole};

/// A daemon gives a sign of life every ten seconds; one that has not for so long is not there.
const SILENCE: SignedDuration = SignedDuration::from_secs(30);

/// Absences that touch are one: the daemon that comes next says so too.
fn joined(mut holes: Vec<Hole>) -> Coverage {
    holes.sort_by_key(|hole| (hole.from, hole.to));
    let mut merged: Vec<Hole> = Vec::new();
    for hole in holes {
        match merged.last_mut() {
            // The daemon that came next says so too.
            Some(last) if last.to >= hole.from && (last.is_absence() && hole.is_absence()) => {
                last.to = last.to.max(hole.to);
            }
            _ => merged.push(hole),
        }
    }
    Coverage { complete: merged.is_empty(), holes: merged }
}

impl Hole {
    fn is_absence(&self) -> bool {
        matches!(self.cause.as_str(), "not-running" | "reboot")
    }

    fn new(from: Timestamp, to: Timestamp, cause: &str) -> Self {
        Self { from, to, cause: cause.to_owned(), events: None }
    }
}

impl Reader {
    /// Holes in a window.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn coverage(&self, window: Window) -> Result<Coverage, JournalError> {
        let mut holes = self.absences(window);
        holes.extend(self.gaps()?);
        // What is known again at its end is known.
        holes.retain(|hole| {
            let ends_after = hole.to > window.from || (hole.from == hole.to && hole.to == window.from);
            hole.from <= window.to && ends_after && hole.from <= hole.to
        });
        Ok(joined(holes))
    }

    /// When there was no daemon.
    fn absences(&self, window: Window) -> Vec<Hole> {
        let mut runs: Vec<(Timestamp, Timestamp, &Boot)> = Vec::new();
        for boot in &self.boots {
            runs.extend(boot.runs.iter().map(|(from, to)| (boot.wall(*from), boot.wall(*to), boot)));
        }
        runs.sort_by_key(|(from, to, _)| (*from, *to));
        let Some((begin, ..)) = runs.first() else { return Vec::new() };
        let mut holes = Vec::new();
        if window.from < *begin {
            holes.push(Hole::new(window.from, *begin, "no-record"));
        }
        let mut last: Option<(Timestamp, &Boot)> = None;
        for (from, to, boot) in runs {
            if let Some((alive, before)) = last.filter(|(alive, _)| *alive < from) {
                let cause = if before.id == boot.id { "not-running" } else { "reboot" };
                holes.push(Hole::new(alive, from, cause));
            }
            last = Some(last.map_or(
                (to, boot),
                |(alive, before)| {
                    if alive > to { (alive, before) } else { (to, boot) }
                },
            ));
        }
        if let Some((alive, _)) = last.filter(|(alive, _)| window.to.duration_since(*alive) > SILENCE) {
            holes.push(Hole::new(alive.max(window.from), window.to, "no-sign-of-life"));
        }
        holes
    }

    fn gaps(&self) -> Result<Vec<Hole>, JournalError> {
        let mut select = self.db.prepare_cached("SELECT boot, from_ns, to_ns, cause, events FROM gap")?;
        let rows = select.query_map([], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, String>(3)?,
                row.get::<_, Option<i64>>(4)?,
            ))
        })?;
        let mut holes = Vec::new();
        for row in rows {
            let (boot, from_ns, to_ns, cause, events) = row?;
            let Some(boot) = self.boot(boot) else { continue };
            // The daemon that came next knew only roughly how long the one before had lived.
            let alive_ns = boot.runs.iter().map(|run| run.1).filter(|alive| *alive <= to_ns).max();
            let from_ns = if cause == "not-running" {
                alive_ns.map_or(from_ns, |alive| alive.max(from_ns))
            } else {
                from_ns
            };
            let events = events.map(i64::unsigned_abs);
            holes.push(Hole { events, ..Hole::new(boot.wall(from_ns), boot.wall(to_ns), &cause) });
        }
        Ok(holes)
    }
}

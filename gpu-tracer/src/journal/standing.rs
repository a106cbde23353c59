//! What holds across trouble: signs of life, what an earlier daemon left without an end, and what is held after records
//! were lost.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension as _};

use super::detail::Detail;
use super::ids::ns;
use super::record::Standing;
use super::schema::{OPEN_LEVEL, level};
use super::store::{Going, Living, Store, end_holding};
use crate::model::ProcessId;

/// Two readings of an undisturbed clock differ by less. Times that were printed stay what they were: one can ask for them again.
const JITTER_NS: u64 = 1_000_000;
/// The clock is set when it moves further than this against boot time at once; what is less is a clock being disciplined.
const CLOCK_STEP_NS: u64 = 100_000_000;

impl Store {
    /// Writes that this daemon lives, and where the wall clock is.
    pub(super) fn alive(&mut self, db: &Connection, at_ns: u64, wall_offset_ns: i64) -> rusqlite::Result<()> {
        self.seen_alive(db, at_ns)?;
        if !std::mem::replace(&mut self.looked, true) {
            // Before its first look a daemon knows nothing.
            db.execute("UPDATE run SET started_ns = ?2 WHERE id = ?1", (self.run, ns(at_ns)))?;
        }
        let before: i64 = db
            .prepare_cached("SELECT wall_offset_ns FROM boot WHERE id = ?1")?
            .query_row([self.boot], |row| row.get(0))?;
        if before.abs_diff(wall_offset_ns) < JITTER_NS {
            return Ok(());
        }
        db.prepare_cached("UPDATE boot SET wall_offset_ns = ?2 WHERE id = ?1")?
            .execute((self.boot, wall_offset_ns))?;
        if before.abs_diff(wall_offset_ns) >= CLOCK_STEP_NS {
            db.prepare_cached("INSERT INTO clock (boot, at_ns, wall_offset_ns) VALUES (?1, ?2, ?3)")?
                .execute((self.boot, ns(at_ns), wall_offset_ns))?;
            let by_ms = wall_offset_ns.saturating_sub(before) / 1_000_000;
            let detail = Detail { cause: Some(format!("{by_ms:+} ms")), ..Detail::default() };
            self.event(db, at_ns, "clock-set", None, None, &detail)?;
        }
        Ok(())
    }

    /// The daemon was alive at this moment.
    pub(super) fn seen_alive(&self, db: &Connection, at_ns: u64) -> rusqlite::Result<()> {
        db.prepare_cached("UPDATE run SET alive_ns = max(alive_ns, ?2) WHERE id = ?1")?
            .execute((self.run, ns(at_ns)))?;
        Ok(())
    }

    /// Takes over what is held now: what the journal believes and is not so has ended unseen.
    pub(super) fn stand(&mut self, db: &Connection, standing: &Standing) -> rusqlite::Result<()> {
        let at_ns = standing.at_ns;
        if let Some(lost) = standing.lost {
            self.gap(db, lost.from_ns, at_ns, "journal-overflow", Some(lost.records))?;
        }
        let open: HashSet<u64> = standing.files.iter().map(|file| file.id).collect();
        let ended: Vec<u64> = self.files.keys().copied().filter(|id| !open.contains(id)).collect();
        for id in ended {
            self.end_file(db, Some(id), at_ns, "unseen")?;
        }
        for file in &standing.files {
            let device = self.ids.device(db, file.device)?;
            let since_ns = file.opened.map_or(at_ns, |(opened_ns, _)| opened_ns.min(at_ns));
            self.meet_file(db, file.id, device, since_ns)?;
            if let Some((opened_ns, opener)) = file.opened {
                let opener = self.ids.process(db, opener, at_ns)?;
                db.prepare_cached(
                    "UPDATE file SET opener = ?2, opened_ns = ?3 WHERE id = ?1 AND opener IS NULL",
                )?
                .execute((self.row_of(file.id), opener, ns(opened_ns)))?;
            }
        }
        let held: HashSet<(u64, ProcessId)> =
            standing.holdings.iter().map(|holding| (holding.file, holding.process)).collect();
        for (id, file) in &mut self.files {
            let mut kept = Vec::with_capacity(file.held.len());
            for going in file.held.drain(..) {
                if held.contains(&(*id, going.process)) {
                    kept.push(going);
                } else {
                    end_holding(db, &going, at_ns, "unseen")?;
                }
            }
            file.held = kept;
        }
        for holding in &standing.holdings {
            self.begin(db, holding.file, holding.process, holding.since_ns.min(at_ns), holding.how, None)?;
        }
        Ok(())
    }

    /// Forgets what was believed and takes it from the database again, after a transaction that failed.
    pub(super) fn reload(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let boot = self.boot;
        *self = Self { base: self.base, looked: self.looked, ..Self::new(boot, self.run) };
        let mut files: HashMap<u64, Living> = HashMap::new();
        let mut open = db.prepare("SELECT id, since_ns FROM file WHERE boot = ?1 AND level = ?2")?;
        let rows =
            open.query_map((boot, OPEN_LEVEL), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        for row in rows {
            let (id, since_ns) = row?;
            let living = Living { since_ns: since_ns.unsigned_abs(), held: Vec::new() };
            files.insert(id.unsigned_abs().saturating_sub(self.base), living);
        }
        let mut open = db.prepare(
            "SELECT holding.id, file, holding.since_ns, pid, start_ns FROM holding \
             JOIN process ON process.id = holding.process WHERE holding.boot = ?1 AND level = ?2",
        )?;
        let rows = open.query_map((boot, OPEN_LEVEL), |row| {
            let start_ns = row.get::<_, i64>(4)?.unsigned_abs();
            let going = Going {
                process: ProcessId { tgid: row.get(3)?, start_ns },
                row: row.get(0)?,
                since_ns: row.get::<_, i64>(2)?.unsigned_abs(),
                how: "found",
            };
            Ok((row.get::<_, i64>(1)?.unsigned_abs(), going))
        })?;
        for row in rows {
            let (file, going) = row?;
            if let Some(file) = files.get_mut(&file.saturating_sub(self.base)) {
                file.held.push(going);
            }
        }
        self.files = files;
        Ok(())
    }
}

/// Files of this boot without an end.
pub(super) fn left_open(db: &Connection, boot_id: &str) -> rusqlite::Result<HashSet<u64>> {
    let mut open = db.prepare(&format!(
        "SELECT file.id FROM file JOIN boot ON boot.id = file.boot WHERE boot_id = ?1 AND level = {OPEN_LEVEL}"
    ))?;
    open.query_map([boot_id], |row| row.get::<_, i64>(0).map(i64::unsigned_abs))?.collect()
}

/// Ends what an earlier daemon left without an end: after its last sign of life nothing is known of it.
pub(super) fn end_what_was_left(db: &Connection) -> rusqlite::Result<()> {
    let mut runs = db.prepare("SELECT boot, max(alive_ns) FROM run GROUP BY boot")?;
    let runs: Vec<(i64, i64)> =
        runs.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    for (boot, alive_ns) in runs {
        for (table, how) in [("holding", "unseen"), ("file", "unseen")] {
            let mut open = db.prepare(&format!(
                "SELECT id, since_ns FROM {table} WHERE boot = ?1 AND level = {OPEN_LEVEL}"
            ))?;
            let open: Vec<(i64, i64)> = open
                .query_map([boot], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let mut end = db.prepare(&format!(
                "UPDATE {table} SET until_ns = ?2, level = ?3, ended = ?4 WHERE id = ?1"
            ))?;
            for (id, since_ns) in open {
                // It was held at the last sign of life; nobody knows how much longer.
                let until_ns = alive_ns.max(since_ns).saturating_add(1);
                end.execute((id, until_ns, level(since_ns.unsigned_abs(), until_ns.unsigned_abs()), how))?;
            }
        }
    }
    Ok(())
}

/// The row of a boot, made if need be.
pub(super) fn boot_row(
    db: &Connection,
    boot_id: &str,
    wall_offset_ns: i64,
    kernel: Option<&str>,
    host: Option<&str>,
) -> rusqlite::Result<i64> {
    let found: Option<i64> =
        db.query_row("SELECT id FROM boot WHERE boot_id = ?1", [boot_id], |row| row.get(0)).optional()?;
    if let Some(row) = found {
        return Ok(row);
    }
    db.execute(
        "INSERT INTO boot (boot_id, wall_offset_ns, kernel, host) VALUES (?1, ?2, ?3, ?4)",
        (boot_id, wall_offset_ns, kernel, host),
    )?;
    Ok(db.last_insert_rowid())
}

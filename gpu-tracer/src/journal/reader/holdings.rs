//! Who held what when.

use std::collections::HashSet;

use jiff::Timestamp;
use rusqlite::Row;

use super::{At, Boot, Moment, Process, Reader, Window};
use crate::gpu::selector::Selection;
use crate::journal::JournalError;
use crate::journal::schema::OPEN_LEVEL;
use crate::model::history::{Holding, OWN_HELPER, Unheld};

/// The file of this program, and what it calls the process that asks NVML.
const OUR_PROGRAM: &[u8] = b"gpu-tracer";
const OUR_HELPER: &[u8] = b"gpu-tracer-nvml";

/// How long before a moment an interval of this level may have begun that covers it.
fn reach(level: i64) -> i64 {
    if level >= 63 { i64::MAX } else { 1i64 << level }
}

/// What of it is wanted.
fn wanted(selection: &Selection, device: &str, gpu: Option<u32>) -> bool {
    selection.all
        || gpu.is_some_and(|gpu| selection.gpus.contains(&gpu))
        || selection.devices.iter().any(|known| known.name == device)
}

impl Reader {
    /// Where in the record a moment of the wall clock is: the last known moment that is not after it.
    #[must_use]
    pub fn moment(&self, at: Timestamp) -> Option<Moment> {
        let mut best: Option<(Timestamp, Moment)> = None;
        for boot in &self.boots {
            for (first, last) in &boot.runs {
                let ns = boot.ns(at).min(*last);
                if ns < *first {
                    continue;
                }
                let known = (boot.wall(ns), Moment { boot: boot.id, ns });
                if best.is_none_or(|(wall, _)| known.0 >= wall) {
                    best = Some(known);
                }
            }
        }
        best.map(|(_, moment)| moment)
    }

    /// Who held what at a moment.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn at(&self, asked: Timestamp, selection: &Selection, pid: Option<u32>) -> Result<At, JournalError> {
        let coverage = self.coverage(Window { from: asked, to: asked })?;
        // In a hole the last thing known is what was so before it.
        let before = coverage.holes.iter().map(|hole| hole.from).min().map_or(asked, |from| from.min(asked));
        let Some(moment) = self.moment(before) else {
            return Ok(At {
                asked,
                answered: None,
                holdings: Vec::new(),
                unheld: Vec::new(),
                verdicts: Vec::new(),
                coverage,
            });
        };
        let mut holdings = Vec::new();
        self.overlapping(moment.boot, moment.ns, moment.ns, &mut holdings)?;
        holdings.retain(|held| held.until_ns.is_none_or(|until| until > moment.ns));
        let held: HashSet<u64> = holdings.iter().map(|held| held.file).collect();
        let mut unheld = if pid.is_some() { Vec::new() } else { self.open_files(moment)? };
        unheld.retain(|file| !held.contains(&file.file) && wanted(selection, &file.device, file.gpu));
        holdings.retain(|held| {
            wanted(selection, &held.device, held.gpu) && pid.is_none_or(|pid| held.process.pid == pid)
        });
        let answered = self.boot(moment.boot).map(|boot| boot.wall(moment.ns));
        let verdicts = if pid.is_some() { Vec::new() } else { self.verdicts_at(moment, selection)? };
        Ok(At { asked, answered, holdings, unheld, verdicts, coverage })
    }

    /// What was held at any time in a window, by beginning.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn holdings(
        &self,
        window: Window,
        selection: &Selection,
        pid: Option<u32>,
    ) -> Result<Vec<Holding>, JournalError> {
        let mut holdings = Vec::new();
        for (boot, from, to) in self.parts(window) {
            self.overlapping(boot, from, to, &mut holdings)?;
        }
        holdings.retain(|held| {
            wanted(selection, &held.device, held.gpu) && pid.is_none_or(|pid| held.process.pid == pid)
        });
        holdings.sort_by_key(|held| (held.boot, held.since_ns, held.process.pid, held.file));
        Ok(holdings)
    }

    /// All that one process held.
    pub(super) fn holdings_of(&self, process: &Process) -> Result<Vec<Holding>, JournalError> {
        let Some(boot) = self.boot(process.boot) else { return Ok(Vec::new()) };
        let sql = format!("{SELECT} WHERE holding.process = ?1 ORDER BY holding.since_ns, holding.id");
        let mut select = self.db.prepare_cached(&sql)?;
        let mut rows = select.query([process.row])?;
        let mut holdings = Vec::new();
        while let Some(row) = rows.next()? {
            holdings.push(self.holding(boot, row)?);
        }
        Ok(holdings)
    }

    /// Files that were open at a moment.
    fn open_files(&self, moment: Moment) -> Result<Vec<Unheld>, JournalError> {
        let Some(boot) = self.boot(moment.boot) else { return Ok(Vec::new()) };
        let mut select = self.db.prepare_cached(
            "SELECT device.name, device.gpu, file.id, file.since_ns FROM file JOIN device ON device.id = file.device \
             WHERE file.boot = ?1 AND file.level = ?2 AND file.since_ns > ?3 AND file.since_ns <= ?4 \
             AND (file.until_ns IS NULL OR file.until_ns > ?4)",
        )?;
        let mut files = Vec::new();
        for level in 0..=OPEN_LEVEL {
            let since_ns = moment.ns.saturating_sub(reach(level));
            let rows = select.query_map((boot.id, level, since_ns, moment.ns), |row| {
                Ok(Unheld {
                    device: row.get(0)?,
                    gpu: row.get(1)?,
                    file: row.get::<_, i64>(2)?.unsigned_abs(),
                    since: boot.wall(row.get(3)?),
                })
            })?;
            for row in rows {
                files.push(row?);
            }
        }
        Ok(files)
    }

    /// An interval of level `l` that reaches `from` began less than `2^l` ns before it: one short search for each level.
    fn overlapping(
        &self,
        boot: i64,
        from: i64,
        to: i64,
        holdings: &mut Vec<Holding>,
    ) -> Result<(), JournalError> {
        let Some(boot) = self.boot(boot) else { return Ok(()) };
        let sql = format!(
            "{SELECT} WHERE holding.boot = ?1 AND holding.level = ?2 AND holding.since_ns > ?3 AND holding.since_ns <= ?5 \
             AND (holding.until_ns IS NULL OR holding.until_ns >= ?4)"
        );
        let mut select = self.db.prepare_cached(&sql)?;
        for level in 0..=OPEN_LEVEL {
            let mut rows = select.query((boot.id, level, from.saturating_sub(reach(level)), from, to))?;
            while let Some(row) = rows.next()? {
                holdings.push(self.holding(boot, row)?);
            }
        }
        Ok(())
    }

    /// By its executable alone: what it had mapped is not in the record.
    fn role(&self, process: &Process, at_ns: i64, device: &str) -> String {
        let exe = process.exe.as_ref().map(|exe| &exe.0[..]);
        let is_ours = exe.is_some_and(|exe| exe.rsplit(|byte| *byte == b'/').next() == Some(OUR_PROGRAM));
        let role = match self.roles.role(exe, &[]) {
            "unknown" if is_ours && process.comm(at_ns).0[..] == *OUR_HELPER => OWN_HELPER,
            "unknown" if device.starts_with("nvidia") => "compute",
            known => known,
        };
        role.to_owned()
    }

    fn holding(&self, boot: &Boot, row: &Row<'_>) -> Result<Holding, JournalError> {
        let (since_ns, until_ns): (i64, Option<i64>) = (row.get(2)?, row.get(3)?);
        let process = self.names.process(&self.db, row.get(1)?)?;
        let giver: Option<i64> = row.get(5)?;
        let from = giver.map(|giver| self.names.process(&self.db, giver)).transpose()?;
        let device: String = row.get(7)?;
        // A name says what it was last, the command line what it was first.
        let named_at = until_ns.unwrap_or(i64::MAX);
        Ok(Holding {
            boot_id: boot.boot_id.clone(),
            gpu: row.get(8)?,
            file: row.get::<_, i64>(0)?.unsigned_abs(),
            process: process.party(named_at),
            exe: process.exe.clone(),
            cgroup: process.cgroup.clone(),
            role: self.role(&process, named_at, &device),
            how: row.get(4)?,
            from: from.map(|from| from.party(since_ns)),
            since: boot.wall(since_ns),
            since_ns,
            until: until_ns.map(|until| boot.wall(until)),
            until_ns,
            ended: row.get(6)?,
            row: process.row,
            boot: boot.id,
            device,
        })
    }
}

const SELECT: &str = "SELECT holding.file, holding.process, holding.since_ns, holding.until_ns, holding.how, holding.giver, \
     holding.ended, device.name, device.gpu FROM holding \
     JOIN file ON file.id = holding.file JOIN device ON device.id = file.device";

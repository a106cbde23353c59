//! What a report is made from.

use std::collections::BTreeSet;
use std::rc::Rc;

use jiff::Timestamp;

use super::{Asked, Process, Reader, Window};
use crate::journal::JournalError;
use crate::model::history::{BootFacts, Incident, Life, MemorySample};

/// Processes that are described one by one.
const LIVES: usize = 2_000;
/// Points of memory curves.
const SAMPLES: i64 = 100_000;

impl Reader {
    /// All about a window, and about a moment in it.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn incident(&self, window: Window, at: Timestamp, asked: &Asked) -> Result<Incident, JournalError> {
        let history = self.history(window, asked)?;
        let then = self.history_at(at, asked)?;
        let rows: BTreeSet<(i64, i64)> =
            history.holdings.iter().chain(&then.holdings).map(|held| (held.boot, held.row)).collect();
        let mut lives = Vec::new();
        for (_, row) in rows.into_iter().take(LIVES) {
            let process = self.names.process(&self.db, row)?;
            lives.extend(self.short_life(&process, window)?);
        }
        Ok(Incident {
            history,
            then,
            lives,
            samples: self.samples(window)?,
            gpus: self.gpus()?,
            helpers: 0,
            boots: self.boot_facts()?,
            record_begin: self.begin(),
            record_end: self.end(),
        })
    }

    fn short_life(&self, process: &Rc<Process>, window: Window) -> Result<Option<Life>, JournalError> {
        let Some(boot) = self.boot(process.boot) else { return Ok(None) };
        let ancestors = self.ancestors(process)?;
        let start_ns = i64::try_from(process.start_ns).unwrap_or(i64::MAX);
        Ok(Some(Life {
            process: process.party(i64::MAX),
            boot_id: boot.boot_id.clone(),
            names: process.names(),
            exe: process.exe.clone(),
            cgroup: process.cgroup.clone(),
            ancestors: ancestors.iter().map(|ancestor| ancestor.party(i64::MAX)).collect(),
            from: boot.wall(start_ns),
            to: window.to,
            over: false,
        }))
    }

    fn samples(&self, window: Window) -> Result<Vec<MemorySample>, JournalError> {
        let mut samples = Vec::new();
        for (boot, from, to) in self.parts(window) {
            let Some(boot) = self.boot(boot) else { continue };
            let mut select = self.db.prepare_cached(
                "SELECT at_ns, gpu, used_mib, total_mib FROM memory WHERE boot = ?1 AND at_ns BETWEEN ?2 AND ?3 \
                 ORDER BY at_ns LIMIT ?4",
            )?;
            let rows = select.query_map((boot.id, from, to, SAMPLES), |row| {
                Ok(MemorySample {
                    at: boot.wall(row.get(0)?),
                    gpu: row.get(1)?,
                    used_mib: row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs),
                    total_mib: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs),
                })
            })?;
            for row in rows {
                samples.push(row?);
            }
        }
        Ok(samples)
    }

    fn boot_facts(&self) -> Result<Vec<BootFacts>, JournalError> {
        let mut facts = Vec::new();
        for boot in self.boots.iter().rev() {
            let (Some(from), Some(to)) = (boot.begin(), boot.end()) else { continue };
            let mut select = self
                .db
                .prepare_cached("SELECT DISTINCT version || ', plan ' || plan FROM run WHERE boot = ?1")?;
            let daemons = select.query_map([boot.id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            facts.push(BootFacts {
                boot_id: boot.boot_id.clone(),
                host: boot.host.clone(),
                kernel: boot.kernel.clone(),
                from,
                to,
                daemons,
            });
        }
        Ok(facts)
    }
}

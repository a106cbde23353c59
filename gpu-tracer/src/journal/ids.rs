//! Row numbers of processes and devices, so that most records cost no search.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};

use super::record::ProcessRecord;
use crate::model::{DeviceNumber, ProcessId};

/// Processes remembered; when there are more they are looked up again.
const KNOWN_MAX: usize = 65_536;

/// What is known of one process.
#[derive(Clone, Debug, Default)]
struct Known {
    row: i64,
    comm: String,
    cmdline: Option<String>,
    /// Of the newest name.
    since_ns: i64,
}

/// Row numbers by what they stand for, of one boot.
#[derive(Debug, Default)]
pub(super) struct Ids {
    boot: i64,
    processes: HashMap<ProcessId, Known>,
    devices: HashMap<DeviceNumber, i64>,
}

/// ns as the database has them: its numbers have a sign.
pub(super) fn ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

impl Ids {
    pub(super) fn of_boot(boot: i64) -> Self {
        Self { boot, ..Self::default() }
    }

    /// The row of a process; makes one for a process that was never described.
    pub(super) fn process(
        &mut self,
        db: &Connection,
        process: ProcessId,
        at_ns: u64,
    ) -> rusqlite::Result<i64> {
        if let Some(known) = self.processes.get(&process) {
            return Ok(known.row);
        }
        let known = self.find_or_make(db, process, at_ns)?;
        let row = known.row;
        self.remember(process, known);
        Ok(row)
    }

    fn remember(&mut self, process: ProcessId, known: Known) {
        if self.processes.len() >= KNOWN_MAX {
            self.processes.clear();
        }
        self.processes.insert(process, known);
    }

    fn find_or_make(&self, db: &Connection, process: ProcessId, at_ns: u64) -> rusqlite::Result<Known> {
        let key = (self.boot, process.tgid, ns(process.start_ns));
        let found: Option<i64> = db
            .prepare_cached("SELECT id FROM process WHERE boot = ?1 AND pid = ?2 AND start_ns = ?3")?
            .query_row(key, |row| row.get(0))
            .optional()?;
        let Some(row) = found else {
            db.prepare_cached("INSERT INTO process (boot, pid, start_ns, seen_ns) VALUES (?1, ?2, ?3, ?4)")?
                .execute((self.boot, process.tgid, ns(process.start_ns), ns(at_ns)))?;
            return Ok(Known { row: db.last_insert_rowid(), ..Known::default() });
        };
        let newest = db
            .prepare_cached(
                "SELECT since_ns, comm, cmdline FROM process_name WHERE process = ?1 ORDER BY since_ns DESC LIMIT 1",
            )?
            .query_row([row], |name| Ok((name.get(0)?, name.get(1)?, name.get(2)?)))
            .optional()?;
        let (since_ns, comm, cmdline) = newest.unwrap_or_default();
        Ok(Known { row, comm, cmdline, since_ns })
    }

    /// Takes over what is known of a process.
    pub(super) fn describe(&mut self, db: &Connection, record: &ProcessRecord) -> rusqlite::Result<()> {
        let row = self.process(db, record.process, record.at_ns)?;
        let parent = record.parent.map(|parent| self.process(db, parent, record.at_ns)).transpose()?;
        let description = record.description.as_deref();
        let text = |text: Option<&crate::model::RawText>| text.map(crate::model::RawText::to_text);
        let exe = text(description.and_then(|known| known.exe.as_ref()));
        let cgroup = text(description.and_then(|known| known.cgroup.as_ref()));
        if record.uid.is_some() || parent.is_some() || exe.is_some() || cgroup.is_some() {
            // The parent that forked it is what it stays: who adopted it is an event.
            db.prepare_cached(
                "UPDATE process SET uid = coalesce(?2, uid), parent = coalesce(parent, ?3), \
                 exe = coalesce(?4, exe), cgroup = coalesce(?5, cgroup) WHERE id = ?1",
            )?
            .execute((row, record.uid, parent, exe, cgroup))?;
        }
        let cmdline = description.map(|known| known.cmdline.to_text()).filter(|text| !text.is_empty());
        self.name(db, record.process, record.at_ns, &record.comm.to_text(), cmdline)
    }

    /// A process has, since `at_ns`, this name and, where it is known, this command line.
    pub(super) fn name(
        &mut self,
        db: &Connection,
        process: ProcessId,
        at_ns: u64,
        comm: &str,
        cmdline: Option<String>,
    ) -> rusqlite::Result<()> {
        let row = self.process(db, process, at_ns)?;
        let Some(known) = self.processes.get_mut(&process) else { return Ok(()) };
        let same_name = known.comm == comm;
        let news = cmdline.is_some() && known.cmdline != cmdline;
        if (comm.is_empty() || same_name) && !news {
            return Ok(());
        }
        if same_name && known.cmdline.is_none() {
            known.cmdline.clone_from(&cmdline);
            db.prepare_cached("UPDATE process_name SET cmdline = ?3 WHERE process = ?1 AND since_ns = ?2")?
                .execute((row, known.since_ns, cmdline))?;
            return Ok(());
        }
        if !comm.is_empty() {
            known.comm = comm.to_owned();
        }
        if cmdline.is_some() {
            known.cmdline = cmdline;
        }
        // The first name is the one it had from the start, as far as anybody knows.
        known.since_ns = if known.since_ns == 0 { ns(process.start_ns).max(1) } else { ns(at_ns) };
        db.prepare_cached(
            "INSERT OR REPLACE INTO process_name (process, since_ns, comm, cmdline) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute((row, known.since_ns, &known.comm, &known.cmdline))?;
        Ok(())
    }

    /// The row of a device; one that was never described gets its number for a name.
    pub(super) fn device(&mut self, db: &Connection, number: DeviceNumber) -> rusqlite::Result<i64> {
        match self.devices.get(&number) {
            Some(row) => Ok(*row),
            None => self.name_device(db, number, &number.to_string(), None),
        }
    }

    /// What a number means from now on.
    pub(super) fn name_device(
        &mut self,
        db: &Connection,
        number: DeviceNumber,
        name: &str,
        gpu: Option<u32>,
    ) -> rusqlite::Result<i64> {
        let row = db
            .prepare_cached(
                "INSERT INTO device (boot, number, name, gpu) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (boot, number, name) DO UPDATE SET gpu = excluded.gpu RETURNING id",
            )?
            .query_row((self.boot, number.to_string(), name, gpu), |row| row.get(0))?;
        self.devices.insert(number, row);
        Ok(row)
    }
}

//! From records to rows. Everything here happens inside a transaction of the writer.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};

use super::detail::Detail;
use super::ids::{Ids, ns};
use super::record::{ProcessRecord, Record};
use super::schema::{level, word_number};
use super::verdicts;
use crate::model::change::{Change, ChangeKind, Identity};
use crate::model::{Gpu, ProcessId};

/// A holding without an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Going {
    pub(super) process: ProcessId,
    pub(super) row: i64,
    pub(super) since_ns: u64,
    pub(super) how: &'static str,
}

/// An open file that has a row.
#[derive(Clone, Debug)]
pub(super) struct Living {
    pub(super) since_ns: u64,
    pub(super) held: Vec<Going>,
}

/// What is needed to turn records into rows; goes with one daemon.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) boot: i64,
    pub(super) run: i64,
    pub(super) ids: Ids,
    pub(super) files: HashMap<u64, Living>,
    pub(super) verdicts: HashMap<Option<u32>, verdicts::Standing>,
    /// What has to be added to the core's number of a file to have its row; not 0 where that began anew.
    pub(super) base: u64,
    /// The first look has been taken.
    pub(super) looked: bool,
}

/// A process let go of a file by its end, and a task of it still drops what it had.
pub(super) const DROPPING: &str = "dropping";

impl Store {
    pub(super) fn new(boot: i64, run: i64) -> Self {
        Self {
            boot,
            run,
            ids: Ids::of_boot(boot),
            files: HashMap::new(),
            verdicts: HashMap::new(),
            base: 0,
            looked: false,
        }
    }

    /// The row of a file.
    pub(super) fn row_of(&self, file: u64) -> i64 {
        ns(file.saturating_add(self.base))
    }

    /// Writes one record.
    pub(super) fn take(&mut self, db: &Connection, record: &Record) -> rusqlite::Result<()> {
        match record {
            Record::Change(change) => self.change(db, change),
            Record::Process(process) => self.ids.describe(db, process),
            Record::Device { number, name, gpu } => self.ids.name_device(db, *number, name, *gpu).map(|_| ()),
            Record::Gpus(gpus) => self.gpus(db, gpus),
            Record::Alive { at_ns, wall_offset_ns } => self.alive(db, *at_ns, *wall_offset_ns),
            Record::Standing(standing) => self.stand(db, standing),
            Record::Verdicts { at_ns, verdicts } => self.judged(db, *at_ns, verdicts),
            Record::Memory { at_ns, gpu, used_mib, total_mib } => db
                .prepare_cached("INSERT OR REPLACE INTO memory VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute((self.boot, ns(*at_ns), gpu, used_mib.map(ns), total_mib.map(ns)))
                .map(|_| ()),
        }
    }

    fn gpus(&self, db: &Connection, gpus: &[Gpu]) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached("INSERT OR REPLACE INTO gpu VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for gpu in gpus {
            insert.execute((self.boot, gpu.index, gpu.minor, &gpu.uuid, &gpu.bus_id, &gpu.name))?;
        }
        Ok(())
    }

    fn change(&mut self, db: &Connection, change: &Change) -> rusqlite::Result<()> {
        let at_ns = change.at_ns;
        if let (Some(file), Some(device)) = (change.file, change.device) {
            let device = self.ids.device(db, device)?;
            self.meet_file(db, file, device, at_ns)?;
        }
        match (change.file, change.process, &change.kind) {
            (Some(file), _, ChangeKind::Detached { by }) => {
                for task in by {
                    self.begin(db, file, task.process, at_ns, DROPPING, None)?;
                }
            }
            (Some(file), Some(process), _) => self.hold(db, file, process, change)?,
            _ => {}
        }
        let detail = self.detail(db, change)?;
        let mut process = change.process;
        match &change.kind {
            ChangeKind::Released { last_holder, how, .. } => {
                process = process.or(*last_holder);
                self.end_file(db, change.file, at_ns, how.word())?;
            }
            ChangeKind::OpenFailed { .. } => self.end_file(db, change.file, at_ns, "open-failed")?,
            ChangeKind::Gap(gap) => {
                let (cause, events) = (gap.cause.word(), gap.cause.events());
                self.gap(db, gap.from_ns, gap.to_ns, &cause, events)?;
            }
            ChangeKind::Renamed { tid, old, new } => {
                if let Some(process) = process.filter(|process| process.tgid == *tid) {
                    self.ids.name(db, process, process.start_ns, &old.to_text(), None)?;
                    self.ids.name(db, process, at_ns, &new.to_text(), None)?;
                }
            }
            _ => {}
        }
        let process = process.map(|process| self.ids.process(db, process, at_ns)).transpose()?;
        self.event(db, at_ns, change.kind.word(), process, change.file, &detail)
    }

    /// Adds an event.
    pub(super) fn event(
        &self,
        db: &Connection,
        at_ns: u64,
        what: &str,
        process: Option<i64>,
        file: Option<u64>,
        detail: &Detail,
    ) -> rusqlite::Result<()> {
        let detail = if *detail == Detail::default() { None } else { serde_json::to_string(detail).ok() };
        db.prepare_cached(
            "INSERT INTO event (boot, at_ns, what, process, file, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((
            self.boot,
            ns(at_ns),
            word_number(what),
            process,
            file.map(|file| self.row_of(file)),
            detail,
        ))?;
        Ok(())
    }

    /// Adds a hole in the record.
    pub(super) fn gap(
        &self,
        db: &Connection,
        from_ns: u64,
        to_ns: u64,
        cause: &str,
        events: Option<u64>,
    ) -> rusqlite::Result<()> {
        db.prepare_cached(
            "INSERT INTO gap (boot, from_ns, to_ns, cause, events) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((self.boot, ns(from_ns), ns(to_ns), cause, events.map(ns)))?;
        Ok(())
    }

    /// A file that has no row yet gets one. One whose end nobody had seen lives still: an earlier daemon knew it by this number.
    pub(super) fn meet_file(
        &mut self,
        db: &Connection,
        id: u64,
        device: i64,
        at_ns: u64,
    ) -> rusqlite::Result<()> {
        if self.files.contains_key(&id) {
            return Ok(());
        }
        let since_ns: Option<i64> = db
            .prepare_cached(
                "INSERT INTO file (id, boot, device, since_ns) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (id) DO UPDATE SET until_ns = NULL, ended = NULL, level = 64 \
                 WHERE boot = excluded.boot AND device = excluded.device AND ended = 'unseen' RETURNING since_ns",
            )?
            .query_row((self.row_of(id), self.boot, device, ns(at_ns)), |row| row.get(0))
            .optional()?;
        let since_ns = since_ns.map_or(at_ns, i64::unsigned_abs);
        self.files.insert(id, Living { since_ns, held: Vec::new() });
        Ok(())
    }

    /// A file and all holdings of it end.
    pub(super) fn end_file(
        &mut self,
        db: &Connection,
        id: Option<u64>,
        at_ns: u64,
        how: &str,
    ) -> rusqlite::Result<()> {
        let Some((id, file)) = id.and_then(|id| Some((id, self.files.remove(&id)?))) else { return Ok(()) };
        for going in &file.held {
            end_holding(db, going, at_ns, "released")?;
        }
        let until_ns = at_ns.max(file.since_ns);
        db.prepare_cached("UPDATE file SET until_ns = ?2, level = ?3, ended = ?4 WHERE id = ?1")?
            .execute((self.row_of(id), ns(until_ns), level(file.since_ns, until_ns), how))?;
        Ok(())
    }

    /// Begins or ends a holding, if the change does.
    fn hold(
        &mut self,
        db: &Connection,
        file: u64,
        process: ProcessId,
        change: &Change,
    ) -> rusqlite::Result<()> {
        let word = change.kind.word();
        match &change.kind {
            ChangeKind::Opened { opener, exact } => {
                let opener_row = self.identify(db, opener, change.at_ns)?;
                db.prepare_cached(
                    "UPDATE file SET opener = ?2, opened_ns = ?3, opened_exactly = ?4 WHERE id = ?1",
                )?
                .execute((self.row_of(file), opener_row, ns(change.at_ns), exact))?;
                self.begin(db, file, process, change.at_ns, word, None)
            }
            ChangeKind::Inherited { from } => self.begin(db, file, process, change.at_ns, word, Some(*from)),
            ChangeKind::HandedOver { from } => {
                let giver = if let [only] = from[..] { Some(only) } else { None };
                self.begin(db, file, process, change.at_ns, word, giver)
            }
            ChangeKind::Found | ChangeKind::Queued | ChangeKind::Registered | ChangeKind::Pinned => {
                self.begin(db, file, process, change.at_ns, word, None)
            }
            ChangeKind::Closed { cause } => self.end(db, file, process, change.at_ns, cause.word()),
            _ => Ok(()),
        }
    }

    fn identify(&mut self, db: &Connection, opener: &Identity, at_ns: u64) -> rusqlite::Result<i64> {
        let description = crate::model::change::ProcessDescription {
            cmdline: opener.cmdline.clone(),
            exe: opener.exe.clone(),
            cgroup: opener.cgroup.clone(),
        };
        let record = ProcessRecord {
            process: opener.process,
            at_ns,
            comm: crate::model::RawText::default(),
            uid: None,
            parent: opener.parent,
            description: Some(description.into()),
        };
        self.ids.describe(db, &record)?;
        self.ids.process(db, opener.process, at_ns)
    }

    /// A process begins to hold a file, or holds it in a better known way than before.
    pub(super) fn begin(
        &mut self,
        db: &Connection,
        file: u64,
        process: ProcessId,
        since_ns: u64,
        how: &'static str,
        giver: Option<ProcessId>,
    ) -> rusqlite::Result<()> {
        let row = self.ids.process(db, process, since_ns)?;
        let giver = giver.map(|giver| self.ids.process(db, giver, since_ns)).transpose()?;
        let file_row = self.row_of(file);
        let Some(living) = self.files.get_mut(&file) else { return Ok(()) };
        if let Some(going) = living.held.iter_mut().find(|going| going.process == process) {
            if matches!(how, "opened" | "inherited" | "handed-over" | DROPPING) && going.how != how {
                going.how = how;
                db.prepare_cached("UPDATE holding SET how = ?2, giver = ?3 WHERE id = ?1")?
                    .execute((going.row, how, giver))?;
            }
            return Ok(());
        }
        db.prepare_cached(
            "INSERT INTO holding (boot, file, process, since_ns, how, giver) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((self.boot, file_row, row, ns(since_ns), how, giver))?;
        living.held.push(Going { process, row: db.last_insert_rowid(), since_ns, how });
        Ok(())
    }

    fn end(
        &mut self,
        db: &Connection,
        file: u64,
        process: ProcessId,
        at_ns: u64,
        why: &str,
    ) -> rusqlite::Result<()> {
        let Some(living) = self.files.get_mut(&file) else { return Ok(()) };
        let Some(at) = living.held.iter().position(|going| going.process == process) else { return Ok(()) };
        end_holding(db, &living.held.swap_remove(at), at_ns, why)
    }
}

/// A holding has ended.
pub(super) fn end_holding(db: &Connection, going: &Going, at_ns: u64, why: &str) -> rusqlite::Result<()> {
    let until_ns = at_ns.max(going.since_ns);
    db.prepare_cached("UPDATE holding SET until_ns = ?2, level = ?3, ended = ?4 WHERE id = ?1")?
        .execute((going.row, ns(until_ns), level(going.since_ns, until_ns), why))?;
    Ok(())
}

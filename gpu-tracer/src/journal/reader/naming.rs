//! Who a process was: the names that go with row numbers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rusqlite::{Connection, OptionalExtension as _};
use serde::Serialize;

use crate::journal::JournalError;
use crate::model::RawText;
use crate::model::happening::Party;

/// A process as the record knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its row.
    #[serde(skip)]
    pub(super) row: i64,
    /// Row of its boot.
    #[serde(skip)]
    pub(super) boot: i64,
    /// Host PID.
    pub pid: u32,
    /// Start, ns of boot time.
    pub start_ns: u64,
    /// Real user.
    pub uid: Option<u32>,
    /// Host PID of the parent that forked it.
    pub ppid: Option<u32>,
    /// Row of that parent.
    #[serde(skip)]
    pub(super) parent: Option<i64>,
    /// The executable, which it cannot rename.
    pub exe: Option<RawText>,
    /// cgroup path.
    pub cgroup: Option<RawText>,
    /// The command line that it was started with, as far as known.
    pub cmdline: Option<RawText>,
    /// (since, ns of boot time; name; command line), oldest first.
    #[serde(skip)]
    names: Vec<(i64, String, Option<String>)>,
}

impl Process {
    /// The name that it wore at this moment.
    #[must_use]
    pub fn comm(&self, at_ns: i64) -> RawText {
        let then = self.names.iter().rev().find(|(since, ..)| *since <= at_ns);
        RawText::from_text(then.or(self.names.first()).map_or("", |(_, comm, _)| comm))
    }

    /// All names that it wore, oldest first.
    #[must_use]
    pub fn names(&self) -> Vec<RawText> {
        let mut names: Vec<RawText> =
            self.names.iter().map(|(_, comm, _)| RawText::from_text(comm)).collect();
        names.dedup();
        names
    }

    /// It, at this moment.
    #[must_use]
    pub fn party(&self, at_ns: i64) -> Party {
        Party {
            pid: self.pid,
            start_ns: self.start_ns,
            uid: self.uid,
            comm: self.comm(at_ns),
            cmdline: self.cmdline.clone(),
        }
    }
}

/// Processes that have been looked up.
#[derive(Debug, Default)]
pub(super) struct Names(RefCell<HashMap<i64, Rc<Process>>>);

impl Names {
    /// The process of a row; an empty one if there is no such row (any more).
    pub(super) fn process(&self, db: &Connection, row: i64) -> Result<Rc<Process>, JournalError> {
        if let Some(known) = self.0.borrow().get(&row) {
            return Ok(Rc::clone(known));
        }
        let process = Rc::new(read(db, row)?);
        self.0.borrow_mut().insert(row, Rc::clone(&process));
        Ok(process)
    }
}

fn read(db: &Connection, row: i64) -> Result<Process, JournalError> {
    let mut select = db.prepare_cached(
        "SELECT p.boot, p.pid, p.start_ns, p.uid, p.exe, p.cgroup, p.parent, parent.pid FROM process AS p \
         LEFT JOIN process AS parent ON parent.id = p.parent WHERE p.id = ?1",
    )?;
    let text = |text: Option<String>| text.map(|text| RawText::from_text(&text));
    let found = select
        .query_row([row], |found| {
            Ok(Process {
                row,
                boot: found.get(0)?,
                pid: found.get(1)?,
                start_ns: found.get::<_, i64>(2)?.unsigned_abs(),
                uid: found.get(3)?,
                exe: text(found.get(4)?),
                cgroup: text(found.get(5)?),
                parent: found.get(6)?,
                ppid: found.get(7)?,
                ..Process::default()
            })
        })
        .optional()?;
    let Some(mut process) = found else { return Ok(Process { row, ..Process::default() }) };
    let mut select = db.prepare_cached(
        "SELECT since_ns, comm, cmdline FROM process_name WHERE process = ?1 ORDER BY since_ns",
    )?;
    let names = select.query_map([row], |name| Ok((name.get(0)?, name.get(1)?, name.get(2)?)))?;
    process.names = names.collect::<rusqlite::Result<_>>()?;
    process.cmdline =
        process.names.iter().find_map(|(_, _, cmdline)| cmdline.as_deref().map(RawText::from_text));
    Ok(process)
}

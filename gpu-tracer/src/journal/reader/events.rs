//! What happened, as the stream of events would have told it.

use std::collections::HashSet;

use rusqlite::Row;

use super::{Boot, Reader, Window};
use crate::gpu::selector::Selection;
use crate::journal::JournalError;
use crate::journal::detail::Detail;
use crate::model::RawText;
use crate::model::happening::{Happening, Party};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number in the journal.
    pub(super) id: i64,
    /// Row of its boot.
    pub(super) boot: i64,
    /// What it says.
    pub line: Happening,
}

pub(super) const SELECT: &str = "SELECT event.id, event.at_ns, word.word, event.process, event.file, device.name, device.gpu, \
     event.detail FROM event JOIN word ON word.id = event.what LEFT JOIN file ON file.id = event.file \
     LEFT JOIN device ON device.id = file.device";

impl Reader {
    /// What happened in a window, in order: at most `limit` of the newest, and whether there is more. With GPUs selected also
    /// what happened to the processes that held them.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn events(
        &self,
        window: Window,
        selection: &Selection,
        pid: Option<u32>,
        limit: usize,
    ) -> Result<(Vec<Event>, bool), JournalError> {
        let holders: HashSet<i64> = if selection.all {
            HashSet::new()
        } else {
            self.holdings(window, selection, None)?.iter().map(|held| held.row).collect()
        };
        let sql = format!(
            "{SELECT} WHERE event.boot = ?1 AND event.at_ns BETWEEN ?2 AND ?3 ORDER BY event.at_ns DESC, event.id DESC"
        );
        let mut events: Vec<Event> = Vec::new();
        for (boot, from, to) in self.parts(window).into_iter().rev() {
            let Some(boot) = self.boot(boot) else { continue };
            let mut select = self.db.prepare_cached(&sql)?;
            let mut rows = select.query((boot.id, from, to))?;
            while let Some(row) = rows.next()? {
                let process: Option<i64> = row.get(3)?;
                let gpu: Option<u32> = row.get(6)?;
                let file: Option<i64> = row.get(4)?;
                let concerns = selection.all
                    || gpu.is_some_and(|gpu| selection.gpus.contains(&gpu))
                    || selection
                        .devices
                        .iter()
                        .any(|device| row.get::<_, String>(5).is_ok_and(|name| name == device.name))
                    || (file.is_none() && process.is_none_or(|process| holders.contains(&process)));
                if !concerns {
                    continue;
                }
                if let Some(pid) = pid {
                    let Some(process) = process else { continue };
                    if self.names.process(&self.db, process)?.pid != pid {
                        continue;
                    }
                }
                if events.len() == limit {
                    events.reverse();
                    return Ok((events, true));
                }
                events.push(self.event(boot, row)?);
            }
        }
        events.reverse();
        Ok((events, false))
    }

    pub(super) fn event(&self, boot: &Boot, row: &Row<'_>) -> Result<Event, JournalError> {
        let at_ns: i64 = row.get(1)?;
        let detail = Detail::parse(row.get_ref(7)?.as_str_or_null().map_err(rusqlite::Error::from)?);
        let process: Option<i64> = row.get(3)?;
        let party =
            |row: i64| -> Result<Party, JournalError> { Ok(self.names.process(&self.db, row)?.party(at_ns)) };
        let parties = |rows: &[i64]| rows.iter().map(|row| party(*row)).collect::<Result<Vec<_>, _>>();
        let (mut from, mut by) = (parties(&detail.from)?, parties(&detail.by)?);
        if let Some((old, new)) = detail.parents {
            let bare = |pid| vec![Party { pid, ..Party::default() }];
            (from, by) = (bare(old), bare(new));
        }
        let line = Happening {
            at: format!("{:.3}", boot.wall(at_ns)),
            at_ns: at_ns.unsigned_abs(),
            what: row.get(2)?,
            file: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
            device: row.get(5)?,
            gpu: row.get(6)?,
            process: process.map(party).transpose()?,
            tid: detail.tid,
            from,
            by,
            by_kernel: detail.by_kernel,
            old: detail.old.as_deref().map(RawText::from_text),
            new: detail.new.as_deref().map(RawText::from_text),
            signal: detail.signal,
            exit_status: detail.exit_status,
            errno: detail.errno,
            cause: detail.cause,
            count: detail.count,
            exact: !detail.by_then,
            after_kill_us: detail.after_kill_us,
            after_exit_us: detail.after_exit_us,
            since: detail
                .since_ns
                .map(|ns| format!("{:.3}", boot.wall(i64::try_from(ns).unwrap_or(i64::MAX)))),
        };
        Ok(Event { id: row.get(0)?, boot: boot.id, line })
    }
}

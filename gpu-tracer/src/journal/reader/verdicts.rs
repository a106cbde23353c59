//! What was said of GPUs when.

use jiff::Timestamp;

use super::{Moment, Reader, Window};
use crate::gpu::selector::Selection;
use crate::journal::JournalError;
use crate::journal::ids::ns;
use crate::journal::verdicts::LONGEST_NS;
use crate::model::history::VerdictSpan;

/// The first version of the layout that has verdicts.
const SINCE_VERSION: i64 = 2;
/// Between two verdicts of a daemon that does not hang is less time than this.
const RHYTHM_NS: i64 = 150_000_000_000;

impl Reader {
    /// What was said of GPUs in a window, by time.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) fn verdicts(
        &self,
        window: Window,
        selection: &Selection,
    ) -> Result<Vec<VerdictSpan>, JournalError> {
        let mut spans = Vec::new();
        for (boot, from, to) in self.parts(window) {
            self.given(boot, from, to, &mut spans)?;
        }
        spans.retain(|span| wanted(span, selection));
        Ok(joined(spans))
    }

    /// What had been said of each GPU last at a moment, if that was not long before.
    pub(super) fn verdicts_at(
        &self,
        moment: Moment,
        selection: &Selection,
    ) -> Result<Vec<VerdictSpan>, JournalError> {
        let mut spans = Vec::new();
        self.given(moment.boot, moment.ns.saturating_sub(RHYTHM_NS), moment.ns, &mut spans)?;
        spans.retain(|span| wanted(span, selection));
        let mut last: Vec<VerdictSpan> = Vec::new();
        for span in joined(spans) {
            last.retain(|known| known.gpu != span.gpu);
            last.push(span);
        }
        last.sort_by_key(|span| span.gpu);
        Ok(last)
    }

    fn given(&self, boot: i64, from: i64, to: i64, spans: &mut Vec<VerdictSpan>) -> Result<(), JournalError> {
        let Some(boot) = self.boot(boot).filter(|_| self.version >= SINCE_VERSION) else { return Ok(()) };
        let mut select = self.db.prepare_cached(
            "SELECT gpu, since_ns, until_ns, verdict, status, headline FROM verdict \
             WHERE boot = ?1 AND since_ns BETWEEN ?2 AND ?4 AND until_ns >= ?3 ORDER BY since_ns, id",
        )?;
        let rows = select.query_map((boot.id, from.saturating_sub(ns(LONGEST_NS)), from, to), |row| {
            Ok(VerdictSpan {
                boot_id: boot.boot_id.clone(),
                gpu: row.get(0)?,
                since: boot.wall(row.get(1)?),
                until: boot.wall(row.get(2)?),
                verdict: row.get(3)?,
                status: row.get(4)?,
                headline: row.get(5)?,
            })
        })?;
        for row in rows {
            spans.push(row?);
        }
        Ok(())
    }
}

fn wanted(span: &VerdictSpan, selection: &Selection) -> bool {
    selection.all || span.gpu.is_some_and(|gpu| selection.gpus.contains(&gpu))
}

/// Rows of one verdict that only go on are one.
fn joined(spans: Vec<VerdictSpan>) -> Vec<VerdictSpan> {
    let mut joined: Vec<VerdictSpan> = Vec::new();
    for span in spans {
        let before = joined.iter_mut().rev().find(|known| known.gpu == span.gpu);
        match before {
            Some(known) if known.goes_on_as(&span) && close(known.until, span.since) => {
                known.until = known.until.max(span.until);
            }
            _ => joined.push(span),
        }
    }
    joined
}

fn close(end: Timestamp, begin: Timestamp) -> bool {
    begin.as_nanosecond() - end.as_nanosecond() < i128::from(RHYTHM_NS)
}

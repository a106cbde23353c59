//! Verdicts as rows: one for as long as the same is said of a GPU.

use rusqlite::Connection;

use super::ids::ns;
use super::record::GivenVerdict;
use super::store::Store;

/// The same verdict gets another row after this time. So whoever looks for what was said at a moment need not look
/// further back.
pub(super) const LONGEST_NS: u64 = 3_600_000_000_000;

/// The row that a GPU's verdict has now.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    row: i64,
    since_ns: u64,
    given: GivenVerdict,
}

impl Store {
    /// What was said of GPUs at this moment.
    pub(super) fn judged(
        &mut self,
        db: &Connection,
        at_ns: u64,
        verdicts: &[GivenVerdict],
    ) -> rusqlite::Result<()> {
        for given in verdicts {
            let standing = self.verdicts.get(&given.gpu);
            if let Some(Standing { row, since_ns, .. }) = standing.filter(|standing| {
                standing.given == *given && at_ns.saturating_sub(standing.since_ns) < LONGEST_NS
            }) {
                db.prepare_cached("UPDATE verdict SET until_ns = ?2 WHERE id = ?1")?
                    .execute((row, ns(at_ns.max(*since_ns))))?;
                continue;
            }
            db.prepare_cached(
                "INSERT INTO verdict (boot, gpu, since_ns, until_ns, verdict, status, headline) \
                 VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)",
            )?
            .execute((
                self.boot,
                given.gpu,
                ns(at_ns),
                given.verdict,
                given.status,
                &given.headline,
            ))?;
            let row = db.last_insert_rowid();
            self.verdicts.insert(given.gpu, Standing { row, since_ns: at_ns, given: given.clone() });
        }
        Ok(())
    }
}

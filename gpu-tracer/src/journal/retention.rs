//! How much history is kept: what is too old goes, and the oldest where there is too much, a little at a time.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

/// Rows taken out in one go, so that the writer is soon back at its work.
const STEP: i64 = 2_000;
/// Rows looked at for that, from the oldest.
const WINDOW: i64 = 20_000;
/// Pages given back to the file system in one go.
const PAGES: u32 = 2_000;
/// A journal that is smaller is not what fills a disk.
const SMALL: u64 = 4 << 20;

/// Limits. The oldest history goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// No event older than this is kept.
    pub age: Duration,
    /// The file does not stay larger than this, bytes.
    pub size: u64,
    /// So much of the file system stays free, bytes: history gives way, and then stops.
    pub free: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: Duration::from_secs(30 * 24 * 3600), size: 1 << 30, free: 256 << 20 }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pruned {
    /// Events taken out.
    pub(super) events: u64,
    /// There is more to do.
    pub(super) more: bool,
}

/// How far the tables of what lasts have been looked through: what still goes on stays in front of what does not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors([i64; 4]);

/// On to the next rows, or back to the first after the last.
fn advance(db: &Connection, cursor: &mut i64, key: &str, table: &str) -> rusqlite::Result<()> {
    let sql = format!("SELECT min({key}), max({key}) FROM {table}");
    let (first, last): (Option<i64>, Option<i64>) =
        db.prepare_cached(&sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    *cursor += WINDOW;
    if last.is_none_or(|last| *cursor >= last) {
        *cursor = first.unwrap_or(1) - 1;
    }
    Ok(())
}

/// Size of the database, bytes, and what of it is unused.
pub(super) fn size(db: &Connection) -> rusqlite::Result<(u64, u64)> {
    let number = |pragma: &str| db.query_row(pragma, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
    let page = number("PRAGMA page_size")?;
    Ok((number("PRAGMA page_count")? * page, number("PRAGMA freelist_count")? * page))
}

/// Bytes that the file system of `directory` has left for us; all that can be counted where it does not tell.
pub(super) fn free_space(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}

/// Takes out one portion of what is not to be kept.
pub(super) fn prune(
    db: &mut Connection,
    limits: &Retention,
    directory: &Path,
    (boot, now_ns): (i64, u64),
    cursors: &mut Cursors,
) -> rusqlite::Result<Pruned> {
    let (bytes, unused) = size(db)?;
    let crowded = free_space(directory) < limits.free && bytes > SMALL;
    let too_much = bytes.saturating_sub(unused) > limits.size || (crowded && unused == 0);
    let mut pruned = Pruned::default();
    let oldest = oldest(db)?;
    let too_old =
        oldest.is_some_and(|oldest| is_too_old(db, oldest, limits.age, boot, now_ns).unwrap_or(false));
    if too_much || too_old {
        let by_age = !too_much;
        pruned.events = take_out(db, by_age.then_some((limits.age, boot, now_ns)), cursors)?;
        pruned.more = pruned.events > 0;
    }
    if unused > bytes / 8 || crowded || pruned.events > 0 {
        // The pragma gives a row for each page, which have to be fetched for it to go on.
        let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
    }
    Ok(pruned)
}

/// (boot, ns) of the oldest event.
fn oldest(db: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    let mut first = db.prepare_cached("SELECT boot, at_ns FROM event ORDER BY id LIMIT 1")?;
    let mut rows = first.query([])?;
    rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
}

fn is_too_old(
    db: &Connection,
    (boot, at_ns): (i64, i64),
    age: Duration,
    boot_now: i64,
    now_ns: u64,
) -> rusqlite::Result<bool> {
    let offset = |boot: i64| -> rusqlite::Result<i64> {
        db.prepare_cached("SELECT wall_offset_ns FROM boot WHERE id = ?1")?
            .query_row([boot], |row| row.get(0))
    };
    let then = i128::from(offset(boot)?) + i128::from(at_ns);
    let now = i128::from(offset(boot_now)?) + i128::from(now_ns);
    Ok(now - then > i128::try_from(age.as_nanos()).unwrap_or(i128::MAX))
}

/// Takes out the oldest events, and what ended before them; gives how many events that were.
fn take_out(
    db: &mut Connection,
    limit: Option<(Duration, i64, u64)>,
    cursors: &mut Cursors,
) -> rusqlite::Result<u64> {
    let transaction = db.transaction()?;
    let last: Option<(i64, i64, i64)> = {
        let mut step =
            transaction.prepare_cached("SELECT id, boot, at_ns FROM event ORDER BY id LIMIT ?1")?;
        let rows = step.query_map([STEP], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut last = None;
        for row in rows {
            let (id, boot, at_ns): (i64, i64, i64) = row?;
            if let Some((age, boot_now, now_ns)) = limit
                && !is_too_old(&transaction, (boot, at_ns), age, boot_now, now_ns)?
            {
                break;
            }
            last = Some((id, boot, at_ns));
        }
        last
    };
    let Some((id, boot, at_ns)) = last else { return Ok(0) };
    let events = transaction.prepare_cached("DELETE FROM event WHERE id <= ?1")?.execute([id])?;
    let [holding, file, process, name] = &mut cursors.0;
    for (table, cursor) in [("holding", holding), ("file", file)] {
        let sql = format!(
            "DELETE FROM {table} WHERE id > ?3 AND id <= ?3 + {WINDOW} \
             AND level < 64 AND (boot < ?1 OR (boot = ?1 AND until_ns < ?2))"
        );
        transaction.prepare_cached(&sql)?.execute((boot, at_ns, *cursor))?;
        advance(&transaction, cursor, "id", table)?;
    }
    transaction
        .prepare_cached("DELETE FROM memory WHERE boot < ?1 OR (boot = ?1 AND at_ns < ?2)")?
        .execute((boot, at_ns))?;
    transaction
        .execute("DELETE FROM verdict WHERE boot < ?1 OR (boot = ?1 AND until_ns < ?2)", (boot, at_ns))?;
    // The record begins later now, and says so.
    transaction.execute("DELETE FROM gap WHERE boot < ?1 OR (boot = ?1 AND to_ns < ?2)", (boot, at_ns))?;
    transaction.execute("DELETE FROM run WHERE boot < ?1 OR (boot = ?1 AND alive_ns < ?2)", (boot, at_ns))?;
    transaction.execute("UPDATE run SET started_ns = max(started_ns, ?2) WHERE boot = ?1", (boot, at_ns))?;
    // Processes that nothing names any more. The oldest rows are the ones to look at.
    transaction.execute(
        &format!(
            "DELETE FROM process WHERE id IN (SELECT id FROM process AS p WHERE \
             id > ?3 AND id <= ?3 + {WINDOW} AND (p.boot < ?1 OR p.seen_ns < ?2) \
             AND NOT EXISTS (SELECT 1 FROM event WHERE event.process = p.id) \
             AND NOT EXISTS (SELECT 1 FROM holding WHERE holding.process = p.id))"
        ),
        (boot, at_ns, *process),
    )?;
    advance(&transaction, process, "id", "process")?;
    transaction.execute(
        &format!(
            "DELETE FROM process_name WHERE process > ?1 AND process <= ?1 + {WINDOW} \
             AND NOT EXISTS (SELECT 1 FROM process WHERE process.id = process_name.process)"
        ),
        [*name],
    )?;
    advance(&transaction, name, "process", "process_name")?;
    transaction.commit()?;
    Ok(events as u64)
}

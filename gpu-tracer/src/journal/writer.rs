//! The writer: takes records from the queue, commits them in groups, and goes on after whatever the disk does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::JournalError;
use super::health::{Shared, State};
use super::open::{Database, NAME, Options, move_aside};
use super::queue::Queue;
use super::record::{Lost, Record};
use super::retention::{Cursors, free_space, prune, size};

/// Between looks at how much there is and how old it is.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// The same while there is more to take out.
const CATCHING_UP: Duration = Duration::from_millis(200);

/// The thread that writes.
pub(super) struct Writer {
    options: Options,
    queue: Queue,
    health: Shared,
    wanted: Arc<AtomicBool>,
    database: Option<Database>,
    /// Why it is not written to now.
    halted: Option<&'static str>,
    retry_at: Instant,
    /// A hole that ends when the core has said all that is held, with its row once it has one.
    hole: Option<(Lost, &'static str, Option<i64>)>,
    /// Of the newest record that was committed or lost, ns.
    latest_ns: u64,
    house_due: Instant,
    cursors: Cursors,
}

impl Writer {
    pub(super) fn new(
        options: Options,
        queue: Queue,
        health: Shared,
        wanted: Arc<AtomicBool>,
        database: Option<Database>,
    ) -> Self {
        let now = Instant::now();
        let latest_ns = options.now_ns;
        let halted = database.is_none().then_some("disk");
        let hole = halted.map(|cause| (Lost { from_ns: latest_ns, records: 0 }, cause, None));
        Self {
            options,
            queue,
            health,
            wanted,
            database,
            halted,
            retry_at: now,
            hole,
            latest_ns,
            house_due: now + HOUSEKEEPING,
            cursors: Cursors::default(),
        }
    }

    /// Until the core has gone.
    pub(super) fn run(mut self) {
        loop {
            let (records, last) = self.queue.next();
            self.take(&records);
            if last {
                self.finish();
                return;
            }
            self.keep_house();
        }
    }

    fn take(&mut self, records: &[Record]) {
        if self.halted.is_some() {
            self.recover();
        }
        if self.halted.is_none() && !records.is_empty() {
            let begun = Instant::now();
            match self.commit(records) {
                Ok(()) => self.count(records, begun.elapsed()),
                Err(error) => self.halt(&error),
            }
        }
        self.latest_ns = records.iter().filter_map(moment).fold(self.latest_ns, u64::max);
        if self.halted.is_some() {
            let changes = changes(records);
            self.health.change(|health| health.dropped += changes);
            if let Some((lost, ..)) = &mut self.hole {
                lost.records += changes;
            }
        }
    }

    fn count(&self, records: &[Record], took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let changes = changes(records);
        self.health.change(|health| {
            health.records += changes;
            health.commits += 1;
            health.longest_commit_us = health.longest_commit_us.max(us);
        });
    }

    /// Writes all of them or none.
    fn commit(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let Some(Database { db, store, .. }) = &mut self.database else { return Ok(()) };
        let latest_ns = records.iter().filter_map(moment).fold(self.latest_ns, u64::max);
        let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut hole = self.hole;
        if let Some((lost, cause, row @ None)) = &mut hole {
            store.gap(&transaction, lost.from_ns, latest_ns, cause, Some(lost.records))?;
            *row = Some(transaction.last_insert_rowid());
        }
        for record in records {
            store.take(&transaction, record)?;
            if let (Record::Standing(standing), Some((_, _, Some(row)))) = (record, hole) {
                transaction.execute(
                    "UPDATE gap SET to_ns = max(to_ns, ?2) WHERE id = ?1",
                    (row, super::ids::ns(standing.at_ns)),
                )?;
                hole = None;
            }
        }
        store.seen_alive(&transaction, latest_ns)?;
        transaction.commit()?;
        self.hole = hole;
        Ok(())
    }

    /// It cannot be written: history stops, and is tried again later.
    fn halt(&mut self, error: &JournalError) {
        let mut cause = "disk";
        if error.is_corrupt() {
            cause = "journal-broken";
            self.database = None;
            match move_aside(&self.options.directory.join(NAME)) {
                Ok(aside) => {
                    self.health.change(|health| health.moved_aside = Some(aside.display().to_string()));
                }
                Err(error) => self.health.change(|health| health.problem = Some(error.to_string())),
            }
        }
        self.stop(cause, explain(error));
    }

    fn stop(&mut self, cause: &'static str, problem: String) {
        self.health.change(|health| (health.state, health.problem) = (State::Halted, Some(problem)));
        self.halted = Some(cause);
        let hole = self.hole.get_or_insert((Lost { from_ns: self.latest_ns, records: 0 }, cause, None));
        // What is known of it is written anew, with all that is lost from here on.
        hole.2 = None;
        self.retry_at = Instant::now() + self.options.retry;
    }

    /// Tries whether it can be written again.
    fn recover(&mut self) {
        if Instant::now() < self.retry_at && self.halted != Some("journal-broken") {
            return;
        }
        self.retry_at = Instant::now() + self.options.retry;
        match self.try_again() {
            Ok(true) => {
                self.halted = None;
                self.health.change(|health| (health.state, health.problem) = (State::Writing, None));
                self.wanted.store(true, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(error) => {
                self.halted = Some("disk");
                let problem = explain(&error);
                self.health.change(|health| health.problem = Some(problem));
            }
        }
    }

    fn try_again(&mut self) -> Result<bool, JournalError> {
        let options = Options { now_ns: self.latest_ns, ..self.options.clone() };
        let (directory, limits) = (options.directory.clone(), options.retention);
        if self.database.is_none() {
            let mut database = Database::open(&options, &self.health)?;
            database.continue_files();
            self.database = Some(database);
        }
        let Some(Database { db, store, .. }) = &mut self.database else { return Ok(false) };
        store.reload(db)?;
        let pruned = prune(db, &limits, &directory, (store.boot, self.latest_ns), &mut self.cursors)?;
        self.health.change(|health| health.pruned += pruned.events);
        if free_space(&directory) < limits.free {
            return Ok(false);
        }
        // A real write, that goes to the disk.
        let transaction = db.transaction()?;
        transaction.execute("UPDATE run SET alive_ns = alive_ns WHERE id = ?1", [store.run])?;
        transaction.commit()?;
        Ok(true)
    }

    fn keep_house(&mut self) {
        let now = Instant::now();
        if now < self.house_due || self.halted.is_some() {
            return;
        }
        self.house_due = now + HOUSEKEEPING;
        let Some(Database { db, store, .. }) = &mut self.database else { return };
        let (limits, directory) = (self.options.retention, self.options.directory.clone());
        match prune(db, &limits, &directory, (store.boot, self.latest_ns), &mut self.cursors) {
            Ok(pruned) => {
                if pruned.more {
                    self.house_due = now + CATCHING_UP;
                }
                let bytes = size(db).map_or(0, |(bytes, _)| bytes);
                self.health.change(|health| {
                    health.pruned += pruned.events;
                    health.bytes = bytes;
                });
            }
            Err(error) => return self.halt(&error.into()),
        }
        let free = free_space(&directory);
        if free < limits.free {
            let (free, floor) = (free >> 20, limits.free >> 20);
            let problem = format!(
                "only {free} MiB are free in {}, and {floor} MiB are to stay free (journal-min-free): make room",
                directory.display()
            );
            self.stop("disk-full", problem);
        }
    }

    fn finish(&mut self) {
        if self.halted.is_some() {
            return;
        }
        let Some(Database { db, store, .. }) = &self.database else { return };
        // What was committed is safe without this; it only makes the next start quicker and the file whole to copy.
        let _ = db.execute("UPDATE run SET stopped = 1 WHERE id = ?1", [store.run]);
        let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

fn changes(records: &[Record]) -> u64 {
    records.iter().filter(|record| matches!(record, Record::Change(_))).count() as u64
}

/// When it was, ns of boot time.
fn moment(record: &Record) -> Option<u64> {
    match record {
        Record::Change(change) => Some(change.at_ns),
        Record::Alive { at_ns, .. } | Record::Memory { at_ns, .. } | Record::Verdicts { at_ns, .. } => {
            Some(*at_ns)
        }
        Record::Standing(standing) => Some(standing.at_ns),
        Record::Process(_) | Record::Device { .. } | Record::Gpus(_) => None,
    }
}

fn explain(error: &JournalError) -> String {
    let full = matches!(error, JournalError::Database(error)
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull));
    if full { format!("{error}: make room; it goes on by itself") } else { error.to_string() }
}

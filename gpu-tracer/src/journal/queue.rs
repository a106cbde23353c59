//! Between the core, which never waits, and the writer, which may.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::record::Record;

/// Records that wait; at 100,000 a second that is a disk that hangs for more than half a second.
pub(super) const CAPACITY: usize = 65_536;
/// As many, or as much time, make a commit.
pub(super) const GROUP: usize = 1_024;
/// The longest that a record waits for company.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Inner {
    records: Vec<Record>,
    /// When the oldest of them came.
    since: Option<Instant>,
    closed: bool,
}

/// Both ends of it.
#[derive(Clone, Default)]
pub(super) struct Queue(Arc<(Mutex<Inner>, Condvar)>);

impl Queue {
    /// Adds all of them or, if there is no room, none. Never waits for the disk.
    pub(super) fn push(&self, records: &mut Vec<Record>) -> bool {
        let mut inner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.closed || inner.records.len() + records.len() > CAPACITY {
            return false;
        }
        inner.since = inner.since.or_else(|| Some(Instant::now()));
        inner.records.append(records);
        if inner.records.len() >= GROUP {
            self.0.1.notify_one();
        }
        true
    }

    /// Is there a lot of room?
    pub(super) fn is_half_empty(&self) -> bool {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).records.len() * 2 <= CAPACITY
    }

    /// No more will come.
    pub(super) fn close(&self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.0.1.notify_one();
    }

    /// What makes the next commit, after at most [`PATIENCE`]; nothing where nothing has come. The second value: it is
    /// closed, and this is the last.
    pub(super) fn next(&self) -> (Vec<Record>, bool) {
        let until = Instant::now() + PATIENCE;
        let mut inner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let due = inner.since.map_or(until, |since| since + PATIENCE).min(until);
            if inner.closed || inner.records.len() >= GROUP || now >= due {
                inner.since = None;
                return (std::mem::take(&mut inner.records), inner.closed);
            }
            let waited = self.0.1.wait_timeout(inner, due - now);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

//! Threads that visit processes, watched by one that never waits for any of them.
//!
//! A read in `/proc` can stand still for as long as the process it is about does, and nothing can interrupt it. So
//! each visit says now and then that it is alive; a visitor that does not is left behind and replaced.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How patient to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// A visitor that shows no sign of life for this long is left behind.
    pub(super) stall: Duration,
    /// After this time no further process is visited.
    pub(super) total: Duration,
    /// So many visitors may be left behind.
    pub(super) lost: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stall: Duration::from_secs(1), total: Duration::from_secs(10), lost: 8 }
    }
}

/// Signs of life of one visitor.
#[derive(Debug, Default)]
pub(super) struct Beat(AtomicU64);

impl Beat {
    /// "I am getting on."
    pub(super) fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome<T> {
    /// Results, in no order.
    pub(super) done: Vec<T>,
    /// Processes whose visitor was left behind.
    pub(super) stuck: Vec<u32>,
    /// How many were not visited at all.
    pub(super) skipped: usize,
}

struct Queue {
    pids: Vec<u32>,
    next: AtomicUsize,
    closed: AtomicBool,
}

/// One visitor as the watcher sees it.
struct Visitor {
    beat: Arc<Beat>,
    /// Position in the queue of the process it is at, plus one; 0 when it is at none.
    at: Arc<AtomicUsize>,
    seen: u64,
    since: Instant,
    lost: bool,
}

/// Calls `work` for each of `pids` on a few threads.
pub(super) fn run<T, W>(pids: Vec<u32>, limits: Limits, work: Arc<W>) -> Outcome<T>
where
    T: Send + 'static,
    W: Fn(u32, &Beat) -> T + Send + Sync + 'static,
{
    let total = pids.len();
    let queue = Arc::new(Queue { pids, next: AtomicUsize::new(0), closed: AtomicBool::new(false) });
    let (sender, results) = mpsc::channel();
    let hands = thread::available_parallelism().map_or(1, usize::from).min(4).min(total);
    let mut visitors: Vec<Visitor> = (0..hands).filter_map(|_| hire(&queue, &sender, &work)).collect();
    let started = Instant::now();
    let (mut done, mut stuck) = (Vec::with_capacity(total), BTreeSet::new());

    while done.len() + stuck.len() < total {
        match results.recv_timeout(limits.stall / 20) {
            Ok((position, result)) => {
                stuck.remove(&position);
                done.push(result);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        let mut missed = 0;
        for visitor in &mut visitors {
            if let Some(position) = visitor.stands_still(limits.stall) {
                stuck.insert(position);
                missed += 1;
            }
        }
        let lost = visitors.iter().filter(|visitor| visitor.lost).count();
        if lost <= limits.lost {
            visitors.extend((0..missed).filter_map(|_| hire(&queue, &sender, &work)));
        }
        if started.elapsed() > limits.total || visitors.iter().all(|visitor| visitor.lost) {
            break;
        }
    }
    queue.closed.store(true, Ordering::Relaxed);
    let skipped = total - done.len() - stuck.len();
    Outcome { done, stuck: stuck.into_iter().map(|position| queue.pids[position]).collect(), skipped }
}

/// Starts a visitor; `None` if the system has no thread left.
fn hire<T, W>(queue: &Arc<Queue>, results: &Sender<(usize, T)>, work: &Arc<W>) -> Option<Visitor>
where
    T: Send + 'static,
    W: Fn(u32, &Beat) -> T + Send + Sync + 'static,
{
    let (beat, at) = (Arc::new(Beat::default()), Arc::new(AtomicUsize::new(0)));
    let (their_beat, their_at) = (Arc::clone(&beat), Arc::clone(&at));
    let (queue, results, work) = (Arc::clone(queue), results.clone(), Arc::clone(work));
    let visitor = move || {
        while !queue.closed.load(Ordering::Relaxed) {
            let position = queue.next.fetch_add(1, Ordering::Relaxed);
            let Some(pid) = queue.pids.get(position) else { break };
            their_at.store(position + 1, Ordering::Relaxed);
            their_beat.tick();
            let result = work(*pid, &their_beat);
            their_at.store(0, Ordering::Relaxed);
            if results.send((position, result)).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("gpu-tracer-walk".to_owned()).spawn(visitor).ok()?;
    Some(Visitor { beat, at, seen: 0, since: Instant::now(), lost: false })
}

impl Visitor {
    /// The position it is stuck at, told once: from then on it is lost.
    fn stands_still(&mut self, patience: Duration) -> Option<usize> {
        let beats = self.beat.0.load(Ordering::Relaxed);
        let position = self.at.load(Ordering::Relaxed).checked_sub(1);
        if beats != self.seen || position.is_none() {
            (self.seen, self.since) = (beats, Instant::now());
            return None;
        }
        if self.lost || self.since.elapsed() < patience {
            return None;
        }
        self.lost = true;
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const FAST: Limits =
        Limits { stall: Duration::from_millis(100), total: Duration::from_secs(20), lost: 2 };

    fn sorted(mut numbers: Vec<u32>) -> Vec<u32> {
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn everything_is_visited_once() {
        let outcome = run((1..=1000).collect(), FAST, Arc::new(|pid, _: &Beat| pid));
        assert_eq!(sorted(outcome.done), (1..=1000).collect::<Vec<_>>());
        assert_eq!((outcome.stuck, outcome.skipped), (vec![], 0));
    }

    #[test]
    fn a_visit_that_stands_still_costs_only_itself() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().expect("not poisoned");
        let theirs = Arc::clone(&gate);
        let work = move |pid, _: &Beat| {
            if pid == 3 {
                drop(theirs.lock());
            }
            pid
        };
        let outcome = run((1..=100).collect(), FAST, Arc::new(work));
        drop(closed);
        assert_eq!(outcome.stuck, [3]);
        assert_eq!(sorted(outcome.done), (1..=100).filter(|pid| *pid != 3).collect::<Vec<_>>());
        assert_eq!(outcome.skipped, 0);
    }

    #[test]
    fn when_every_visitor_is_lost_the_rest_is_told_as_skipped() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().expect("not poisoned");
        let theirs = Arc::clone(&gate);
        let outcome = run((1..=100).collect(), FAST, Arc::new(move |_, _: &Beat| drop(theirs.lock())));
        drop(closed);
        assert!(outcome.done.is_empty());
        assert!(!outcome.stuck.is_empty() && outcome.stuck.len() < 10, "{:?}", outcome.stuck);
        assert_eq!(outcome.skipped, 100 - outcome.stuck.len());
    }

    #[test]
    fn a_long_visit_that_gets_on_is_waited_for() {
        let slow = |pid, beat: &Beat| {
            let end = Instant::now() + FAST.stall * 3;
            while Instant::now() < end {
                beat.tick();
                thread::yield_now();
            }
            pid
        };
        let outcome = run(vec![1], FAST, Arc::new(slow));
        assert_eq!((outcome.done, outcome.stuck), (vec![1], vec![]));
    }
}

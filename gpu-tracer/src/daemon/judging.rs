//! What is said of each GPU, for the journal, while somebody holds one: the verdict that `why` would have given, without NVML,
//! which opens devices and can hang.
//!
//! A verdict rests on what `/proc` says of the holders as well, which is read on a thread of its own: it can make a reader
//! wait. Until the thread has answered it is asked nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::core::Core;
use super::inbox::{Order, Outbox, Seen};
use super::memory;
use crate::answer;
use crate::journal::GivenVerdict;
use crate::model::report::Cost;

/// After a change, so that what comes with it is judged with it.
const SETTLED: Duration = Duration::from_secs(1);
/// While nothing changes in the ledger: a process may be stopped, or not get on, all the same.
const QUIET: Duration = Duration::from_secs(10);
/// At most this part of the time goes into it while something changes, however many holders there are.
const BUSY_SHARE: u32 = 50;
/// And while nothing does.
const QUIET_SHARE: u32 = 2_000;
/// With more open files than this it takes memory that is worth giving back.
const CROWD: usize = 2_000;
/// It is not put off longer than this for the sake of its cost.
const LONGEST: Duration = Duration::from_secs(120);

/// When to judge next. Pure: the caller tells the time.
#[derive(Clone, Copy, Debug)]
struct Rhythm {
    judged: Instant,
    /// Changes told so far when it was judged, and when another was first seen.
    changes: u64,
    changed: Option<Instant>,
    /// Somebody held a device then.
    held: bool,
}

impl Rhythm {
    fn new(now: Instant) -> Self {
        Self { judged: now, changes: 0, changed: None, held: false }
    }

    /// Takes note of how many changes there have been; says when to judge, if at all.
    fn due(&mut self, now: Instant, changes: u64, held: bool, cost: Duration) -> Option<Instant> {
        if changes != self.changes && self.changed.is_none() {
            self.changed = Some(now);
        }
        // Nobody holds anything, and that has been said.
        if !held && !self.held {
            return None;
        }
        let rest = |share: u32| self.judged + (cost * share).min(LONGEST);
        Some(match self.changed {
            Some(changed) => (changed + SETTLED).max(rest(BUSY_SHARE)),
            None => (self.judged + QUIET).max(rest(QUIET_SHARE)),
        })
    }

    fn judged(&mut self, now: Instant, changes: u64, held: bool) {
        *self = Self { judged: now, changes, changed: None, held };
    }
}

/// The core's side of it.
pub(super) struct Judge {
    rhythm: Rhythm,
    /// `None`: nobody wants to know.
    thread: Option<Sender<(Seen, Duration)>>,
    busy: Arc<AtomicBool>,
    /// Processor time of the last judgement, ns.
    cost: Arc<AtomicU64>,
}

impl Judge {
    /// One that is never asked.
    pub(super) fn idle() -> Self {
        let (busy, cost) = (Arc::default(), Arc::default());
        Self { rhythm: Rhythm::new(Instant::now()), thread: None, busy, cost }
    }

    /// Starts the thread; what it finds goes to the core.
    pub(super) fn start(core: Outbox) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let judge = Self { thread: Some(sender), ..Self::idle() };
        let (busy, cost) = (Arc::clone(&judge.busy), Arc::clone(&judge.cost));
        thread::Builder::new()
            .name("judge".to_owned())
            .spawn(move || judge_all(&receiver, &core, &busy, &cost))?;
        Ok(judge)
    }

    /// When what is known is to be judged next, if at all. `changes`: so many have been told so far.
    pub(super) fn due(&mut self, now: Instant, changes: u64, held: bool) -> Option<Instant> {
        self.thread.as_ref()?;
        let cost = Duration::from_nanos(self.cost.load(Ordering::Relaxed));
        let due = self.rhythm.due(now, changes, held, cost)?;
        // It says itself when it is done.
        (!self.busy.load(Ordering::Relaxed)).then_some(due)
    }

    /// Has this judged; it took the core so much processor time to say it.
    fn judge(&mut self, seen: Seen, spent: Duration) {
        if let Some(thread) = &self.thread {
            self.busy.store(true, Ordering::Relaxed);
            // The thread ends only with the core.
            let _ = thread.send((seen, spent));
        }
    }
}

impl Core {
    /// When what is known is to be judged next, if at all.
    pub(super) fn judgement_due(&mut self, now: Instant) -> Option<Instant> {
        self.judge.due(now, self.counters.changes, !self.ledger.is_idle())
    }

    /// Has judged what is known; no look is taken for it.
    pub(super) fn judge_if_due(&mut self) {
        let now = Instant::now();
        if self.judgement_due(now).is_some_and(|due| now >= due) {
            self.judge.rhythm.judged(now, self.counters.changes, !self.ledger.is_idle());
            let begun = cpu_time();
            let seen = self.seen(Cost::default());
            self.judge.judge(seen, cpu_time().saturating_sub(begun));
        }
    }
}

fn judge_all(seen: &Receiver<(Seen, Duration)>, core: &Outbox, busy: &AtomicBool, cost: &AtomicU64) {
    for (seen, spent) in seen {
        let begun = cpu_time();
        let (taken_ns, files) = (seen.looked.view.taken_ns, seen.looked.view.files.len());
        let verdicts = verdicts(seen);
        if files > CROWD {
            memory::give_back();
        }
        let took = cpu_time().saturating_sub(begun) + spent;
        cost.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        busy.store(false, Ordering::Relaxed);
        if !core.send(Order::Judged(taken_ns, verdicts)) {
            return;
        }
    }
}

fn verdicts(seen: Seen) -> Vec<GivenVerdict> {
    let given = answer::judge(seen.into_report()).gpus.into_iter().map(|gpu| GivenVerdict {
        gpu: gpu.gpu,
        verdict: gpu.verdict.word(),
        status: gpu.verdict.exit_status() as u8,
        headline: gpu.headline,
    });
    given.collect()
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Duration = Duration::from_micros(500);

    #[test]
    fn a_change_is_judged_soon_and_what_stays_the_same_now_and_then() {
        let begin = Instant::now();
        let mut rhythm = Rhythm::new(begin);
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(rhythm.due(begin, 0, true, CHEAP), Some(at(10)));
        assert_eq!(rhythm.due(at(3), 1, true, CHEAP), Some(at(4)));
        assert_eq!(rhythm.due(at(4), 9, true, CHEAP), Some(at(4)), "more of it does not put it off");
        rhythm.judged(at(4), 9, true);
        assert_eq!(rhythm.due(at(5), 9, true, CHEAP), Some(at(14)));
    }

    #[test]
    fn nobody_who_holds_anything_is_said_once() {
        let begin = Instant::now();
        let mut rhythm = Rhythm::new(begin);
        assert_eq!(rhythm.due(begin, 5, false, CHEAP), None, "nobody did before either");
        rhythm.judged(begin, 5, true);
        assert!(rhythm.due(begin, 6, false, CHEAP).is_some());
        rhythm.judged(begin, 6, false);
        assert_eq!(rhythm.due(begin, 7, false, CHEAP), None);
    }

    #[test]
    fn what_is_dear_is_done_seldom_but_done() {
        let begin = Instant::now();
        let mut rhythm = Rhythm::new(begin);
        let due = |rhythm: &mut Rhythm, changes, ms| {
            let due = rhythm.due(begin, changes, true, Duration::from_millis(ms));
            due.map(|due| due - begin)
        };
        assert_eq!(due(&mut rhythm, 0, 20), Some(Duration::from_secs(40)));
        assert_eq!(due(&mut rhythm, 0, 1_000), Some(LONGEST));
        assert_eq!(due(&mut rhythm, 1, 20), Some(SETTLED), "sooner where something changes");
        assert_eq!(due(&mut rhythm, 1, 5_000), Some(LONGEST));
    }
}

//! Removing the hooks of modules that are gone.
//!
//! They are silent, and the kernel takes its time to remove each of them, in which it attaches no others. So that waits until the driver
//! has not come or gone for a while: one that is loaded again is to be followed at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::kprobe::Probe;

/// So many hooks wait for so long. Each has two descriptors, and a driver has some 40 hooks: one that is never quiet cannot have
/// them pile up.
const PATIENCE: [(usize, Duration); 2] = [
    // A driver that is reloaded is back by then, and hooked.
    (128, Duration::from_secs(15)),
    (400, Duration::from_secs(1)),
];

/// Hooks to be removed, by a thread that is there as long as there are any.
#[derive(Debug, Default)]
pub(super) struct Detaching(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    probes: VecDeque<Probe>,
    /// When the driver last came or went.
    moved: Option<Instant>,
    at_work: bool,
}

/// What the thread is to do.
#[derive(Debug)]
enum Step {
    Wait(Duration),
    Remove(Probe),
    End,
}

impl Detaching {
    /// Removes these, later.
    pub(super) fn put(&self, probes: impl IntoIterator<Item = Probe>) {
        let mut waiting = lock(&self.0);
        waiting.probes.extend(probes);
        if waiting.at_work || waiting.probes.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.0);
        // Without a thread they wait for the next ones, or for the end of this process.
        waiting.at_work =
            thread::Builder::new().name("detach".to_owned()).spawn(move || remove(&shared)).is_ok();
    }

    /// The driver is coming or going.
    pub(super) fn not_now(&self, now: Instant) {
        lock(&self.0).moved = Some(now);
    }
}

impl Waiting {
    fn next(&mut self, now: Instant) -> Step {
        let patience = PATIENCE.iter().find(|(most, _)| self.probes.len() <= *most);
        let due = self.moved.zip(patience).map(|(moved, (_, patience))| moved + *patience);
        let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        if !wait.is_zero() && !self.probes.is_empty() {
            return Step::Wait(wait);
        }
        self.probes.pop_front().map_or_else(
            || {
                self.at_work = false;
                Step::End
            },
            Step::Remove,
        )
    }
}

fn remove(shared: &Mutex<Waiting>) {
    loop {
        let step = lock(shared).next(Instant::now());
        match step {
            Step::Wait(time) => thread::sleep(time),
            Step::Remove(probe) => drop(probe),
            Step::End => return,
        }
    }
}

/// No step leaves it half done.
fn lock(shared: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::OwnedFd};

    use super::*;

    fn probe() -> Probe {
        Probe::kept(OwnedFd::from(File::open("/dev/null").unwrap()))
    }

    fn waiting(probes: usize, moved: Instant) -> Waiting {
        Waiting { probes: (0..probes).map(|_| probe()).collect(), moved: Some(moved), at_work: true }
    }

    #[test]
    fn hooks_are_removed_one_by_one_when_the_driver_has_been_quiet_for_a_while() {
        let (now, (_, quiet)) = (Instant::now(), PATIENCE[0]);
        let mut waiting = waiting(2, now);
        assert!(matches!(waiting.next(now), Step::Wait(time) if time == quiet));
        let later = now + quiet;
        assert!(matches!(waiting.next(later), Step::Remove(_)));
        waiting.moved = Some(later);
        assert!(matches!(waiting.next(later), Step::Wait(_)), "the driver has come again meanwhile");
        assert!(matches!(waiting.next(later + quiet), Step::Remove(_)));
        assert!(matches!(waiting.next(later), Step::End) && !waiting.at_work);
    }

    #[test]
    fn a_driver_that_is_never_quiet_leaves_no_more_than_so_many() {
        let now = Instant::now();
        for pair in PATIENCE.windows(2) {
            let [(most, longer), (_, shorter)] = pair else { unreachable!() };
            let mut crowd = waiting(most + 1, now);
            assert!(matches!(crowd.next(now), Step::Wait(time) if time == *shorter));
            assert!(matches!(crowd.next(now + *shorter), Step::Remove(_)));
            assert!(matches!(crowd.next(now + *shorter), Step::Wait(time) if time == *longer - *shorter));
        }
        let (most, _) = PATIENCE[PATIENCE.len() - 1];
        assert!(matches!(waiting(most + 1, now).next(now), Step::Remove(_)));
    }
}

//! Work that may never return, done where that hurts nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many threads may be stuck at once before [`within`] stops starting new ones.
pub const MOST_ABANDONED: usize = 16;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// The work did not return in time, could not be started, or panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer in time")]
pub struct TimedOut;

enum Progress<T> {
    Working,
    Done(Option<T>),
    Abandoned,
}

/// Runs `work` on a thread of its own and waits at most `patience` for it.
///
/// A thread that does not come back is left behind: it is the kernel's, and nothing can interrupt it. At most
/// [`MOST_ABANDONED`] may be in that state; then every call fails at once until one of them returns.
pub fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TimedOut> {
    if ABANDONED.load(Ordering::Relaxed) >= MOST_ABANDONED {
        return Err(TimedOut);
    }
    let shared = Arc::new((Mutex::new(Progress::Working), Condvar::new()));
    let theirs = Arc::clone(&shared);
    thread::Builder::new()
        .name("gpu-tracer-read".to_owned())
        .spawn(move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
            let mut progress = lock(&theirs.0);
            if matches!(*progress, Progress::Abandoned) {
                ABANDONED.fetch_sub(1, Ordering::Relaxed);
            }
            *progress = Progress::Done(outcome);
            theirs.1.notify_one();
        })
        .map_err(|_| TimedOut)?;

    let give_up = Instant::now() + patience;
    let mut progress = lock(&shared.0);
    loop {
        if let Progress::Done(outcome) = &mut *progress {
            return outcome.take().ok_or(TimedOut);
        }
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            *progress = Progress::Abandoned;
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            return Err(TimedOut);
        }
        progress = shared.1.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_that_returns_is_answered() {
        assert_eq!(within(Duration::from_secs(10), || 7), Ok(7));
    }

    #[test]
    fn work_that_hangs_is_left_behind_and_work_that_panics_is_no_answer() {
        let (release, held) = mpsc::channel::<()>();
        let stuck = within(Duration::from_millis(20), move || held.recv().is_ok());
        assert_eq!(stuck, Err(TimedOut));
        drop(release);
        assert_eq!(
            within(Duration::from_secs(10), || -> u8 { std::panic::resume_unwind(Box::new(())) }),
            Err(TimedOut)
        );
    }
}

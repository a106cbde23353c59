//! When to look next. Pure: the caller tells the time.
//!
//! An event that may change who refers to what asks for a look soon: after [`SOON`], so that the rest of what happens
//! at once is in the same look, and again at growing intervals, because an open can take long in the driver. Without
//! events a look is due after an interval that doubles while nothing changes. Looks never take more than a tenth of the
//! time, nor a thousandth while nothing happens, however long one takes on this host.

use std::time::{Duration, Instant};

/// After an event, so that what comes with it is seen as well.
const SOON: Duration = Duration::from_millis(5);
/// The last and longest of the looks that follow an event; the intervals grow fourfold.
const LAST_FOLLOW_UP: Duration = Duration::from_millis(1280);
const GROWTH: u32 = 4;
/// Between looks for which nothing asks.
const AUDIT: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(10);
/// At most this part of the time is spent in looks while something happens.
const BUSY_SHARE: u32 = 10;
/// And while nothing happens.
const IDLE_SHARE: u32 = 1000;
/// No look is put off longer than this for the sake of its cost.
const LONGEST: Duration = Duration::from_secs(60);

/// Decides when the next look is due.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    due: Instant,
    /// Interval to the next follow-up; `None` after the last of them.
    follow_up: Option<Duration>,
    audit: Duration,
    /// A look asked for by an event must not come before.
    rest_until: Instant,
}

impl Pace {
    /// The first look is due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now, follow_up: None, audit: *AUDIT.start(), rest_until: now }
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Something happened that may change who refers to what.
    pub(super) fn event(&mut self, now: Instant) {
        self.follow_up = Some(SOON);
        self.audit = *AUDIT.start();
        // What comes later does not put off what is due already.
        self.due = self.due.min((now + SOON).max(self.rest_until));
    }

    /// A look was taken, which took `cost` and brought something new or not.
    pub(super) fn looked(&mut self, now: Instant, cost: Duration, news: bool) {
        self.rest_until = now + (cost * BUSY_SHARE).min(LONGEST);
        self.audit = if news { *AUDIT.start() } else { (self.audit * 2).min(*AUDIT.end()) };
        let audit = self.audit.max((cost * IDLE_SHARE).min(LONGEST));
        self.due = match self.follow_up {
            Some(interval) => {
                self.follow_up = Some(interval * GROWTH).filter(|next| *next <= LAST_FOLLOW_UP);
                (now + interval * GROWTH).max(self.rest_until).min(now + audit)
            }
            None => now + audit,
        };
    }

    /// A look hung: none is due for `interval`, whatever happens.
    pub(super) fn hung(&mut self, now: Instant, interval: Duration) {
        self.rest_until = now + interval;
        self.due = self.rest_until;
        self.follow_up = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_event_is_looked_into_soon_and_again_at_growing_intervals() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.looked(start, MS / 10, false);
        let mut now = start + 300 * MS;
        pace.event(now);
        let mut intervals = Vec::new();
        for _ in 0..7 {
            intervals.push((pace.due() - now).as_millis());
            now = pace.due();
            pace.looked(now, MS / 10, true);
        }
        assert_eq!(intervals, [5, 20, 80, 320, 1000, 1000, 1000], "ms between looks");
    }

    #[test]
    fn a_storm_of_events_neither_puts_a_look_off_nor_fills_the_time_with_looks() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.looked(start, MS, false);
        let (mut now, mut looks) = (start, 0);
        while now < start + 1000 * MS {
            pace.event(now);
            if now >= pace.due() {
                looks += 1;
                now += 2 * MS;
                pace.looked(now, 2 * MS, true);
            }
            now += MS / 2;
        }
        assert!((30..=60).contains(&looks), "{looks} looks of 2 ms in a second of events");
    }

    #[test]
    fn an_idle_host_costs_a_thousandth_of_a_core_at_most() {
        for cost in [MS / 2, 3 * MS, 40 * MS] {
            let mut now = Instant::now();
            let mut pace = Pace::new(now);
            let (begun, mut spent) = (now, Duration::ZERO);
            for _ in 0..20 {
                now = pace.due() + cost;
                spent += cost;
                pace.looked(now, cost, false);
            }
            let share = spent.as_secs_f64() / (now - begun).as_secs_f64();
            assert!(share <= 0.0011, "{share} of the time for looks of {cost:?}");
            assert!(
                pace.due() - now >= Duration::from_secs(10),
                "idle: not more often than every ten seconds"
            );
        }
    }
}

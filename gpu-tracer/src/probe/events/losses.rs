//! What could not be told, by cause.

use gpu_tracer_common::events::{Drop, DropCount, DropCounts};

use crate::model::event::{Event, EventKind};

/// What was not told since the hooks were attached, by cause. The figures only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses(pub(super) DropCounts);

impl Losses {
    /// How often for this cause.
    #[must_use]
    pub const fn of(&self, cause: Drop) -> u64 {
        self.0.0[cause as usize].count
    }

    /// Each cause, in a stable word, and how often.
    pub fn by_cause(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Drop::ALL.into_iter().map(|cause| (word(cause), self.of(cause)))
    }

    /// All causes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        Drop::ALL.into_iter().map(|cause| self.of(cause)).sum()
    }

    /// Adds what one CPU has counted.
    pub(super) fn add(&mut self, counts: &DropCounts) {
        for (sum, count) in self.0.0.iter_mut().zip(counts.0) {
            sum.count += count.count;
            sum.last_ns = sum.last_ns.max(count.last_ns);
        }
    }

    pub(super) fn set(&mut self, cause: Drop, count: u64, last_ns: u64) {
        self.0.0[cause as usize] = DropCount { count, last_ns };
    }

    /// One event for each cause with more than `reported`.
    pub(super) fn beyond<'a>(&'a self, reported: &'a Self) -> impl Iterator<Item = Event> + 'a {
        Drop::ALL.into_iter().filter_map(|cause| {
            let now = self.0.0[cause as usize];
            let count = now.count.saturating_sub(reported.of(cause));
            let kind = EventKind::Lost { count, cause: word(cause) };
            (count > 0).then_some(Event { at_ns: now.last_ns, kind })
        })
    }
}

pub(super) const fn word(cause: Drop) -> &'static str {
    match cause {
        Drop::RingFull => "ring-full",
        Drop::Unreadable => "unreadable",
        Drop::TrackedFull => "map-full",
        Drop::RateLimited => "rate-limited",
        Drop::TableTooLong => "table-too-long",
        Drop::Missed => "missed",
        Drop::Foreign => "foreign",
        Drop::CallsFull => "calls-full",
        Drop::ReturnMissed => "return-missed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_reported_becomes_an_event_and_says_when_it_happened_last() {
        let counts = |ring, limited| {
            let mut counts = DropCounts::default();
            counts.0[Drop::RingFull as usize] = ring;
            counts.0[Drop::RateLimited as usize] = limited;
            counts
        };
        let one = |count, last_ns| DropCount { count, last_ns };
        let mut now = Losses::default();
        now.add(&counts(one(3, 50), one(7, 40)));
        now.add(&counts(one(2, 60), one(0, 0)));
        let mut reported = Losses::default();
        reported.add(&counts(one(1, 20), one(7, 40)));
        let events: Vec<Event> = now.beyond(&reported).collect();
        let expected = Event { at_ns: 60, kind: EventKind::Lost { count: 4, cause: "ring-full" } };
        assert_eq!(events, [expected]);
        assert_eq!(now.total(), 12);
        assert_eq!(now.beyond(&now).count(), 0);
    }
}

//! Holes in the record.
//!
//! A hole opens with the last moment that is known to be good and closes with the next complete snapshot. Reports of
//! loss while it is open belong to it.

use super::bounded::Bounded;
use crate::model::change::{Gap, GapCause};

/// Closed holes remembered. The journal has them all.
pub const GAPS_KEPT: usize = 64;
/// Different causes told apart while a hole is open; further ones are added to the last.
const CAUSES_KEPT: usize = 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    open: Vec<OpenGap>,
    closed: Bounded<Gap, GAPS_KEPT>,
}

/// A hole that no complete snapshot has closed yet: what is known now may lack what happened in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenGap {
    /// Last moment before it that is known, ns of boot time.
    pub from_ns: u64,
    /// When it was noticed last that something may have been missed, ns of boot time.
    pub noticed_ns: u64,
    /// Why.
    pub cause: GapCause,
}

impl Gaps {
    /// It was noticed at `noticed_ns` that something may have been missed since `from_ns`.
    pub(super) fn open(&mut self, from_ns: u64, noticed_ns: u64, cause: GapCause) {
        let known = self.open.iter_mut().position(|gap| joins(&mut gap.cause, &cause));
        let full = self.open.len() >= CAUSES_KEPT;
        match known.or_else(|| full.then(|| self.open.len() - 1)) {
            Some(at) => {
                let gap = &mut self.open[at];
                gap.from_ns = from_ns.min(gap.from_ns);
                gap.noticed_ns = noticed_ns.max(gap.noticed_ns);
            }
            None => self.open.push(OpenGap { from_ns, noticed_ns, cause }),
        }
    }

    /// A complete snapshot was begun at `to_ns`. What was noticed after that stays open.
    pub(super) fn close(&mut self, to_ns: u64) -> Vec<Gap> {
        let (closed, open): (Vec<_>, Vec<_>) = self.open.drain(..).partition(|gap| gap.noticed_ns <= to_ns);
        self.open = open;
        let closed: Vec<Gap> = closed
            .into_iter()
            .map(|gap| Gap { from_ns: gap.from_ns.min(to_ns), to_ns, cause: gap.cause })
            .collect();
        closed.iter().for_each(|gap| self.closed.push(gap.clone()));
        closed
    }

    /// May something have been missed since the last complete snapshot?
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Those that wait for a complete snapshot, in the order in which they were noticed.
    pub(super) fn still_open(&self) -> &[OpenGap] {
        &self.open
    }

    pub(super) fn closed(&self) -> &Bounded<Gap, GAPS_KEPT> {
        &self.closed
    }
}

/// Is it the same cause? If so, what was lost is added up.
fn joins(known: &mut GapCause, cause: &GapCause) -> bool {
    if let (GapCause::Lost { cause: a, count }, GapCause::Lost { cause: b, count: more }) =
        (&mut *known, cause)
        && a == b
    {
        *count = count.saturating_add(*more);
        return true;
    }
    known == cause
}

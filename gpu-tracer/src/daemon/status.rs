//! How the daemon is doing: `/v1/status`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::core::Core;
use super::tell::wall;
use crate::journal::Health;
use crate::kernel::{Answer, Clock};
use crate::ledger::{Ledger, OpenGap, View};
use crate::model::report::{Coverage, MissingReport};
use crate::model::{DeviceNumber, counted};
use crate::probe::events::Start;

/// Part of the JSON contract: fields may be added, never renamed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Of this program.
    pub version: String,
    /// PID of the daemon.
    pub pid: u32,
    /// `full`, `lean`, `exhaustive` or `snapshot`: what is in effect now.
    pub plan: String,
    /// How it came to its hooks: `fresh`, `resumed`, `replaced`, or `none`.
    pub start: String,
    /// Seconds since it was started.
    pub uptime_seconds: f64,
    /// Processor time used, seconds.
    pub cpu_seconds: f64,
    /// Memory in use, KiB.
    pub rss_kib: u64,
    /// Each hook.
    pub hooks: Vec<Hook>,
    /// What the last look could see.
    pub coverage: Coverage,
    /// Events not told, by cause.
    pub losses: BTreeMap<String, u64>,
    /// Differences between record and snapshots.
    pub drift: Drift,
    /// Holes in the record, oldest first.
    pub gaps: Vec<GapReport>,
    /// Holes that no complete look has closed yet.
    #[serde(default)]
    pub open_gaps: Vec<OpenGapReport>,
    /// How much there is of everything.
    pub counts: Counts,
    /// By device and state: open files.
    pub files: BTreeMap<String, BTreeMap<String, u64>>,
    /// By device: processes that hold it.
    pub holders: BTreeMap<String, u64>,
    /// The last look.
    pub last_look: LastLook,
    /// How the journal is doing.
    #[serde(default)]
    pub journal: Health,
}

/// One hook.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hook {
    /// Its name.
    pub hook: String,
    /// Does it work?
    pub works: bool,
    /// Why not, or what it cannot see.
    pub detail: Option<String>,
}

/// See [`crate::ledger::Drift`].
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Drift {
    pub unannounced: u64,
    pub vanished: u64,
    pub replaced: u64,
    pub racing: u64,
    pub dangling: u64,
    pub stale: u64,
}

/// A hole in the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GapReport {
    /// Wall clock, RFC 3339.
    pub from: String,
    /// Likewise.
    pub to: String,
    /// In a stable word.
    pub cause: String,
    /// Events lost, where that is the cause.
    pub events: Option<u64>,
}

/// A hole in the record that the next complete look will close: until then something may be missing that happened in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenGapReport {
    /// The last moment before it that is known, wall clock, RFC 3339.
    pub since: String,
    /// The same in seconds, Unix time.
    pub since_unix: f64,
    /// When it was noticed last, wall clock, RFC 3339.
    pub noticed: String,
    /// In a stable word.
    pub cause: String,
    /// Events lost so far, where that is the cause.
    pub events: Option<u64>,
}

/// Numbers that only grow, and some that do not.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Open files now.
    pub files: u64,
    /// Holders now.
    pub holders: u64,
    /// Files on their way out now.
    pub pending: u64,
    /// Processes followed now.
    pub tracked: u64,
    /// Readers of `/v1/events` now.
    pub subscribers: u64,
    /// Events taken in.
    pub events: u64,
    /// Changes told.
    pub changes: u64,
    /// Looks taken.
    pub looks: u64,
    /// Times that files on their way out were looked at again.
    pub rechecks: u64,
    /// Answers to who holds what.
    #[serde(default)]
    pub answers: u64,
    /// Holes in the record that were closed, those that `gaps` does not list any more as well.
    #[serde(default)]
    pub gaps: u64,
}

/// The last look.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LastLook {
    /// When it was begun, wall clock, RFC 3339.
    pub at: String,
    /// How long it took, µs.
    pub took_us: u64,
    /// The longest so far, µs.
    pub longest_us: u64,
}

/// What is counted on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    started: Instant,
    pub(super) events: u64,
    pub(super) changes: u64,
    pub(super) rechecks: u64,
    pub(super) answers: u64,
    pub(super) tracked: u64,
    looks: u64,
    took: Duration,
    longest: Duration,
}

impl Counters {
    pub(super) fn new() -> Self {
        let none = Duration::ZERO;
        Self {
            started: Instant::now(),
            events: 0,
            changes: 0,
            rechecks: 0,
            answers: 0,
            tracked: 0,
            looks: 0,
            took: none,
            longest: none,
        }
    }

    pub(super) fn looked(&mut self, took: Duration) {
        self.looks += 1;
        self.took = took;
        self.longest = self.longest.max(took);
    }
}

impl Core {
    /// How it is doing.
    pub(super) fn status(&self) -> Status {
        let view = self.ledger.view();
        let missing: Vec<MissingReport> = self
            .missing
            .iter()
            .map(|missing| MissingReport { what: missing.what.to_owned(), why: missing.why.clone() })
            .collect();
        let unexplained = view.files.iter().any(|file| file.unexplained > 0);
        let drift = self.ledger.drift();
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            plan: self.plan_word().to_owned(),
            start: self.start_word().to_owned(),
            uptime_seconds: self.counters.started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(),
            rss_kib: rss_kib(),
            hooks: self.hooks(),
            coverage: Coverage { complete: missing.is_empty() && !unexplained, missing },
            losses: self.losses(),
            drift: Drift {
                unannounced: drift.unannounced,
                vanished: drift.vanished,
                replaced: drift.replaced,
                racing: drift.racing,
                dangling: drift.dangling,
                stale: drift.stale,
            },
            gaps: self.gaps(),
            open_gaps: open_gaps(&self.ledger, &self.clock),
            counts: Counts {
                files: view.files.len() as u64,
                holders: view.holders.len() as u64,
                pending: self.ledger.pending().len() as u64,
                tracked: self.counters.tracked,
                subscribers: self.feed.len() as u64,
                events: self.counters.events,
                changes: self.counters.changes,
                looks: self.counters.looks,
                rechecks: self.counters.rechecks,
                answers: self.counters.answers,
                gaps: self.gaps_closed(),
            },
            files: self.files_by_device(&view),
            holders: self.holders_by_device(&view),
            last_look: LastLook {
                at: wall(&self.clock, view.taken_ns),
                took_us: us(self.counters.took),
                longest_us: us(self.counters.longest),
            },
            journal: self.journal_health(),
        }
    }

    /// In one line, for the service manager.
    pub(super) fn in_a_sentence(&self) -> String {
        let view = self.ledger.view();
        let open = match self.ledger.open_gaps().len() {
            0 => String::new(),
            open => format!(", {open} not closed yet"),
        };
        format!(
            "plan {}: {}, {}, {} in the record{open}",
            self.plan_word(),
            counted(view.files.len(), "open file", "open files"),
            counted(view.holders.len(), "holder", "holders"),
            counted(self.gaps_closed(), "gap", "gaps")
        )
    }

    fn gaps_closed(&self) -> u64 {
        self.ledger.gaps().entries().len() as u64 + self.ledger.gaps().dropped()
    }

    fn start_word(&self) -> &'static str {
        match self.source.as_ref().map(crate::probe::EventSource::start) {
            Some(Start::Fresh) => "fresh",
            Some(Start::Resumed) => "resumed",
            Some(Start::Replaced) => "replaced",
            None => "none",
        }
    }

    fn hooks(&self) -> Vec<Hook> {
        let hooks = self.source.iter().flat_map(|source| source.hooks().iter().chain(source.driver_hooks()));
        let hook = |hook: &crate::probe::events::HookReport| Hook {
            hook: hook.hook.to_owned(),
            works: matches!(hook.works, Answer::Yes),
            detail: hook.detail.clone().or_else(|| match &hook.works {
                Answer::Denied(why) => Some(why.clone()),
                _ => None,
            }),
        };
        hooks.map(hook).collect()
    }

    fn losses(&self) -> BTreeMap<String, u64> {
        let losses = self.source.as_ref().and_then(|source| source.losses().ok());
        losses.iter().flat_map(|losses| losses.by_cause()).map(|(cause, n)| (cause.to_owned(), n)).collect()
    }

    fn gaps(&self) -> Vec<GapReport> {
        let gaps = self.ledger.gaps().entries().iter();
        gaps.map(|gap| GapReport {
            from: wall(&self.clock, gap.from_ns),
            to: wall(&self.clock, gap.to_ns),
            cause: gap.cause.word(),
            events: gap.cause.events(),
        })
        .collect()
    }

    fn device_name(&self, number: DeviceNumber) -> String {
        self.devices.table.identify(number).map_or_else(|| number.to_string(), |device| device.name)
    }

    fn files_by_device(&self, view: &View) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut counts: BTreeMap<(DeviceNumber, &'static str), u64> = BTreeMap::new();
        for file in &view.files {
            *counts.entry((file.device, file.state.word())).or_default() += 1;
        }
        let mut files: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for ((device, state), count) in counts {
            *files.entry(self.device_name(device)).or_default().entry(state.to_owned()).or_default() += count;
        }
        files
    }

    fn holders_by_device(&self, view: &View) -> BTreeMap<String, u64> {
        let mut holders: BTreeMap<DeviceNumber, BTreeSet<u32>> = BTreeMap::new();
        for holder in &view.holders {
            for held in &holder.held {
                holders.entry(held.device).or_default().insert(holder.process.tgid);
            }
        }
        let named =
            |(device, pids): (DeviceNumber, BTreeSet<u32>)| (self.device_name(device), pids.len() as u64);
        holders.into_iter().map(named).collect()
    }
}

fn open_gaps(ledger: &Ledger, clock: &Clock) -> Vec<OpenGapReport> {
    let report = |gap: &OpenGap| OpenGapReport {
        since: wall(clock, gap.from_ns),
        since_unix: clock.wall(gap.from_ns).as_millisecond() as f64 / 1000.0,
        noticed: wall(clock, gap.noticed_ns),
        cause: gap.cause.word(),
        events: gap.cause.events(),
    };
    ledger.open_gaps().iter().map(report).collect()
}

/// Processor time of this process, all threads.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Snapshot;
    use crate::model::change::GapCause;
    use crate::model::snapshot::Source;

    #[test]
    fn a_gap_is_told_while_it_is_open_with_its_cause_and_since_when() {
        let clock = Clock { boot_to_wall_offset: 1_700_000_000_000_000_000 };
        let mut ledger = Ledger::new();
        assert_eq!(open_gaps(&ledger, &clock), []);
        ledger.note_gap(5_500_000_000, 6_000_000_000, GapCause::Lost { cause: "ring-full", count: 7 });
        ledger.note_gap(5_800_000_000, 6_250_000_000, GapCause::Lost { cause: "ring-full", count: 3 });
        let expected = OpenGapReport {
            since: "2023-11-14T22:13:25.500Z".to_owned(),
            since_unix: 1_700_000_005.5,
            noticed: "2023-11-14T22:13:26.250Z".to_owned(),
            cause: "ring-full".to_owned(),
            events: Some(10),
        };
        assert_eq!(open_gaps(&ledger, &clock), [expected]);
        let look = |taken_ns| Snapshot {
            taken_ns,
            source: Source::Iterators,
            tasks: Vec::new(),
            files: Vec::new(),
            references: Vec::new(),
            missing: Vec::new(),
            modules: crate::model::ModuleUses::default(),
        };
        ledger.reconcile(&look(6_100_000_000));
        assert_eq!(open_gaps(&ledger, &clock).len(), 1, "noticed after that look was begun");
        ledger.reconcile(&look(6_300_000_000));
        assert_eq!((open_gaps(&ledger, &clock), ledger.gaps().entries().len()), (Vec::new(), 1));
    }
}

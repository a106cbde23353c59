//! The core: one thread that takes events in, looks, and tells what changed. Nothing in it waits for anybody else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::describer::Describer;
use super::driver::DriverPace;
use super::feed::Feed;
use super::inbox::{Inbox, Order, Seen};
use super::judging::Judge;
use super::lastly::Lastly;
use super::looking;
use super::notify::Manager;
use super::numbering::Numbering;
use super::pace::Pace;
use super::recollection::Keeping;
use super::sampler::Sampler;
use super::settings::Settings;
use super::signals::{Signals, Wish};
use super::status::Counters;
use super::tell::Names;
use crate::answer::{Looked, milliseconds};
use crate::journal::Recorder;
use crate::kernel::{self, Clock, Devices, boot_now};
use crate::ledger::Ledger;
use crate::model::change::Change;
use crate::model::event::{Event, EventKind};
use crate::model::report::Cost;
use crate::model::{Missing, ProcessId};
use crate::probe::events::Start;
use crate::probe::{EventSource, Iterators};

/// Between two looks at the files that are on their way out.
const RECHECK: Duration = Duration::from_millis(100);
/// The ring is not drained more often: what happens at once comes at once.
const DRAIN: Duration = Duration::from_millis(5);
/// In a row, before anything else gets its turn; a full ring takes a few.
const DRAINS: u32 = 64;
/// How often the wall clock is read anew, and what is to outlive us is written down.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// All that the daemon knows.
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) devices: Arc<Devices>,
    /// `None`: plan `snapshot`.
    pub(super) source: Option<EventSource>,
    pub(super) iterators: Iterators,
    pub(super) ledger: Ledger,
    /// Can files be looked at again by address?
    pub(super) rechecks: bool,
    pub(super) pace: Pace,
    pub(super) driver_pace: DriverPace,
    /// Is any file on its way out?
    pub(super) pending: bool,
    /// Tasks that were half-way through exit when nobody could know what they had.
    pub(super) strangers: HashSet<(u32, u64)>,
    /// References to the driver's modules that no file accounted for in the last look.
    pub(super) uncounted: BTreeMap<&'static str, u64>,
    /// No look has been taken since something may have been missed.
    pub(super) in_doubt: bool,
    /// What the last look could not see.
    pub(super) missing: Vec<Missing>,
    pub(super) uids: HashMap<ProcessId, u32>,
    /// Tracked in the kernel and of no interest at the last count.
    pub(super) dull: HashSet<ProcessId>,
    pub(super) describer: Describer,
    pub(super) feed: Feed,
    pub(super) clock: Clock,
    pub(super) counters: Counters,
    /// Looks hung so many times in a row.
    pub(super) hangs: u32,
    pub(super) not_before: Option<Instant>,
    /// `None`: no history is kept.
    pub(super) recorder: Option<Recorder>,
    /// What was said last of the journal's trouble.
    pub(super) journal_problem: Option<String>,
    pub(super) journal_moved: Option<String>,
    pub(super) sampler: Sampler,
    pub(super) judge: Judge,
    pub(super) keeping: Keeping,
    /// Did anybody hold a device when memory was last asked for?
    pub(super) was_held: bool,
    /// A pass of a look that has not come back by then is given up.
    pub(super) patience: Duration,
    /// `None`: what it saw need not be known to the next.
    pub(super) lastly: Option<Lastly>,
    pub(super) numbering: Option<Numbering>,
    recheck_due: Instant,
    drained: Instant,
    housekeeping_due: Instant,
    /// Answers until the last housekeeping.
    answers_before: u64,
    /// Has the memory for answers not been given back since the last of them?
    spacious: bool,
}

impl Core {
    /// Everything but the first look.
    pub(super) fn new(
        settings: Settings,
        devices: Devices,
        source: Option<EventSource>,
        mut iterators: Iterators,
        describer: Describer,
        lastly: Option<Lastly>,
    ) -> Self {
        let rechecks = source.is_some() && iterators.recheck(&[]).is_ok();
        let now = Instant::now();
        let unfinished = source.as_ref().is_some_and(EventSource::driver_is_unfinished);
        let mut core = Self {
            settings,
            devices: Arc::new(devices),
            source,
            iterators,
            ledger: if rechecks { Ledger::with_rechecks() } else { Ledger::new() },
            rechecks,
            pace: Pace::new(now),
            driver_pace: DriverPace::new(unfinished, now),
            pending: false,
            strangers: HashSet::new(),
            uncounted: BTreeMap::new(),
            in_doubt: true,
            missing: Vec::new(),
            uids: HashMap::new(),
            dull: HashSet::new(),
            describer,
            feed: Feed::default(),
            clock: Clock::now(),
            counters: Counters::new(),
            hangs: 0,
            not_before: None,
            recorder: None,
            journal_problem: None,
            journal_moved: None,
            sampler: Sampler::default(),
            judge: Judge::idle(),
            keeping: Keeping::new(lastly.as_ref(), now),
            numbering: None,
            was_held: false,
            patience: looking::PASS_DEADLINE,
            lastly,
            recheck_due: now,
            drained: now,
            housekeeping_due: now + HOUSEKEEPING,
            answers_before: 0,
            spacious: false,
        };
        core.note_absence();
        core
    }

    /// Between the end of the daemon before and now nobody looked.
    fn note_absence(&mut self) {
        let resumed = self.source.as_ref().is_some_and(|source| source.start() != Start::Fresh);
        let now_ns = boot_now();
        if let Some(until_ns) = self.lastly.as_ref().and_then(Lastly::alive_until) {
            self.ledger.note_gap(until_ns.min(now_ns), now_ns, crate::model::change::GapCause::NotRunning);
        } else if resumed {
            self.ledger.note_gap(now_ns, now_ns, crate::model::change::GapCause::NotRunning);
        }
    }

    /// Goes on until it is asked to stop, or nobody is left who could ask (`signals` is `None`, and no reader is).
    /// Errors: the kernel refuses what it had allowed.
    pub(super) fn run(
        &mut self,
        inbox: &Inbox,
        signals: Option<&Signals>,
        manager: &Manager,
    ) -> anyhow::Result<()> {
        let mut alive_due = Instant::now();
        loop {
            let now = Instant::now();
            if let Some(interval) = manager.sign_of_life().filter(|_| now >= alive_due) {
                manager.tell("WATCHDOG=1");
                alive_due = now + interval;
            }
            let mut until = self.next_due();
            if manager.sign_of_life().is_some() {
                until = until.min(alive_due);
            }
            self.wait(inbox, signals, until)?;
            // In this order: what was read of a process is of the program that it had executed by then.
            let orders = inbox.take();
            self.take_events()?;
            let looks = self.take_orders(orders);
            match signals.map(Signals::next) {
                Some(Some(Wish::Stop)) => return Ok(()),
                Some(Some(Wish::Reload)) => self.reload(manager),
                Some(None) => {}
                None if self.feed.is_empty() => return Ok(()),
                None => {}
            }
            let now = Instant::now();
            if now >= self.pace.due() || !looks.is_empty() {
                let begun = Instant::now();
                let taken = self.look(!looks.is_empty())?;
                let cost = Cost { load_ms: 0.0, look_ms: milliseconds(begun.elapsed()), looks: taken };
                self.answer(looks, cost);
            }
            self.recheck_if_due()?;
            self.follow_driver_if_due()?;
            self.judge_if_due();
            self.keep_if_due();
            self.reserve_numbers();
            self.housekeeping(manager);
        }
    }

    fn next_due(&mut self) -> Instant {
        let now = Instant::now();
        let mut due = self.pace.due().min(self.housekeeping_due);
        due = self.keeping_due().map_or(due, |keeping| due.min(keeping));
        due = self.driver_pace.due().map_or(due, |follow_up| due.min(follow_up));
        if self.pending {
            due = due.min(self.recheck_due);
        }
        due = self.judgement_due(now).map_or(due, |judgement| due.min(judgement));
        if let Some(within) = self.source.as_ref().and_then(EventSource::next_due) {
            due = due.min(now + within);
        }
        due
    }

    fn wait(&mut self, inbox: &Inbox, signals: Option<&Signals>, until: Instant) -> anyhow::Result<()> {
        let within = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(within).ok();
        let urgent = signals.map(|signals| signals.as_fd()).into_iter().chain([inbox.as_fd()]);
        let mut on: Vec<PollFd<'_>> =
            urgent.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
        let urgent = on.len();
        on.extend(self.source.as_ref().map(|source| PollFd::new(source, PollFlags::IN)));
        match rustix::event::poll(&mut on, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
        let only_events = on[..urgent].iter().all(|descriptor| descriptor.revents().is_empty());
        drop(on);
        // Somebody who asks is not kept waiting; events are.
        if only_events && self.source.is_some() {
            std::thread::sleep((self.drained + DRAIN).saturating_duration_since(Instant::now()).min(within));
        }
        Ok(())
    }

    /// Takes in what has happened.
    pub(super) fn take_events(&mut self) -> anyhow::Result<()> {
        let mut drained = false;
        // Many processes together could go on for ever.
        for _ in 0..DRAINS {
            let Some(source) = &mut self.source else { break };
            self.drained = Instant::now();
            let events = source.drain()?;
            // For their effect on the next drain: what they say is in the events.
            source.take_touched();
            if events.is_empty() {
                break;
            }
            self.counters.events += events.len() as u64;
            let mut changes = Vec::new();
            for event in &events {
                // What was done under the old name is told under the old name.
                if gives_a_name(&event.kind) && !changes.is_empty() {
                    self.tell(&std::mem::take(&mut changes));
                }
                self.take_event(event, &mut changes)?;
            }
            self.tell(&changes);
            self.describe_those_of(&events);
            drained = true;
        }
        if drained {
            self.note_pending();
        }
        Ok(())
    }

    fn take_event(&mut self, event: &Event, changes: &mut Vec<Change>) -> anyhow::Result<()> {
        match &event.kind {
            EventKind::ModuleLoaded { .. } | EventKind::ModuleUnloaded { .. } => self.module_announced()?,
            EventKind::Lost { .. } => self.in_doubt = true,
            _ => {}
        }
        changes.extend(self.ledger.apply(event));
        if asks_for_a_look(&event.kind) {
            self.pace.event(Instant::now());
        }
        Ok(())
    }

    /// Does what was asked; gives those who want a look.
    fn take_orders(&mut self, orders: Vec<Order>) -> Vec<tokio::sync::oneshot::Sender<Seen>> {
        let mut looks = Vec::new();
        for order in orders {
            match order {
                Order::Look(reply) => looks.push(reply),
                Order::Status(reply) => {
                    // Nobody waits for it any more: no harm done.
                    let _ = reply.send(Box::new(self.status()));
                }
                Order::Subscribe(subscriber) => self.feed.add(subscriber),
                Order::Described(process, described) => self.described(process, described),
                Order::Measured(at_ns, memory) => self.write_down_memory(at_ns, &memory),
                Order::Judged(at_ns, verdicts) => self.write_down_verdicts(at_ns, verdicts),
            }
        }
        looks
    }

    fn answer(&mut self, looks: Vec<tokio::sync::oneshot::Sender<Seen>>, cost: Cost) {
        if looks.is_empty() {
            return;
        }
        self.counters.answers += looks.len() as u64;
        let seen = self.seen(cost);
        // The last gets what was seen for its own: then it need not be copied.
        let mut looks = looks.into_iter();
        let last = looks.next_back();
        for reply in looks {
            let _ = reply.send(seen.clone());
        }
        if let Some(reply) = last {
            let _ = reply.send(seen);
        }
    }

    /// All that is known, for those who make an answer of it.
    pub(super) fn seen(&self, cost: Cost) -> Seen {
        let plan = self.plan_word();
        let view = self.ledger.view();
        let openers = view.files.iter().filter_map(|file| Some(file.opened.as_ref()?.opener.process));
        let mut openers: Vec<ProcessId> = openers.collect();
        openers.sort_unstable();
        openers.dedup();
        let ended = |process: &ProcessId| {
            let history = self.ledger.history(*process);
            history.is_some_and(|history| history.exit.is_some() || history.freed_ns.is_some())
        };
        let ended = openers.into_iter().filter(ended).collect();
        let looked = Looked::by_daemon(view, plan, self.missing.clone(), cost.looks, ended);
        let (devices, roles) = (Arc::clone(&self.devices), Arc::clone(&self.settings.roles));
        Seen { looked: Arc::new(looked), devices, roles, cost }
    }

    /// Tells everybody who listens.
    pub(super) fn tell(&mut self, changes: &[Change]) {
        self.counters.changes += changes.len() as u64;
        self.write_down(changes);
        if self.feed.is_empty() {
            return;
        }
        let names =
            Names { ledger: &self.ledger, devices: &self.devices, clock: &self.clock, uids: &self.uids };
        for change in changes {
            self.feed.tell(&names.happening(change));
        }
    }

    /// After anything that may have brought a file on its way out, or to its end.
    pub(super) fn note_pending(&mut self) {
        self.pending = self.rechecks && self.ledger.is_anything_pending();
    }

    fn recheck_if_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.pending && now >= self.recheck_due {
            self.recheck_due = now + RECHECK;
            self.recheck()?;
        }
        Ok(())
    }

    /// A driver came or went: other numbers may be devices now.
    pub(super) fn rediscover(&mut self) -> anyhow::Result<()> {
        match kernel::discover(std::path::Path::new("/"), &self.settings.devices) {
            Ok(devices) => {
                if let Some(source) = &mut self.source {
                    source.set_devices(&devices.table)?;
                }
                self.devices = Arc::new(devices);
                self.write_down_gpus();
            }
            Err(error) => super::log::warning(&format!("devices cannot be discovered again: {error}")),
        }
        Ok(())
    }

    /// After devices were taken from the configuration.
    fn forget_unwatched(&mut self) {
        let devices = Arc::clone(&self.devices);
        let changes = self.ledger.forget_devices(boot_now(), |number| devices.table.contains(number));
        self.tell(&changes);
        self.note_pending();
    }

    fn reload(&mut self, manager: &Manager) {
        manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", super::settings::monotonic_us()));
        match self.settings.reload() {
            Ok(left) => {
                for key in left {
                    super::log::warning(&format!(
                        "{key} has changed and takes effect when the daemon is restarted"
                    ));
                }
                match self.rediscover() {
                    Ok(()) => self.forget_unwatched(),
                    Err(error) => super::log::warning(&format!("{error:#}")),
                }
                self.pace.event(Instant::now());
                super::log::info("configuration read again");
            }
            Err(error) => super::log::warning(&format!("the configuration stays as it is: {error:#}")),
        }
        manager.tell("READY=1");
    }

    fn housekeeping(&mut self, manager: &Manager) {
        let now = Instant::now();
        if now < self.housekeeping_due {
            return;
        }
        self.housekeeping_due = now + HOUSEKEEPING;
        self.clock = Clock::now();
        let quiet = self.counters.answers == self.answers_before;
        if self.ledger.shrink() || quiet && self.spacious {
            super::memory::give_back();
            self.spacious = false;
        }
        self.spacious |= !quiet;
        self.answers_before = self.counters.answers;
        self.remember_being_alive();
        manager.tell(&format!("STATUS={}", self.in_a_sentence()));
    }

    pub(super) fn lastly(&self) -> Option<&Lastly> {
        self.lastly.as_ref()
    }

    /// Writes down until when there was somebody to see.
    pub(super) fn remember_being_alive(&mut self) {
        self.write_down_life();
        let Some(lastly) = &self.lastly else { return };
        if let Err(error) = lastly.write(boot_now()) {
            super::log::warning(&format!("{error:#}"));
        }
    }
}

/// Does a process or a thread have another name after it?
fn gives_a_name(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Execed { .. } | EventKind::Renamed { .. })
}

/// May it change who refers to what, or say that something was missed? A file that is being opened, or is gone, has nobody
/// who refers to it.
fn asks_for_a_look(kind: &EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Renamed { .. }
            | EventKind::Signalled { .. }
            | EventKind::FileChecked { .. }
            | EventKind::Opening { .. }
            | EventKind::OpenFailed { .. }
            | EventKind::ReleaseDeferred { .. }
            | EventKind::Released { .. }
    )
}

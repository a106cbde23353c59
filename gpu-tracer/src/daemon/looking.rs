//! Looking: snapshots into the ledger, and files on their way out looked at again.

use std::collections::HashSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::core::Core;
use crate::answer::{
    half_gone, half_gone_task, module_references, opening_task, opening_tasks, pid_namespace,
};
use crate::kernel::{Answer, Btf, boot_now};
use crate::ledger::FileState;
use crate::model::event::{Event, EventKind};
use crate::model::{DeviceNumber, FileKey, Missing, ProcessId, Snapshot, counted};
use crate::probe::events::{FileChecked, RememberedFile};
use crate::probe::{Iterators, ProbeError, waiting};

/// A pass that has not come back by then is given up.
pub(super) const PASS_DEADLINE: Duration = Duration::from_millis(1500);
/// Long enough for an ordinary close to finish.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How long somebody who asks waits, at most, for files that were let go of just now to be released.
const RELEASE_PATIENCE: Duration = Duration::from_millis(50);
/// Before they are looked at again; doubled each time.
const RELEASE_PAUSE: Duration = Duration::from_millis(1);
/// What was let go of longer ago than this, ns, is not released any moment.
const JUST_NOW_NS: u64 = 1_000_000_000;
/// After a look that hung, and doubled for every further one: each leaves a thread behind in the kernel.
const AFTER_A_HANG: Duration = Duration::from_secs(10);
/// Doubled so often at most: five minutes.
const MOST_DOUBLINGS: u32 = 5;

impl Core {
    /// Looks once, and a second time where the first left a doubt that somebody who asks should not have.
    /// Gives how many times it looked.
    pub(super) fn look(&mut self, asked: bool) -> anyhow::Result<u32> {
        if self.not_before.is_some_and(|moment| Instant::now() < moment) {
            // Those who ask get what is known, with the reason why it is old.
            return Ok(0);
        }
        self.look_once()?;
        let mut looks = 1;
        let in_doubt = self.ledger.is_in_doubt() || !self.uncounted.is_empty();
        if asked && self.hangs == 0 && in_doubt {
            thread::sleep(BETWEEN_LOOKS);
            self.look_once()?;
            looks = 2;
        }
        if asked && self.hangs == 0 {
            self.await_releases()?;
        }
        Ok(looks)
    }

    /// After an ordinary close a file is gone within a few milliseconds: whoever asks is not told that it may still be there.
    fn await_releases(&mut self) -> anyhow::Result<()> {
        let (begun, mut pause) = (Instant::now(), RELEASE_PAUSE);
        while self.pending && self.is_anything_leaving() && begun.elapsed() + pause < RELEASE_PATIENCE {
            thread::sleep(pause);
            self.recheck()?;
            pause *= 2;
        }
        Ok(())
    }

    /// Has any file been let go of just now?
    fn is_anything_leaving(&self) -> bool {
        let then_ns = boot_now().saturating_sub(JUST_NOW_NS);
        let leaving = |state: FileState| {
            matches!(state, FileState::Unreferenced { .. } | FileState::Detached { .. })
                && state.since_ns().is_some_and(|since_ns| since_ns > then_ns)
        };
        self.ledger.pending().iter().any(|file| leaving(file.state))
    }

    fn look_once(&mut self) -> anyhow::Result<()> {
        let (begun, spent) = (Instant::now(), cpu_time());
        // What was reported before the look has to be known before the look is.
        let snapshot = self.iterators.snapshot(&self.devices.table, self.patience);
        let took = begun.elapsed();
        self.counters.looked(took);
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => return self.failed(&error),
        };
        let hung = took >= self.patience;
        self.take_events()?;
        let news = self.take_snapshot(snapshot)?;
        // What was closed since the last look is gone for good in most cases: that is said at once.
        if self.pending {
            self.recheck()?;
        }
        let now = Instant::now();
        // What a busy host made it wait is no cost.
        self.pace.looked(now, cpu_time().saturating_sub(spent), news);
        if hung {
            self.hung(now)
        } else {
            (self.hangs, self.not_before) = (0, None)
        }
        Ok(())
    }

    /// Takes a snapshot over; was there anything new in it?
    fn take_snapshot(&mut self, mut snapshot: Snapshot) -> anyhow::Result<bool> {
        waiting::explain(Path::new("/proc"), &mut snapshot);
        self.judge_half_gone(&snapshot);
        let drift = self.ledger.reconcile(&snapshot);
        self.recall();
        self.note_pending();
        let news = !drift.changes.is_empty();
        self.learn_uids(&snapshot);
        self.tell(&drift.changes);
        self.write_down_standing();
        self.missing = snapshot.missing.clone();
        self.missing.extend(pid_namespace());
        self.compare_with_modules(&snapshot);
        self.note_opening(&snapshot);
        self.follow(&snapshot)?;
        self.describe_newcomers();
        Ok(news)
    }

    /// Tasks inside the driver's open that nobody told of: they were there before the driver was followed, or it is not.
    fn note_opening(&mut self, snapshot: &Snapshot) {
        let opening = opening_tasks(snapshot);
        if opening.is_empty() {
            return;
        }
        let told: HashSet<u32> =
            self.ledger.view().files.iter().filter_map(|file| opener(file.state)).collect();
        let untold = opening.iter().filter(|task| !told.contains(&task.tid));
        self.missing.extend(untold.map(opening_task));
    }

    /// The kernel's count of what refers to the driver's modules tells of files that nobody has seen, and whether a task that is
    /// half-way through exit can have any.
    fn compare_with_modules(&mut self, snapshot: &Snapshot) {
        let others = if snapshot.modules.uses.is_empty() { Vec::new() } else { self.not_found(snapshot) };
        let uncounted = snapshot.modules.unaccounted(&others);
        self.missing.extend(module_references(&self.uncounted, &uncounted));
        self.uncounted = uncounted;
        if !snapshot.modules.add_up(&others) {
            let strangers = &self.strangers;
            let half_gone = half_gone(snapshot).into_iter();
            let unknown = half_gone.filter(|task| strangers.contains(&(task.tid, task.start_ns)));
            self.missing.extend(unknown.map(|task| half_gone_task(&task)));
        }
    }

    /// Devices of files that are known to live and are in no table.
    fn not_found(&self, snapshot: &Snapshot) -> Vec<DeviceNumber> {
        let found: HashSet<FileKey> = snapshot.files.iter().map(|file| file.key).collect();
        let living = self.ledger.living().into_iter();
        living.filter(|file| !found.contains(&file.file)).map(|file| file.device).collect()
    }

    /// What a task that is half-way through exit had is known if it was seen before that. Of one that was so far gone
    /// already when the first look was taken, or when something had been missed, nobody knows.
    fn judge_half_gone(&mut self, snapshot: &Snapshot) {
        let now: HashSet<(u32, u64)> =
            half_gone(snapshot).iter().map(|task| (task.tid, task.start_ns)).collect();
        if std::mem::take(&mut self.in_doubt) || !self.sees_every_open() {
            self.strangers = now;
        } else {
            self.strangers.retain(|task| now.contains(task));
        }
    }

    /// Does the kernel tell of every open, and of what every task has when it exits, or at least when it does not?
    fn sees_every_open(&self) -> bool {
        let works = |name: &str| {
            self.source.as_ref().is_some_and(|source| {
                source
                    .hooks()
                    .iter()
                    .any(|hook| hook.hook == name && matches!(hook.works, Answer::Yes) && !hook.blind)
            })
        };
        self.rechecks && works("cgroup/dev") && works("sched_process_exit")
    }

    fn learn_uids(&mut self, snapshot: &Snapshot) {
        let tracked = self.ledger.tracked();
        let wanted: HashSet<ProcessId> = tracked.into_iter().collect();
        // Those who have just ended are still spoken of.
        self.uids.retain(|process, _| wanted.contains(process) || self.ledger.history(*process).is_some());
        for task in snapshot.tasks.iter().filter(|task| task.is_leader()) {
            let process = ProcessId { tgid: task.tgid, start_ns: task.start_ns };
            if wanted.contains(&process) {
                self.uids.insert(process, task.uid);
            }
        }
    }

    /// Asks the kernel about the files that are on their way out.
    pub(super) fn recheck(&mut self) -> anyhow::Result<()> {
        let wanted: HashSet<FileKey> = self.ledger.pending().into_iter().map(|file| file.file).collect();
        // All files, not only those in question: what certainly lives tells what has become of the others.
        let living = self.ledger.living().into_iter();
        let files: Vec<RememberedFile> = living
            .map(|file| RememberedFile { key: file.file, device: file.device, identity: file.identity })
            .collect();
        let at_ns = boot_now();
        let checked = self.iterators.recheck(&files)?;
        // Where the driver's release was seen to return, that is told, with its moment, and not that it was gone by now.
        self.take_events()?;
        self.counters.rechecks += 1;
        let mut changes = Vec::new();
        for checked in checked.into_iter().filter(|checked| wanted.contains(&checked.file)) {
            changes.extend(self.ledger.apply(&event(at_ns, checked)));
        }
        self.tell(&changes);
        self.note_pending();
        Ok(())
    }

    fn failed(&mut self, error: &ProbeError) -> anyhow::Result<()> {
        self.missing = vec![Missing { what: "snapshot", why: error.to_string() }];
        super::log::warning(&format!("a look at the kernel failed: {error}"));
        self.hung(Instant::now());
        Ok(())
    }

    /// A pass did not come back: it may still write, so the next look gets programs and maps of its own.
    fn hung(&mut self, now: Instant) {
        let pause = AFTER_A_HANG * 2u32.pow(self.hangs.min(MOST_DOUBLINGS));
        self.hangs += 1;
        self.not_before = Some(now + pause);
        self.pace.hung(now, pause);
        self.missing.push(Missing {
            what: "snapshot",
            why: format!(
                "a look at the kernel hung {}; this is what was known then, the next look is due {} s after it",
                counted(self.hangs, "time", "times"),
                pause.as_secs()
            ),
        });
        let loaded = Btf::read(Btf::VMLINUX).map_err(ProbeError::from).and_then(|btf| Iterators::load(&btf));
        match loaded {
            Ok(iterators) => self.iterators = iterators,
            Err(error) => super::log::warning(&format!("the programs cannot be loaded again: {error}")),
        }
    }
}

/// Who is opening a file.
fn opener(state: FileState) -> Option<u32> {
    if let FileState::Opening { task, .. } = state { Some(task.tid) } else { None }
}

/// Processor time of this process, with the threads that read for it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn event(at_ns: u64, checked: FileChecked) -> Event {
    Event { at_ns, kind: EventKind::from(checked) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::describer::Describer;
    use crate::daemon::inbox;
    use crate::daemon::settings::{Flags, Settings};
    use crate::kernel;

    /// A core that looks at `/dev/null`, which everybody has open; nothing where BPF is not to be had.
    fn core() -> Option<Core> {
        let devices = vec!["1:3=nvidia0".parse().unwrap()];
        let settings = Settings::unconfigured(Flags { devices, ..Flags::default() }).unwrap();
        let devices = kernel::discover(Path::new("/"), &settings.devices).unwrap();
        let iterators = Btf::read(Btf::VMLINUX).ok().and_then(|btf| Iterators::load(&btf).ok())?;
        let (outbox, _inbox) = inbox::pair().unwrap();
        let describer = Describer::start(outbox).unwrap();
        Some(Core::new(settings, devices, None, iterators, describer, None))
    }

    #[test]
    fn a_look_that_hangs_leaves_what_was_known_and_says_so_until_one_comes_back() {
        let Some(mut core) = core() else {
            eprintln!("skipped: BPF programs cannot be loaded here");
            return;
        };
        let _held = std::fs::File::open("/dev/null").unwrap();
        assert!(core.look(true).unwrap() >= 1);
        let known = core.ledger.view();
        assert!(!known.files.is_empty() && core.missing.iter().all(|missing| missing.what != "snapshot"));

        // No pass can be that quick.
        core.patience = Duration::ZERO;
        assert_eq!(core.look(true).unwrap(), 1, "one look: a second would hang as well");
        let why = |core: &Core| {
            core.missing.iter().find(|missing| missing.what == "snapshot").map(|missing| missing.why.clone())
        };
        assert!(why(&core).is_some_and(|why| why.contains("hung 1 time;")), "{:?}", core.missing);
        assert_eq!(core.look(true).unwrap(), 0, "none for a while: each may leave a thread in the kernel");
        assert!(why(&core).is_some(), "{:?}", core.missing);
        assert!(!core.ledger.view().files.is_empty(), "what was known is not forgotten");
        assert!(core.pace.due() > Instant::now() + Duration::from_secs(5));

        core.patience = PASS_DEADLINE;
        core.not_before = None;
        assert!(core.look(true).unwrap() >= 1);
        assert_eq!((why(&core), core.hangs), (None, 0));
    }
}

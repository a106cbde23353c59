//! What happens, as it happens: device nodes asked for, and the lives of the processes that hold something.
//!
//! | hook | tells |
//! |---|---|
//! | `cgroup/dev` at the root of the v2 hierarchy | who asks for a device node, just before the open |
//! | `sched_process_fork`, `_exec`, `_free`, `task_rename` | lineage and names |
//! | `sched_process_exit` | how a task ends, and which device files are in its fd table at that moment |
//! | `signal_generate`, `oom:mark_victim` | who ended or stopped it |
//! | `module:module_load`, `module:module_free` | drivers that come and go |
//! | `sys_enter`, `sys_exit`, where asked for | calls by which files change hands, for the sake of a look; every call of the host pays |
//! | kprobes at the driver's open, release and deferred release ([`DriverState`]), where asked for and possible | opens and releases themselves, to the moment |
//!
//! The kernel keeps a set of *tracked* processes and says nothing of the others, for whom a hook costs one load. Who asks for a device is in it from then
//! on, and so is every child of a tracked process. Those that held something before are put in with
//! [`EventSource::track`]. A process leaves when it is reaped, or with [`EventSource::untrack`].
//!
//! Events are history and say when to look; what *is* so, a snapshot says. What is lost is counted by cause
//! ([`EventSource::losses`]) and becomes an [`EventKind::Lost`]. No process can fill the ring on purpose: each has a budget
//! of records for every 100 ms, and what it does beyond that is counted and, for device nodes, told once more afterwards.
//!
//! [`EventKind::Lost`]: crate::model::event::EventKind::Lost

mod attach;
mod calls;
mod cgroup;
mod decode;
mod driver;
mod hooks;
#[cfg(test)]
mod live;
mod losses;
mod pins;
pub mod recheck;
mod sys;
mod system_calls;
#[cfg(test)]
mod tests;
mod tracked;
mod translate;

use std::{
    collections::HashSet,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use gpu_tracer_common::events::{
    Call, CallKey, CallSlot, Drop, DropCounts, RING_BYTES, TouchKey, Touches, Tracked,
};
use rustix::event::{PollFd, PollFlags, Timespec};

pub use driver::{DriverState, survey as survey_driver};
pub use gpu_tracer_common::events::Drop as LossCause;
pub use hooks::HookReport;
pub use losses::Losses;
pub use pins::unpin;
pub use recheck::{FileChecked, RememberedFile};
pub use system_calls::{COST_OF_CALLS, can_follow_calls};
pub use translate::Touched;

pub(super) use attach::MAPS;
use calls::Calls;
use decode::Record;
use driver::DriverHooks;
use hooks::Attached;
use pins::Pins;
use tracked::TrackedSet;
use translate::Translator;

use super::{ProbeError, wanted::Wanted};
use crate::{
    kernel::boot_now,
    model::{
        DeviceTable, ProcessId, Snapshot,
        event::{Event, EventKind},
    },
};

/// The ring is not drained more often than this: a busy host then wakes the reader 200 times a second and not for every
/// event, and a ring of 1 MiB holds what a busy core can produce in twenty times as long.
const PACE: Duration = Duration::from_millis(5);
/// Events given out at once.
const MAX_EVENTS: usize = 16_384;

/// `repr(transparent)` over a record of the BPF programs, so that aya accepts it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Plain<T>(T);
// SAFETY: `repr(C)`, integers only, without padding (all seven).
unsafe impl aya::Pod for Plain<Tracked> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<TouchKey> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<Touches> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<DropCounts> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<CallKey> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<Call> {}
// SAFETY: as above.
unsafe impl aya::Pod for Plain<CallSlot> {}

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where in a BPF file system to keep the hooks, so that they outlive this process and the next one continues with
    /// them (`/sys/fs/bpf/gpu-tracer`). `None`: they end with this process.
    pub pin_dir: Option<PathBuf>,
    /// Bytes of the ring; made a power of two, at least a page.
    pub ring_bytes: u32,
    /// Hook the driver's own functions as well, as far as the kernel allows it: see [`EventSource::driver_state`].
    pub driver: bool,
    /// Follow every system call of the host: [`EventKind::Called`](crate::model::event::EventKind::Called).
    pub calls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { pin_dir: None, ring_bytes: RING_BYTES, driver: false, calls: false }
    }
}

/// How an [`EventSource`] came to its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// They are new: nothing is known of what happened before.
    Fresh,
    /// They were left by an earlier process and have not ceased to write.
    Resumed,
    /// They are new and took the place of others that did not fit this version: what those had written is lost.
    Replaced,
}

/// The attached hooks and the ring that they write to.
pub struct EventSource {
    ring: RingBuf<MapData>,
    tracked: TrackedSet,
    /// Tracked, and not shown by the last snapshot.
    absent: HashSet<ProcessId>,
    wanted: Wanted,
    touches: HashMap<MapData, Plain<TouchKey>, Plain<Touches>>,
    drops: PerCpuArray<MapData, Plain<DropCounts>>,
    reported: Array<MapData, Plain<DropCounts>>,
    attached: Vec<Attached>,
    hooks: Vec<HookReport>,
    driver: DriverHooks,
    calls: Calls,
    /// What had begun before anybody read the ring.
    earlier: Vec<Event>,
    start: Start,
    translator: Translator,
    foreign: u64,
    foreign_ns: u64,
    drained: Option<Instant>,
    _pins: Option<Pins>,
}

impl std::fmt::Debug for EventSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSource")
            .field("start", &self.start)
            .field("hooks", &self.hooks)
            .finish_non_exhaustive()
    }
}

impl EventSource {
    /// How it came to its hooks.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start
    }

    /// What became of each hook.
    #[must_use]
    pub fn hooks(&self) -> &[HookReport] {
        &self.hooks
    }

    /// What became of each hook at the driver's own functions; empty if they were not asked for.
    #[must_use]
    pub fn driver_hooks(&self) -> &[HookReport] {
        self.driver.reports()
    }

    /// Is every system call of the host followed?
    #[must_use]
    pub fn follows_calls(&self) -> bool {
        let works = |name| self.hooks.iter().any(|hook| hook.hook == name && hook.works.is_yes());
        works("sys_enter") && works("sys_exit")
    }

    /// How far the driver's own functions can be followed.
    #[must_use]
    pub fn driver_state(&self) -> DriverState {
        self.driver.state()
    }

    /// Attaches hooks to the driver's modules that have been loaded since, and forgets those that have been unloaded. To be
    /// called after [`EventKind::ModuleLoaded`] and [`EventKind::ModuleUnloaded`], and once more a little later: a module is
    /// announced before it is there and before it is gone.
    ///
    /// [`EventKind::ModuleLoaded`]: crate::model::event::EventKind::ModuleLoaded
    /// [`EventKind::ModuleUnloaded`]: crate::model::event::EventKind::ModuleUnloaded
    pub fn refresh_driver(&mut self) {
        if self.driver.refresh() {
            self.calls.forget_all();
        }
    }

    /// Has [`EventSource::refresh_driver`] left something for the next time? It is to be called again within some ms.
    #[must_use]
    pub fn driver_is_unfinished(&self) -> bool {
        self.driver.is_unfinished()
    }

    /// Tells the programs which device numbers are of interest: again after a module was loaded.
    pub fn set_devices(&mut self, devices: &DeviceTable) -> Result<(), ProbeError> {
        self.translator.set_devices(devices);
        self.wanted.set(devices)
    }

    /// Waits for something to happen until `deadline`, and gives what has happened, in the order in which it was written.
    ///
    /// Empty at the deadline. Waits a little (at most 5 ms) where it was called shortly before, so that more comes at once.
    pub fn poll(&mut self, deadline: Instant) -> Result<Vec<Event>, ProbeError> {
        loop {
            if let Some(drained) = self.drained {
                let until = deadline.min(drained + PACE);
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            let events = self.drain()?;
            let now = Instant::now();
            if !events.is_empty() || now >= deadline {
                return Ok(events);
            }
            let wait = deadline - now;
            self.wait(self.next_due().map_or(wait, |due| wait.min(due)))?;
        }
    }

    /// What has happened so far. Never waits. For use with an `AsyncFd`: read when the descriptor is readable, and when
    /// [`EventSource::next_due`] has passed.
    pub fn drain(&mut self) -> Result<Vec<Event>, ProbeError> {
        self.drained = Some(Instant::now());
        let mut events = std::mem::take(&mut self.earlier);
        while events.len() < MAX_EVENTS {
            let Some(item) = self.ring.next() else { break };
            let record = Record::decode(&item);
            drop(item);
            match record {
                Some(record) => events.extend(self.translator.translate(record)),
                None => {
                    self.foreign += 1;
                    self.foreign_ns = boot_now();
                }
            }
        }
        let touches = &self.touches;
        let hits = |key: TouchKey, process: ProcessId| {
            let touches = touches.get(&Plain(key), 0).ok()?.0;
            (touches.start_ns == process.start_ns).then_some(touches.hits)
        };
        self.translator.settle(boot_now(), hits, &mut events);
        self.report_losses(&mut events)?;
        Ok(events)
    }

    /// In how long [`EventSource::drain`] may have something to tell although the ring is empty.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.translator.next_due().map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(boot_now())))
    }

    fn wait(&self, within: Duration) -> Result<(), ProbeError> {
        let mut readable = [PollFd::new(&self.ring, PollFlags::IN)];
        let within = Timespec::try_from(within).ok();
        match rustix::event::poll(&mut readable, within.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => {
                Err(super::SyscallError { call: "poll of the ring of events", source: errno.into() }.into())
            }
        }
    }

    /// Who asked for what since this was last asked: where to look, and which cgroup a process was in that may be gone.
    pub fn take_touched(&mut self) -> Vec<Touched> {
        self.translator.take_touched()
    }

    /// From now on, tell what this process does.
    ///
    /// Errors: too many are tracked ([`gpu_tracer_common::events::MAX_TRACKED`]).
    pub fn track(&mut self, process: ProcessId) -> Result<(), ProbeError> {
        self.tracked.add(process)
    }

    /// No longer.
    pub fn untrack(&mut self, process: ProcessId) -> Result<(), ProbeError> {
        self.tracked.remove(process)
    }

    /// Which processes are tracked.
    #[must_use]
    pub fn tracked(&self) -> Vec<ProcessId> {
        self.tracked.list()
    }

    /// No longer tracks processes that neither `snapshot` nor the one before shows, though they are older: a process that was put in
    /// when it was being reaped would stay. In one alone a process may be missing that was being made meanwhile: it has its age before
    /// it can be seen, and what it does next is to be told. Returns how many.
    pub fn untrack_dead(&mut self, snapshot: &Snapshot) -> Result<usize, ProbeError> {
        let alive: HashSet<u32> = snapshot.tasks.iter().map(|task| task.tgid).collect();
        let absent: HashSet<ProcessId> = self
            .tracked()
            .into_iter()
            .filter(|process| process.start_ns < snapshot.taken_ns && !alive.contains(&process.tgid))
            .collect();
        let (dead, absent): (HashSet<_>, HashSet<_>) =
            absent.into_iter().partition(|process| self.absent.contains(process));
        self.absent = absent;
        dead.iter().try_for_each(|process| self.untrack(*process))?;
        Ok(dead.len())
    }

    /// What has been lost since the hooks were attached, by earlier processes too.
    pub fn losses(&self) -> Result<Losses, ProbeError> {
        let mut losses = Losses::default();
        for counts in self.drops.get(&0, 0).map_err(refused("DROPS"))?.iter() {
            losses.add(&counts.0);
        }
        let missed: u64 = self
            .attached
            .iter()
            .filter_map(|attached| sys::times_missed(attached.loaded.as_ref()?.as_fd()).ok())
            .sum();
        losses.set(Drop::Missed, missed + self.driver.missed(), boot_now());
        losses.set(Drop::Foreign, self.foreign, self.foreign_ns);
        Ok(losses)
    }

    /// Adds an event for each cause of which there is more than has been told.
    fn report_losses(&mut self, events: &mut Vec<Event>) -> Result<(), ProbeError> {
        let losses = self.losses()?;
        let reported = Losses(self.reported.get(&0, 0).map_err(refused("REPORTED"))?.0);
        let before = events.len();
        events.extend(losses.beyond(&reported));
        if events.len() > before {
            // What is still going on in the driver is certain whatever was lost. Of a call that is only counted neither end is
            // told, and that happens all the time while somebody has more than are told.
            if events[before..].iter().any(|event| may_be_half_told(&event.kind)) {
                events.extend(self.calls.in_progress());
            }
            self.reported.set(0, Plain(losses.0), 0).map_err(refused("REPORTED"))?;
        }
        Ok(())
    }
}

/// The ring's descriptor: readable when there is something in it.
impl AsFd for EventSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl AsRawFd for EventSource {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// May this loss be of one end of a call?
fn may_be_half_told(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Lost { cause, .. } if *cause == losses::word(Drop::RateLimited))
}

fn refused(map: &'static str) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map { map, source }
}

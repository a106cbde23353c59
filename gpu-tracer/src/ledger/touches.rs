//! Who asked for which device lately: the only word of an open that a kernel without kprobes gives.
//!
//! A touch comes before the open it announces, and also for opens that fail and for `access(2)`. Of an open it says which
//! descriptor was reserved for it: that slot was empty then, so whatever file is there later came there later.

use std::collections::VecDeque;

use super::addresses::Addresses;
use super::untold::Untold;
use crate::model::event::{Slot, TaskId};
use crate::model::hash::{Map, Set};
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText};

/// Touches remembered per process. A CUDA start makes about 30 of each device.
const TOUCHES_KEPT: usize = 512;
/// Processes with touches. When there are more, the half with the older ones is forgotten.
const PROCESSES_KEPT: usize = 8_192;
/// Touches of all of them, likewise.
const ALL_KEPT: usize = 65_536;
/// Processes remembered as the last that touched a device.
const TOUCHERS_KEPT: usize = 16;
/// Stands for those who touched a device before the last [`TOUCHERS_KEPT`].
const SOMEBODY: ProcessId = ProcessId { tgid: 0, start_ns: 0 };

/// A task asked for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) at_ns: u64,
    pub(super) device: DeviceNumber,
    pub(super) task: TaskId,
    /// The descriptor reserved for it; `None` for `access(2)`, and where it could not be told.
    pub(super) slot: Option<Slot>,
    /// The file that the device is opened as, where that could be told.
    pub(super) file: Option<FileKey>,
    pub(super) comm: RawText,
}

/// From when to when touches count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Files that were open then are known.
    pub(super) since_ns: u64,
    /// The look before that: an open that was on its way at `since_ns` is not older than this, unless the driver takes its time.
    pub(super) early_ns: u64,
    /// What was asked for after that may not be visible yet.
    pub(super) until_ns: u64,
    /// All that was open at `since_ns` is known, and so is all that was asked for since.
    pub(super) sure: bool,
}

impl Window {
    pub(super) fn has(&self, touch: &Touch) -> bool {
        touch.at_ns > self.since_ns && touch.at_ns <= self.until_ns
    }
}

/// When what was last asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// When each slot was last reserved: it was empty then.
    pub(super) reserved: Map<Slot, u64>,
    /// When each process last touched each device without its descriptor being known.
    pub(super) without_slot: Map<(ProcessId, DeviceNumber), u64>,
}

/// Per device, the processes that touched it and were not matched with a file for every touch.
pub(super) type Spare = Map<DeviceNumber, Set<ProcessId>>;

/// Touches that no file has been matched with.
#[derive(Clone, Debug, Default)]
pub(super) struct Touches {
    /// In order of time.
    logs: Map<ProcessId, VecDeque<Touch>>,
    count: usize,
    /// The time of the last one that was forgotten for want of room.
    forgotten_ns: u64,
    /// Who reserved each slot last, and when. Matched ones count, until the next look.
    reserved: Map<Slot, (ProcessId, u64)>,
    /// Per device, the last touch of each of the last [`TOUCHERS_KEPT`] processes that touched it, the latest first. Matched ones
    /// count; those that tell of a file do not: they can have led to no other.
    last: Map<DeviceNumber, Vec<(ProcessId, u64)>>,
    /// Those that tell of a file. Matched ones are not among them.
    pub(super) addresses: Addresses,
    /// Who may have touched a device without that being told.
    pub(super) untold: Untold,
}

impl Touch {
    /// Can it have led to the file at this address?
    pub(super) fn fits(&self, file: FileKey) -> bool {
        self.file.is_none_or(|own| own == file)
    }
}

impl Touches {
    pub(super) fn add(&mut self, touch: Touch) {
        self.note_last(&touch);
        self.addresses.add(&touch);
        let log = self.logs.entry(touch.task.process).or_default();
        let same = |known: &Touch| known.at_ns == touch.at_ns && known.device == touch.device;
        let at = log.partition_point(|known| known.at_ns <= touch.at_ns);
        if log.range(..at).rev().take_while(|known| known.at_ns == touch.at_ns).any(same) {
            return;
        }
        note_reserved(&mut self.reserved, &touch);
        log.insert(at, touch);
        self.count += 1;
        if log.len() > TOUCHES_KEPT
            && let Some(forgotten) = log.pop_front()
        {
            self.forgotten_ns = forgotten.at_ns.max(self.forgotten_ns);
            self.count -= 1;
        }
        if self.logs.len() > PROCESSES_KEPT || self.count > ALL_KEPT {
            self.forget_older_half();
        }
    }

    fn note_last(&mut self, touch: &Touch) {
        if touch.file.is_some() {
            return;
        }
        let last = self.last.entry(touch.device).or_default();
        let mut at_ns = touch.at_ns;
        if let Some(known) = last.iter().position(|(by, _)| *by == touch.task.process) {
            at_ns = at_ns.max(last.remove(known).1);
        }
        let at = last.partition_point(|(_, known_ns)| *known_ns > at_ns);
        last.insert(at, (touch.task.process, at_ns));
        last.truncate(TOUCHERS_KEPT);
    }

    fn forget_older_half(&mut self) {
        let latest = |log: &VecDeque<Touch>| log.back().map_or(0, |touch| touch.at_ns);
        let mut times: Vec<u64> = self.logs.values().map(latest).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.forgotten_ns = median.max(self.forgotten_ns);
        self.logs.retain(|_, log| latest(log) > median);
        self.recount();
    }

    fn recount(&mut self) {
        self.count = self.logs.values().map(VecDeque::len).sum();
        let mut reserved = std::mem::take(&mut self.reserved);
        reserved.clear();
        for touch in self.all() {
            note_reserved(&mut reserved, touch);
        }
        self.reserved = reserved;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.addresses.is_empty() && self.untold.is_empty()
    }

    /// Up to when another file of this device may have come to an address without being told of there. What was seen at its
    /// address later is what it was, whatever touches are remembered.
    pub(super) fn unsure_until(&self, device: DeviceNumber) -> u64 {
        self.addresses.lacking_until(device).max(self.untold.until(device))
    }

    /// All touches of a process, in order of time.
    pub(super) fn of(&self, process: ProcessId) -> impl DoubleEndedIterator<Item = &Touch> {
        self.logs.get(&process).into_iter().flatten()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Touch> {
        self.logs.values().flatten()
    }

    /// When a slot was last reserved, and by whom, whether a file has been matched with that since the last look or not.
    pub(super) fn last_at(&self, slot: Slot) -> Option<(ProcessId, u64)> {
        self.reserved.get(&slot).copied()
    }

    /// What touches up to this moment say of references: of one process, or of all. Those that tell of a file say it of that
    /// file alone.
    pub(super) fn asked(&self, by: Option<ProcessId>, until_ns: u64) -> Asked {
        let mut asked = Asked::default();
        let note = |touch: &Touch| {
            if touch.at_ns > until_ns || touch.file.is_some() {
                return;
            }
            let last = match touch.slot {
                Some(slot) => asked.reserved.entry(slot).or_default(),
                None => asked.without_slot.entry((touch.task.process, touch.device)).or_default(),
            };
            *last = touch.at_ns.max(*last);
        };
        match by {
            Some(process) => self.of(process).for_each(note),
            None => self.all().for_each(note),
        }
        asked
    }

    /// Who touched what in this window, or on its verge, and was matched with no file, and may have been with any.
    ///
    /// With a `family`, only its touches are gone through, and anybody else who touched a device counts as not matched:
    /// what all others have touched would be too much to go through at every exit.
    pub(super) fn spare(&self, window: Window, family: Option<&[ProcessId]>) -> Spare {
        let mut spare = Spare::default();
        for (process, device) in self.untold.all_since(window.early_ns) {
            spare.entry(device).or_default().insert(process);
        }
        let mut add = |touch: &Touch| {
            if touch.file.is_none() && touch.at_ns > window.early_ns && touch.at_ns <= window.until_ns {
                spare.entry(touch.device).or_default().insert(touch.task.process);
            }
        };
        let Some(family) = family else {
            self.all().for_each(add);
            return spare;
        };
        family.iter().flat_map(|process| self.of(*process)).for_each(&mut add);
        for (device, last) in &self.last {
            let others = last.iter().filter(|(by, at_ns)| *at_ns > window.early_ns && !family.contains(by));
            others.for_each(|(by, _)| _ = spare.entry(*device).or_default().insert(*by));
            if last.len() == TOUCHERS_KEPT && last.iter().all(|(_, at_ns)| *at_ns > window.early_ns) {
                spare.entry(*device).or_default().insert(SOMEBODY);
            }
        }
        spare
    }

    /// Were touches forgotten, for want of room, that were in this window?
    pub(super) fn forgot(&self, window: Window) -> bool {
        self.forgotten_ns > window.early_ns || self.untold.forgot(window.early_ns)
    }

    /// Takes out one touch that a file has been matched with.
    pub(super) fn take(&mut self, process: ProcessId, device: DeviceNumber, at_ns: u64) -> Option<Touch> {
        let log = self.logs.get_mut(&process)?;
        let at = log.iter().position(|touch| touch.at_ns == at_ns && touch.device == device)?;
        self.count -= 1;
        let touch = log.remove(at)?;
        if let Some(file) = touch.file {
            self.addresses.take(file, at_ns);
        }
        Some(touch)
    }

    /// Takes out the touch of a task that announced an open of which is known when the driver was asked for it.
    pub(super) fn take_latest(&mut self, task: TaskId, device: DeviceNumber, until_ns: u64) {
        let announced =
            |touch: &&Touch| touch.task == task && touch.device == device && touch.at_ns <= until_ns;
        let latest = self.of(task.process).rfind(announced).map(|touch| touch.at_ns);
        if let Some(at_ns) = latest {
            self.take(task.process, device, at_ns);
        }
    }

    /// Forgets touches up to this moment whose slot is filled: they led to that file or to one that has left the slot.
    pub(super) fn settle(&mut self, until_ns: u64, filled: impl Fn(Slot) -> bool) {
        let spent = |touch: &Touch| touch.at_ns <= until_ns && touch.slot.is_some_and(&filled);
        self.logs.values_mut().for_each(|log| log.retain(|touch| !spent(touch)));
        self.recount();
    }

    /// Has this process touched anything that no file has been matched with?
    pub(super) fn has(&self, process: ProcessId) -> bool {
        self.logs.get(&process).is_some_and(|log| !log.is_empty())
    }

    /// Processes with touches that no file has been matched with.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.logs.iter().filter(|(_, log)| !log.is_empty()).map(|(process, _)| *process)
    }

    /// Slots of touches that no file has been matched with.
    pub(super) fn slots(&self) -> Set<Slot> {
        self.all().filter_map(|touch| touch.slot).collect()
    }

    /// Forgets those of processes that are gone, and who was last to touch what if that was not after `since_ns`.
    pub(super) fn retain(&mut self, since_ns: u64, keep: impl Fn(ProcessId) -> bool) {
        self.logs.retain(|process, log| !log.is_empty() && keep(*process));
        self.last.retain(|_, last| last[0].1 > since_ns);
        self.addresses.retain(since_ns, &keep);
        self.untold.retain_since(since_ns);
        self.recount();
    }
}

fn note_reserved(reserved: &mut Map<Slot, (ProcessId, u64)>, touch: &Touch) {
    if let Some(slot) = touch.slot {
        let last = reserved.entry(slot).or_insert((touch.task.process, touch.at_ns));
        if last.1 < touch.at_ns {
            *last = (touch.task.process, touch.at_ns);
        }
    }
}

//! Who opened a file, and whether it is the file that was at its address before: what touches tell where no probe on the
//! driver's open does.
//!
//! * **By address.** Where a touch tells which file the device is opened as, all is known (`addresses.rs`). What follows is
//!   for touches that do not, and for files that are not told of.
//! * **By slot.** An open reserves a descriptor before it touches the device. A file in the slot that was reserved was
//!   opened by that touch, unless that open failed or its file was closed, and another file was put there since.
//! * **By descent.** A child has its parent's files in the same slots.
//! * **By elimination.** Where one process alone has touched the device since all open files were known, it opened what is new.
//!
//! An opener is named where one of these points to one process. It is *exact* where nothing else is possible: every touch of
//! the device since the last complete look has led to a file of its own. Where two are equally possible, none is named.
//!
//! Addresses are reused at once, and by the same process with the same credentials for the same device, so that a file
//! looks like the one before. What gives it away is that none of the references has stayed: a slot that was reserved since
//! was empty in between.

use super::Ledger;
use super::files::{Certainty, FileRecord};
use super::resolve::Ways;
use super::touches::{Asked, Touch, Window};
use crate::model::change::Change;
use crate::model::event::Slot;
use crate::model::hash::Map;
use crate::model::{DeviceNumber, FileKey, ProcessId, TableKey, Via};

/// A file whose opener is wanted.
#[derive(Clone, Debug)]
pub(super) struct Fresh {
    pub(super) id: u64,
    pub(super) key: FileKey,
    pub(super) device: DeviceNumber,
    /// When it was seen.
    pub(super) seen_ns: u64,
    /// Where it is, in order.
    pub(super) slots: Vec<Slot>,
    /// Who refers to it by descriptor or mapping, in order.
    pub(super) referrers: Vec<ProcessId>,
    /// It is certainly not the file that was at its address before.
    pub(super) certain: bool,
}

/// Which touches may tell of a file.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) window: Window,
    /// Whose touches to go through, if not all ([`Touches::spare`](super::touches::Touches::spare)).
    pub(super) family: Option<&'a [ProcessId]>,
    /// Does any living task use this fd table?
    pub(super) in_use: &'a dyn Fn(TableKey) -> bool,
}

/// What touches say of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Claim {
    /// Nothing.
    None,
    /// It was opened after this touch, by this process.
    One(Touch),
    /// Several processes may have opened it.
    Several,
}

/// Is what is at an address now the file that was there when it was last seen?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    Same,
    Another,
    /// None of its references has stayed, and the device was touched since.
    Undecided,
    /// It may have been opened since by somebody of whose opens not all are told.
    Untold,
}

impl Ledger {
    /// Finds the openers of files that are heard of for the first time.
    pub(super) fn find_openers(&mut self, fresh: &[Fresh], scope: Scope<'_>, changes: &mut Vec<Change>) {
        let Scope { window, family, .. } = scope;
        if fresh.is_empty() || self.touches.is_empty() {
            return;
        }
        let (mut claims, mut left, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for file in fresh {
            let by_address = self.touches.addresses.opened(file.key, file.device, file.seen_ns);
            // Where something may have been missed, the file may be a later one.
            let by_address =
                by_address.filter(|(touch, sure)| *sure || file.referrers.contains(&touch.task.process));
            if let Some((touch, sure)) = by_address {
                told.push((file, touch.clone(), if sure { Certainty::Exact } else { Certainty::Slot }));
                continue;
            }
            // What was opened while the look went on may be in it or not.
            let during =
                |slot: &Slot| self.touches.last_at(*slot).is_some_and(|(_, at_ns)| at_ns > window.until_ns);
            let due = file.slots.iter().any(during).then_some(file.certain);
            if let Some(record) = self.files.get_mut(file.id) {
                record.opener_due = due;
            }
            if due.is_some() {
                continue;
            }
            match self.claim(file.key, file.device, &file.slots, &file.referrers, scope) {
                Claim::One(touch) => claims.push((touch, file)),
                Claim::Several => {}
                Claim::None => left.push(file),
            }
        }
        for (file, touch, _) in &told {
            self.touches.take(touch.task.process, touch.device, touch.at_ns);
            self.touches.addresses.take(file.key, touch.at_ns);
            if let Some(record) = self.files.get_mut(file.id) {
                record.opener_due = None;
            }
        }
        claims.sort_by_key(|(touch, file)| (touch.task.process, touch.device, touch.at_ns, file.id));
        let mut opened = Vec::new();
        for same in
            claims.chunk_by(|(a, _), (b, _)| a.task == b.task && (a.device, a.at_ns) == (b.device, b.at_ns))
        {
            // An open makes one file.
            if let [(touch, file)] = same
                && let Some(touch) = self.touches.take(touch.task.process, touch.device, touch.at_ns)
            {
                opened.push((file.id, touch, file.certain, Certainty::Slot));
            }
        }
        self.eliminate(&left, scope, &mut opened);
        let (spare, sure) = (self.touches.spare(window, family), window.sure && !self.touches.forgot(window));
        let inferred = opened.into_iter().map(|(id, touch, alone, by)| {
            let exact = sure && alone && touch.at_ns > window.since_ns && !spare.contains_key(&touch.device);
            (id, touch, if exact { Certainty::Exact } else { by })
        });
        let told = told.into_iter().map(|(file, touch, certainty)| (file.id, touch, certainty));
        let mut opened: Vec<(u64, Touch, Certainty)> = told.chain(inferred).collect();
        opened.sort_by_key(|(id, touch, _)| (touch.at_ns, *id));
        for (id, touch, certainty) in opened {
            self.set_opened(id, touch.task, &touch.comm, touch.at_ns, certainty, changes);
        }
    }

    /// Matches files that no slot tells of with processes that alone can have opened them: (id, touch, is it the only
    /// one?).
    fn eliminate(
        &mut self,
        left: &[&Fresh],
        scope: Scope<'_>,
        opened: &mut Vec<(u64, Touch, bool, Certainty)>,
    ) {
        let Scope { window, family, .. } = scope;
        // Before the first look nothing is known of what was open: all of it may be older than any touch.
        if left.is_empty() || window.since_ns == 0 {
            return;
        }
        // A look takes its time: what is in no slot that was opened may have been opened and moved while it went on.
        let spare = self.touches.spare(Window { until_ns: u64::MAX, ..window }, family);
        let mut by_opener: Map<(ProcessId, DeviceNumber), Vec<(Option<u32>, &Fresh)>> = Map::default();
        for file in left {
            let touchers = spare.get(&file.device);
            let only = touchers.filter(|touchers| touchers.len() == 1).and_then(|one| one.iter().next());
            let opener = match only {
                Some(only) => Some(*only),
                None => self.without_slot(file, window),
            };
            if let Some(opener) = opener {
                // Descriptors are given out lowest first: their order is the likely order of opening.
                let lowest = file.slots.iter().map(|slot| slot.fd).min();
                by_opener.entry((opener, file.device)).or_default().push((lowest, *file));
            }
        }
        for ((process, device), mut files) in by_opener {
            let may_be = |touch: &&Touch| touch.device == device && touch.file.is_none();
            files.sort_unstable_by_key(|(lowest, file)| (lowest.unwrap_or(u32::MAX), file.id));
            let touched: Vec<Touch> = self.touches.of(process).filter(may_be).cloned().collect();
            let alone =
                files.len() == 1 && touched.iter().filter(|touch| touch.at_ns > window.early_ns).count() == 1;
            // What was asked for while the look went on may be of files that the next look shows.
            let before = touched.partition_point(|touch| touch.at_ns <= window.until_ns);
            let touched = if before > 0 { &touched[..before] } else { &touched[..] };
            // The latest touches, in order. Where there are fewer than files, the first is the nearest that can be said.
            let (skipped, lacking) =
                (touched.len().saturating_sub(files.len()), files.len().saturating_sub(touched.len()));
            let taken = touched[skipped..].to_vec();
            if before > 0 {
                taken.iter().for_each(|touch| _ = self.touches.take(process, device, touch.at_ns));
            }
            let Some(first) = taken.first().cloned() else { continue };
            let touches = std::iter::repeat_n(first, lacking).chain(taken);
            opened.extend(files.iter().zip(touches).map(|((_, file), touch)| {
                (file.id, touch, file.certain && alone && lacking == 0, Certainty::Likely)
            }));
        }
    }

    /// The one process among those that refer to a file, or among their ancestors, that touched its device without its
    /// descriptor being known.
    fn without_slot(&self, file: &Fresh, window: Window) -> Option<ProcessId> {
        let touched = |process: ProcessId| {
            let mut touches = self.touches.of(process);
            touches.any(|touch| {
                touch.device == file.device
                    && touch.slot.is_none()
                    && touch.file.is_none()
                    && touch.at_ns <= window.until_ns
            })
        };
        let mut own = file.referrers.iter().copied().filter(|process| touched(*process));
        if let Some(first) = own.next() {
            return own.next().is_none().then_some(first);
        }
        let ancestors = file.referrers.iter().flat_map(|process| self.processes.ancestors(*process));
        let mut ancestors = ancestors.map(|(ancestor, _)| ancestor).filter(|ancestor| touched(*ancestor));
        let first = ancestors.next()?;
        ancestors.all(|other| other == first).then_some(first)
    }

    /// The touch that the slots of a file point to.
    fn claim(
        &self,
        key: FileKey,
        device: DeviceNumber,
        slots: &[Slot],
        referrers: &[ProcessId],
        scope: Scope<'_>,
    ) -> Claim {
        let window = scope.window;
        let by_slot = slots.iter().filter_map(|slot| {
            let at = |touch: &&Touch| touch.slot == Some(*slot);
            let touches = || referrers.iter().flat_map(|process| self.touches.of(*process)).filter(at);
            let (by, at_ns) = self.touches.last_at(*slot)?;
            if at_ns > window.until_ns {
                let before = touches().filter(|touch| touch.at_ns <= window.until_ns);
                return before.max_by_key(|touch| touch.at_ns);
            }
            // It may be somebody else who shares the table.
            let last = self.touches.of(by).find(|touch| touch.at_ns == at_ns && at(touch));
            last.filter(|touch| self.may_share(touch, referrers, scope))
        });
        let fds: Vec<u32> = slots.iter().map(|slot| slot.fd).collect();
        let in_slot = |touch: &&Touch| {
            touch.at_ns <= window.until_ns && touch.slot.is_some_and(|slot| fds.contains(&slot.fd))
        };
        // Exec and unshare give a process another table with the same files in the same slots.
        let moved = referrers.iter().filter_map(|process| {
            let mut touches = self.touches.of(*process).rev().filter(in_slot);
            touches.find(|touch| touch.slot.is_some_and(|slot| !(scope.in_use)(slot.table)))
        });
        let inherited = referrers.iter().flat_map(|process| self.processes.ancestors(*process)).filter_map(
            |(ancestor, child)| {
                let mut touches = self.touches.of(ancestor).rev().filter(in_slot);
                touches.find(|touch| touch.at_ns < child.start_ns)
            },
        );
        let of_device = |touch: &&Touch| touch.device == device && touch.fits(key);
        judge(by_slot.filter(of_device).collect(), window)
            .or_else(|| judge(moved.filter(of_device).collect(), window))
            .or_else(|| judge(inherited.filter(of_device).collect(), window))
            .unwrap_or(Claim::None)
    }

    /// May this touch have been in the very table that these processes use? An address of a table is reused, too.
    fn may_share(&self, touch: &Touch, referrers: &[ProcessId], scope: Scope<'_>) -> bool {
        let by = touch.task.process;
        // A look shows everybody who uses a table.
        let unseen = scope.family.is_some()
            && self.history(by).is_some_and(|history| history.exit.is_none() && history.freed_ns.is_none())
            && referrers.iter().any(|process| process.start_ns < touch.at_ns);
        unseen || referrers.contains(&by)
    }

    /// Compares what is at a file's address now with what was there when it was last seen. `elsewhere`: there may be
    /// references that are not among these.
    pub(super) fn sameness<'a>(
        &self,
        file: &FileRecord,
        vias: impl Iterator<Item = &'a Via> + Clone,
        referrers: &[ProcessId],
        (asked, elsewhere): (&Asked, bool),
        scope: Scope<'_>,
    ) -> Sameness {
        let Some(seen_ns) = file.seen_ns else { return Sameness::Same };
        if !self.touches.addresses.may_lack(file.device, file.latest_ns()) {
            return Sameness::Same;
        }
        let after = |at_ns: Option<&u64>| at_ns.is_some_and(|at_ns| *at_ns > seen_ns);
        let touched_without_slot =
            referrers.iter().any(|process| after(asked.without_slot.get(&(*process, file.device))));
        let refilled = |via: &Via| slot_of(via).is_some_and(|slot| after(asked.reserved.get(&slot)));
        let stayed = |via: &Via| !refilled(via) && file.references.binary_search(via).is_ok();
        if vias.clone().any(stayed) {
            let doubtful = touched_without_slot || vias.clone().any(refilled);
            return if doubtful { Sameness::Undecided } else { Sameness::Same };
        }
        let window = Window { since_ns: seen_ns, ..scope.window };
        let slots: Vec<Slot> = vias.filter_map(slot_of).collect();
        let another = match self.claim(file.key, file.device, &slots, referrers, Scope { window, ..scope }) {
            Claim::One(touch) => touch.at_ns > seen_ns,
            Claim::None => touched_without_slot && self.only_strangers(file, referrers, window),
            Claim::Several => false,
        };
        if another && !elsewhere { Sameness::Another } else { Sameness::Undecided }
    }

    /// May the file at this address have been opened since it was last seen by somebody of whose opens not all are told? Then he
    /// refers to it, or somebody does who has been given it since.
    pub(super) fn may_be_untold<'a>(
        &self,
        file: &FileRecord,
        mut vias: impl Iterator<Item = &'a Via>,
        referrers: &[ProcessId],
    ) -> bool {
        let suspects = self.touches.untold.since(file.device, file.latest_ns());
        !suspects.are_none()
            && (referrers.iter().any(|process| suspects.include(*process))
                || vias.any(|via| file.references.binary_search(via).is_err()))
    }

    /// Files that may be others than they were, because not all opens are told: their opener is the one that is known if he may
    /// have opened that one as well, and nobody otherwise. (id, when it was last heard of before, who has it now.)
    pub(super) fn doubt_openers(&mut self, untold: &[(u64, u64, &[(ProcessId, Ways)])]) {
        for (id, latest_ns, held) in untold {
            let Some(file) = self.files.get_mut(*id) else { continue };
            let Some(opened) = &mut file.opened else { continue };
            let (opener, suspects) =
                (opened.task.process, self.touches.untold.since(file.device, *latest_ns));
            let has_it = held.iter().any(|(process, _)| *process == opener);
            if suspects.are_only(opener) || suspects.include(opener) && has_it {
                opened.certainty = Certainty::Likely;
            } else {
                file.opened = None;
            }
        }
    }

    /// Is one of those who refer to a file new to it, and has touched the device since?
    fn only_strangers(&self, file: &FileRecord, referrers: &[ProcessId], window: Window) -> bool {
        referrers.iter().any(|process| {
            let touched = |touch: &Touch| touch.device == file.device && window.has(touch);
            file.holder(*process).is_none() && self.touches.of(*process).any(touched)
        })
    }

    /// After everything that is new has its opener: files of which it is not known whether they are those that were there
    /// before, and whose device was touched since by somebody who has no file for it, may be younger than their record says.
    pub(super) fn doubt_openings(&mut self, undecided: &[(u64, u64)], until_ns: u64) {
        if undecided.is_empty() {
            return;
        }
        let mut last: Map<DeviceNumber, u64> = Map::default();
        for touch in self.touches.all().filter(|touch| touch.at_ns <= until_ns) {
            let known = last.entry(touch.device).or_insert(touch.at_ns);
            *known = touch.at_ns.max(*known);
        }
        for (id, seen_ns) in undecided {
            if let Some(file) = self.files.get_mut(*id)
                && last.get(&file.device).is_some_and(|at_ns| at_ns > seen_ns)
                && let Some(opened) = &mut file.opened
            {
                opened.certainty = Certainty::Likely;
            }
        }
    }
}

/// What is younger than the last look counts for more; an open that takes its time in the driver is older.
fn judge(mut touches: Vec<&Touch>, window: Window) -> Option<Claim> {
    if touches.iter().any(|touch| touch.at_ns > window.since_ns) {
        touches.retain(|touch| touch.at_ns > window.since_ns);
    }
    let first = touches.iter().min_by_key(|touch| touch.at_ns)?;
    let one = touches.iter().all(|touch| touch.task.process == first.task.process);
    Some(if one { Claim::One((*first).clone()) } else { Claim::Several })
}

/// The slot of a reference, if it is a descriptor.
pub(super) fn slot_of(via: &Via) -> Option<Slot> {
    if let Via::Fd { table, fd } = via { Some(Slot { table: *table, fd: *fd }) } else { None }
}

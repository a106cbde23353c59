//! Taking over a snapshot.

use super::dropping::{Dying, credit, droppers};
use super::files::{Dropper, FileRecord, FileState};
use super::holding::{Holding, Scene, take_holders};
use super::openers::{Fresh, Sameness, Scope, slot_of};
use super::release::of_file;
use super::resolve::{Resolved, ResolvedFile, ResolvedHolder, Ways, resolve};
use super::tidy::entries;
use super::touches::{Asked, Window};
use super::unchanged::{is_as_before, see_again};
use super::world::World;
use super::{Ledger, Looked};
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::{Slot, TaskId};
use crate::model::hash::{Map, Set};
use crate::model::snapshot::Source;
use crate::model::{ProcessId, Snapshot, Via};

/// Where a snapshot differed from what the ledger had believed, and where it contradicts itself; and what changed.
///
/// Which differences are news depends on the plan: without kprobes nothing announces a close.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Files that nothing had announced: neither an open nor a touch that fits. 0 for the first snapshot.
    pub unannounced: u64,
    /// Files that were taken for open and that no snapshot shows any more.
    pub vanished: u64,
    /// Files at a remembered address that are not the file remembered.
    pub replaced: u64,
    /// Files with more references seen than the kernel counts: one was dropped while the snapshot was being taken.
    pub racing: u64,
    /// References to files that the snapshot does not otherwise mention.
    pub dangling: u64,
    /// Snapshots older than one already taken over: ignored.
    pub stale: u64,
    /// What changed, in order of time.
    pub changes: Vec<Change>,
}

impl Drift {
    /// All differences together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.unannounced + self.vanished + self.replaced + self.racing + self.dangling + self.stale
    }

    fn add(&mut self, other: &Self) {
        self.unannounced += other.unannounced;
        self.vanished += other.vanished;
        self.replaced += other.replaced;
        self.racing += other.racing;
        self.dangling += other.dangling;
        self.stale += other.stale;
    }
}

/// Missing things that do not keep a snapshot from showing that a file is in no table: the ledger knows itself what
/// half-exited tasks had.
const KNOWN_OTHERWISE: &[&str] = &["half-exited-task"];

impl Ledger {
    /// Takes a snapshot for the truth about which files are open and who refers to them.
    ///
    /// Whatever was reported to have happened before the snapshot was finished should have been [applied](Ledger::apply).
    pub fn reconcile(&mut self, snapshot: &Snapshot) -> Drift {
        let blind = snapshot.missing.iter().any(|missing| !KNOWN_OTHERWISE.contains(&missing.what));
        self.take_over(snapshot, snapshot.source == Source::Iterators && !blind)
    }

    /// `complete`: the snapshot could see everywhere.
    fn take_over(&mut self, snapshot: &Snapshot, complete: bool) -> Drift {
        let mut drift = Drift::default();
        if self.looked.is_some_and(|before| before.taken_ns > snapshot.taken_ns) {
            drift.stale = 1;
            self.drift.add(&drift);
            return drift;
        }
        let snapshot = &*self.without_the_gone(snapshot);
        let resolved = resolve(snapshot);
        drift.dangling = resolved.dangling;
        let world = World::new(snapshot, &self.tgids(&resolved.holders));
        let scene = Scene { taken_ns: snapshot.taken_ns, complete, before: self.looked, world: &world };
        let holding = Holding::new(&resolved);
        self.meet_holders(&resolved.holders, &scene, &mut drift.changes);
        let Known { ids, as_before } = self.take_files(&resolved, &holding, &scene, &mut drift);
        let dying = self.dying(&world);
        let changed = (0..ids.len()).filter(|index| !as_before[*index]);
        self.take_holdings(
            changed.map(|index| (ids[index], holding.of(index))),
            &dying,
            &scene,
            &mut drift.changes,
        );
        self.judge_absent(&ids, &dying, &scene, &mut drift);
        let (named, dropping) = self.survey(scene.taken_ns);
        self.holders = entries(&ids, resolved.holders, &dropping, &world);
        self.rename_holders(scene.taken_ns);
        let before_ns = scene.before.map_or(0, |before| before.taken_ns);
        self.looked = Some(Looked { taken_ns: snapshot.taken_ns, before_ns, complete });
        self.ends.forget_before(snapshot.taken_ns);
        self.tidy(named, &scene, &mut drift.changes);
        drift.changes.sort_by_key(|change| change.at_ns);
        self.drift.add(&drift);
        drift
    }

    /// Thread-group ids of all processes whose tasks will be asked about.
    fn tgids(&self, holders: &[ResolvedHolder]) -> Set<u32> {
        let in_progress = self.unrest().in_progress;
        let files = in_progress.then(|| self.files.iter()).into_iter().flatten();
        let working = files.filter_map(|(_, file)| Some(file.state.task()?.process.tgid));
        let known = self.processes.iter().map(|(process, _)| process.tgid);
        let parents = holders.iter().filter_map(|holder| holder.leader.as_ref()).map(|leader| leader.ppid);
        let holders = holders.iter().map(|holder| holder.process.tgid);
        working.chain(known).chain(parents).chain(holders).collect()
    }

    /// Knows the files of the snapshot again, or for the first time.
    fn take_files(
        &mut self,
        resolved: &Resolved<'_>,
        holding: &Holding,
        scene: &Scene<'_>,
        drift: &mut Drift,
    ) -> Known {
        let mut ids = vec![0; resolved.files.len()];
        let mut as_before = vec![false; resolved.files.len()];
        self.see_unchanged(resolved, holding, scene, (&mut ids, &mut as_before));
        let (mut new, mut due, mut undecided, mut untold) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // Taken for another than the file remembered, and not for sure.
        let mut likely: Set<usize> = Set::default();
        let asked = self.touches.asked(None, scene.taken_ns);
        for (index, seen) in resolved.files.iter().enumerate() {
            let named = resolved.vias(seen).len() as u64;
            drift.racing += u64::from(seen.count.is_some_and(|count| named > count));
            if as_before[index] {
                continue;
            }
            let Some(id) = self.files.id_of(seen.key) else {
                new.push(index);
                continue;
            };
            match self.known(id, resolved, seen, holding.of(index), &asked, scene) {
                Sameness::Another => {
                    drift.replaced += 1;
                    if self.files.get(id).is_some_and(|file| !file.differs(seen.device, seen.identity)) {
                        likely.insert(index);
                    }
                    self.release(id, scene.taken_ns, ReleasedHow::Replaced, &mut drift.changes);
                    new.push(index);
                    continue;
                }
                Sameness::Same => {
                    let Some(file) = self.files.get_mut(id) else { continue };
                    if let Some(certain) = file.opener_due.take() {
                        due.push(index);
                        if !certain {
                            likely.insert(index);
                        }
                    } else if is_as_before(file, seen, resolved.vias(seen), holding.of(index)) {
                        see_again(file, seen, scene.taken_ns);
                        as_before[index] = true;
                    }
                }
                Sameness::Undecided => {
                    let seen_ns = self.files.get(id).and_then(|file| file.seen_ns).unwrap_or(0);
                    undecided.push((id, seen_ns));
                }
                Sameness::Untold => {
                    let latest_ns = self.files.get(id).map_or(0, FileRecord::latest_ns);
                    untold.push((id, latest_ns, holding.of(index)));
                }
            }
            ids[index] = id;
        }
        // Numbered by device, then by who refers to them and where: the same world gets the same ids.
        new.sort_by_cached_key(|index| {
            let seen = &resolved.files[*index];
            (seen.device, resolved.vias(seen).next(), seen.key)
        });
        for index in &new {
            let seen = &resolved.files[*index];
            let born_ns = seen.seen_ns.max(scene.taken_ns);
            let file = FileRecord::new(seen.key, seen.device, FileState::Open, born_ns);
            ids[*index] = match self.expected(seen, holding.of(*index)) {
                Some(id) => self.files.insert_as(id, file),
                None => self.files.insert(file),
            };
        }
        self.expected = Map::default();
        let changed = || (0..ids.len()).filter(|index| !as_before[*index]);
        for (id, seen) in changed().map(|index| (ids[index], &resolved.files[index])) {
            if let Some(file) = self.files.get_mut(id) {
                see(file, seen, resolved.vias(seen), scene);
            }
        }
        let certain = |index: usize| !likely.contains(&index);
        new.extend(due);
        self.find_births(&new, &ids, (resolved, holding), certain, scene, drift);
        self.doubt_openings(&undecided, scene.taken_ns);
        self.doubt_openers(&untold);
        if !self.touches.is_empty() {
            let slots = self.touches.slots();
            let files = if slots.is_empty() { &[][..] } else { &resolved.files };
            let shown = files.iter().flat_map(|seen| resolved.vias(seen)).filter_map(slot_of);
            let filled: Set<Slot> = shown.filter(|slot| slots.contains(slot)).collect();
            self.touches.settle(scene.taken_ns, |slot| filled.contains(&slot));
        }
        Known { ids, as_before }
    }

    /// Finds out who opened the files that are `new`.
    fn find_births(
        &mut self,
        new: &[usize],
        ids: &[u64],
        (resolved, holding): (&Resolved<'_>, &Holding),
        certain: impl Fn(usize) -> bool,
        scene: &Scene<'_>,
        drift: &mut Drift,
    ) {
        if !self.touches.is_empty() {
            let fresh = new.iter().map(|index| {
                let seen = &resolved.files[*index];
                Fresh {
                    id: ids[*index],
                    key: seen.key,
                    device: seen.device,
                    seen_ns: seen.seen_ns.max(scene.taken_ns),
                    slots: resolved.vias(seen).filter_map(slot_of).collect(),
                    referrers: referrers(holding.of(*index)).collect(),
                    certain: certain(*index),
                }
            });
            let fresh: Vec<Fresh> = fresh.collect();
            let scope = Scope {
                window: self.window(scene),
                family: None,
                in_use: &|table| scene.world.in_use(table),
            };
            self.find_openers(&fresh, scope, &mut drift.changes);
        }
        if scene.before.is_some() {
            let announced = |index: &usize| {
                let file = self.files.get(ids[*index]);
                file.is_some_and(|file| file.opened.is_some() || file.opener_due.is_some())
            };
            drift.unannounced = new.iter().filter(|index| !announced(index)).count() as u64;
        }
    }

    /// What may have been asked for since the last look.
    fn window(&self, scene: &Scene<'_>) -> Window {
        Window {
            since_ns: scene.before.map_or(0, |before| before.taken_ns),
            early_ns: scene.before.map_or(0, |before| before.before_ns),
            until_ns: scene.taken_ns,
            sure: scene.before.is_some_and(|before| before.complete) && !self.gaps.is_open(),
        }
    }

    /// Is what the snapshot has at this address the file remembered?
    fn known(
        &self,
        id: u64,
        resolved: &Resolved<'_>,
        seen: &ResolvedFile,
        held: &[(ProcessId, Ways)],
        asked: &Asked,
        scene: &Scene<'_>,
    ) -> Sameness {
        let Some(file) = self.files.get(id) else { return Sameness::Same };
        if file.differs(seen.device, seen.identity) {
            return Sameness::Another;
        }
        let Some(before) = scene.before.filter(|_| !self.touches.is_empty()) else { return Sameness::Same };
        if file.opener_due.is_some() {
            return Sameness::Same;
        }
        // What a look cannot see may be what has stayed.
        let elsewhere = !(before.complete && scene.complete);
        let referrers: Vec<ProcessId> = referrers(held).collect();
        let scope =
            Scope { window: self.window(scene), family: None, in_use: &|table| scene.world.in_use(table) };
        match self.sameness(file, resolved.vias(seen), &referrers, (asked, elsewhere), scope) {
            Sameness::Same | Sameness::Undecided
                if self.may_be_untold(file, resolved.vias(seen), &referrers) =>
            {
                Sameness::Untold
            }
            sameness => sameness,
        }
    }

    /// Compares who holds each of these files with who did.
    fn take_holdings<'a>(
        &mut self,
        files: impl Iterator<Item = (u64, &'a [(ProcessId, Ways)])>,
        dying: &Dying,
        scene: &Scene<'_>,
        changes: &mut Vec<Change>,
    ) {
        for (id, now) in files {
            let Some(file) = self.files.get_mut(id) else { continue };
            if file.count.is_some_and(|count| count > file.named) {
                let dying = dying.get(&id).map_or(&[][..], Vec::as_slice);
                file.droppers = droppers(file, now, dying, scene.world, scene.taken_ns);
                credit(file);
            } else {
                file.droppers.clear();
                file.dropping = 0;
            }
            file.unexplained_since_ns =
                (file.unexplained() > 0).then(|| file.unexplained_since_ns.unwrap_or(scene.taken_ns));
            take_holders(id, file, now, scene, &self.processes, changes);
            if !file.held_by.is_empty() {
                file.last_holder = None;
            }
        }
    }

    /// Decides what has become of files that the snapshot does not have.
    fn judge_absent(&mut self, ids: &[u64], dying: &Dying, scene: &Scene<'_>, drift: &mut Drift) {
        if ids.len() == self.files.len() {
            return;
        }
        let present: Set<u64> = ids.iter().copied().collect();
        let mut absent: Vec<u64> =
            self.files.iter().map(|(id, _)| id).filter(|id| !present.contains(id)).collect();
        absent.sort_unstable();
        for id in absent {
            let Some(file) = self.files.get(id) else { continue };
            let (at_ns, gone) = (scene.taken_ns, |task| scene.complete && scene.world.is_gone(task));
            match file.state {
                // Reported since the snapshot was begun: it says nothing of that.
                _ if file.latest_ns() > at_ns => {}
                FileState::Opening { task, .. } if gone(task) => {
                    let kind = ChangeKind::OpenFailed { error: 0 };
                    drift.changes.push(of_file(id, file, at_ns, Some(task.process), kind));
                    self.files.remove(id);
                }
                FileState::Releasing { task, .. } if gone(task) => {
                    self.release(id, at_ns, ReleasedHow::Absent, &mut drift.changes);
                }
                FileState::Deferred { .. } if scene.complete && file.doubtful => {
                    self.release(id, at_ns, ReleasedHow::NotSeen, &mut drift.changes);
                }
                FileState::Opening { .. } => {}
                FileState::Releasing { .. } | FileState::Deferred { .. } => {
                    self.let_go(id, Vec::new(), scene, drift);
                }
                FileState::Open | FileState::Detached { .. } | FileState::Unreferenced { .. } => {
                    let dying = dying.get(&id).map_or(&[][..], Vec::as_slice);
                    let droppers = droppers(file, &[], dying, scene.world, at_ns);
                    self.let_go(id, droppers, scene, drift);
                    self.judge_let_go(id, scene, drift);
                }
            }
        }
    }

    /// Nobody refers to the file visibly: its holders are written off, and whoever may be dropping it is written down.
    fn let_go(&mut self, id: u64, droppers: Vec<Dropper>, scene: &Scene<'_>, drift: &mut Drift) {
        let last_holder = self.files.get(id).and_then(|file| self.last_holder(file));
        let Some(file) = self.files.get_mut(id) else { return };
        if file.seen_ns == scene.before.map(|before| before.taken_ns) && file.state == FileState::Open {
            drift.vanished += 1;
            file.count = None;
        }
        file.droppers = droppers;
        (file.named, file.driver_pins, file.unexplained_since_ns) = (0, 0, None);
        file.references.clear();
        credit(file);
        take_holders(id, file, &[], scene, &self.processes, &mut drift.changes);
        file.last_holder = last_holder;
    }

    fn judge_let_go(&mut self, id: u64, scene: &Scene<'_>, drift: &mut Drift) {
        let Some(file) = self.files.get_mut(id) else { return };
        let since_ns = file.state.since_ns().unwrap_or(scene.taken_ns);
        let exiting = |task: TaskId| scene.world.exiting(task.process).is_some();
        let by: Vec<TaskId> = file.droppers.iter().map(|dropper| dropper.task).collect();
        if !by.is_empty() {
            let detached = file.count != Some(0) && by.iter().any(|task| exiting(*task));
            file.state = if detached {
                FileState::Detached { since_ns }
            } else {
                FileState::Unreferenced { since_ns }
            };
            if !std::mem::replace(&mut file.announced, true) {
                let process = by.first().map(|task| task.process);
                let kind = if detached { ChangeKind::Detached { by } } else { ChangeKind::Unreferenced };
                drift.changes.push(of_file(id, file, scene.taken_ns, process, kind));
            }
        } else if !file.counted {
            self.release(id, scene.taken_ns, ReleasedHow::NotSeen, &mut drift.changes);
        } else if !scene.complete {
            file.state = FileState::Detached { since_ns };
        } else if self.rechecks || file.checked {
            if file.state == FileState::Open {
                file.state = FileState::Unreferenced { since_ns };
            }
        } else {
            self.release(id, scene.taken_ns, ReleasedHow::Absent, &mut drift.changes);
        }
    }
}

/// The files of a snapshot, in order.
struct Known {
    ids: Vec<u64>,
    /// Is all that the snapshot says of it what the one before said? Then it is done with.
    as_before: Vec<bool>,
}

/// Those who refer to a file by descriptor or mapping.
fn referrers(held: &[(ProcessId, Ways)]) -> impl Iterator<Item = ProcessId> {
    held.iter().filter(|(_, ways)| ways.direct() > 0).map(|(process, _)| *process)
}

/// Writes down when a file was seen.
pub(super) fn note_seen(file: &mut FileRecord, seen: &ResolvedFile, taken_ns: u64) {
    file.seen_ns = Some(taken_ns);
    file.alive_ns = seen.seen_ns.max(taken_ns);
}

/// Writes down what a snapshot says of a file itself.
fn see<'a>(
    file: &mut FileRecord,
    seen: &ResolvedFile,
    vias: impl ExactSizeIterator<Item = &'a Via> + Clone,
    scene: &Scene<'_>,
) {
    note_seen(file, seen, scene.taken_ns);
    file.count = seen.count;
    if seen.identity != 0 {
        file.identity = seen.identity;
    }
    file.counted |= seen.count.is_some();
    file.named = vias.len() as u64;
    if !vias.clone().eq(&file.references) {
        file.driver_pins = vias.clone().filter(|via| matches!(via, Via::DriverPin { .. })).count() as u64;
        file.references = vias.cloned().collect();
    }
    // A release that began after the snapshot did is news to it.
    if file.state.since_ns().is_none_or(|since_ns| since_ns <= scene.taken_ns) {
        file.state = FileState::Open;
        file.announced = false;
        file.doubtful = false;
        file.checked = false;
    }
}

//! Taking over a snapshot.

use std::collections::{HashMap, HashSet};

use super::dropping::{Dying, credit, droppers};
use super::files::{Dropper, FileRecord, FileState};
use super::holding::{Scene, take_holders};
use super::release::of_file;
use super::resolve::{Resolved, ResolvedFile, ResolvedHolder, Ways, resolve};
use super::view::HolderEntry;
use super::world::World;
use super::{Ledger, Looked};
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::TaskId;
use crate::model::snapshot::Source;
use crate::model::{ProcessId, Snapshot};

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

/// Who refers to a file: (process, how), ordered by process.
type Holding = Vec<(ProcessId, Ways)>;

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
        let mut resolved = resolve(snapshot);
        drift.dangling = resolved.dangling;
        let world = World::new(snapshot, &self.tgids(&resolved.holders), self.any_dying());
        let scene = Scene { taken_ns: snapshot.taken_ns, complete, before: self.looked, world: &world };
        let holding = holding(&resolved);
        self.meet_holders(&resolved.holders, &scene, &mut drift.changes);
        let ids = self.take_files(&mut resolved.files, &holding, &scene, &mut drift);
        let dying = self.dying(&world);
        self.take_holdings(&ids, &holding, &dying, &scene, &mut drift.changes);
        self.judge_absent(&ids, &dying, &scene, &mut drift);
        self.holders = self.entries(&ids, resolved.holders, &world);
        self.looked = Some(Looked { taken_ns: snapshot.taken_ns, complete });
        self.tidy(&scene, &mut drift.changes);
        drift.changes.sort_by_key(|change| change.at_ns);
        self.drift.add(&drift);
        drift
    }

    /// Thread-group ids of all processes whose tasks will be asked about.
    fn tgids(&self, holders: &[ResolvedHolder]) -> HashSet<u32> {
        let working = self.files.iter().filter_map(|(_, file)| match file.state {
            FileState::Releasing { task, .. } | FileState::Opening { task, .. } => Some(task.process.tgid),
            _ => None,
        });
        let known = self.processes.iter().map(|(process, _)| process.tgid);
        let parents = holders.iter().filter_map(|holder| holder.leader.as_ref()).map(|leader| leader.ppid);
        let holders = holders.iter().map(|holder| holder.process.tgid);
        working.chain(known).chain(parents).chain(holders).collect()
    }

    /// Knows the files of the snapshot again, or for the first time. Gives their ids, in order.
    fn take_files(
        &mut self,
        resolved: &mut [ResolvedFile],
        holding: &[Holding],
        scene: &Scene<'_>,
        drift: &mut Drift,
    ) -> Vec<u64> {
        let mut ids = Vec::with_capacity(resolved.len());
        let mut fresh = Vec::new();
        for (seen, held) in resolved.iter_mut().zip(holding) {
            drift.racing += u64::from(seen.count.is_some_and(|count| seen.named > count));
            let mut known = self.files.id_of(seen.key);
            if let Some(id) = known
                && self.files.get(id).is_some_and(|file| self.is_another(file, seen, held, scene))
            {
                drift.replaced += 1;
                self.release(id, scene.taken_ns, ReleasedHow::Replaced, &mut drift.changes);
                known = None;
            }
            let id = known.unwrap_or_else(|| {
                let file = FileRecord::new(seen.key, seen.device, FileState::Open, scene.taken_ns);
                let id = self.files.insert(file);
                fresh.push((id, held.as_slice()));
                id
            });
            if let Some(file) = self.files.get_mut(id) {
                see(file, seen, scene);
            }
            ids.push(id);
        }
        self.find_openers(&fresh, scene, &mut drift.changes);
        if scene.before.is_some() {
            let announced = |id: &u64| self.files.get(*id).is_some_and(|file| file.opened.is_some());
            drift.unannounced = fresh.iter().filter(|(id, _)| !announced(id)).count() as u64;
        }
        ids
    }

    /// Is it another file than the one remembered at its address?
    fn is_another(&self, file: &FileRecord, seen: &ResolvedFile, held: &Holding, scene: &Scene<'_>) -> bool {
        if file.device != seen.device {
            return true;
        }
        let (Some(before), Some(_)) = (scene.before, file.seen_ns) else { return false };
        if file.references.iter().any(|via| seen.references.binary_search(via).is_ok()) {
            return false;
        }
        held.iter().any(|(process, ways)| {
            ways.direct() > 0
                && file.holder(*process).is_none()
                && self.touches.since(*process, file.device, before.taken_ns)
        })
    }

    /// Compares who holds each file with who did.
    fn take_holdings(
        &mut self,
        ids: &[u64],
        holding: &[Holding],
        dying: &Dying,
        scene: &Scene<'_>,
        changes: &mut Vec<Change>,
    ) {
        for (id, now) in ids.iter().zip(holding) {
            let Some(file) = self.files.get_mut(*id) else { continue };
            if file.count.is_some_and(|count| count > file.named) {
                let dying = dying.get(id).map_or(&[][..], Vec::as_slice);
                file.droppers = droppers(file, now, dying, scene.world, scene.taken_ns);
                credit(file);
            } else {
                file.droppers.clear();
                file.dropping = 0;
            }
            file.unexplained_since_ns =
                (file.unexplained() > 0).then(|| file.unexplained_since_ns.unwrap_or(scene.taken_ns));
            take_holders(*id, file, now, scene, &self.processes, changes);
            if !file.held_by.is_empty() {
                file.last_holder = None;
            }
        }
    }

    /// Decides what has become of files that the snapshot does not have.
    fn judge_absent(&mut self, ids: &[u64], dying: &Dying, scene: &Scene<'_>, drift: &mut Drift) {
        let present: HashSet<u64> = ids.iter().copied().collect();
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
            let detached = by.iter().any(|task| exiting(*task));
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

    /// Holders with ids for files, and with those who are dropping what no table shows.
    fn entries(&self, ids: &[u64], holders: Vec<ResolvedHolder>, world: &World<'_>) -> Vec<HolderEntry> {
        let mut entries: Vec<HolderEntry> = holders
            .into_iter()
            .map(|holder| HolderEntry {
                process: holder.process,
                carrier: holder.carrier,
                leader: holder.leader,
                tids: holder.tids,
                held: holder.held.into_iter().map(|(index, ways)| (ids[index], ways)).collect(),
            })
            .collect();
        let mut at: HashMap<TaskId, usize> = HashMap::new();
        let name = |entry: &HolderEntry| TaskId { process: entry.process, tid: entry.carrier.tid };
        at.extend(entries.iter().enumerate().map(|(index, entry)| (name(entry), index)));
        let mut dropping: Vec<(TaskId, u64, u64)> = Vec::new();
        for (id, file) in self.files.iter() {
            dropping.extend(file.droppers.iter().map(|dropper| (dropper.task, id, dropper.references)));
            if let FileState::Releasing { task, .. } = file.state {
                dropping.push((task, id, 1));
            }
        }
        for (task, id, references) in dropping {
            let Some(found) = world.find(task).filter(|found| !found.kernel_thread) else { continue };
            let index = *at.entry(task).or_insert_with(|| {
                entries.push(HolderEntry {
                    process: task.process,
                    carrier: found.clone(),
                    leader: world.leader(task.process).cloned(),
                    tids: vec![task.tid],
                    held: Vec::new(),
                });
                entries.len() - 1
            });
            entries[index].held.push((id, Ways { dropping: references, ..Ways::default() }));
        }
        for entry in &mut entries {
            entry.held.sort_by_key(|(id, _)| *id);
            entry.held.dedup_by(|later, first| {
                let same = later.0 == first.0;
                if same {
                    first.1.add(later.1);
                }
                same
            });
        }
        entries.sort_unstable_by_key(|entry| (entry.process.tgid, entry.carrier.tid));
        entries
    }
}

/// Who holds each file of the snapshot, as processes.
fn holding(resolved: &Resolved) -> Vec<Holding> {
    let mut holding: Vec<Holding> = vec![Vec::new(); resolved.files.len()];
    // Holders are ordered by process, so a process with several of them meets itself last.
    for holder in &resolved.holders {
        for (index, ways) in &holder.held {
            match holding[*index].last_mut() {
                Some((process, sum)) if *process == holder.process => sum.add(*ways),
                _ => holding[*index].push((holder.process, *ways)),
            }
        }
    }
    holding
}

/// Writes down what a snapshot says of a file itself.
fn see(file: &mut FileRecord, seen: &mut ResolvedFile, scene: &Scene<'_>) {
    file.seen_ns = Some(scene.taken_ns);
    file.count = seen.count;
    file.counted |= seen.count.is_some();
    file.named = seen.named;
    file.driver_pins = seen.driver_pins;
    file.references = std::mem::take(&mut seen.references);
    // A release that began after the snapshot did is news to it.
    if file.state.since_ns().is_none_or(|since_ns| since_ns <= scene.taken_ns) {
        file.state = FileState::Open;
        file.announced = false;
        file.doubtful = false;
        file.checked = false;
    }
}

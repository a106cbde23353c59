//! What a snapshot says of processes, and what can be forgotten after it.

use super::Ledger;
use super::files::{FileState, Unrest};
use super::holding::Scene;
use super::lineage::{NameChange, Reparenting};
use super::release::of_process;
use super::resolve::{ResolvedHolder, Ways};
use super::view::HolderEntry;
use super::world::World;
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::TaskId;
use crate::model::hash::{Map, Set};
use crate::model::{DeviceNumber, ProcessId};

impl Ledger {
    /// Writes down the names and parents of holders, and how they differ from those known.
    pub(super) fn meet_holders(
        &mut self,
        holders: &[ResolvedHolder],
        scene: &Scene<'_>,
        changes: &mut Vec<Change>,
    ) {
        let at_ns = scene.taken_ns;
        for holder in holders {
            let process = holder.process;
            let task = holder.leader.as_ref().unwrap_or(&holder.carrier);
            let parent = scene.world.process(task.ppid);
            let record = self.processes.meet(process, at_ns);
            let mut say = |kind| {
                changes.push(Change { at_ns, file: None, device: None, process: Some(process), kind });
            };
            let history = &mut record.history;
            // Threads have names of their own: only the leader's is the process's. What was heard since the snapshot was begun
            // is newer.
            if task.is_leader() && record.named_ns < at_ns && history.comm != task.comm {
                let old = std::mem::replace(&mut history.comm, task.comm.clone());
                if !old.is_empty() {
                    let new = task.comm.clone();
                    history.names.push(NameChange {
                        at_ns,
                        tid: task.tid,
                        old: old.clone(),
                        new: new.clone(),
                    });
                    say(ChangeKind::Renamed { tid: task.tid, old, new });
                }
            }
            if history.parent.is_none() && history.forked_ns.is_none() {
                history.parent = parent;
            }
            let from = record.ppid.replace(task.ppid).filter(|from| *from != task.ppid);
            // A zombie has been given to whoever will reap it: that says nothing about its life.
            if let Some(from) = from.filter(|_| !task.is_dead()) {
                record.history.reparented.push(Reparenting { at_ns, from, to: task.ppid });
                say(ChangeKind::Reparented { from, to: task.ppid });
            }
        }
    }

    /// Holders of a snapshot wear the names that were heard since it was begun.
    pub(super) fn rename_holders(&mut self, taken_ns: u64) {
        let mut given = Vec::new();
        for (process, record) in self.processes.iter() {
            let task = |tid| TaskId { process, tid };
            let names = record.history.names.entries();
            let heard = &names[names.partition_point(|name| name.at_ns < taken_ns)..];
            given.extend(heard.iter().map(|name| (task(name.tid), name.new.clone())));
            if record.named_ns >= taken_ns {
                given.push((task(process.tgid), record.history.comm.clone()));
            }
        }
        for (task, name) in given {
            self.rename_entries(task, &name);
        }
    }

    /// Takes files of devices that are not watched any more out of the record: no snapshot will show them, and that they
    /// live is of no interest.
    pub fn forget_devices(&mut self, at_ns: u64, watched: impl Fn(DeviceNumber) -> bool) -> Vec<Change> {
        let unwatched = self.files.iter().filter(|(_, file)| !watched(file.device));
        let mut unwatched: Vec<u64> = unwatched.map(|(id, _)| id).collect();
        unwatched.sort_unstable();
        let mut changes = Vec::new();
        for id in unwatched {
            self.release(id, at_ns, ReleasedHow::NotSeen, &mut changes);
        }
        changes
    }

    /// Goes through all files once: the processes that they name, and what is being dropped by which task.
    pub(super) fn survey(&mut self, taken_ns: u64) -> (Set<ProcessId>, Vec<Dropping>) {
        self.processes.iter_mut().for_each(|(_, record)| record.holding = false);
        let mut named: Set<ProcessId> = Set::default();
        let mut dropping = Vec::new();
        let (mut others, mut last) = (Vec::new(), None);
        let mut unrest = Unrest::default();
        for (id, file) in self.files.iter() {
            unrest.note(file, Some(taken_ns));
            dropping.extend(file.droppers.iter().map(|dropper| (dropper.task, id, dropper.references)));
            let droppers = file.droppers.iter().map(|dropper| dropper.task.process);
            for process in file.held_by.iter().map(|held| held.process).chain(droppers) {
                // Thousands of files in a row may have the same holder.
                if last.replace(process) != Some(process) {
                    named.insert(process);
                }
            }
            let opener = file.opened.as_ref().map(|opened| opened.task.process);
            others.extend(opener.filter(|opener| others.last() != Some(opener)));
            others.extend(file.last_holder);
            if let FileState::Releasing { task, .. } = file.state {
                dropping.push((task, id, 1));
            }
        }
        for process in &named {
            if let Some(record) = self.processes.get_mut(*process) {
                record.holding = true;
            }
        }
        named.extend(others);
        self.files.set_unrest(unrest);
        (named, dropping)
    }

    /// Forgets what no living file needs, and closes holes in the record.
    pub(super) fn tidy(&mut self, mut named: Set<ProcessId>, scene: &Scene<'_>, changes: &mut Vec<Change>) {
        // The kernel may tell of the reaping after this look, or to nobody: nobody follows those who hold nothing any more.
        for (process, record) in self.processes.iter_mut().filter(|(_, record)| record.leaving) {
            if scene.world.is_reaped(process) {
                record.leaving = false;
                record.history.freed_ns = Some(scene.taken_ns);
                changes.push(of_process(scene.taken_ns, process, ChangeKind::Exited));
            } else {
                named.insert(process);
            }
        }
        named.extend(self.touches.processes().filter(|process| scene.world.may_live(*process)));
        // What was heard of since the snapshot before may not have been visible to this one yet.
        self.processes.prune(&named, scene.before.map_or(0, |before| before.taken_ns));
        let processes = &self.processes;
        let before_ns = scene.before.map_or(0, |before| before.taken_ns);
        self.touches.retain(before_ns, |process| processes.get(process).is_some());
        if scene.complete {
            changes.extend(self.gaps.close(scene.taken_ns).into_iter().map(|gap| Change {
                at_ns: gap.to_ns,
                file: None,
                device: None,
                process: None,
                kind: ChangeKind::Gap(gap),
            }));
        }
    }
}

/// A task drops references to a file: (task, file id, how many).
type Dropping = (TaskId, u64, u64);

/// Holders with ids for files, and with those who are dropping what no table shows.
pub(super) fn entries(
    ids: &[u64],
    holders: Vec<ResolvedHolder>,
    dropping: &[Dropping],
    world: &World<'_>,
) -> Vec<HolderEntry> {
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
    let name = |entry: &HolderEntry| TaskId { process: entry.process, tid: entry.carrier.tid };
    let mut at: Map<TaskId, usize> = entries.iter().map(name).zip(0..).collect();
    for (task, id, references) in dropping {
        let Some(found) = world.find(*task).filter(|found| !found.kernel_thread) else { continue };
        let index = *at.entry(*task).or_insert_with(|| {
            entries.push(HolderEntry {
                process: task.process,
                carrier: found.clone(),
                leader: world.leader(task.process).cloned(),
                tids: vec![task.tid],
                held: Vec::new(),
            });
            entries.len() - 1
        });
        let dropping = u32::try_from(*references).unwrap_or(u32::MAX);
        entries[index].held.push((*id, Ways { dropping, ..Ways::default() }));
    }
    for entry in &mut entries {
        entry.held.sort_unstable_by_key(|(id, _)| *id);
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

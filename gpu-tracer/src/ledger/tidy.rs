//! What a snapshot says of processes, and what can be forgotten after it.

use std::collections::HashSet;

use super::Ledger;
use super::holding::Scene;
use super::lineage::{NameChange, Reparenting};
use super::resolve::ResolvedHolder;
use crate::model::ProcessId;
use crate::model::change::{Change, ChangeKind};

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
            // Threads have names of their own: only the leader's is the process's.
            if task.is_leader() && history.comm != task.comm {
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
            if history.parent.is_none() && !history.fork_seen {
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

    /// Forgets what no living file needs, and closes holes in the record.
    pub(super) fn tidy(&mut self, scene: &Scene<'_>, changes: &mut Vec<Change>) {
        self.processes.iter_mut().for_each(|(_, record)| record.holding = false);
        let mut named: HashSet<ProcessId> = HashSet::new();
        for (_, file) in self.files.iter() {
            let droppers = file.droppers.iter().map(|dropper| dropper.task.process);
            let holding = file.held_by.iter().map(|held| held.process).chain(droppers);
            for process in holding {
                if named.insert(process)
                    && let Some(record) = self.processes.get_mut(process)
                {
                    record.holding = true;
                }
            }
        }
        for (_, file) in self.files.iter() {
            named.extend(file.opened.as_ref().map(|opened| opened.task.process));
            named.extend(file.last_holder);
        }
        named.extend(self.touches.processes().filter(|process| scene.world.may_live(*process)));
        // What was heard of since the snapshot before may not have been visible to this one yet.
        self.processes.prune(&named, scene.before.map_or(0, |before| before.taken_ns));
        let processes = &self.processes;
        self.touches.retain(|process| processes.get(process).is_some());
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

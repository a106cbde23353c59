//! Taking in what happened.

use super::Ledger;
use super::dropping::credit;
use super::exits::AtExit;
use super::files::{FileRecord, FileState};
use super::lineage::{ExitSeen, NameChange, SignalSeen};
use super::opening::Open;
use super::release::{of_file, of_process};
use super::touches::Touch;
use crate::model::change::{Change, ChangeKind, GapCause, Killer, ReleasedHow};
use crate::model::event::{Event, EventKind, Exit, Sender, TaskId};
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText, Task};

const SIGKILL: i32 = 9;

impl Ledger {
    /// Takes in one event. What it gives is what is certain already; the rest comes from the next snapshot.
    pub fn apply(&mut self, event: &Event) -> Vec<Change> {
        let mut changes = Vec::new();
        let at_ns = event.at_ns;
        match &event.kind {
            EventKind::DeviceTouched { task, device, slot, file, untold_until_ns, comm, .. } => {
                self.meet(*task, at_ns, comm);
                if let Some(file) = *file {
                    self.reused(at_ns, file, &mut changes);
                }
                if let Some(until_ns) = *untold_until_ns {
                    self.touches.addresses.lack(*device, until_ns);
                    self.touches.untold.add(task.process, *device, until_ns);
                }
                let (device, task, slot, file, comm) = (*device, *task, *slot, *file, comm.clone());
                self.touches.add(Touch { at_ns, device, task, slot, file, comm });
            }
            EventKind::Opening { file, device, task, comm } => {
                self.opening(&Open { at_ns, key: *file, device: *device, task: *task, comm }, &mut changes);
            }
            EventKind::Opened { file, device, task, comm } => {
                self.opened(&Open { at_ns, key: *file, device: *device, task: *task, comm }, &mut changes);
            }
            EventKind::OpenFailed { file, error } => self.open_failed(at_ns, *file, *error, &mut changes),
            EventKind::Releasing { file, device, task } => {
                let state = FileState::Releasing { task: *task, since_ns: at_ns };
                self.leaving(
                    at_ns,
                    *file,
                    *device,
                    state,
                    ChangeKind::Releasing { task: *task },
                    &mut changes,
                );
            }
            EventKind::Mapped { file, task } => self.mapped(at_ns, *file, *task, &mut changes),
            EventKind::ReleaseDeferred { file, device, work } => {
                let state = FileState::Deferred { since_ns: at_ns };
                self.leaving(at_ns, *file, *device, state, ChangeKind::Deferred, &mut changes);
                self.ends.add(*file, at_ns);
                self.files.outlive(*file, *work);
            }
            EventKind::Released { file, .. } => {
                self.ends.add(*file, at_ns);
                self.release_at(*file, at_ns, ReleasedHow::Seen, &mut changes);
            }
            EventKind::FileChecked { file, count, still_same } => {
                self.checked(at_ns, *file, count.filter(|_| *still_same), &mut changes);
            }
            EventKind::Exiting { task, group_dead, exit, table, held, may_wait } => {
                self.exiting(at_ns, *task, *group_dead, *exit, &mut changes);
                self.held_at_exit(
                    &AtExit { at_ns, task: *task, table: *table, held, may_wait },
                    &mut changes,
                );
            }
            EventKind::Lost { count, cause } => {
                let from_ns = self.looked.map_or(at_ns, |looked| looked.taken_ns.min(at_ns));
                self.note_gap(from_ns, at_ns, GapCause::Lost { cause, count: *count });
            }
            EventKind::ModuleLoaded { name } => self.module(at_ns, name, true, &mut changes),
            EventKind::ModuleUnloaded { name } => self.module(at_ns, name, false, &mut changes),
            kind => self.process_event(at_ns, kind, &mut changes),
        }
        changes
    }

    fn process_event(&mut self, at_ns: u64, kind: &EventKind, changes: &mut Vec<Change>) {
        match kind {
            EventKind::Forked { parent, child, comm } => self.forked(at_ns, *parent, *child, comm),
            EventKind::Execed { task, comm } => self.execed(at_ns, *task, comm, changes),
            EventKind::Renamed { task, old, new } => self.renamed(at_ns, *task, old, new, changes),
            EventKind::Freed { task } => self.freed(at_ns, *task, changes),
            EventKind::Signalled { sender, target, signal, code } => {
                self.signalled(at_ns, sender, target.process, *signal, *code, changes);
            }
            EventKind::OomKilled { victim } => {
                let by = Killer::OutOfMemory;
                self.killed(at_ns, victim.process, SignalSeen { at_ns, signal: SIGKILL, by }, changes);
            }
            _ => {}
        }
    }

    /// A process is heard of by the name of one of its tasks.
    pub(super) fn meet(&mut self, task: TaskId, at_ns: u64, comm: &RawText) {
        let record = self.processes.meet(task.process, at_ns);
        if task.is_leader() && record.named_ns <= at_ns {
            record.named_ns = at_ns;
            record.history.comm.clone_from(comm);
        } else if record.history.comm.is_empty() {
            // Better than none.
            record.history.comm.clone_from(comm);
        }
        self.processes.limit();
    }

    /// Says something of a process, if it matters to any file.
    fn say(&self, at_ns: u64, process: ProcessId, kind: ChangeKind, changes: &mut Vec<Change>) {
        if self.relevant(process) {
            changes.push(of_process(at_ns, process, kind));
        }
    }

    /// The driver's release of a file has begun, or was deferred.
    fn leaving(
        &mut self,
        at_ns: u64,
        key: FileKey,
        device: DeviceNumber,
        state: FileState,
        kind: ChangeKind,
        changes: &mut Vec<Change>,
    ) {
        let id = match self.files.id_of(key) {
            Some(id) => id,
            // Never heard of, and it lives: it is older than the record. What is deferred no look can show.
            None if matches!(state, FileState::Deferred { .. })
                || self.looked.is_none_or(|looked| looked.taken_ns <= at_ns) =>
            {
                self.files.insert(FileRecord::new(key, device, FileState::Open, at_ns))
            }
            None => return,
        };
        let Some(file) = self.files.get_mut(id) else { return };
        if file.device == device && file.state == state {
            // Told once more, after something was lost: that it is so still is certain.
            file.doubtful = false;
            return;
        }
        if file.device != device || at_ns < file.latest_ns() {
            return;
        }
        file.state = state;
        let process = if let FileState::Releasing { task, .. } = state { Some(task.process) } else { None };
        changes.push(of_file(id, file, at_ns, process, kind));
    }

    /// A file was looked at again: `count` references, or it is gone.
    fn checked(&mut self, at_ns: u64, key: FileKey, count: Option<u64>, changes: &mut Vec<Change>) {
        if count.is_none() {
            self.ends.add(key, at_ns);
        }
        let Some(id) = self.files.id_of(key) else { return };
        let Some(file) = self.files.get_mut(id) else { return };
        let Some(count) = count else {
            // The file goes when the driver's release returns; what was deferred goes later, and no address tells when.
            if !matches!(file.state, FileState::Deferred { .. }) {
                self.release_at(key, at_ns, ReleasedHow::Checked, changes);
            }
            return;
        };
        if at_ns < file.latest_ns() {
            return;
        }
        file.count = Some(count);
        (file.counted, file.checked) = (true, true);
        if !file.droppers.is_empty() {
            credit(file);
        }
        let since_ns = file.state.since_ns().unwrap_or(at_ns);
        if !matches!(file.state, FileState::Detached { .. } | FileState::Unreferenced { .. }) {
            return;
        }
        file.state =
            if count == 0 { FileState::Unreferenced { since_ns } } else { FileState::Detached { since_ns } };
        if !std::mem::replace(&mut file.announced, true) {
            let by = file.droppers.iter().map(|dropper| dropper.task).collect();
            let kind = if count == 0 { ChangeKind::Unreferenced } else { ChangeKind::Detached { by } };
            changes.push(of_file(id, file, at_ns, file.last_holder, kind));
        }
    }

    fn forked(&mut self, at_ns: u64, parent: TaskId, child: TaskId, comm: &RawText) {
        if parent.process == child.process {
            return;
        }
        self.processes.meet(parent.process, at_ns);
        let record = self.processes.meet(child.process, at_ns);
        if record.history.forked_ns.is_none() {
            record.history.forked_ns = Some(at_ns);
            record.history.parent = Some(parent.process);
            record.ppid.get_or_insert(parent.process.tgid);
            if record.history.comm.is_empty() {
                record.history.comm.clone_from(comm);
                record.named_ns = record.named_ns.max(at_ns);
            }
        }
        self.processes.limit();
    }

    fn execed(&mut self, at_ns: u64, task: TaskId, comm: &RawText, changes: &mut Vec<Change>) {
        let Some(record) = self.processes.get_mut(task.process) else { return };
        if record.history.execed_ns.is_some_and(|known| known >= at_ns) {
            return;
        }
        record.history.execed_ns = Some(at_ns);
        record.named_ns = record.named_ns.max(at_ns);
        record.history.description = None;
        record.undescribed.clear();
        let old = std::mem::replace(&mut record.history.comm, comm.clone());
        if old != *comm {
            record.history.names.push(NameChange { at_ns, tid: task.tid, old, new: comm.clone() });
        }
        self.rename_entries(task, comm);
        self.say(at_ns, task.process, ChangeKind::Execed { comm: comm.clone() }, changes);
    }

    fn renamed(&mut self, at_ns: u64, task: TaskId, old: &RawText, new: &RawText, changes: &mut Vec<Change>) {
        let Some(record) = self.processes.get_mut(task.process) else { return };
        let change = NameChange { at_ns, tid: task.tid, old: old.clone(), new: new.clone() };
        if record.history.names.entries().last() == Some(&change) {
            return;
        }
        record.history.names.push(change);
        if task.is_leader() {
            record.named_ns = record.named_ns.max(at_ns);
            record.history.comm.clone_from(new);
        }
        self.rename_entries(task, new);
        let kind = ChangeKind::Renamed { tid: task.tid, old: old.clone(), new: new.clone() };
        self.say(at_ns, task.process, kind, changes);
    }

    /// The holders last seen wear the new name, too.
    pub(super) fn rename_entries(&mut self, task: TaskId, comm: &RawText) {
        self.tasks_seen(task).for_each(|known| known.comm.clone_from(comm));
    }

    /// A task as it stands in the holders last seen.
    fn tasks_seen(&mut self, task: TaskId) -> impl Iterator<Item = &mut Task> {
        let tgid = task.process.tgid;
        let first = self.holders.partition_point(|holder| holder.process.tgid < tgid);
        let holders = self.holders[first..].iter_mut().take_while(move |holder| holder.process.tgid == tgid);
        holders
            .filter(move |holder| holder.process == task.process)
            .flat_map(|holder| std::iter::once(&mut holder.carrier).chain(&mut holder.leader))
            .filter(move |known| known.tid == task.tid)
    }

    fn exiting(&mut self, at_ns: u64, task: TaskId, group_dead: bool, exit: Exit, changes: &mut Vec<Change>) {
        let Some(record) = self.processes.get_mut(task.process) else { return };
        record.heard_ns = record.heard_ns.max(at_ns);
        // One thread of several may leave alone; a signal ends them all.
        if (group_dead || exit.signal().is_some()) && record.history.exit.is_none() {
            record.history.exit = Some(ExitSeen { at_ns, exit });
        }
        let by = exit.signal().and_then(|_| record.history.ended_by()).map(|seen| seen.by.clone());
        self.tasks_seen(task).for_each(|known| known.exiting = true);
        let ends = group_dead && self.relevant(task.process);
        if let Some(record) = self.processes.get_mut(task.process).filter(|_| ends) {
            record.leaving = true;
        }
        self.say(at_ns, task.process, ChangeKind::Exiting { tid: task.tid, group_dead, exit, by }, changes);
    }

    fn freed(&mut self, at_ns: u64, task: TaskId, changes: &mut Vec<Change>) {
        let Some(record) = self.processes.get_mut(task.process) else { return };
        if task.is_leader() && record.history.freed_ns.is_none() {
            record.history.freed_ns = Some(at_ns);
            let leaving = std::mem::take(&mut record.leaving);
            if leaving || self.relevant(task.process) {
                changes.push(of_process(at_ns, task.process, ChangeKind::Exited));
            }
        }
    }

    fn signalled(
        &mut self,
        at_ns: u64,
        sender: &Sender,
        target: ProcessId,
        signal: i32,
        code: i32,
        changes: &mut Vec<Change>,
    ) {
        let by = if code > 0 { Killer::Kernel } else { Killer::Process(sender.clone()) };
        let seen = SignalSeen { at_ns, signal, by };
        if signal == SIGKILL {
            self.killed(at_ns, target, seen, changes);
            return;
        }
        let Some(record) = self.processes.get_mut(target) else { return };
        if record.history.signals.entries().last() == Some(&seen) {
            return;
        }
        record.history.signals.push(seen.clone());
        self.say(at_ns, target, ChangeKind::Signalled { by: seen.by, signal }, changes);
    }

    fn killed(&mut self, at_ns: u64, target: ProcessId, seen: SignalSeen, changes: &mut Vec<Change>) {
        let Some(record) = self.processes.get_mut(target) else { return };
        let first = record.history.killed.get_or_insert_with(|| seen.clone());
        // The kernel sends the signal first and says afterwards that memory was the reason.
        let explained = seen.by == Killer::OutOfMemory && first.by == Killer::Kernel;
        if explained {
            first.by = Killer::OutOfMemory;
        }
        if record.history.signals.entries().last() == Some(&seen) {
            return;
        }
        record.history.signals.push(seen.clone());
        self.say(at_ns, target, ChangeKind::Killed { by: seen.by }, changes);
    }

    fn module(&mut self, at_ns: u64, name: &str, loaded: bool, changes: &mut Vec<Change>) {
        self.note_gap(at_ns, at_ns, GapCause::Module { name: name.to_owned() });
        let kind = ChangeKind::Module { name: name.to_owned(), loaded };
        changes.push(Change { at_ns, file: None, device: None, process: None, kind });
    }
}

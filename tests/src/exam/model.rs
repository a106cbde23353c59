//! What must be so: every open file and every reference to it, from what was ordered and from nothing else.
//!
//! The model knows what a kernel knows of these things and no more: tasks with an fd table each, address spaces, sockets
//! with a queue, and open files that live as long as something refers to them. It is pure; descriptor numbers, addresses
//! and PIDs come from the answers of the workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;

use super::moment::Milliseconds;

const PAGE: usize = 4096;

/// A number of the model's own, never used twice.
pub type Id = u64;

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// An open file of a device.
    File(Id),
    /// One end of a socket pair.
    Socket(Id),
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it stands for.
    pub object: Object,
    /// Does exec close it?
    pub cloexec: bool,
    /// Since which step it stands for that.
    pub since: u64,
}

/// A mapping of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub at: u64,
    /// Length.
    pub pages: usize,
    /// Of which open file.
    pub file: Id,
    /// Is it what is left of a larger one?
    pub part: bool,
    /// Where in the file the kernel says that it begins, in pages. It makes one mapping of two of one file that touch and go
    /// on where the other ends; what `mremap(2)` moves gets the page number of its address.
    pub offset: u64,
    /// Since which step it is there.
    pub since: u64,
}

/// A thread.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Its process.
    pub process: Id,
    /// Its fd table.
    pub table: Id,
}

/// A thread group.
#[derive(Clone, Debug)]
pub struct Process {
    /// On the host.
    pub pid: u32,
    /// Its address space.
    pub memory: Id,
    /// The process that forked it.
    pub parent: Option<Id>,
    /// The name that its leader has taken since it was forked, or has replaced its program.
    pub name: Option<String>,
}

/// What a new process shares with the one that makes it, instead of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// The fd table (`CLONE_FILES`).
    pub table: bool,
    /// The address space (`CLONE_VM`).
    pub memory: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Socket {
    peer: Id,
    /// Messages, each with the step in which it was sent.
    pub(super) queue: VecDeque<(u64, Vec<Id>)>,
}

#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) device: String,
    pub(super) opener: u32,
    /// In which step.
    pub(super) step: u64,
    /// Between these moments.
    pub(super) between: (Milliseconds, Milliseconds),
    /// See [`ExpectedFile::likely`](super::expected::ExpectedFile::likely); ever since it was opened.
    pub(super) likely: BTreeSet<u32>,
    /// The last step in which one of them opened something where this came to be.
    pub(super) reopened: u64,
}

/// A device was opened at a descriptor. Remembered for ever: the slot may seem to hold that file later.
#[derive(Clone, Debug)]
struct SlotOpened {
    process: Id,
    pid: u32,
    table: Id,
    fd: c_int,
    device: String,
    step: u64,
}

/// Everything that is.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Live threads.
    pub tasks: BTreeMap<Id, Task>,
    /// Live processes.
    pub processes: BTreeMap<Id, Process>,
    pub(super) tables: BTreeMap<Id, BTreeMap<c_int, Entry>>,
    pub(super) memories: BTreeMap<Id, Vec<Mapped>>,
    pub(super) sockets: BTreeMap<Id, Socket>,
    pub(super) files: BTreeMap<Id, Opened>,
    opens: Vec<SlotOpened>,
    parents: BTreeMap<Id, Id>,
    step: u64,
    /// The last step before the last question.
    pub(super) asked: u64,
    last: Id,
}

impl Model {
    fn id(&mut self) -> Id {
        self.last += 1;
        self.last
    }

    /// A process that holds nothing; returns its only task.
    pub fn start(&mut self, pid: u32) -> Id {
        let (table, memory) = (self.id(), self.id());
        self.tables.insert(table, BTreeMap::new());
        self.memories.insert(memory, Vec::new());
        self.process(pid, table, memory, None)
    }

    /// What follows is a step of its own.
    pub fn next_step(&mut self) {
        self.step += 1;
    }

    /// A question was asked about all that is so far.
    pub fn asked(&mut self) {
        self.asked = self.step;
    }

    fn process(&mut self, pid: u32, table: Id, memory: Id, parent: Option<Id>) -> Id {
        let (process, task) = (self.id(), self.id());
        self.processes.insert(process, Process { pid, memory, parent, name: None });
        self.parents.extend(parent.map(|parent| (process, parent)));
        self.tasks.insert(task, Task { process, table });
        task
    }

    /// The PID of a task's process.
    #[must_use]
    pub fn pid(&self, task: Id) -> u32 {
        self.processes[&self.tasks[&task].process].pid
    }

    /// A task's descriptors.
    #[must_use]
    pub fn table(&self, task: Id) -> &BTreeMap<c_int, Entry> {
        &self.tables[&self.tasks[&task].table]
    }

    fn table_mut(&mut self, task: Id) -> &mut BTreeMap<c_int, Entry> {
        self.tables.entry(self.tasks[&task].table).or_default()
    }

    /// A task's mappings.
    #[must_use]
    pub fn memory(&self, task: Id) -> &[Mapped] {
        &self.memories[&self.processes[&self.tasks[&task].process].memory]
    }

    fn memory_mut(&mut self, task: Id) -> &mut Vec<Mapped> {
        self.memories.entry(self.processes[&self.tasks[&task].process].memory).or_default()
    }

    /// The device of an open file.
    #[must_use]
    pub fn device(&self, file: Id) -> &str {
        &self.files[&file].device
    }

    /// A task has opened a device between two moments.
    pub fn open(
        &mut self,
        task: Id,
        fd: c_int,
        device: &str,
        cloexec: bool,
        between: (Milliseconds, Milliseconds),
    ) -> Id {
        let file = self.id();
        let (pid, step, device) = (self.pid(task), self.step, device.to_owned());
        let Task { process, table } = self.tasks[&task];
        let (likely, reopened) = (BTreeSet::new(), 0);
        self.opens.push(SlotOpened { process, pid, table, fd, device: device.clone(), step });
        self.files.insert(file, Opened { device, opener: pid, step, between, likely, reopened });
        self.put(task, fd, Entry { object: Object::File(file), cloexec, since: step });
        file
    }

    /// A descriptor now stands for this, whatever it stood for before.
    pub fn put(&mut self, task: Id, fd: c_int, entry: Entry) {
        let since = self.step;
        self.table_mut(task).insert(fd, Entry { since, ..entry });
        if let Some(file) = entry.file() {
            self.note_place(self.tasks[&task].table, fd, file);
        }
    }

    /// A descriptor is closed.
    pub fn close(&mut self, task: Id, fd: c_int) {
        self.table_mut(task).remove(&fd);
    }

    /// A mapping is made.
    pub fn map(&mut self, task: Id, mapped: Mapped) {
        let mut new = Mapped { since: self.step, ..mapped };
        let end = |mapped: &Mapped| mapped.at + (mapped.pages * PAGE) as u64;
        self.memory_mut(task).retain(|other| {
            let goes_on = |low: &Mapped, high: &Mapped| {
                end(low) == high.at && low.offset + low.pages as u64 == high.offset
            };
            let merges = other.file == new.file && (goes_on(other, &new) || goes_on(&new, other));
            if merges {
                new = Mapped {
                    at: new.at.min(other.at),
                    offset: new.offset.min(other.offset),
                    pages: new.pages + other.pages,
                    part: new.part || other.part,
                    ..new
                };
            }
            !merges
        });
        self.memory_mut(task).push(new);
    }

    /// The mapping at an address is gone.
    pub fn unmap(&mut self, task: Id, at: u64) {
        self.memory_mut(task).retain(|mapped| mapped.at != at);
    }

    /// A task has made a socket pair, close-on-exec.
    pub fn socket_pair(&mut self, task: Id, fds: (c_int, c_int)) {
        let (one, other) = (self.id(), self.id());
        for (end, peer, fd) in [(one, other, fds.0), (other, one, fds.1)] {
            self.sockets.insert(end, Socket { peer, queue: VecDeque::new() });
            self.put(task, fd, Entry { object: Object::Socket(end), cloexec: true, since: 0 });
        }
    }

    /// Messages that wait to be received at this end.
    #[must_use]
    pub fn queued(&self, end: Id) -> usize {
        self.sockets.get(&end).map_or(0, |socket| socket.queue.len())
    }

    /// The other end, if anybody has it open.
    #[must_use]
    pub fn open_peer(&self, end: Id) -> Option<Id> {
        let peer = self.sockets.get(&end)?.peer;
        let has_it =
            |table: &BTreeMap<c_int, Entry>| table.values().any(|entry| entry.object == Object::Socket(peer));
        self.tables.values().any(has_it).then_some(peer)
    }

    /// Files are sent to this end.
    pub fn enqueue(&mut self, end: Id, files: Vec<Id>) {
        let step = self.step;
        self.sockets.entry(end).or_default().queue.push_back((step, files));
    }

    /// The first message of this end is taken out.
    pub fn dequeue(&mut self, end: Id) -> Vec<Id> {
        self.sockets.entry(end).or_default().queue.pop_front().unwrap_or_default().1
    }

    /// A task has forked a process with this PID; returns the child's task.
    pub fn fork(&mut self, task: Id, pid: u32, sharing: Sharing) -> Id {
        let memory = if sharing.memory {
            self.processes[&self.tasks[&task].process].memory
        } else {
            let (memory, since) = (self.id(), self.step);
            let mapped = self.memory(task).iter().map(|mapped| Mapped { since, ..*mapped }).collect();
            self.memories.insert(memory, mapped);
            memory
        };
        let table = if sharing.table { self.tasks[&task].table } else { self.copy_of_table(task) };
        let child = self.process(pid, table, memory, Some(self.tasks[&task].process));
        self.note_places(table);
        child
    }

    fn copy_of_table(&mut self, task: Id) -> Id {
        let (table, mut copy, since) = (self.id(), self.table(task).clone(), self.step);
        copy.values_mut().for_each(|entry| entry.since = since);
        self.tables.insert(table, copy);
        table
    }

    /// A task has started a thread; returns it.
    pub fn thread(&mut self, task: Id) -> Id {
        let thread = self.id();
        self.tasks.insert(thread, self.tasks[&task]);
        thread
    }

    /// A task has got an fd table of its own.
    pub fn unshare(&mut self, task: Id) {
        let copy = self.copy_of_table(task);
        if let Some(task) = self.tasks.get_mut(&task) {
            task.table = copy;
        }
        self.note_places(copy);
        self.sweep();
    }

    /// A task has replaced its program; returns the tasks of its process that this has ended.
    pub fn exec(&mut self, task: Id) -> Vec<Id> {
        let table = self.copy_of_table(task);
        self.tables.entry(table).or_default().retain(|_, entry| !entry.cloexec);
        let memory = self.id();
        self.memories.insert(memory, Vec::new());
        let process = self.tasks[&task].process;
        let others: Vec<Id> = self.tasks_of(process).into_iter().filter(|other| *other != task).collect();
        self.tasks.retain(|task, _| !others.contains(task));
        self.tasks.insert(task, Task { process, table });
        self.note_places(table);
        self.processes.entry(process).and_modify(|known| (known.memory, known.name) = (memory, None));
        self.sweep();
        others
    }

    /// The leader of a process has taken a name.
    pub fn rename(&mut self, process: Id, name: &str) {
        self.processes.entry(process).and_modify(|known| known.name = Some(name.to_owned()));
    }

    /// The live tasks of a process.
    #[must_use]
    pub fn tasks_of(&self, process: Id) -> Vec<Id> {
        self.tasks.iter().filter(|(_, task)| task.process == process).map(|(id, _)| *id).collect()
    }

    /// A task has ended, and its process with it if it was the last.
    pub fn end_task(&mut self, task: Id) {
        self.tasks.remove(&task);
        self.sweep();
    }

    /// A process has ended; returns its tasks.
    pub fn end_process(&mut self, process: Id) -> Vec<Id> {
        let ended = self.tasks_of(process);
        self.tasks.retain(|_, task| task.process != process);
        self.sweep();
        ended
    }

    /// Drops what nothing refers to any more, from the outside in.
    pub fn sweep(&mut self) {
        let processes: BTreeSet<Id> = self.tasks.values().map(|task| task.process).collect();
        self.processes.retain(|process, _| processes.contains(process));
        let tables: BTreeSet<Id> = self.tasks.values().map(|task| task.table).collect();
        self.tables.retain(|table, _| tables.contains(table));
        let memories: BTreeSet<Id> = self.processes.values().map(|process| process.memory).collect();
        self.memories.retain(|memory, _| memories.contains(memory));
        let objects = || self.tables.values().flat_map(BTreeMap::values).map(|entry| entry.object);
        let ends: BTreeSet<Id> = objects()
            .filter_map(|object| if let Object::Socket(end) = object { Some(end) } else { None })
            .collect();
        self.sockets.retain(|end, _| ends.contains(end));
        let mut files: BTreeSet<Id> = self.memories.values().flatten().map(|mapped| mapped.file).collect();
        files.extend(self.tables.values().flat_map(BTreeMap::values).filter_map(Entry::file));
        files.extend(
            self.sockets.values().flat_map(|socket| socket.queue.iter().flat_map(|(_, files)| files)),
        );
        self.files.retain(|file, _| files.contains(file));
    }

    /// A file has come to a slot: whoever has opened the same device there, in this table or in one that this comes from.
    fn note_place(&mut self, table: Id, fd: c_int, file: Id) {
        let Some(known) = self.files.get_mut(&file) else { return };
        let users = self.tasks.values().filter(|task| task.table == table).map(|task| task.process);
        let lineage: BTreeSet<Id> = users
            .flat_map(|process| std::iter::successors(Some(process), |one| self.parents.get(one).copied()))
            .collect();
        for open in self.opens.iter().filter(|open| open.fd == fd && open.device == known.device) {
            if open.table == table || lineage.contains(&open.process) {
                known.likely.insert(open.pid);
                known.reopened = known.reopened.max(open.step);
            }
        }
    }

    fn note_places(&mut self, table: Id) {
        let entries = self.tables.get(&table).into_iter().flatten();
        let places: Vec<(c_int, Id)> = entries.filter_map(|(fd, entry)| Some((*fd, entry.file()?))).collect();
        places.into_iter().for_each(|(fd, file)| self.note_place(table, fd, file));
    }
}

impl Entry {
    /// The open file that it stands for, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<Id> {
        if let Object::File(file) = self.object { Some(file) } else { None }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

//! What must be so: every open file and every reference to it, from what was ordered and from nothing else.
//!
//! The model knows what a kernel knows of these things and no more: tasks with an fd table each, address spaces, sockets
//! with a queue, and open files that live as long as something refers to them. It is pure; descriptor numbers, addresses
//! and PIDs come from the answers of the workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;

use crate::truth::Counts;

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
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// On the host.
    pub pid: u32,
    /// Its address space.
    pub memory: Id,
}

#[derive(Clone, Debug, Default)]
struct Socket {
    peer: Id,
    queue: VecDeque<Vec<Id>>,
}

#[derive(Clone, Debug)]
struct Opened {
    device: String,
    opener: u32,
    shared: bool,
}

/// Everything that is.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Live threads.
    pub tasks: BTreeMap<Id, Task>,
    /// Live processes.
    pub processes: BTreeMap<Id, Process>,
    tables: BTreeMap<Id, BTreeMap<c_int, Entry>>,
    memories: BTreeMap<Id, Vec<Mapped>>,
    sockets: BTreeMap<Id, Socket>,
    files: BTreeMap<Id, Opened>,
    last: Id,
}

/// What an answer must say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// By PID and device.
    pub holders: BTreeMap<u32, BTreeMap<String, Counts>>,
    /// By the model's number.
    pub files: BTreeMap<Id, ExpectedFile>,
}

/// What an answer must say of one open file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedFile {
    /// Device name.
    pub device: String,
    /// The kernel's count.
    pub references: u64,
    /// Who refers to it in any way.
    pub pids: BTreeSet<u32>,
    /// Who opened it; nothing if it has ever been in a table shared by processes, any of which may seem to have opened it
    /// to somebody who sees events and tables.
    pub opener: Option<u32>,
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
        self.process(pid, table, memory)
    }

    fn process(&mut self, pid: u32, table: Id, memory: Id) -> Id {
        let (process, task) = (self.id(), self.id());
        self.processes.insert(process, Process { pid, memory });
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

    /// A task has opened a device.
    pub fn open(&mut self, task: Id, fd: c_int, device: &str, cloexec: bool) -> Id {
        let file = self.id();
        let opener = self.pid(task);
        let table = self.tasks[&task].table;
        let users = self.tasks.values().filter(|other| other.table == table);
        let shared = users.map(|user| user.process).collect::<BTreeSet<Id>>().len() > 1;
        self.files.insert(file, Opened { device: device.to_owned(), opener, shared });
        self.put(task, fd, Entry { object: Object::File(file), cloexec });
        file
    }

    /// A descriptor now stands for this, whatever it stood for before.
    pub fn put(&mut self, task: Id, fd: c_int, entry: Entry) {
        self.table_mut(task).insert(fd, entry);
    }

    /// A descriptor is closed.
    pub fn close(&mut self, task: Id, fd: c_int) {
        self.table_mut(task).remove(&fd);
    }

    /// A mapping is made.
    pub fn map(&mut self, task: Id, mapped: Mapped) {
        self.memory_mut(task).push(mapped);
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
            self.put(task, fd, Entry { object: Object::Socket(end), cloexec: true });
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
        self.sockets.entry(end).or_default().queue.push_back(files);
    }

    /// The first message of this end is taken out.
    pub fn dequeue(&mut self, end: Id) -> Vec<Id> {
        self.sockets.entry(end).or_default().queue.pop_front().unwrap_or_default()
    }

    /// A task has forked a process with this PID; returns the child's task.
    pub fn fork(&mut self, task: Id, pid: u32, sharing_table: bool) -> Id {
        let memory = self.id();
        let mapped = self.memory(task).to_vec();
        self.memories.insert(memory, mapped);
        let table = if sharing_table {
            let table = self.tasks[&task].table;
            for file in self.tables[&table].values().filter_map(Entry::file) {
                self.files.entry(file).and_modify(|opened| opened.shared = true);
            }
            table
        } else {
            self.copy_of_table(task)
        };
        self.process(pid, table, memory)
    }

    fn copy_of_table(&mut self, task: Id) -> Id {
        let (table, copy) = (self.id(), self.table(task).clone());
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
        let pid = self.processes[&process].pid;
        self.processes.insert(process, Process { pid, memory });
        self.sweep();
        others
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
        files.extend(self.sockets.values().flat_map(|socket| socket.queue.iter().flatten()));
        self.files.retain(|file, _| files.contains(file));
    }

    /// What an answer must say now.
    #[must_use]
    pub fn expected(&mut self) -> Expected {
        self.sweep();
        let mut expected = Expected::default();
        for (file, opened) in &self.files {
            let (device, opener) = (opened.device.clone(), (!opened.shared).then_some(opened.opener));
            expected.files.insert(*file, ExpectedFile { device, opener, ..ExpectedFile::default() });
        }
        for file in self.references() {
            expected.files.entry(file).or_default().references += 1;
        }
        for (id, process) in &self.processes {
            self.expect_of(*id, process, &mut expected);
        }
        expected
    }

    /// Every reference, as the file that it refers to.
    fn references(&self) -> impl Iterator<Item = Id> {
        let by_fd = self.tables.values().flat_map(BTreeMap::values).filter_map(Entry::file);
        let by_mapping = self.memories.values().flatten().map(|mapped| mapped.file);
        by_fd
            .chain(by_mapping)
            .chain(self.sockets.values().flat_map(|socket| socket.queue.iter().flatten().copied()))
    }

    fn expect_of(&self, id: Id, process: &Process, expected: &mut Expected) {
        let mut devices: BTreeMap<String, (Counts, BTreeSet<Id>)> = BTreeMap::new();
        let mut count = |file: Id, which: fn(&mut Counts) -> &mut u64| {
            let (counts, files) = devices.entry(self.files[&file].device.clone()).or_default();
            *which(counts) += 1;
            files.insert(file);
        };
        let tables: BTreeSet<Id> = self.tasks_of(id).iter().map(|task| self.tasks[task].table).collect();
        let mut ends = BTreeSet::new();
        for entry in tables.iter().flat_map(|table| self.tables[table].values()) {
            match entry.object {
                Object::File(file) => count(file, |counts| &mut counts.fds),
                Object::Socket(end) => drop(ends.insert(end)),
            }
        }
        for mapped in &self.memories[&process.memory] {
            count(mapped.file, |counts| &mut counts.maps);
        }
        for file in ends.iter().flat_map(|end| self.sockets[end].queue.iter().flatten()) {
            count(*file, |counts| &mut counts.in_flight);
        }
        for (device, (counts, files)) in devices {
            let counts = Counts { files: files.len() as u64, ..counts };
            for file in files {
                expected.files.entry(file).or_default().pids.insert(process.pid);
            }
            expected.holders.entry(process.pid).or_default().insert(device, counts);
        }
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
mod tests {
    use super::*;

    #[test]
    fn a_file_lives_as_long_as_a_descriptor_a_mapping_or_a_message_refers_to_it() {
        let mut model = Model::default();
        let task = model.start(10);
        let file = model.open(task, 3, "nvidia0", true);
        model.map(task, Mapped { at: 4096, pages: 1, file, part: false });
        model.socket_pair(task, (4, 5));
        let Object::Socket(end) = model.table(task)[&5].object else { panic!("a socket") };
        model.enqueue(end, vec![file]);
        assert_eq!(model.expected().files[&file].references, 3);
        model.close(task, 3);
        model.unmap(task, 4096);
        let expected = model.expected();
        assert_eq!(expected.files[&file].references, 1);
        assert_eq!(expected.holders[&10]["nvidia0"], Counts { in_flight: 1, files: 1, ..Counts::default() });
        model.close(task, 5);
        assert_eq!(model.expected(), Expected::default());
    }

    #[test]
    fn a_table_shared_by_two_processes_is_one_reference_and_two_holders() {
        let mut model = Model::default();
        let task = model.start(10);
        let file = model.open(task, 3, "nvidia0", false);
        let child = model.fork(task, 11, true);
        let expected = model.expected();
        assert_eq!((expected.files[&file].references, expected.holders.len()), (1, 2));
        // Exec gives it a table of its own.
        assert_eq!(model.exec(child), Vec::<Id>::new());
        assert_eq!(model.expected().files[&file].references, 2);
        model.end_process(model.tasks[&task].process);
        let expected = model.expected();
        assert_eq!((expected.files[&file].references, expected.files[&file].pids.len()), (1, 1));
    }

    #[test]
    fn exec_ends_the_other_threads_and_closes_what_it_must() {
        let mut model = Model::default();
        let leader = model.start(10);
        model.open(leader, 3, "nvidia0", true);
        let kept = model.open(leader, 4, "nvidia0", false);
        let thread = model.thread(leader);
        assert_eq!(model.exec(thread), [leader]);
        assert_eq!(model.expected().files.keys().copied().collect::<Vec<_>>(), [kept]);
        model.end_task(thread);
        assert_eq!(model.expected(), Expected::default());
    }
}

//! What an answer must say, from what the model knows.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Id, Model, Object, Opened, Process};
use super::moment::Milliseconds;
use crate::truth::Counts;

/// What an answer must say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// By PID and device.
    pub holders: BTreeMap<u32, BTreeMap<String, Counts>>,
    /// By the model's number.
    pub files: BTreeMap<Id, ExpectedFile>,
    /// Names of holders, by PID, where they are known.
    pub names: BTreeMap<u32, String>,
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
    /// Who opened it.
    pub opener: u32,
    /// Between which moments.
    pub opened: (Milliseconds, Milliseconds),
    /// Who may seem to have opened it to somebody who sees which descriptors were opened and where files are: in the same
    /// slot of the same table, or of a process or one of its ancestors, somebody had opened the same device.
    pub likely: BTreeSet<u32>,
    /// It has a reference that it had at the last question already. If so, it can be known again.
    pub stays: bool,
    /// Since the last question, one of `likely` became so: it may seem to be another file at the same address.
    pub reopened: bool,
    /// It was opened since the last question.
    pub fresh: bool,
    /// Its only reference is the descriptor that it was opened as. If so, and if it is fresh, it can be seen to be new even
    /// at an address that was in use.
    pub unmoved: bool,
}

impl Model {
    /// What an answer must say now.
    #[must_use]
    pub fn expected(&mut self) -> Expected {
        self.sweep();
        let mut expected = Expected::default();
        for (file, opened) in &self.files {
            let Opened { device, opener, step, between, likely, reopened } = opened.clone();
            let (reopened, fresh) = (reopened > self.asked, step > self.asked);
            let file_expected = ExpectedFile {
                device,
                opener,
                opened: between,
                likely,
                reopened,
                fresh,
                ..ExpectedFile::default()
            };
            expected.files.insert(*file, file_expected);
        }
        for (file, since) in self.references() {
            let known = expected.files.entry(file).or_default();
            known.references += 1;
            known.stays |= since <= self.asked;
        }
        for (file, opened) in &self.files {
            let known = expected.files.entry(*file).or_default();
            known.unmoved = known.references == 1 && self.references().any(|one| one == (*file, opened.step));
        }
        for (id, process) in &self.processes {
            self.expect_of(*id, process, &mut expected);
        }
        expected
    }

    /// Every reference: the file that it refers to, and since which step.
    fn references(&self) -> impl Iterator<Item = (Id, u64)> {
        let by_fd = self.tables.values().flat_map(BTreeMap::values);
        let by_fd = by_fd.filter_map(|entry| Some((entry.file()?, entry.since)));
        let by_mapping = self.memories.values().flatten().map(|mapped| (mapped.file, mapped.since));
        let messages = self.sockets.values().flat_map(|socket| &socket.queue);
        let in_flight = messages.flat_map(|(since, files)| files.iter().map(move |file| (*file, *since)));
        by_fd.chain(by_mapping).chain(in_flight)
    }

    fn expect_of(&self, id: Id, process: &Process, expected: &mut Expected) {
        let mut devices: BTreeMap<String, (Counts, BTreeSet<Id>)> = BTreeMap::new();
        let mut count = |file: Id, which: fn(&mut Counts) -> &mut u64| {
            let (counts, files) = devices.entry(self.files[&file].device.clone()).or_default();
            *which(counts) += 1;
            files.insert(file);
        };
        let tables: BTreeSet<Id> = self.tasks_of(id).iter().map(|task| self.tasks[task].table).collect();
        // A message counts once per process that has its receiving end, in however many tables and descriptors.
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
        for file in ends.iter().flat_map(|end| self.sockets[end].queue.iter().flat_map(|(_, files)| files)) {
            count(*file, |counts| &mut counts.in_flight);
        }
        for (device, (counts, files)) in devices {
            let counts = Counts { files: files.len() as u64, ..counts };
            for file in files {
                expected.files.entry(file).or_default().pids.insert(process.pid);
            }
            expected.holders.entry(process.pid).or_default().insert(device, counts);
            expected.names.extend(process.name.clone().map(|name| (process.pid, name)));
        }
    }
}

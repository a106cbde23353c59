//! Puts visits together: one key per table, address space and open file, one reference per use.

use std::collections::{BTreeSet, HashMap};

use super::identity::Sameness;
use super::kcmp::{Kind, Subject};
use super::node::Node;
use super::visit::Visit;
use crate::model::{FileKey, MmKey, OpenFile, Reference, TableKey, Task, Via};

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tasks: Vec<Task>,
    pub(super) files: Vec<OpenFile>,
    pub(super) references: Vec<Reference>,
}

/// Puts `visits` together; with `kernel`, the kernel is asked what is the same.
pub(super) fn assemble(visits: &[Visit], kernel: bool) -> Found {
    let mut assembly = Assembly::new(kernel);
    for visit in visits.iter().filter(|visit| !visit.tasks.is_empty()) {
        assembly.add(visit);
    }
    Found {
        tasks: assembly.tasks,
        files: assembly.files,
        references: assembly.references.into_iter().collect(),
    }
}

struct Assembly {
    kernel: bool,
    next: u64,
    tables: Sameness,
    spaces: Sameness,
    /// Open files by inode: files of different inodes are different.
    by_node: HashMap<Node, Sameness>,
    rings: HashMap<u64, Sameness>,
    tasks: Vec<Task>,
    files: Vec<OpenFile>,
    references: BTreeSet<Reference>,
}

impl Assembly {
    fn new(kernel: bool) -> Self {
        Self {
            kernel,
            next: 0,
            tables: Sameness::new(Kind::Files, kernel),
            spaces: Sameness::new(Kind::Vm, kernel),
            by_node: HashMap::new(),
            rings: HashMap::new(),
            tasks: Vec::new(),
            files: Vec::new(),
            references: BTreeSet::new(),
        }
    }

    fn add(&mut self, visit: &Visit) {
        let mut tables = Vec::with_capacity(visit.tables.len());
        // The first open file of this process on each inode. Which of several a mapping is of, nothing tells.
        let mut open: HashMap<Node, FileKey> = HashMap::new();
        for table in &visit.tables {
            let tid = table.tids[0];
            let key = TableKey(self.tables.number(Subject { tid, fd: 0 }, &mut self.next));
            tables.push(key);
            for handle in &table.handles {
                let file = self.file(handle.node, Subject { tid, fd: handle.fd });
                open.entry(handle.node).or_insert(file);
                self.refer(file, Via::Fd { table: key, fd: handle.fd });
            }
            for ring in table.rings.iter().filter(|ring| !ring.files.is_empty()) {
                let same =
                    self.rings.entry(ring.inode).or_insert_with(|| Sameness::new(Kind::File, self.kernel));
                let before = self.next;
                let carrier = FileKey(same.number(Subject { tid, fd: ring.fd }, &mut self.next));
                self.refer(carrier, Via::Fd { table: key, fd: ring.fd });
                if carrier.0 > before {
                    for (slot, node) in &ring.files {
                        let file = self.new_file(*node);
                        self.refer(file, Via::IoUring { ring: carrier, slot: *slot });
                    }
                }
            }
        }
        let mm = visit.space.as_ref().map(|space| {
            let before = self.next;
            let mm = MmKey(self.spaces.number(Subject { tid: space.tid, fd: 0 }, &mut self.next));
            // An address space that another process shares has been counted there.
            let mappings = if mm.0 > before { space.mappings.as_slice() } else { &[] };
            for mapping in mappings {
                let known = open.get(&mapping.node).copied();
                let file = known.unwrap_or_else(|| self.new_file(mapping.node));
                open.insert(mapping.node, file);
                self.refer(file, Via::Map { mm, start: mapping.start, end: mapping.end });
            }
            mm
        });
        self.tasks.extend(visit.tasks.iter().map(|task| Task {
            table: visit.table_of(task.tid).map(|place| tables[place]),
            mm: mm.filter(|_| !task.is_dead() && !task.exiting),
            ..task.clone()
        }));
    }

    /// The open file behind a descriptor.
    fn file(&mut self, node: Node, subject: Subject) -> FileKey {
        let same = self.by_node.entry(node).or_insert_with(|| Sameness::new(Kind::File, self.kernel));
        let before = self.next;
        let key = FileKey(same.number(subject, &mut self.next));
        if key.0 > before {
            self.files.push(OpenFile { key, device: node.device, count: None, identity: 0, seen_ns: 0 });
        }
        key
    }

    /// An open file of which nothing tells whether it was met before.
    fn new_file(&mut self, node: Node) -> FileKey {
        self.next += 1;
        let key = FileKey(self.next);
        self.files.push(OpenFile { key, device: node.device, count: None, identity: 0, seen_ns: 0 });
        key
    }

    fn refer(&mut self, file: FileKey, via: Via) {
        self.references.insert(Reference { file, via });
    }
}

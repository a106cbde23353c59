//! From one snapshot to holders: who refers to which device file, directly or through files that carry files.
//!
//! References point at fd tables and address spaces, tasks point at the same, so the join is done there. A *carrier* (a
//! unix socket with descriptors in its queue, an io_uring, a device file the driver keeps for another) has owners of
//! its own, possibly through further carriers and in circles: two sockets may sit in each other's queues. Owners are
//! therefore computed per strongly connected component, once, so that neither long chains nor cycles cost more than
//! their edges.

use std::ops::Range;
use std::rc::Rc;

use crate::model::hash::Map;
use crate::model::{
    DeviceNumber, FileKey, MmKey, OpenFile, ProcessId, Snapshot, TableKey, Task, TaskState, Via,
};

/// One device file with its accounting.
#[derive(Clone, Debug)]
pub(super) struct ResolvedFile {
    pub(super) key: FileKey,
    pub(super) device: DeviceNumber,
    pub(super) count: Option<u64>,
    pub(super) identity: u64,
    /// As [`OpenFile::seen_ns`].
    pub(super) seen_ns: u64,
    /// Where its references lie in [`Resolved::references`].
    span: Range<usize>,
}

/// How one holder refers to one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    pub(super) fds: u32,
    pub(super) maps: u32,
    pub(super) in_flight: u32,
    pub(super) io_uring: u32,
    pub(super) pins: u32,
    /// References it is dropping, which no snapshot shows any more.
    pub(super) dropping: u32,
}

impl Ways {
    /// References of its own: not through a socket, a ring or the driver.
    pub(super) fn direct(self) -> u64 {
        u64::from(self.fds) + u64::from(self.maps)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.fds = self.fds.saturating_add(other.fds);
        self.maps = self.maps.saturating_add(other.maps);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.io_uring = self.io_uring.saturating_add(other.io_uring);
        self.pins = self.pins.saturating_add(other.pins);
        self.dropping = self.dropping.saturating_add(other.dropping);
    }
}

/// One process, or the threads of one process that share an fd table of their own.
#[derive(Clone, Debug)]
pub(super) struct ResolvedHolder {
    pub(super) process: ProcessId,
    pub(super) carrier: Task,
    pub(super) leader: Option<Task>,
    /// Ascending, without duplicates.
    pub(super) tids: Vec<u32>,
    /// (index in [`Resolved::files`], how), ascending.
    pub(super) held: Vec<(usize, Ways)>,
}

/// What a snapshot says, joined.
#[derive(Clone, Debug)]
pub(super) struct Resolved<'a> {
    /// Each once, file by file, those of each file ordered by how.
    references: Vec<Referred<'a>>,
    /// In the order of the snapshot.
    pub(super) files: Vec<ResolvedFile>,
    /// Ordered by (tgid, carrier); only those that hold something.
    pub(super) holders: Vec<ResolvedHolder>,
    /// References to files that are neither devices of the snapshot nor carriers of anything in it.
    pub(super) dangling: u64,
}

impl<'a> Resolved<'a> {
    /// How a file is referred to, in order, whether or not somebody could be found behind it.
    pub(super) fn vias(&self, file: &ResolvedFile) -> impl ExactSizeIterator<Item = &'a Via> + Clone {
        self.references[file.span.clone()].iter().map(|(_, via)| *via)
    }
}

/// A reference: to what, and how. The key apart, so that sorting need not follow a pointer to compare.
type Referred<'a> = (FileKey, &'a Via);
/// Where each file's references lie.
type Spans = Map<FileKey, Span>;
/// Index of a holder while resolving.
type Holder = u32;

#[derive(Clone, Debug, Default)]
struct Span {
    range: Range<usize>,
    /// The file is one of the snapshot's device files.
    of_device: bool,
}

/// Joins a snapshot.
pub(super) fn resolve(snapshot: &Snapshot) -> Resolved<'_> {
    let (references, mut spans) = references(snapshot);
    let mut holders = Holders::new(snapshot, &references);
    let owners = owners(&references, &spans, &holders);

    let mut files: Vec<ResolvedFile> = Vec::with_capacity(snapshot.files.len());
    for file in &snapshot.files {
        let span = spans.entry(file.key).or_default();
        if std::mem::replace(&mut span.of_device, true) {
            continue;
        }
        for (_, via) in &references[span.range.clone()] {
            holders.credit(files.len(), via, &owners);
        }
        let span = span.range.clone();
        let OpenFile { key, device, count, identity, seen_ns } = *file;
        files.push(ResolvedFile { key, device, count, identity, seen_ns, span });
    }
    let dangling = spans
        .iter()
        .filter(|(key, span)| !span.of_device && !owners.contains_key(key))
        .map(|(_, span)| span.range.len() as u64)
        .sum();
    Resolved { references, files, holders: holders.finish(), dangling }
}

/// The references, each once, file by file, and where those of each file lie.
fn references(snapshot: &Snapshot) -> (Vec<Referred<'_>>, Spans) {
    let mut references: Vec<Referred<'_>> = snapshot.references.iter().map(|r| (r.file, &r.via)).collect();
    let mut in_order = order(&mut references, snapshot.files.len());
    if in_order.is_none() {
        // Those of one file are not all in one place.
        references.sort_unstable_by_key(|(file, _)| *file);
        in_order = order(&mut references, snapshot.files.len());
    }
    (references, in_order.unwrap_or_default())
}

/// Orders the references of each file; `None` if they do not come file by file.
fn order(references: &mut Vec<Referred<'_>>, files: usize) -> Option<Spans> {
    for same in references.chunk_by_mut(|a, b| a.0 == b.0) {
        same.sort_unstable_by_key(|(_, via)| *via);
    }
    references.dedup();
    spans(references, files)
}

fn spans(references: &[Referred<'_>], files: usize) -> Option<Spans> {
    let mut spans = Spans::with_capacity_and_hasher(files, Default::default());
    let mut start = 0;
    for same in references.chunk_by(|a, b| a.0 == b.0) {
        let range = start..start + same.len();
        start = range.end;
        if spans.insert(same[0].0, Span { range, of_device: false }).is_some() {
            return None;
        }
    }
    Some(spans)
}

/// The carrier that a reference goes through, if it goes through one.
fn carrier_of(via: &Via) -> Option<FileKey> {
    match via {
        Via::Fd { .. } | Via::Map { .. } | Via::SystemCall { .. } => None,
        Via::InFlight { socket, .. } => Some(*socket),
        Via::Unaccepted { listener } => Some(*listener),
        Via::IoUring { ring, .. } => Some(*ring),
        Via::DriverPin { by } => Some(*by),
    }
}

/// Holders by fd table and by address space, and what they were found to hold.
struct Holders<'a> {
    tables: Map<TableKey, Vec<Holder>>,
    mms: Map<MmKey, Vec<Holder>>,
    by_task: Map<(u32, u32), Holder>,
    leaders: Map<u32, &'a Task>,
    found: Vec<Found<'a>>,
}

struct Found<'a> {
    process: ProcessId,
    carrier: &'a Task,
    leader: Option<&'a Task>,
    tids: Vec<u32>,
    held: Vec<(usize, Ways)>,
}

impl<'a> Holders<'a> {
    /// Only tables and address spaces that something refers through are looked at: most tasks are nobody's business.
    fn new(snapshot: &'a Snapshot, references: &[Referred<'_>]) -> Self {
        let mut tables: Map<TableKey, Vec<&'a Task>> = Map::default();
        let mut mms: Map<MmKey, Vec<&'a Task>> = Map::default();
        for (_, via) in references {
            match via {
                Via::Fd { table, .. } => _ = tables.entry(*table).or_default(),
                Via::Map { mm, .. } => _ = mms.entry(*mm).or_default(),
                _ => {}
            }
        }
        let mut starts: Map<u32, u64> = Map::default();
        for task in snapshot.tasks.iter().filter(|task| !task.is_dead()) {
            let table = task.table.and_then(|table| tables.get_mut(&table));
            let mm = task.mm.and_then(|mm| mms.get_mut(&mm));
            if table.is_some() || mm.is_some() {
                starts.insert(task.tgid, u64::MAX);
            }
            table.into_iter().for_each(|tasks| tasks.push(task));
            mm.into_iter().for_each(|tasks| tasks.push(task));
        }
        let mut leaders = Map::with_capacity_and_hasher(starts.len(), Default::default());
        for task in &snapshot.tasks {
            let Some(start_ns) = starts.get_mut(&task.tgid) else { continue };
            *start_ns = task.start_ns.min(*start_ns);
            if task.is_leader() {
                leaders.insert(task.tgid, task);
            }
        }
        // Where the leader was not seen (it is always there in the kernel), the oldest task is the best guess.
        starts.extend(leaders.iter().map(|(tgid, leader)| (*tgid, leader.start_ns)));
        let mut this = Self {
            tables: Map::with_capacity_and_hasher(tables.len(), Default::default()),
            mms: Map::with_capacity_and_hasher(mms.len(), Default::default()),
            by_task: Map::default(),
            leaders,
            found: Vec::new(),
        };
        for (table, tasks) in tables {
            let holders = this.intern(tasks, &starts);
            this.tables.insert(table, holders);
        }
        for (mm, tasks) in mms {
            let holders = this.intern(tasks, &starts);
            this.mms.insert(mm, holders);
        }
        this
    }

    /// The holders behind the tasks that share one table or one address space: one per process.
    fn intern(&mut self, mut tasks: Vec<&'a Task>, starts: &Map<u32, u64>) -> Vec<Holder> {
        tasks.sort_unstable_by_key(|task| (task.tgid, task.tid));
        tasks.dedup_by_key(|task| (task.tgid, task.tid));
        let mut holders = Vec::new();
        for group in tasks.chunk_by(|a, b| a.tgid == b.tgid) {
            let carrier = carrier(group);
            let holder = *self.by_task.entry((carrier.tgid, carrier.tid)).or_insert_with(|| {
                let leader = self.leaders.get(&carrier.tgid).copied();
                let start_ns = starts.get(&carrier.tgid).copied().unwrap_or(carrier.start_ns);
                let process = ProcessId { tgid: carrier.tgid, start_ns };
                self.found.push(Found { process, carrier, leader, tids: Vec::new(), held: Vec::new() });
                self.found.len() as Holder - 1
            });
            self.found[holder as usize].tids.extend(group.iter().map(|task| task.tid));
            holders.push(holder);
        }
        holders
    }

    /// One holder per process, in order: what is reached through a file that carries files is the process's once, in however
    /// many of its tables that file is. The leader's table counts first, then that of the task with the lowest id.
    fn once_each(&self, mut holders: Vec<Holder>) -> Vec<Holder> {
        let found = |holder: Holder| &self.found[holder as usize];
        holders.sort_unstable_by_key(|holder| {
            let Found { process, carrier, .. } = found(*holder);
            (*process, !carrier.is_leader(), carrier.tid)
        });
        holders.dedup_by_key(|holder| found(*holder).process);
        holders
    }

    /// Writes one reference of a device file to the account of everybody behind it.
    fn credit(&mut self, file: usize, via: &Via, owners: &Map<FileKey, Rc<[Holder]>>) {
        let (holders, way): (&[Holder], fn(&mut Ways) -> &mut u32) = match via {
            Via::Fd { table, .. } => {
                (self.tables.get(table).map_or(&[], Vec::as_slice), |ways| &mut ways.fds)
            }
            Via::Map { mm, .. } => (self.mms.get(mm).map_or(&[], Vec::as_slice), |ways| &mut ways.maps),
            Via::InFlight { socket: carrier, .. } | Via::Unaccepted { listener: carrier } => {
                (owners.get(carrier).map_or(&[], |owners| owners), |ways| &mut ways.in_flight)
            }
            Via::IoUring { ring, .. } => {
                (owners.get(ring).map_or(&[], |owners| owners), |ways| &mut ways.io_uring)
            }
            Via::DriverPin { by } => (owners.get(by).map_or(&[], |owners| owners), |ways| &mut ways.pins),
            // Whoever is in the call has the descriptor, or had it: that is credited as a descriptor.
            Via::SystemCall { .. } => return,
        };
        for holder in holders {
            let held = &mut self.found[*holder as usize].held;
            // References come grouped by file, so a holder's entry for this file can only be its last one.
            if held.last().is_none_or(|(last, _)| *last != file) {
                held.push((file, Ways::default()));
            }
            if let Some((_, ways)) = held.last_mut() {
                *way(ways) = way(ways).saturating_add(1);
            }
        }
    }

    fn finish(self) -> Vec<ResolvedHolder> {
        let mut holders: Vec<_> = self
            .found
            .into_iter()
            .filter(|found| !found.held.is_empty())
            .map(|mut found| {
                found.tids.sort_unstable();
                found.tids.dedup();
                ResolvedHolder {
                    process: found.process,
                    carrier: found.carrier.clone(),
                    leader: found.leader.cloned(),
                    tids: found.tids,
                    held: found.held,
                }
            })
            .collect();
        holders.sort_unstable_by_key(|holder| (holder.process.tgid, holder.carrier.tid));
        holders
    }
}

/// The task that stands for a group of one process's tasks, ordered by tid: the leader if it is one of them, else one
/// that cannot be interrupted (it is the one people need to know about), else the oldest id.
fn carrier<'a>(group: &[&'a Task]) -> &'a Task {
    let leader = group.iter().find(|task| task.is_leader());
    let blocked = || group.iter().find(|task| task.state == TaskState::Uninterruptible);
    leader.or_else(blocked).unwrap_or(&group[0])
}

/// The owners of every carrier: everybody who refers to it by descriptor or mapping, or owns a carrier that does.
fn owners(references: &[Referred<'_>], spans: &Spans, holders: &Holders<'_>) -> Map<FileKey, Rc<[Holder]>> {
    let mut carriers: Vec<FileKey> = references.iter().filter_map(|(_, via)| carrier_of(via)).collect();
    carriers.sort_unstable();
    carriers.dedup();
    let node: Map<FileKey, usize> = carriers.iter().enumerate().map(|(node, key)| (*key, node)).collect();
    let incoming = |key: &FileKey| spans.get(key).map_or(&[][..], |span| &references[span.range.clone()]);
    let edges: Vec<Vec<usize>> = carriers
        .iter()
        .map(|key| incoming(key).iter().filter_map(|(_, via)| node.get(&carrier_of(via)?).copied()).collect())
        .collect();

    let mut owners: Vec<Rc<[Holder]>> = vec![Rc::from([]); carriers.len()];
    // Components arrive sinks first: whatever a component leads to outside itself is already known.
    for component in components(&edges) {
        let mut all = Vec::new();
        let mut shared: Vec<Rc<[Holder]>> = Vec::new();
        for member in &component {
            for (_, via) in incoming(&carriers[*member]) {
                match via {
                    Via::Fd { table, .. } => all.extend(holders.tables.get(table).into_iter().flatten()),
                    Via::Map { mm, .. } => all.extend(holders.mms.get(mm).into_iter().flatten()),
                    _ => {}
                }
            }
            let onward = edges[*member].iter().map(|next| &owners[*next]);
            shared.extend(onward.filter(|owners| !owners.is_empty()).map(Rc::clone));
        }
        shared.sort_unstable_by_key(|owners| Rc::as_ptr(owners).cast::<Holder>());
        shared.dedup_by(|a, b| Rc::ptr_eq(a, b));
        let set: Rc<[Holder]> = match (&all[..], &shared[..]) {
            ([], [only]) => Rc::clone(only),
            _ => {
                shared.iter().for_each(|owners| all.extend(owners.iter()));
                Rc::from(holders.once_each(all))
            }
        };
        component.iter().for_each(|member| owners[*member] = Rc::clone(&set));
    }
    carriers.into_iter().zip(owners).collect()
}

/// Strongly connected components of a graph, sinks first (Tarjan, without recursion: chains are as long as somebody
/// hostile cares to make them).
fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; edges.len()];
    let mut low = vec![0; edges.len()];
    let mut open = vec![false; edges.len()];
    let (mut stack, mut found, mut next) = (Vec::new(), Vec::new(), 0);
    for root in 0..edges.len() {
        if order[root] != UNSEEN {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some((at, edge)) = path.last_mut() {
            let at = *at;
            if *edge == 0 && order[at] == UNSEEN {
                (order[at], low[at], open[at]) = (next, next, true);
                next += 1;
                stack.push(at);
            }
            if let Some(to) = edges[at].get(*edge).copied() {
                *edge += 1;
                if order[to] == UNSEEN {
                    path.push((to, 0));
                } else if open[to] {
                    low[at] = low[at].min(order[to]);
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                low[*parent] = low[*parent].min(low[at]);
            }
            if low[at] == order[at] {
                let from = stack.iter().rposition(|node| *node == at).unwrap_or(0);
                let component = stack.split_off(from);
                component.iter().for_each(|node| open[*node] = false);
                found.push(component);
            }
        }
    }
    found
}

//! The tasks of a snapshot, by process: only those of processes that matter.

use std::cell::OnceCell;

use crate::model::event::TaskId;
use crate::model::hash::{Map, Set};
use crate::model::snapshot::Source;
use crate::model::{ProcessId, Snapshot, TableKey, Task, TaskState};

#[derive(Default)]
struct Group<'a> {
    start_ns: u64,
    leader: Option<&'a Task>,
    /// Not dead, ascending by tid.
    tasks: Vec<&'a Task>,
}

pub(super) struct World<'a> {
    groups: Map<u32, Group<'a>>,
    tasks: &'a [Task],
    /// Fd tables in use by any living task, once somebody has asked: most looks need not know.
    tables: OnceCell<Set<TableKey>>,
    /// All tasks of the host were seen, so that one that is not there is gone.
    all_tasks: bool,
}

impl<'a> World<'a> {
    /// Groups the tasks of these processes.
    pub(super) fn new(snapshot: &'a Snapshot, tgids: &Set<u32>) -> Self {
        let mut groups: Map<u32, Group<'a>> = Map::with_capacity_and_hasher(tgids.len(), Default::default());
        for task in snapshot.tasks.iter().filter(|task| tgids.contains(&task.tgid)) {
            let group =
                groups.entry(task.tgid).or_insert_with(|| Group { start_ns: u64::MAX, ..Group::default() });
            if task.is_leader() {
                group.leader = Some(task);
            }
            group.start_ns = group.leader.map_or(group.start_ns.min(task.start_ns), |leader| leader.start_ns);
            if !task.is_dead() {
                group.tasks.push(task);
            }
        }
        groups.values_mut().for_each(|group| group.tasks.sort_unstable_by_key(|task| task.tid));
        let all_tasks = snapshot.source == Source::Iterators;
        Self { groups, tasks: &snapshot.tasks, tables: OnceCell::new(), all_tasks }
    }

    fn group(&self, process: ProcessId) -> Option<&Group<'a>> {
        self.groups.get(&process.tgid).filter(|group| group.start_ns == process.start_ns)
    }

    /// The process that has this id now.
    pub(super) fn process(&self, tgid: u32) -> Option<ProcessId> {
        self.groups.get(&tgid).map(|group| ProcessId { tgid, start_ns: group.start_ns })
    }

    /// Is nothing of this process left, not even a zombie?
    pub(super) fn is_reaped(&self, process: ProcessId) -> bool {
        self.all_tasks && self.group(process).is_none()
    }

    /// Its tasks that are not dead.
    pub(super) fn tasks(&self, process: ProcessId) -> &[&'a Task] {
        self.group(process).map_or(&[], |group| &group.tasks)
    }

    pub(super) fn leader(&self, process: ProcessId) -> Option<&'a Task> {
        self.group(process)?.leader
    }

    pub(super) fn find(&self, task: TaskId) -> Option<&'a Task> {
        self.tasks(task.process).iter().find(|known| known.tid == task.tid).copied()
    }

    /// Is this task known to be gone: reaped, or a zombie, which has nothing left to release?
    pub(super) fn is_gone(&self, task: TaskId) -> bool {
        self.all_tasks && self.find(task).is_none()
    }

    /// Has every task of this process ended or begun to?
    pub(super) fn is_ending(&self, process: ProcessId) -> bool {
        self.all_tasks && self.tasks(process).iter().all(|task| task.exiting)
    }

    /// Is any task of this process left?
    pub(super) fn may_live(&self, process: ProcessId) -> bool {
        !self.all_tasks || !self.tasks(process).is_empty()
    }

    /// The task of this process that may be dropping, in exit, what it had: rather one with its tables already taken, rather
    /// one that is blocked, rather the oldest id.
    pub(super) fn exiting(&self, process: ProcessId) -> Option<&'a Task> {
        let exiting = self.tasks(process).iter().copied().filter(|task| task.exiting && !task.kernel_thread);
        exiting.min_by_key(|task| (!task.is_half_gone(), task.state != TaskState::Uninterruptible, task.tid))
    }

    /// A living task of this process that may be stuck in a close.
    pub(super) fn blocked(&self, process: ProcessId) -> Option<&'a Task> {
        let blocked = |task: &&&Task| task.state == TaskState::Uninterruptible && !task.exiting;
        self.tasks(process).iter().find(blocked).copied()
    }

    /// Does a living task use this fd table?
    pub(super) fn in_use(&self, table: TableKey) -> bool {
        let living = || self.tasks.iter().filter(|task| !task.is_dead());
        self.tables.get_or_init(|| living().filter_map(|task| task.table).collect()).contains(&table)
    }
}

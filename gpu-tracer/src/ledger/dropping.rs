//! References that are being dropped where no snapshot can see them.
//!
//! A task that exits first loses its address space, then its fd table, and only then are the files behind them released,
//! one after another; one that blocks keeps all behind it. The same holds, file by file, for a task blocked in
//! `close(2)`. What such a task had before is what it may still be dropping.

use super::Ledger;
use super::files::{Dropper, FileRecord, FileState};
use super::resolve::Ways;
use super::view::HeldFile;
use super::world::World;
use crate::model::ProcessId;
use crate::model::event::{MayWait, TaskId};
use crate::model::hash::Map;

/// What exiting processes had in fd tables that nobody uses any more: (process, references) by file.
pub(super) type Dying = Map<u64, Vec<(ProcessId, u64)>>;

impl Ledger {
    /// Descriptors one of which keeps a process, in its exit, from releasing these files: a table is closed from the lowest
    /// descriptor to the highest, so it lies between the last device file that is released and the first that is not.
    pub(super) fn closing(&self, process: ProcessId, held: &[HeldFile]) -> Vec<MayWait> {
        let Some(record) = self.processes.get(process) else { return Vec::new() };
        let is_left = |id: u64| {
            let at = held.binary_search_by_key(&id, |file| file.id);
            at.is_ok_and(|at| held[at].dropping > 0)
        };
        let mut closing = Vec::new();
        for table in record.dying.iter().filter(|table| !table.may_wait.is_empty()) {
            let Some((next, _)) = table.devices.iter().find(|(_, id)| is_left(*id)) else { continue };
            let released = table.devices.iter().take_while(|(fd, _)| fd < next).map(|(fd, _)| *fd).last();
            let between = |wait: &&MayWait| wait.fd < *next && released.is_none_or(|fd| wait.fd > fd);
            closing.extend(table.may_wait.iter().filter(between));
        }
        closing
    }

    /// What exiting processes had in tables that are gone. Forgets the tables of processes that are gone themselves.
    pub(super) fn dying(&mut self, world: &World<'_>) -> Dying {
        let mut dying = Dying::default();
        for (process, record) in self.processes.iter_mut() {
            if record.dying.is_empty() {
                continue;
            }
            if !world.may_live(process) {
                record.dying.clear();
                continue;
            }
            let gone =
                record.dying.iter().filter(|table| table.table.is_none_or(|table| !world.in_use(table)));
            for (file, references) in gone.flat_map(|table| &table.files) {
                let holders = dying.entry(*file).or_default();
                match holders.last_mut() {
                    Some((last, sum)) if *last == process => *sum += references,
                    _ => holders.push((process, *references)),
                }
            }
        }
        dying
    }
}

/// Who may be dropping references to a file: exiting tasks and, where the file is in no table any more, tasks of former
/// holders that may be stuck in a close. `now` is who refers to it visibly, ordered by process.
pub(super) fn droppers(
    file: &FileRecord,
    now: &[(ProcessId, Ways)],
    dying: &[(ProcessId, u64)],
    world: &World<'_>,
    taken_ns: u64,
) -> Vec<Dropper> {
    let mut candidates: Vec<(ProcessId, u64)> = Vec::new();
    for held in &file.held_by {
        let at = now.binary_search_by_key(&held.process, |(process, _)| *process);
        let visible = at.map_or(0, |at| now[at].1.direct());
        candidates.push((held.process, held.ways.direct().saturating_sub(visible)));
    }
    candidates.extend(file.droppers.iter().map(|dropper| (dropper.task.process, dropper.references)));
    candidates.extend(dying);
    candidates.retain(|(_, references)| *references > 0);
    // The sources overlap: of each process the largest figure is what it had.
    candidates.sort_unstable_by_key(|(process, references)| (*process, std::cmp::Reverse(*references)));
    candidates.dedup_by_key(|(process, _)| *process);

    let vanished = now.is_empty();
    candidates
        .into_iter()
        .filter_map(|(process, references)| {
            let stuck_in_close = || world.blocked(process).filter(|_| vanished);
            let task = world.exiting(process).or_else(stuck_in_close)?;
            let before = file.droppers.iter().find(|dropper| dropper.task.process == process);
            let since_ns = before.map_or(taken_ns, |dropper| dropper.since_ns);
            Some(Dropper { task: TaskId { process, tid: task.tid }, since_ns, references })
        })
        .collect()
}

/// Credits what the count has beyond the references seen to the droppers, each up to what it had. Where that is less than
/// they had together, each of them may be the one that is not done yet. Without a count all are believed.
///
/// A file that nothing refers to any more keeps its droppers: its release waits for one of them.
pub(super) fn credit(file: &mut FileRecord) {
    let left = file.count.map_or(u64::MAX, |count| count.saturating_sub(file.named));
    let waits = file.state != FileState::Open && file.named == 0;
    if left == 0 && !waits {
        file.droppers.clear();
    }
    for dropper in &mut file.droppers {
        dropper.references = dropper.references.min(left.max(1));
    }
    let had = file.droppers.iter().fold(0, |sum: u64, dropper| sum.saturating_add(dropper.references));
    file.dropping = had.min(left);
}

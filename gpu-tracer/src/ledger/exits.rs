//! What a task has in its fd table when it begins to exit: the last exact picture of what it is about to drop, and for
//! files that no snapshot has shown the only one.

use super::Ledger;
use super::files::{FileRecord, FileState, HeldBy, Origin};
use super::lineage::DyingTable;
use super::openers::{Fresh, Sameness, Scope, slot_of};
use super::release::of_file;
use super::resolve::Ways;
use super::touches::{Asked, Window};
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::{HeldAtExit, MayWait, Slot, TaskId};
use crate::model::hash::{Map, Set};
use crate::model::{FileKey, ProcessId, TableKey, Via};

/// A task begins to exit.
pub(super) struct AtExit<'a> {
    pub(super) at_ns: u64,
    pub(super) task: TaskId,
    pub(super) table: Option<TableKey>,
    pub(super) held: &'a [HeldAtExit],
    /// What else it has that it may have to wait for.
    pub(super) may_wait: &'a [MayWait],
}

/// One file in its table.
struct InTable {
    seen: HeldAtExit,
    /// Ascending.
    fds: Vec<u32>,
}

impl Ledger {
    /// Takes in what a task is about to drop.
    pub(super) fn held_at_exit(&mut self, exit: &AtExit<'_>, changes: &mut Vec<Change>) {
        if exit.held.is_empty() {
            return;
        }
        let (at_ns, process) = (exit.at_ns, exit.task.process);
        let window = Window {
            since_ns: self.looked.map_or(0, |looked| looked.taken_ns),
            early_ns: self.looked.map_or(0, |looked| looked.before_ns),
            until_ns: at_ns,
            sure: self.looked.is_some_and(|looked| looked.complete) && !self.gaps.is_open(),
        };
        let asked = self.touches.asked(Some(process), at_ns);
        let (mut files, mut fresh, mut undecided) = (Vec::new(), Vec::new(), Vec::new());
        let mut devices = Vec::new();
        for file in by_file(exit.held) {
            let next_id = self.files.next_id();
            let known = self.files.id_of(file.seen.file).and_then(|id| self.files.get(id));
            let known = known.map(|known| known.differs(file.seen.device, file.seen.identity));
            let Some(id) = self.file_at_exit(exit, &file, &asked, &mut undecided, changes) else {
                continue;
            };
            let due = self.files.get_mut(id).and_then(|known| known.opener_due.take());
            if id == next_id || due.is_some() {
                // What was let go of because something new seemed to be there may be what is there.
                let certain = due.unwrap_or(known.is_none_or(|differs| differs));
                let slots = exit.table.iter().flat_map(|table| slots(*table, &file.fds)).collect();
                fresh.push(Fresh {
                    id,
                    key: file.seen.file,
                    device: file.seen.device,
                    seen_ns: at_ns,
                    slots,
                    referrers: vec![process],
                    certain,
                });
            }
            if !exit.may_wait.is_empty() {
                devices.extend(file.fds.iter().map(|fd| (*fd, id)));
            }
            files.push((id, file.fds.len() as u64));
        }
        if !fresh.is_empty() {
            let ancestors = self.processes.ancestors(process).map(|(ancestor, _)| ancestor);
            let family: Vec<ProcessId> = std::iter::once(process).chain(ancestors).collect();
            let scope = Scope { window, family: Some(&family), in_use: &|_| true };
            self.find_openers(&fresh, scope, changes);
        }
        self.doubt_openings(&undecided, at_ns);
        fresh.iter().for_each(|file| self.say_whence(at_ns, process, file.id, changes));
        if !files.is_empty() {
            devices.sort_unstable();
            let record = self.processes.meet(process, at_ns);
            record.holding = true;
            record.remember_table(DyingTable {
                table: exit.table,
                tid: exit.task.tid,
                at_ns,
                files,
                may_wait: exit.may_wait.to_vec(),
                devices,
            });
        }
    }

    /// The id of a file in the table of an exiting task; it may be one that nobody had seen yet.
    fn file_at_exit(
        &mut self,
        exit: &AtExit<'_>,
        file: &InTable,
        asked: &Asked,
        undecided: &mut Vec<(u64, u64)>,
        changes: &mut Vec<Change>,
    ) -> Option<u64> {
        let (at_ns, process, seen) = (exit.at_ns, exit.task.process, file.seen);
        let mut known = self.files.id_of(seen.file);
        if let Some(id) = known {
            let record = self.files.get(id)?;
            let differs = record.differs(seen.device, seen.identity);
            if differs && at_ns <= record.latest_ns() || at_ns < record.born_ns {
                return None;
            }
            let sameness =
                if differs { Sameness::Another } else { self.same_at_exit(record, exit, file, asked) };
            match sameness {
                Sameness::Same => {}
                Sameness::Undecided => undecided.push((id, record.seen_ns.unwrap_or(0))),
                Sameness::Untold => {
                    let latest_ns = record.latest_ns();
                    self.doubt_openers(&[(id, latest_ns, &[(process, Ways::default())])]);
                }
                Sameness::Another => {
                    self.release(id, at_ns, ReleasedHow::Replaced, changes);
                    known = None;
                }
            }
        }
        let id = known.unwrap_or_else(|| {
            self.files.insert(FileRecord::new(seen.file, seen.device, FileState::Open, at_ns))
        });
        let record = self.files.get_mut(id)?;
        record.counted = true;
        if record.identity == 0 {
            record.identity = seen.identity;
        }
        if let Err(at) = record.held_by.binary_search_by_key(&process, |held| held.process) {
            let fds = u32::try_from(file.fds.len()).unwrap_or(u32::MAX);
            let ways = Ways { fds, ..Ways::default() };
            record.held_by.insert(at, HeldBy { process, origin: Origin::Unknown, since_ns: at_ns, ways });
            // How it came to a file that is new is found out with all of its kind.
            if known.is_some() {
                changes.push(of_file(id, record, at_ns, Some(process), ChangeKind::Found));
            }
        }
        Some(id)
    }

    fn same_at_exit(
        &self,
        record: &FileRecord,
        exit: &AtExit<'_>,
        file: &InTable,
        asked: &Asked,
    ) -> Sameness {
        let fresh = record.opener_due.is_some();
        let Some(table) =
            exit.table.filter(|_| !fresh && record.seen_ns.is_some_and(|seen_ns| seen_ns < exit.at_ns))
        else {
            return Sameness::Same;
        };
        let vias: Vec<Via> = file.fds.iter().map(|fd| Via::Fd { table, fd: *fd }).collect();
        if self.may_be_untold(record, vias.iter(), &[exit.task.process]) {
            return Sameness::Untold;
        }
        if !vias.iter().filter_map(slot_of).any(|slot| asked.reserved.contains_key(&slot)) {
            return Sameness::Same;
        }
        let elsewhere = |via: &Via| slot_of(via).is_none_or(|slot| slot.table != table);
        let elsewhere = record.references.iter().any(elsewhere);
        let referrers = [exit.task.process];
        let window = Window { since_ns: 0, early_ns: 0, until_ns: exit.at_ns, sure: false };
        let scope = Scope { window, family: None, in_use: &|_| true };
        self.sameness(record, vias.iter(), &referrers, (asked, elsewhere), scope)
    }

    /// A file first heard of when `process` exits, which it did not open: how it came to it.
    fn say_whence(&mut self, at_ns: u64, process: ProcessId, id: u64, changes: &mut Vec<Change>) {
        let Some(file) = self.files.get_mut(id) else { return };
        let from = file.opened.as_ref().map(|opened| opened.task.process);
        if from == Some(process) {
            return;
        }
        let kind = from.map_or(ChangeKind::Found, |from| ChangeKind::Inherited { from });
        if let (Some(from), Ok(at)) = (from, file.held_by.binary_search_by_key(&process, |held| held.process))
        {
            file.held_by[at].origin = Origin::Inherited { from };
        }
        changes.push(of_file(id, file, at_ns, Some(process), kind));
    }
}

/// The files of a table, in the order in which they were told, each once.
fn by_file(held: &[HeldAtExit]) -> Vec<InTable> {
    let mut files: Vec<InTable> = Vec::new();
    let mut at: Map<FileKey, usize> = Map::default();
    let mut known: Set<(FileKey, u32)> = Set::default();
    for seen in held {
        let index = *at.entry(seen.file).or_insert_with(|| {
            files.push(InTable { seen: *seen, fds: Vec::new() });
            files.len() - 1
        });
        if known.insert((seen.file, seen.fd)) {
            files[index].fds.push(seen.fd);
        }
    }
    files.iter_mut().for_each(|file| file.fds.sort_unstable());
    files
}

fn slots(table: TableKey, fds: &[u32]) -> impl Iterator<Item = Slot> {
    fds.iter().map(move |fd| Slot { table, fd: *fd })
}

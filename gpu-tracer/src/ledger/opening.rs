//! The birth of a file: reported by a probe on the driver's open, or inferred from touches when a snapshot shows it.

use std::collections::BTreeMap;

use super::Ledger;
use super::files::{FileRecord, FileState, HeldBy, OpenRecord, Origin};
use super::hash::Map;
use super::holding::Scene;
use super::release::of_file;
use super::resolve::Ways;
use super::view::identity;
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::TaskId;
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText, Via};

/// Files per process that wait for its description.
const UNDESCRIBED_KEPT: usize = 4_096;

/// What an event says of an open.
pub(super) struct Open<'a> {
    pub(super) at_ns: u64,
    pub(super) key: FileKey,
    pub(super) device: DeviceNumber,
    pub(super) task: TaskId,
    pub(super) comm: &'a RawText,
}

impl Ledger {
    /// The driver's open was entered.
    pub(super) fn opening(&mut self, open: &Open<'_>, changes: &mut Vec<Change>) {
        self.meet(open.task, open.at_ns, open.comm);
        if let Some(id) = self.files.id_of(open.key) {
            let Some(file) = self.files.get(id) else { return };
            if open.at_ns <= file.latest_ns() {
                return;
            }
            self.release(id, open.at_ns, ReleasedHow::Replaced, changes);
        } else if self.looked.is_some_and(|looked| looked.taken_ns > open.at_ns) {
            // It may have come and gone since; if it has not, the next snapshot or the end of the open will show it.
            return;
        }
        let state = FileState::Opening { task: open.task, since_ns: open.at_ns };
        let file = FileRecord::new(open.key, open.device, state, open.at_ns);
        let (id, process) = (self.files.next_id(), Some(open.task.process));
        changes.push(of_file(id, &file, open.at_ns, process, ChangeKind::Opening { task: open.task }));
        self.files.insert(file);
    }

    /// The driver's open succeeded.
    pub(super) fn opened(&mut self, open: &Open<'_>, changes: &mut Vec<Change>) {
        self.meet(open.task, open.at_ns, open.comm);
        let Some(id) = self.file_of(open, changes) else { return };
        let Some(file) = self.files.get_mut(id) else { return };
        if matches!(file.state, FileState::Opening { .. }) {
            file.state = FileState::Open;
        }
        file.born_ns = open.at_ns;
        self.set_opened(id, open.task, open.comm, open.at_ns, true, changes);
    }

    /// The id of the file that an event says was opened; `None` if that is known or of no consequence any more.
    fn file_of(&mut self, open: &Open<'_>, changes: &mut Vec<Change>) -> Option<u64> {
        let Some(id) = self.files.id_of(open.key) else {
            let seen_since =
                self.looked.is_some_and(|looked| looked.complete && looked.taken_ns > open.at_ns);
            let file = || FileRecord::new(open.key, open.device, FileState::Open, open.at_ns);
            return (!seen_since).then(|| self.files.insert(file()));
        };
        let file = self.files.get(id)?;
        let opening = matches!(file.state, FileState::Opening { task, .. } if task == open.task);
        if open.at_ns <= file.born_ns {
            let exact = file.opened.as_ref().is_some_and(|opened| opened.exact);
            return (!exact && file.device == open.device).then_some(id);
        }
        if opening && file.device == open.device {
            return Some(id);
        }
        if file.device == open.device && file.seen_ns.is_some_and(|seen_ns| seen_ns > open.at_ns) {
            return self.renew(id, open.at_ns, ReleasedHow::Replaced, changes);
        }
        if file.seen_ns.is_some_and(|seen_ns| seen_ns > open.at_ns) {
            return None;
        }
        self.release(id, open.at_ns, ReleasedHow::Replaced, changes);
        Some(self.files.insert(FileRecord::new(open.key, open.device, FileState::Open, open.at_ns)))
    }

    /// The driver's open failed.
    pub(super) fn open_failed(&mut self, at_ns: u64, key: FileKey, error: i32, changes: &mut Vec<Change>) {
        let Some(id) = self.files.id_of(key) else { return };
        let Some(file) = self.files.get(id) else { return };
        let FileState::Opening { task, since_ns } = file.state else { return };
        if since_ns <= at_ns {
            let process = Some(task.process);
            changes.push(of_file(id, file, at_ns, process, ChangeKind::OpenFailed { error }));
            self.files.remove(id);
        }
    }

    /// Writes down who opened a file. The opener holds it until a snapshot says otherwise.
    fn set_opened(
        &mut self,
        id: u64,
        task: TaskId,
        comm: &RawText,
        at_ns: u64,
        exact: bool,
        changes: &mut Vec<Change>,
    ) {
        let Some(file) = self.files.get_mut(id) else { return };
        let process = task.process;
        let mut parent = None;
        let mut description = None;
        if let Some(record) = self.processes.get_mut(process) {
            parent = record.history.parent;
            description.clone_from(&record.history.description);
            record.holding = true;
            if description.is_none() && record.undescribed.len() < UNDESCRIBED_KEPT {
                record.undescribed.push(id);
            }
        }
        let opened = OpenRecord { at_ns, exact, task, comm: comm.clone(), parent, description };
        let kind = ChangeKind::Opened { opener: identity(&opened), exact };
        file.opened = Some(Box::new(opened));
        match file.held_by.binary_search_by_key(&process, |held| held.process) {
            Ok(at) => file.held_by[at].origin = Origin::Opened,
            Err(at) => {
                let held = HeldBy { process, origin: Origin::Opened, since_ns: at_ns, ways: Ways::default() };
                file.held_by.insert(at, held);
            }
        }
        changes.push(of_file(id, file, at_ns, Some(process), kind));
    }

    /// Finds the openers of files that a snapshot shows for the first time. `fresh`: (id, who refers to it).
    pub(super) fn find_openers(
        &mut self,
        fresh: &[(u64, &[(ProcessId, Ways)])],
        scene: &Scene<'_>,
        changes: &mut Vec<Change>,
    ) {
        let mut only_touchers: Option<Map<DeviceNumber, ProcessId>> = None;
        let mut by_opener: BTreeMap<(ProcessId, DeviceNumber), Vec<(u32, u64)>> = BTreeMap::new();
        for (id, held) in fresh {
            let Some(file) = self.files.get(*id) else { continue };
            let opener = self.toucher(held, file.device).or_else(|| {
                let since_ns = scene.before?.taken_ns;
                let only = only_touchers.get_or_insert_with(|| self.touches.only_touchers(since_ns));
                only.get(&file.device).copied()
            });
            if let Some(opener) = opener {
                by_opener.entry((opener, file.device)).or_default().push((lowest_fd(file), *id));
            }
        }
        for ((process, device), mut files) in by_opener {
            files.sort_unstable();
            let certain = scene.before.is_some();
            let Some(matched) = self.touches.take(process, device, files.len(), certain) else { continue };
            for ((_, id), at_ns) in files.into_iter().zip(matched.times) {
                self.set_opened(id, matched.task, &matched.comm, at_ns, matched.exact, changes);
            }
        }
    }

    /// Finds the openers of files that are heard of for the first time because a process that has them exits: it opened
    /// them, or descends from who did. `fresh`: (descriptor, id).
    pub(super) fn find_openers_at_exit(
        &mut self,
        at_ns: u64,
        process: ProcessId,
        fresh: Vec<(u32, u64)>,
        changes: &mut Vec<Change>,
    ) {
        let mut by_device: BTreeMap<DeviceNumber, Vec<(u32, u64)>> = BTreeMap::new();
        for (fd, id) in fresh {
            if let Some(file) = self.files.get(id) {
                by_device.entry(file.device).or_default().push((fd, id));
            }
        }
        for (device, mut files) in by_device {
            files.sort_unstable();
            let ancestors = self.processes.ancestors(process).map(|(ancestor, _)| ancestor);
            let opener = std::iter::once(process).chain(ancestors).find(|one| self.touches.any(*one, device));
            let certain = self.looked.is_some_and(|looked| looked.complete);
            let matched = opener.and_then(|one| self.touches.take(one, device, files.len(), certain));
            for (index, (_, id)) in files.into_iter().enumerate() {
                if let Some(matched) = &matched {
                    let opened_ns = matched.times[index];
                    self.set_opened(id, matched.task, &matched.comm, opened_ns, matched.exact, changes);
                    if matched.task.process == process {
                        continue;
                    }
                }
                let Some(file) = self.files.get_mut(id) else { continue };
                let from = matched.as_ref().map(|matched| matched.task.process);
                let kind = from.map_or(ChangeKind::Found, |from| ChangeKind::Inherited { from });
                if let (Some(from), Ok(at)) =
                    (from, file.held_by.binary_search_by_key(&process, |held| held.process))
                {
                    file.held_by[at].origin = Origin::Inherited { from };
                }
                changes.push(of_file(id, file, at_ns, Some(process), kind));
            }
        }
    }

    /// The one process among those that refer to a file, or among their ancestors, that has touched its device. Of
    /// several, the one that all others descend from; if there is none, nobody can say.
    fn toucher(&self, held: &[(ProcessId, Ways)], device: DeviceNumber) -> Option<ProcessId> {
        let touched = |process: &ProcessId| self.touches.any(*process, device);
        let own: Vec<ProcessId> = held
            .iter()
            .filter(|(_, ways)| ways.direct() > 0)
            .map(|(process, _)| *process)
            .filter(touched)
            .collect();
        if let Some(first) = own.iter().min_by_key(|process| process.start_ns) {
            let descends =
                |process: &ProcessId| self.processes.ancestors(*process).any(|(up, _)| up == *first);
            return own.iter().all(|process| process == first || descends(process)).then_some(*first);
        }
        held.iter().find_map(|(process, _)| {
            self.processes.ancestors(*process).map(|(ancestor, _)| ancestor).find(touched)
        })
    }
}

/// Descriptors are given out lowest first: their order is the likely order of opening.
fn lowest_fd(file: &FileRecord) -> u32 {
    let fds = file.references.iter().filter_map(|via| match via {
        Via::Fd { fd, .. } => Some(*fd),
        _ => None,
    });
    fds.min().unwrap_or(u32::MAX)
}

//! The birth of a file, as a probe on the driver's open reports it; without one it is inferred ([`openers`](super::openers)).

use super::Ledger;
use super::files::{Certainty, FileRecord, FileState, HeldBy, OpenRecord, Origin};
use super::release::of_file;
use super::resolve::Ways;
use super::view::identity;
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::event::TaskId;
use crate::model::{DeviceNumber, FileKey, RawText};

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
        // The touch that announced it can have led to no other file.
        self.touches.take_latest(open.task, open.device, open.at_ns);
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
        self.set_opened(id, open.task, open.comm, open.at_ns, Certainty::Exact, changes);
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
            let exact = file.opened.as_ref().is_some_and(|opened| opened.certainty == Certainty::Exact);
            return (!exact && file.device == open.device).then_some(id);
        }
        if opening && file.device == open.device {
            return Some(id);
        }
        if file.device == open.device && file.alive_ns > open.at_ns {
            return self.renew(id, open.at_ns, ReleasedHow::Replaced, changes);
        }
        if file.alive_ns > open.at_ns {
            return None;
        }
        self.release(id, open.at_ns, ReleasedHow::Replaced, changes);
        Some(self.files.insert(FileRecord::new(open.key, open.device, FileState::Open, open.at_ns)))
    }

    /// The driver's mmap of a file succeeded. How somebody holds it of whom that was not known is for a look to say.
    pub(super) fn mapped(&mut self, at_ns: u64, key: FileKey, task: TaskId, changes: &mut Vec<Change>) {
        let Some(id) = self.files.id_of(key) else { return };
        let Some(file) = self.files.get_mut(id) else { return };
        // An event from before the last look, which has seen what there is.
        if at_ns < file.born_ns || file.seen_ns.is_some_and(|seen_ns| seen_ns > at_ns) {
            return;
        }
        let Ok(at) = file.held_by.binary_search_by_key(&task.process, |held| held.process) else { return };
        let held = &mut file.held_by[at];
        // What waits in a queue for it is not its own yet.
        if held.ways.direct() == 0 && held.origin == Origin::Unknown {
            return;
        }
        held.ways.maps = held.ways.maps.saturating_add(1);
        if held.ways.maps == 1 {
            changes.push(of_file(id, file, at_ns, Some(task.process), ChangeKind::Mapped { exact: true }));
        }
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
    pub(super) fn set_opened(
        &mut self,
        id: u64,
        task: TaskId,
        comm: &RawText,
        at_ns: u64,
        certainty: Certainty,
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
        let opened = OpenRecord { at_ns, certainty, task, comm: comm.clone(), parent, description };
        let kind = ChangeKind::Opened { opener: identity(&opened), exact: certainty == Certainty::Exact };
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
}

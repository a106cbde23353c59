//! The end of a file.

use super::Ledger;
use super::files::{FileRecord, FileState, HeldBy, Origin};
use crate::model::change::{Change, ChangeKind, ReleasedHow};
use crate::model::{FileKey, ProcessId};

/// A change of one file.
pub(super) fn of_file(
    id: u64,
    file: &FileRecord,
    at_ns: u64,
    process: Option<ProcessId>,
    kind: ChangeKind,
) -> Change {
    Change { at_ns, file: Some(id), device: Some(file.device), process, kind }
}

/// A change of one process.
pub(super) fn of_process(at_ns: u64, process: ProcessId, kind: ChangeKind) -> Change {
    Change { at_ns, file: None, device: None, process: Some(process), kind }
}

impl Ledger {
    /// The file is gone, for this reason.
    pub(super) fn release(&mut self, id: u64, at_ns: u64, how: ReleasedHow, changes: &mut Vec<Change>) {
        let Some(file) = self.files.remove(id) else { return };
        let last_holder = self.last_holder(&file);
        let history = last_holder.and_then(|process| self.history(process));
        let killed = history.and_then(|history| history.ended_by().or(history.killed.as_ref()));
        let after_kill_ns = killed.and_then(|killed| at_ns.checked_sub(killed.at_ns));
        let exit = history.and_then(|history| history.exit);
        let after_exit_ns = exit.and_then(|exit| at_ns.checked_sub(exit.at_ns));
        let kind = ChangeKind::Released { how, last_holder, after_kill_ns, after_exit_ns };
        changes.push(of_file(id, &file, at_ns, last_holder, kind));
    }

    /// The last process to let go: of several, the one that ended last.
    pub(super) fn last_holder(&self, file: &FileRecord) -> Option<ProcessId> {
        let droppers = file.droppers.iter().map(|dropper| dropper.task.process);
        let holders = file.held_by.iter().map(|held| held.process);
        let ended = |process: &ProcessId| {
            let exit = self.history(*process).and_then(|history| history.exit);
            (exit.map(|exit| exit.at_ns), *process)
        };
        droppers.chain(holders).chain(file.last_holder).max_by_key(ended)
    }

    /// A file at this address was released at `at_ns`, as an event says: perhaps not the one that is there now.
    pub(super) fn release_at(
        &mut self,
        key: FileKey,
        at_ns: u64,
        how: ReleasedHow,
        changes: &mut Vec<Change>,
    ) {
        let Some(id) = self.files.id_of(key) else { return };
        let Some(file) = self.files.get(id) else { return };
        if at_ns < file.born_ns {
            return;
        }
        if file.alive_ns > at_ns {
            self.renew(id, at_ns, how, changes);
        } else {
            self.release(id, at_ns, how, changes);
        }
    }

    /// A device is being opened at this address: what was there is gone.
    pub(super) fn reused(&mut self, at_ns: u64, key: FileKey, changes: &mut Vec<Change>) {
        let file = self.files.id_of(key).and_then(|id| self.files.get(id));
        // What is deferred goes on without the file.
        if file.is_none_or(|file| matches!(file.state, FileState::Deferred { .. })) {
            return;
        }
        self.release_at(key, at_ns, ReleasedHow::Replaced, changes);
        // It may have been seen since, as what it was: then who opened it is not known yet.
        let seen = self.files.id_of(key).and_then(|id| self.files.get_mut(id));
        if let Some(seen) = seen.filter(|seen| seen.opened.is_none()) {
            seen.opener_due = Some(true);
        }
    }

    /// The file was released before the last snapshot, which saw a file at its address: that one is another. Gives the
    /// id of the other.
    pub(super) fn renew(
        &mut self,
        id: u64,
        at_ns: u64,
        how: ReleasedHow,
        changes: &mut Vec<Change>,
    ) -> Option<u64> {
        let old = self.files.get(id)?.clone();
        self.release(id, at_ns, how, changes);
        let born_ns = old.alive_ns.max(at_ns);
        let held_by = old
            .held_by
            .iter()
            .map(|held| HeldBy { origin: Origin::Unknown, since_ns: born_ns, ..*held })
            .collect();
        let file = FileRecord { opened: None, born_ns, held_by, last_holder: None, ..old };
        let found = file.held_by.iter().map(|held| held.process);
        let new_id = self.files.next_id();
        changes
            .extend(found.map(|process| of_file(new_id, &file, born_ns, Some(process), ChangeKind::Found)));
        self.files.insert(file);
        for (held, _) in self.holders.iter_mut().flat_map(|holder| &mut holder.held) {
            if *held == id {
                *held = new_id;
            }
        }
        Some(new_id)
    }

    /// Events up to now may be missing: what waits for one may wait in vain.
    pub(super) fn doubt(&mut self, noticed_ns: u64) {
        for (_, file) in self.files.iter_mut() {
            let waits = matches!(file.state, FileState::Deferred { .. } | FileState::Releasing { .. });
            if waits && file.state.since_ns().is_some_and(|since_ns| since_ns <= noticed_ns) {
                file.doubtful = true;
            }
        }
    }
}

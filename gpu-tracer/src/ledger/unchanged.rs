//! Files of a snapshot that are what they were in the one before: nearly all of them, nearly always.

use super::Ledger;
use super::files::{FileRecord, FileState};
use super::holding::{Holding, Scene, is_held_by};
use super::reconcile::note_seen;
use super::resolve::{Resolved, ResolvedFile, Ways};
use crate::model::{ProcessId, Via};

impl Ledger {
    /// Is done with files that are what they were, and in whose place nothing that was heard of can have put another.
    ///
    /// That touches are remembered is no reason to look closer: those of an open that came to nothing are for as long as the
    /// process lives. Only what may have been opened without its address being told is.
    ///
    /// They come mostly in the order in which they are remembered: going through both together spares a search for each.
    pub(super) fn see_unchanged(
        &mut self,
        resolved: &Resolved<'_>,
        holding: &Holding,
        scene: &Scene<'_>,
        (ids, as_before): (&mut [u64], &mut [bool]),
    ) {
        let mut unsure = None;
        let mut index = 0;
        while let Some(next) = resolved.files.get(index) {
            let Some(from) = self.files.id_of(next.key) else {
                index += 1;
                continue;
            };
            for (id, file) in self.files.from(from) {
                let Some(seen) = resolved.files.get(index).filter(|seen| seen.key == file.key) else { break };
                let unsure_until = match unsure {
                    Some((device, until_ns)) if device == file.device => until_ns,
                    _ => self.touches.unsure_until(file.device),
                };
                unsure = Some((file.device, unsure_until));
                let same = file.opener_due.is_none() && !file.differs(seen.device, seen.identity);
                if same
                    && file.latest_ns() >= unsure_until
                    && is_as_before(file, seen, resolved.vias(seen), holding.of(index))
                {
                    see_again(file, seen, scene.taken_ns);
                    (ids[index], as_before[index]) = (id, true);
                }
                index += 1;
            }
        }
    }
}

/// Is a file that is known again open, accounted for, and held as it was? Of thousands of files hardly any is not, and going
/// through all of them once less is what it is about.
pub(super) fn is_as_before<'a>(
    file: &FileRecord,
    seen: &ResolvedFile,
    vias: impl ExactSizeIterator<Item = &'a Via>,
    now: &[(ProcessId, Ways)],
) -> bool {
    let settled = file.state == FileState::Open && file.droppers.is_empty() && file.dropping == 0;
    let accounted = file.unexplained() == 0 && file.unexplained_since_ns.is_none();
    let same = (file.count, file.identity) == (seen.count, seen.identity);
    let named = file.named == vias.len() as u64 && !file.held_by.is_empty();
    settled && accounted && same && named && is_held_by(file, now) && vias.eq(&file.references)
}

/// All that taking it over would do with such a file.
pub(super) fn see_again(file: &mut FileRecord, seen: &ResolvedFile, taken_ns: u64) {
    note_seen(file, seen, taken_ns);
    (file.announced, file.doubtful, file.checked) = (false, false, false);
    file.last_holder = None;
}

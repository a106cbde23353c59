//! Files that went while a look was being taken, which therefore shows some of them.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::Ledger;
use crate::model::hash::{Map, Set};
use crate::model::{FileKey, OpenFile, Snapshot};

/// Ends remembered. Of more during one look the oldest are taken for open until the next one.
const ENDS_KEPT: usize = 65_536;

/// Which files were told to be gone since the last look was begun, and when. In the order in which it was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends(VecDeque<(u64, FileKey)>);

impl Ends {
    /// Whatever was at this address before this moment is not there any more.
    pub(super) fn add(&mut self, file: FileKey, at_ns: u64) {
        if self.0.len() >= ENDS_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((at_ns, file));
    }

    /// A look that was begun at this moment has been taken over: later ones do not show what was gone before.
    pub(super) fn forget_before(&mut self, looked_ns: u64) {
        self.0.retain(|(at_ns, _)| *at_ns > looked_ns);
        if self.0.capacity() > 4 * self.0.len().max(16) {
            self.0.shrink_to_fit();
        }
    }

    /// The last end at each address after this moment.
    fn since(&self, looked_ns: u64) -> Map<FileKey, u64> {
        let mut last = Map::default();
        for (at_ns, file) in self.0.iter().filter(|(at_ns, _)| *at_ns > looked_ns) {
            let known = last.entry(*file).or_insert(*at_ns);
            *known = (*at_ns).max(*known);
        }
        last
    }
}

impl Ledger {
    /// Leaves out files that have been seen and were gone before the look was over: told so, or their addresses were used for
    /// other files.
    pub(super) fn without_the_gone<'a>(&self, snapshot: &'a Snapshot) -> Cow<'a, Snapshot> {
        let ends = self.ends.since(snapshot.taken_ns);
        let is_gone = |file: &OpenFile| {
            file.seen_ns != 0
                && (ends.get(&file.key).is_some_and(|end_ns| *end_ns > file.seen_ns)
                    || self.touches.addresses.reused(file.key, file.seen_ns))
        };
        let gone: Set<FileKey> =
            snapshot.files.iter().filter(|file| is_gone(file)).map(|file| file.key).collect();
        if gone.is_empty() {
            return Cow::Borrowed(snapshot);
        }
        let mut left = snapshot.clone();
        left.files.retain(|file| !gone.contains(&file.key));
        left.references.retain(|reference| !gone.contains(&reference.file));
        Cow::Owned(left)
    }
}

//! The holder ledger: which device files are open, and who refers to them. Pure: no I/O, no clock.
//!
//! Its unit is the open file (`struct file`), not the process. A snapshot says what *is*; [`Ledger::reconcile`] takes it
//! over completely, gives every file an id of the ledger's own (addresses are reused at once, ids never), and counts
//! where it had believed something else.

mod files;
mod reconcile;
mod resolve;
mod view;

#[cfg(test)]
mod tests;

pub use files::FileState;
pub use reconcile::Drift;
pub use view::{FileView, HeldFile, HolderView, Identity, Opened, View};

use files::Files;
use resolve::ResolvedHolder;

/// The state of the world as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    files: Files,
    holders: Vec<ResolvedHolder>,
    taken_ns: u64,
    reconciled: bool,
}

impl Ledger {
    /// Knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is known now.
    #[must_use]
    pub fn view(&self) -> View {
        let mut files: Vec<FileView> = self
            .files
            .iter()
            .map(|(id, file)| FileView {
                id,
                device: file.device,
                state: file.state,
                count: file.count,
                named: file.named,
                unexplained: file.count.map_or(0, |count| count.saturating_sub(file.named)),
                driver_pins: file.driver_pins,
                opened: file.opened.clone(),
            })
            .collect();
        files.sort_unstable_by_key(|file| file.id);
        View {
            files,
            holders: self.holders.iter().map(|holder| self.holder_view(holder)).collect(),
            taken_ns: self.taken_ns,
        }
    }

    fn holder_view(&self, holder: &ResolvedHolder) -> HolderView {
        let mut held: Vec<HeldFile> = holder
            .held
            .iter()
            .filter_map(|(key, ways)| {
                let id = self.files.id_of(*key)?;
                Some(HeldFile {
                    id,
                    device: self.files.get(id)?.device,
                    fds: ways.fds,
                    maps: ways.maps,
                    in_flight: ways.in_flight,
                    io_uring: ways.io_uring,
                    driver_pins: ways.pins,
                })
            })
            .collect();
        held.sort_unstable_by_key(|held| held.id);
        HolderView {
            process: holder.process,
            carrier: holder.carrier.clone(),
            leader: holder.leader.clone(),
            tids: holder.tids.clone(),
            held,
        }
    }
}

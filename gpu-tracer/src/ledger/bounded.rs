//! Histories that cannot grow without end.

/// The oldest entry and the newest ones, at most `N`, and how many between them were let go.
///
/// The oldest stays because it is what a process *was*; the newest because they are what happened last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded<T, const N: usize> {
    entries: Vec<T>,
    dropped: u64,
}

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self { entries: Vec::new(), dropped: 0 }
    }
}

impl<T, const N: usize> Bounded<T, N> {
    const ENOUGH: () = assert!(N >= 2, "needs room for the oldest and the newest");

    /// Adds the newest entry.
    pub fn push(&mut self, entry: T) {
        let () = Self::ENOUGH;
        if self.entries.len() >= N {
            self.entries.remove(1);
            self.dropped += 1;
        }
        self.entries.push(entry);
    }

    /// Oldest first. Where [`Bounded::dropped`] is not 0, entries are missing after the first.
    #[must_use]
    pub fn entries(&self) -> &[T] {
        &self.entries
    }

    /// How many entries were let go.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

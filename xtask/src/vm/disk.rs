//! A disk that outlives a boot, and the boots with it: what is on it after the guest has powered off, or after somebody
//! has pulled the plug, is what the next boot asks about.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::guest::Guest;
use super::protocol::Verdict;

/// Bytes: more than the journal leaves free. The file has holes where nothing was written.
const SIZE: u64 = 1 << 30;

/// Makes an empty one.
pub(super) fn blank(path: &Path) -> Result<PathBuf> {
    let made = File::create(path).and_then(|file| file.set_len(SIZE));
    made.with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path.to_owned())
}

/// Boots the guest as often as it asks for; one verdict on all of it.
pub(super) fn run_all_boots(mut guest: Guest<'_>) -> Result<Verdict> {
    let mut outcome = guest.run()?;
    let mut verdict = outcome.verdict;
    while let Some(stage) = outcome.again {
        guest.stage = stage;
        let console = guest.console.with_file_name(format!("console-{stage}.log"));
        outcome = Guest { console: &console, ..guest }.run()?;
        verdict = verdict.and(outcome.verdict);
    }
    Ok(verdict)
}

//! The cgroup freezer, both generations.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::mounts;

/// Which freezer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// cgroup v1's `freezer` controller: frozen tasks do not even die.
    V1,
    /// cgroup v2's `cgroup.freeze`.
    V2,
}

/// Makes a cgroup called `name` in the right tree, which is mounted at `spare` first if it is mounted nowhere.
pub fn make_group(generation: Generation, name: &str, spare: &Path) -> Result<PathBuf> {
    let (kind, option) = match generation {
        Generation::V1 => ("cgroup", Some("freezer")),
        Generation::V2 => ("cgroup2", None),
    };
    let tree = if let Some(tree) = mounts::mounted(kind, option)? {
        tree
    } else {
        fs::create_dir_all(spare)?;
        mounts::mount("none", spare, kind, option.unwrap_or_default())
            .with_context(|| format!("mounting {kind}: not in this kernel?"))?;
        spare.to_path_buf()
    };
    let group = tree.join(name);
    fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
    Ok(group)
}

/// Moves a process in.
pub fn enter(group: &Path, pid: u32) -> Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string()).context("cgroup.procs")
}

/// Freezes or thaws the group; returns as soon as the order is given.
pub fn set(group: &Path, generation: Generation, frozen: bool) -> Result<()> {
    let (file, order) = match (generation, frozen) {
        (Generation::V1, true) => ("freezer.state", "FROZEN"),
        (Generation::V1, false) => ("freezer.state", "THAWED"),
        (Generation::V2, true) => ("cgroup.freeze", "1"),
        (Generation::V2, false) => ("cgroup.freeze", "0"),
    };
    fs::write(group.join(file), order).context(file)
}

/// Is every task in it frozen?
pub fn is_frozen(group: &Path, generation: Generation) -> Result<bool> {
    let (file, words) = match generation {
        Generation::V1 => ("freezer.state", "FROZEN"),
        Generation::V2 => ("cgroup.events", "frozen 1"),
    };
    Ok(fs::read_to_string(group.join(file)).context(file)?.lines().any(|line| line == words))
}

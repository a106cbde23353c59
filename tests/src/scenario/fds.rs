//! Descriptors.

use anyhow::Result;

use crate::stage::Stage;
use crate::sys::mounts;
use crate::truth::{Counts, Holds, Truth};

/// One process, one descriptor.
pub(super) fn plain(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    let holds = Holds::live(worker.pid).states('S', 'S').device(&node.name, Counts::fds(1));
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    worker.close(fd)?;
    stage.show_last(Truth::default().innocent(worker.pid, "closed its descriptor"))
}

/// Two open files, four descriptors, two of them made by `dup2` onto taken and untaken numbers.
pub(super) fn dup(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let first = worker.open(&node.path)?;
    let copy = worker.dup(first)?;
    worker.dup2(first, 200)?;
    let counts = Counts { fds: 3, files: 1, ..Counts::default() };
    let holds = Holds::live(worker.pid).device(&node.name, counts);
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 3))?;

    let second = worker.open(&node.path)?;
    worker.dup2(second, copy)?;
    let counts = Counts { fds: 4, files: 2, ..Counts::default() };
    let holds = Holds::live(worker.pid).device(&node.name, counts);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 2, 2))
}

/// More descriptors than anything that walks them one by one likes.
pub(super) fn many_handles(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let count = stage.number(0, 20_000)?;
    let worker = stage.worker()?;
    worker.open_many(&node.path, count)?;
    let holds = Holds::live(worker.pid).device(&node.name, Counts::fds(count.into()));
    stage.show_last(Truth::default().holder(holds).files(&node.name, count.into(), 1))
}

/// The counterpart of `exec-cloexec`: without close-on-exec the new program holds.
pub(super) fn exec_inherited(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    worker.open_with(&node.path, libc::O_RDWR)?;
    let child = worker.fork()?;
    child.exec()?;
    let holds = |pid| Holds::live(pid).device(&node.name, Counts::fds(1));
    stage.show(
        Truth::default()
            .holder(holds(worker.pid))
            .holder(holds(child.pid).inherited())
            .files(&node.name, 1, 2),
    )?;

    worker.kill()?;
    stage.show_last(Truth::default().holder(holds(child.pid)).files(&node.name, 1, 1).dead(worker.pid))
}

/// Neither opened nor inherited nor received: copied out of another process.
pub(super) fn taken(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let origin = stage.worker()?;
    let fd = origin.open(&node.path)?;
    let taker = stage.worker()?;
    taker.take(origin.pid, fd)?;
    origin.kill()?;
    let holds = Holds::live(taker.pid).device(&node.name, Counts::fds(1));
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 1).dead(origin.pid))
}

/// Its path leads to another inode now, its device number is the same.
pub(super) fn deleted_node(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let path = stage.tmpfs()?.join("node");
    let (major, minor) = super::namespaces::number(&node.path)?;
    mounts::make_node(&path, major, minor)?;
    let worker = stage.worker()?;
    let fd = worker.open(&path)?;
    worker.map(fd)?;
    std::fs::remove_file(&path)?;
    mounts::make_node(&path, major, minor)?;
    let counts = Counts { fds: 1, maps: 1, files: 1, ..Counts::default() };
    let holds = Holds::live(worker.pid).device(&node.name, counts);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 2))
}

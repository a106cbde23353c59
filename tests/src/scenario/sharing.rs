//! Fd tables and address spaces that are not one per process.

use anyhow::Result;

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::{Order, Spawn, Worker};

/// A thread leaves the common table and opens the device in its own.
pub(super) fn private_table(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let thread = worker.thread()?;
    thread.order(Order::Unshare(libc::CLONE_FILES))?;
    thread.open(&node.path)?;
    let holds =
        Holds::live(worker.pid).tids(&[thread.tid]).states('S', 'S').device(&node.name, Counts::fds(1));
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    // Now the leader's table holds another open file: two tables of one process, each counted.
    worker.open(&node.path)?;
    let holds = Holds::live(worker.pid).tids(&[worker.tid, thread.tid]).device(&node.name, Counts::fds(2));
    stage.show_last(Truth::default().holder(holds).files(&node.name, 2, 1))
}

/// Two processes, one table: one descriptor, one reference, two holders.
pub(super) fn shared_table(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let opener = stage.worker()?;
    opener.open(&node.path)?;
    let sharer = opener.spawn(Spawn::SharingTable)?;
    let holds = |pid| Holds::live(pid).device(&node.name, Counts::fds(1));
    stage.show(
        Truth::default()
            .holder(holds(opener.pid))
            .holder(holds(sharer.pid).inherited())
            .files(&node.name, 1, 1),
    )?;

    opener.kill()?;
    stage.show_last(Truth::default().holder(holds(sharer.pid)).files(&node.name, 1, 1).dead(opener.pid))
}

/// Two processes, one address space: one mapping (one reference, two holders), and a descriptor in each table.
pub(super) fn shared_memory(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let opener = stage.worker()?;
    let fd = opener.open(&node.path)?;
    opener.map(fd)?;
    let sharer = opener.spawn(Spawn::SharingMemory { table: false })?;
    let holds = |pid, fds| {
        let counts = Counts { fds, maps: 1, files: 1, ..Counts::default() };
        Holds::live(pid).device(&node.name, counts)
    };
    stage.show(
        Truth::default()
            .holder(holds(opener.pid, 1))
            .holder(holds(sharer.pid, 1).inherited())
            .files(&node.name, 1, 3),
    )?;

    sharer.order(Order::Close(fd))?;
    opener.kill()?;
    stage.show_last(Truth::default().holder(holds(sharer.pid, 0)).files(&node.name, 1, 1).dead(opener.pid))
}

/// As many tasks as wanted, one table, one address space.
pub(super) fn many_threads(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let count = stage.number(0, 16)?;
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    worker.map(fd)?;
    let threads: Vec<Worker> = (0..count).map(|_| worker.thread()).collect::<Result<_>>()?;
    let tids: Vec<u32> = std::iter::once(worker.tid).chain(threads.iter().map(|one| one.tid)).collect();
    let counts = Counts { fds: 1, maps: 1, files: 1, ..Counts::default() };
    let holds = Holds::live(worker.pid).tids(&tids).device(&node.name, counts);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 2))
}

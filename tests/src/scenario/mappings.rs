//! Mappings.

use anyhow::Result;

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::{Mapping, Order};

fn maps(count: u64) -> Counts {
    Counts { maps: count, files: 1, ..Counts::default() }
}

/// B5: the mapping stays when the descriptor is closed, and a fork has one of its own.
pub(super) fn mapping(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    worker.map(fd)?;
    worker.close(fd)?;
    let holds = |pid| Holds::live(pid).device(&node.name, maps(1));
    stage.show(Truth::default().holder(holds(worker.pid)).files(&node.name, 1, 1))?;

    let child = worker.fork()?;
    stage.show(
        Truth::default()
            .holder(holds(worker.pid))
            .holder(holds(child.pid).inherited())
            .files(&node.name, 1, 2),
    )?;

    worker.kill()?;
    stage.show_last(Truth::default().holder(holds(child.pid)).files(&node.name, 1, 1).dead(worker.pid))
}

/// Unmapping the middle page of three leaves two mappings, each with a reference.
pub(super) fn split(stage: &mut Stage) -> Result<()> {
    const PAGE: usize = 4096;
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    let page = worker.map(fd)?;
    worker.unmap(page)?;
    let crate::worker::Reply::At(at) = worker.tell(&Order::Map(fd, 3 * PAGE))? else {
        anyhow::bail!("a mapping without an address");
    };
    worker.unmap(Mapping { at: at + PAGE as u64, length: PAGE })?;
    worker.close(fd)?;
    let holds = Holds::live(worker.pid).device(&node.name, maps(2));
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 2))
}

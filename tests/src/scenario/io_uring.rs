//! Files registered with an io_uring.

use anyhow::{Context as _, Result};

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::{Order, Worker};

const REGISTERED: Counts = Counts { fds: 0, maps: 0, in_flight: 0, io_uring: 1, files: 1 };

/// A worker whose ring has the device as its only registered file, in no table; returns the ring's descriptor too.
fn with_ring(stage: &Stage) -> Result<(Worker, i32)> {
    let worker = stage.worker()?;
    let fd = worker.open(&stage.node().path)?;
    let ring = worker.ring().context("io_uring: switched off here? See kernel.io_uring_disabled")?;
    worker.order(Order::Register(ring, vec![fd]))?;
    worker.close(fd)?;
    Ok((worker, ring))
}

/// B8.
pub(super) fn registered(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let (worker, ring) = with_ring(stage)?;
    let holds = Holds::live(worker.pid).device(&node.name, REGISTERED);
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    worker.order(Order::Unregister(ring))?;
    stage.show_last(Truth::default().innocent(worker.pid, "unregistered it"))
}

/// Nothing in `/proc` tells of it any more but the name of a mapping.
pub(super) fn mapped(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let (worker, ring) = with_ring(stage)?;
    worker.map_ring(ring)?;
    worker.close(ring)?;
    let holds = Holds::live(worker.pid).device(&node.name, REGISTERED);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 1))
}

/// A fork has the ring too; rings cannot travel through sockets (since Linux 6.7).
pub(super) fn inherited(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let (opener, _) = with_ring(stage)?;
    let heir = opener.fork()?;
    let holds = |pid| Holds::live(pid).device(&node.name, REGISTERED);
    stage.show(Truth::default().holder(holds(opener.pid)).holder(holds(heir.pid)).files(&node.name, 1, 1))?;

    opener.kill()?;
    stage.show_last(Truth::default().holder(holds(heir.pid)).files(&node.name, 1, 1).dead(opener.pid))
}

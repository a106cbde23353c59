//! Processes that do not run, and are not stuck.

use anyhow::Result;

use crate::poll::{PATIENCE, until};
use crate::stage::{Stage, Undo};
use crate::sys::freezer::{self, Generation};
use crate::truth::{Counts, Holds, Truth};

/// B11: SIGTERM waits behind SIGSTOP.
pub(super) fn stopped(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    worker.open(&node.path)?;
    worker.signal(libc::SIGSTOP)?;
    worker.await_state("T")?;
    worker.signal(libc::SIGTERM)?;
    let mut holds =
        Holds::live(worker.pid).states('T', 'T').why(&["stopped"]).device(&node.name, Counts::fds(1));
    holds.sigkill_pending = Some(false);
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    worker.signal(libc::SIGCONT)?;
    worker.await_gone()?;
    stage.show_last(Truth::default().dead(worker.pid))
}

/// Frozen by the v2 freezer.
pub(super) fn frozen(stage: &mut Stage) -> Result<()> {
    in_freezer(stage, Generation::V2)
}

/// Frozen by the v1 freezer.
pub(super) fn frozen_v1(stage: &mut Stage) -> Result<()> {
    in_freezer(stage, Generation::V1)
}

fn in_freezer(stage: &mut Stage, generation: Generation) -> Result<()> {
    stage.need_private_mounts()?;
    let node = stage.node().clone();
    let name = format!("gpu-tracer-scenario-{}", std::process::id());
    let spare = stage.dir().join("cgroup");
    stage.undo_later(&Undo::Unmount(spare.clone()))?;
    let group = freezer::make_group(generation, &name, &spare)?;
    stage.undo_later(&match generation {
        Generation::V1 => Undo::RemoveGroupV1(group.clone()),
        Generation::V2 => Undo::RemoveGroupV2(group.clone()),
    })?;
    let worker = stage.worker()?;
    worker.open(&node.path)?;
    freezer::enter(&group, worker.pid)?;
    freezer::set(&group, generation, true)?;
    until("a frozen cgroup", PATIENCE, || Ok(freezer::is_frozen(&group, generation)?.then_some(())))?;
    let holds = Holds::live(worker.pid).why(&["frozen"]).device(&node.name, Counts::fds(1));
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    freezer::set(&group, generation, false)?;
    until("a thawed cgroup", PATIENCE, || Ok((!freezer::is_frozen(&group, generation)?).then_some(())))?;
    worker.await_state("S")?;
    let holds = Holds::live(worker.pid).device(&node.name, Counts::fds(1));
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 1))
}

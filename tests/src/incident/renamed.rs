//! A1: `pkill -9 -f "python3.*vllm"` ends the server and misses the workers, which renamed themselves.

use anyhow::Result;

use super::call;
use super::driver::{self, Client, GPUS, Use};
use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::Worker;

/// What each worker allocates on the GPU of its rank, MiB.
pub const ALLOCATED_MIB: u32 = 96_610;
/// What NVML puts down to nobody, MiB.
pub const UNATTRIBUTED_MIB: u32 = 9;

/// Server, helper and workers; after `next`, only the workers: the test has killed the others.
pub fn play(stage: &mut Stage) -> Result<()> {
    let all: Vec<u32> = (0..GPUS).collect();
    stage.undo_later(&driver::undo())?;
    let server = stage.worker()?;
    call(&server, "python3", "python3 -m vllm.entrypoints.openai.api_server --tensor-parallel-size 8")?;
    let mut workers = Vec::new();
    for rank in 0..GPUS {
        workers.push((rank, server.fork()?));
    }
    Client::open(&server, &all, Use::Compute)?;
    let helper = server.fork()?;
    call(&helper, "python3", "python3 -c from multiprocessing.resource_tracker import main # vllm")?;
    for (rank, worker) in &workers {
        let client = Client::open(worker, &all, Use::Compute)?;
        client.allocate(worker, *rank, ALLOCATED_MIB)?;
        client.allocate_managed(worker, *rank, UNATTRIBUTED_MIB)?;
        let name = format!("VLLM::Worker_TP{rank}");
        call(worker, &name, &name)?;
    }
    let truth = workers.iter().fold(Truth::default(), |truth, (_, worker)| truth.holder(holds(worker)));
    stage.show(truth.clone().holder(holds(&server)).holder(holds(&helper)))?;

    server.await_gone()?;
    helper.await_gone()?;
    stage.show_last(truth.dead(server.pid).dead(helper.pid))
}

/// Every GPU once.
fn holds(worker: &Worker) -> Holds {
    (0..GPUS).fold(Holds::live(worker.pid), |holds, minor| {
        holds.device(&format!("nvidia{minor}"), Counts { maps: 1, ..Counts::fds(1) })
    })
}

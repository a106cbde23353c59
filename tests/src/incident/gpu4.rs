//! A2: after an escalating cleanup GPU 4 is still full. Five variants of what is really there, in front of the same cards.
//!
//! GPUs 0-2 show 1 MiB and 6-7 show 3 MiB (what cards show that nobody uses), GPU 3 the 99 MiB of a process that merely
//! initialised the driver, GPU 5 the same without any process.

use anyhow::{Context as _, Result, bail};

use super::call;
use super::driver::{self, Client, Use, minor};
use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::{Order, Worker};

/// The GPU that is full.
pub const FULL: u32 = 4;
/// What is used of it, MiB.
pub const FULL_MIB: u32 = 93_699;
/// The GPU with an idle context.
pub const IDLE: u32 = 3;
/// What an idle context takes, MiB.
pub const IDLE_MIB: u32 = 99;
/// What the others use with nobody on them: index, MiB.
pub const BASELINES: [(u32, u32); 6] = [(0, 1), (1, 1), (2, 1), (5, 99), (6, 3), (7, 3)];

/// The variant is the first argument; `next` takes away what blocks it, where something does.
pub fn play(stage: &mut Stage) -> Result<()> {
    let variant = stage.arguments.first().cloned().context("which variant?")?;
    stage.undo_later(&driver::undo())?;
    for (index, mib) in BASELINES {
        driver::tell(&format!("baseline {} {mib}", minor(index)))?;
    }
    let idle = stage.worker()?;
    call(&idle, "python3", "python3 -m notebook")?;
    Client::open(&idle, &[IDLE], Use::Idle)?.allocate(&idle, IDLE, IDLE_MIB)?;
    let truth = Truth::default().innocent(idle.pid, "an idle context on GPU 3");
    match variant.as_str() {
        "thread" => thread(stage, truth),
        "inherited" => inherited(stage, truth),
        "releasing" => releasing(stage, truth),
        "in-flight" => in_flight(stage, truth),
        "leak" => leak(stage, truth),
        other => bail!("{other:?} is no variant: thread, inherited, releasing, in-flight, leak"),
    }
}

/// A job that fills GPU 4.
fn job(worker: &Worker) -> Result<Client> {
    call(worker, "python3", "python3 train.py --gpu 4")?;
    let client = Client::open(worker, &[FULL], Use::Compute)?;
    client.allocate(worker, FULL, FULL_MIB)?;
    Ok(client)
}

fn device() -> String {
    format!("nvidia{}", minor(FULL))
}

/// a. Killed; the leader is a zombie and a thread of it sleeps in the driver.
fn thread(stage: &mut Stage, truth: Truth) -> Result<()> {
    let worker = stage.worker()?;
    let client = job(&worker)?;
    let thread = worker.thread()?;
    client.hang(&thread)?;
    thread.await_state("D")?;
    worker.signal(libc::SIGKILL)?;
    worker.await_state("Z")?;
    let holds = Holds::live(worker.pid)
        .tids(&[thread.tid])
        .states('D', 'Z')
        .why(&["thread-of-defunct", "stuck-in-kernel"])
        .device(&device(), Counts { maps: 1, ..Counts::fds(1) });
    stage.show(truth.clone().holder(holds))?;

    driver::tell("wake")?;
    worker.await_gone()?;
    stage.show_last(truth.dead(worker.pid))
}

/// b. The job is dead; a child of it that is called something else has its handles.
fn inherited(stage: &mut Stage, truth: Truth) -> Result<()> {
    let parent = stage.worker()?;
    job(&parent)?;
    let child = parent.fork()?;
    child.order(Order::NewSession)?;
    call(&child, "data-loader", "data-loader: shard 3")?;
    parent.kill()?;
    let holds = Holds::live(child.pid).device(&device(), Counts { maps: 1, ..Counts::fds(1) });
    stage.show_last(truth.holder(holds).dead(parent.pid))
}

/// c. Killed; it is inside the driver's release, its fd table is gone.
fn releasing(stage: &mut Stage, truth: Truth) -> Result<()> {
    let worker = stage.worker()?;
    job(&worker)?;
    driver::tell(&format!("release {} block", minor(FULL)))?;
    worker.signal(libc::SIGKILL)?;
    worker.await_state("D")?;
    stage.show(truth.clone().half_exited(worker.pid))?;

    driver::tell("clear")?;
    worker.await_gone()?;
    stage.show_last(truth.dead(worker.pid))
}

/// d. Exported memory, sent through a socket and not received; the sender is dead.
fn in_flight(stage: &mut Stage, truth: Truth) -> Result<()> {
    let receiver = stage.worker()?;
    call(&receiver, "cache-server", "cache-server --listen")?;
    let (ours, theirs) = receiver.socket_pair()?;
    let sender = receiver.fork()?;
    sender.close(ours)?;
    receiver.close(theirs)?;
    let client = job(&sender)?;
    let exported = client.export(&sender)?;
    sender.send(theirs, &[exported])?;
    sender.kill()?;
    let holds =
        Holds::live(receiver.pid).device("nvidiactl", Counts { in_flight: 1, files: 1, ..Counts::default() });
    stage.show_last(truth.holder(holds).dead(sender.pid))
}

/// e. Nobody at all: the driver did not give it back.
fn leak(stage: &mut Stage, truth: Truth) -> Result<()> {
    driver::tell(&format!("leak {} {FULL_MIB}", minor(FULL)))?;
    let worker = stage.worker()?;
    job(&worker)?;
    worker.kill()?;
    stage.show_last(truth.dead(worker.pid))
}

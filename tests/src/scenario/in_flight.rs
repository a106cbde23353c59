//! Descriptors on their way through unix sockets.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::{Order, Worker};

const IN_FLIGHT: Counts = Counts { fds: 0, maps: 0, in_flight: 1, io_uring: 0, files: 1 };

/// B7: sender and receiver both hold, then only the sender.
pub(super) fn broker(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let broker = stage.worker()?;
    let (ours, theirs) = broker.socket_pair()?;
    let receiver = broker.fork()?;
    let fd = broker.open(&node.path)?;
    broker.send(ours, &[fd])?;
    receiver.receive(theirs)?;
    let holds = |pid| Holds::live(pid).device(&node.name, Counts::fds(1));
    stage.show(
        Truth::default().holder(holds(broker.pid)).holder(holds(receiver.pid)).files(&node.name, 1, 2),
    )?;

    receiver.exit()?;
    broker.order(Order::Reap(receiver.pid_for_maker))?;
    stage.show_last(Truth::default().holder(holds(broker.pid)).files(&node.name, 1, 1).dead(receiver.pid))
}

/// B6: in nobody's table for a while.
pub(super) fn in_flight(stage: &mut Stage) -> Result<()> {
    let receiver = stage.worker()?;
    deliver(stage, &receiver)
}

/// The same where a walk over the initial network namespace's sockets finds nothing.
pub(super) fn other_network_namespace(stage: &mut Stage) -> Result<()> {
    let receiver = stage.worker()?;
    receiver.order(Order::Unshare(libc::CLONE_NEWNET)).context("a network namespace needs root")?;
    deliver(stage, &receiver)
}

/// The same in a network namespace in which no task lives any more: only its sockets keep it.
pub(super) fn deserted_network_namespace(stage: &mut Stage) -> Result<()> {
    let receiver = stage.worker()?;
    receiver.order(Order::Unshare(libc::CLONE_NEWNET)).context("a network namespace needs root")?;
    let pair = receiver.socket_pair()?;
    let home = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
    receiver.order(Order::JoinNamespace(home))?;
    deliver_through(stage, &receiver, pair)
}

fn deliver(stage: &mut Stage, receiver: &Worker) -> Result<()> {
    let pair = receiver.socket_pair()?;
    deliver_through(stage, receiver, pair)
}

fn deliver_through(stage: &mut Stage, receiver: &Worker, (ours, theirs): (i32, i32)) -> Result<()> {
    let node = stage.node().clone();
    let sender = receiver.fork()?;
    sender.close(ours)?;
    receiver.close(theirs)?;
    let fd = sender.open(&node.path)?;
    sender.send(theirs, &[fd])?;
    sender.exit()?;
    receiver.order(Order::Reap(sender.pid_for_maker))?;
    let holds = |counts| Holds::live(receiver.pid).device(&node.name, counts);
    stage.show(Truth::default().holder(holds(IN_FLIGHT)).files(&node.name, 1, 1).dead(sender.pid))?;

    let fds = receiver.receive(ours)?;
    stage.show(Truth::default().holder(holds(Counts::fds(1))).files(&node.name, 1, 1).dead(sender.pid))?;

    receiver.close(*fds.first().context("nothing was received")?)?;
    stage.show_last(Truth::default().innocent(receiver.pid, "closed what it had received"))
}

/// Queued on a connection that has no file of its own yet: the listening socket's owner is the only one to name.
pub(super) fn unaccepted(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let path = stage.dir().join("socket");
    let listener = stage.worker()?;
    let socket = listener.listen(&path)?;
    let sender = stage.worker()?;
    let fd = sender.open(&node.path)?;
    let through = sender.connect(&path)?;
    sender.send(through, &[fd])?;
    sender.kill()?;
    let holds = |counts| Holds::live(listener.pid).device(&node.name, counts);
    let truth = |counts| Truth::default().holder(holds(counts)).files(&node.name, 1, 1).dead(sender.pid);
    stage.show(truth(IN_FLIGHT))?;

    let accepted = listener.accept(socket)?;
    stage.show(truth(IN_FLIGHT))?;

    listener.receive(accepted)?;
    stage.show_last(truth(Counts::fds(1)))
}

/// A socket in a socket: the device's carrier is in nobody's table either.
pub(super) fn nested(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let receiver = stage.worker()?;
    let (ours, theirs) = receiver.socket_pair()?;
    let sender = receiver.fork()?;
    sender.close(ours)?;
    receiver.close(theirs)?;
    let (inner_near, inner_far) = sender.socket_pair()?;
    let fd = sender.open(&node.path)?;
    sender.send(inner_near, &[fd])?;
    sender.send(theirs, &[inner_far])?;
    sender.exit()?;
    receiver.order(Order::Reap(sender.pid_for_maker))?;
    let holds = Holds::live(receiver.pid).device(&node.name, IN_FLIGHT);
    let truth = Truth::default().holder(holds).files(&node.name, 1, 1).dead(sender.pid);
    stage.show(truth.clone())?;

    receiver.receive(ours)?;
    stage.show_last(truth)
}

/// Either of two processes could receive it: both keep it.
pub(super) fn shared(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let receiver = stage.worker()?;
    let (ours, theirs) = receiver.socket_pair()?;
    let sender = receiver.fork()?;
    sender.close(ours)?;
    receiver.close(theirs)?;
    let other = receiver.fork()?;
    let fd = sender.open(&node.path)?;
    sender.send(theirs, &[fd])?;
    sender.exit()?;
    receiver.order(Order::Reap(sender.pid_for_maker))?;
    let holds = |pid| Holds::live(pid).device(&node.name, IN_FLIGHT);
    stage.show(
        Truth::default()
            .holder(holds(receiver.pid))
            .holder(holds(other.pid))
            .files(&node.name, 1, 1)
            .dead(sender.pid),
    )?;

    other.receive(ours)?;
    let holds = Holds::live(other.pid).device(&node.name, Counts::fds(1));
    stage.show_last(
        Truth::default()
            .holder(holds)
            .files(&node.name, 1, 1)
            .dead(sender.pid)
            .innocent(receiver.pid, "the other process received it"),
    )
}

/// The kernel closes what a receiver leaves no room for.
pub(super) fn dropped(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let receiver = stage.worker()?;
    let (ours, theirs) = receiver.socket_pair()?;
    let fd = receiver.open(&node.path)?;
    receiver.send(theirs, &[fd])?;
    receiver.close(fd)?;
    let holds = Holds::live(receiver.pid).device(&node.name, IN_FLIGHT);
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 1))?;

    receiver.order(Order::ReceiveWithoutFds(ours))?;
    stage.show_last(Truth::default().innocent(receiver.pid, "left no room for it"))
}

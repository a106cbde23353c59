//! What others ask of the core, and how it is woken for that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::describer::Described;
use super::feed::Subscriber;
use super::status::Status;
use crate::answer::{self, Looked};
use crate::diagnose::Roles;
use crate::journal::GivenVerdict;
use crate::kernel::Devices;
use crate::model::report::{Cost, Report};
use crate::model::{GpuMemory, ProcessId};

/// What can be asked of the core.
pub(super) enum Order {
    /// Look now, and tell.
    Look(oneshot::Sender<Seen>),
    /// How it is doing.
    Status(oneshot::Sender<Box<Status>>),
    /// Tell this one what happens from now on.
    Subscribe(Subscriber),
    /// What `/proc` says of a process; nothing if it is gone.
    Described(ProcessId, Option<Described>),
    /// How much memory of each GPU was used at that moment, ns of boot time.
    Measured(u64, Vec<GpuMemory>),
    /// What is said of each GPU by what was seen at that moment, ns of boot time.
    Judged(u64, Vec<GivenVerdict>),
}

/// The answer to [`Order::Look`].
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) looked: Arc<Looked>,
    pub(super) devices: Arc<Devices>,
    pub(super) roles: Arc<Roles>,
    pub(super) cost: Cost,
}

impl Seen {
    /// The answer itself, for all GPUs.
    pub(super) fn into_report(self) -> Report {
        // Others may have asked at the same time.
        let looked = Arc::unwrap_or_clone(self.looked);
        answer::report(&self.devices, looked, &self.roles, self.cost)
    }
}

/// The core's side.
pub(super) struct Inbox {
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
}

/// The others' side.
#[derive(Clone)]
pub(super) struct Outbox {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
}

/// Both sides.
pub(super) fn pair() -> std::io::Result<(Outbox, Inbox)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    Ok((Outbox { orders: sender, bell: Arc::clone(&bell) }, Inbox { orders: receiver, bell }))
}

impl Outbox {
    /// False: the core is gone.
    pub(super) fn send(&self, order: Order) -> bool {
        if self.orders.send(order).is_err() {
            return false;
        }
        // It can only fail when it has been rung so often that the core will come anyway.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        true
    }
}

impl Inbox {
    /// What has come so far.
    pub(super) fn take(&self) -> Vec<Order> {
        // First the bell: what comes after that rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.orders.try_iter().collect()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

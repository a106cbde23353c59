//! Facts about the ledger, stated on small worlds.

mod addresses;
mod converging;
mod history;
mod openers;
mod recall;
mod resolving;
mod speed;
mod states;
mod unchanged;

use crate::ledger::{Ledger, View};
use crate::model::change::{Change, ChangeKind};
use crate::model::event::{Access, Event, EventKind, Exit, HeldAtExit, MayWait, Sender, Slot, TaskId};
use crate::model::snapshot::Source;
use crate::model::{
    DeviceNumber, FileKey, Missing, MmKey, ModuleUses, OpenFile, ProcessId, RawText, Reference, Snapshot,
    TableKey, Task, TaskState, Via,
};

/// `nvidia0` of the small worlds.
const GPU0: DeviceNumber = DeviceNumber { major: 195, minor: 0 };
/// `nvidiactl` of the small worlds.
const CTL: DeviceNumber = DeviceNumber { major: 195, minor: 255 };

/// A sleeping task with a table and an address space of its own.
fn task(tgid: u32, tid: u32) -> Task {
    Task {
        tgid,
        tid,
        start_ns: u64::from(tid) * 1_000,
        ppid: 1,
        uid: 1000,
        comm: "python3".into(),
        state: TaskState::Sleeping,
        exiting: false,
        sigkill_pending: false,
        kernel_thread: false,
        frozen: false,
        dumping_core: false,
        tgid_in_ns: tgid,
        pid_ns: 1,
        net_ns: 1,
        table: Some(TableKey(u64::from(tgid))),
        mm: Some(MmKey(u64::from(tgid))),
    }
}

fn zombie(tgid: u32) -> Task {
    Task { state: TaskState::Zombie, exiting: true, table: None, mm: None, ..task(tgid, tgid) }
}

fn device(key: u64, device: DeviceNumber, count: u64) -> OpenFile {
    OpenFile { key: FileKey(key), device, count: Some(count), identity: 0, seen_ns: 0 }
}

fn fd(file: u64, table: u64, fd: u32) -> Reference {
    Reference { file: FileKey(file), via: Via::Fd { table: TableKey(table), fd } }
}

fn map(file: u64, mm: u64, start: u64) -> Reference {
    Reference { file: FileKey(file), via: Via::Map { mm: MmKey(mm), start, end: start + 4096 } }
}

fn in_flight(file: u64, socket: u64) -> Reference {
    Reference { file: FileKey(file), via: Via::InFlight { socket: FileKey(socket), inode: socket, slot: 0 } }
}

fn world(taken_ns: u64, tasks: Vec<Task>, files: Vec<OpenFile>, references: Vec<Reference>) -> Snapshot {
    Snapshot {
        taken_ns,
        source: Source::Iterators,
        tasks,
        files,
        references,
        missing: Vec::new(),
        modules: ModuleUses::default(),
    }
}

/// The process of [`task`]`(tgid, tgid)`.
fn process(tgid: u32) -> ProcessId {
    ProcessId { tgid, start_ns: u64::from(tgid) * 1_000 }
}

fn leader(tgid: u32) -> TaskId {
    TaskId::leader(process(tgid))
}

/// A task on its way through exit with nothing left that could be seen.
fn half_gone(tgid: u32, tid: u32) -> Task {
    Task { exiting: true, table: None, mm: None, state: TaskState::Uninterruptible, ..task(tgid, tid) }
}

fn event(at_ns: u64, kind: EventKind) -> Event {
    Event { at_ns, kind }
}

fn touched(at_ns: u64, tgid: u32, device: DeviceNumber) -> Event {
    let access = Access { read: true, write: true };
    event(
        at_ns,
        EventKind::DeviceTouched {
            task: leader(tgid),
            device,
            access,
            slot: None,
            file: None,
            untold_until_ns: None,
            comm: "python3".into(),
        },
    )
}

/// Asks for a device with this descriptor reserved.
fn opens(at_ns: u64, tgid: u32, device: DeviceNumber, fd: u32) -> Event {
    let (access, table) = (Access { read: true, write: true }, TableKey(u64::from(tgid)));
    let (task, slot, comm) = (leader(tgid), Some(Slot { table, fd }), "python3".into());
    event(
        at_ns,
        EventKind::DeviceTouched { task, device, access, slot, file: None, untold_until_ns: None, comm },
    )
}

fn opened(at_ns: u64, tgid: u32, file: u64, device: DeviceNumber) -> Event {
    let kind = EventKind::Opened { file: FileKey(file), device, task: leader(tgid), comm: "python3".into() };
    event(at_ns, kind)
}

fn released(at_ns: u64, file: u64) -> Event {
    event(at_ns, EventKind::Released { file: FileKey(file), task: None })
}

fn forked(at_ns: u64, parent: u32, child: u32) -> Event {
    let kind = EventKind::Forked { parent: leader(parent), child: leader(child), comm: "python3".into() };
    event(at_ns, kind)
}

fn exiting(at_ns: u64, tgid: u32, code: i32, held: &[(u64, u32)]) -> Event {
    let held = held
        .iter()
        .map(|(file, fd)| HeldAtExit { file: FileKey(*file), device: GPU0, fd: *fd, identity: 0 })
        .collect();
    let table = Some(TableKey(u64::from(tgid)));
    event(
        at_ns,
        EventKind::Exiting {
            task: leader(tgid),
            group_dead: true,
            exit: Exit(code),
            table,
            held,
            may_wait: Vec::new(),
        },
    )
}

fn killed(at_ns: u64, sender: u32, target: u32) -> Event {
    let sender = Sender { task: leader(sender), comm: "pkill".into(), uid: 0 };
    event(at_ns, EventKind::Signalled { sender, target: leader(target), signal: 9, code: 0 })
}

fn checked(at_ns: u64, file: u64, count: Option<u64>) -> Event {
    event(at_ns, EventKind::FileChecked { file: FileKey(file), count, still_same: count.is_some() })
}

/// What changed, each with the process concerned.
fn said(changes: &[Change]) -> Vec<(Option<u32>, &ChangeKind)> {
    changes.iter().map(|change| (change.process.map(|process| process.tgid), &change.kind)).collect()
}

/// (tgid, tid, fds, dropping) per holder, summed over files.
fn holding(view: &View) -> Vec<(u32, u32, u64, u64)> {
    let sum = |holder: &crate::ledger::HolderView, field: fn(&crate::ledger::HeldFile) -> u64| {
        holder.held.iter().map(field).sum()
    };
    view.holders
        .iter()
        .map(|holder| {
            let (fds, dropping) = (sum(holder, |held| held.fds), sum(holder, |held| held.dropping));
            (holder.process.tgid, holder.carrier.tid, fds, dropping)
        })
        .collect()
}

/// One process with one descriptor of `nvidia0`, seen at `taken_ns`.
fn one_holder(taken_ns: u64) -> Snapshot {
    world(taken_ns, vec![task(10, 10)], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)])
}

/// A ledger that has seen [`one_holder`] at 100,000.
fn ledger_with_one_holder() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.reconcile(&one_holder(100_000));
    ledger
}

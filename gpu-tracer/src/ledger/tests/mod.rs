//! Facts about the ledger, stated on small worlds.

mod resolving;

use crate::model::snapshot::Source;
use crate::model::{
    DeviceNumber, FileKey, MmKey, OpenFile, Reference, Snapshot, TableKey, Task, TaskState, Via,
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
    OpenFile { key: FileKey(key), device, count: Some(count) }
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
    Snapshot { taken_ns, source: Source::Iterators, tasks, files, references, missing: Vec::new() }
}

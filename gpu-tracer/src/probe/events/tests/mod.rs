//! Records that no kernel needs to have written.

mod decoding;
mod rechecking;
mod translating;

use gpu_tracer_common::{
    events::{
        DriverRecord, EventHead, ExecRecord, ExitHold, ExitRecord, ForkRecord, KIND_CALLED, KIND_DEFERRED,
        KIND_EXECED, KIND_EXITING, KIND_FORKED, KIND_FREED, KIND_MAPPED, KIND_MODULE_LOADED,
        KIND_MODULE_UNLOADED, KIND_OPENED, KIND_OPENING, KIND_RELEASED, KIND_RELEASING, KIND_RENAMED,
        KIND_SIGNALLED, KIND_TOUCHED, KIND_VICTIM, ModuleRecord, RenameRecord, SignalRecord, TaskRef,
        TouchRecord,
    },
    snapshot::Header,
};
use zerocopy::IntoBytes;

use crate::model::{DeviceNumber, DeviceRange, DeviceTable, ProcessId, device::Naming, event::TaskId};

const GPU0: DeviceNumber = DeviceNumber { major: 195, minor: 0 };
const NOT_OURS: DeviceNumber = DeviceNumber { major: 195, minor: 7 };
const TASK: TaskRef = TaskRef { tgid: 500, tid: 501, start_ns: 70 };
const SAME_TASK: TaskId = TaskId { process: ProcessId { tgid: 500, start_ns: 70 }, tid: 501 };

fn devices() -> DeviceTable {
    let range = DeviceRange { major: 195, first: 0, last: 1, naming: Naming::Numbered("nvidia".into()) };
    DeviceTable { ranges: vec![range], gpu_nodes: vec![(GPU0, 0)] }
}

fn head(kind: u16, detail: u32) -> EventHead {
    EventHead { header: Header::new(kind), detail, at_ns: 1000, task: TASK }
}

fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

fn touch(detail: u32, device: DeviceNumber, hits: u64) -> TouchRecord {
    let rdev = device.to_kernel();
    let head = head(KIND_TOUCHED, detail);
    TouchRecord { head, rdev, fd: 7, table: 0xf00, hits, cgroup: 42, file: 0xabc, comm: text("python3") }
}

fn exit(detail: u32, held: &[(u64, DeviceNumber, u32)]) -> Vec<u8> {
    let record = ExitRecord {
        head: head(KIND_EXITING, detail),
        exit_code: 9,
        held: held.len().try_into().expect("few"),
        table: 0xf00,
    };
    let mut bytes = record.as_bytes().to_vec();
    for (file, device, fd) in held {
        let hold = ExitHold { file: *file, identity: 1, rdev: device.to_kernel(), fd: *fd };
        bytes.extend_from_slice(hold.as_bytes());
    }
    bytes
}

fn in_driver(kind: u16, device: DeviceNumber, work: u64, result: i32) -> Vec<u8> {
    let (head, rdev) = (head(kind, 0), device.to_kernel());
    DriverRecord { head, file: 0xabc, work, rdev, result, comm: text("python3") }.as_bytes().to_vec()
}

/// One record of each kind, as bytes.
fn one_of_each() -> Vec<Vec<u8>> {
    let child = TaskRef { tgid: 502, tid: 502, start_ns: 90 };
    let sender = TaskRef { tgid: 1, tid: 1, start_ns: 1 };
    let module = |kind| ModuleRecord { head: head(kind, 0), name: text("nvidia_uvm") };
    vec![
        touch(3, GPU0, 1).as_bytes().to_vec(),
        ForkRecord { head: head(KIND_FORKED, 0), child, comm: text("python3") }.as_bytes().to_vec(),
        ExecRecord { head: head(KIND_EXECED, 0), comm: text("sh") }.as_bytes().to_vec(),
        exit(1, &[(0xabc, GPU0, 7)]),
        head(KIND_FREED, 0).as_bytes().to_vec(),
        RenameRecord { head: head(KIND_RENAMED, 0), old: text("python3"), new: text("VLLM::Worker_TP") }
            .as_bytes()
            .to_vec(),
        SignalRecord {
            head: head(KIND_SIGNALLED, 9),
            sender,
            sender_uid: 1000,
            code: -6,
            sender_comm: text("pkill"),
        }
        .as_bytes()
        .to_vec(),
        head(KIND_VICTIM, 0).as_bytes().to_vec(),
        module(KIND_MODULE_LOADED).as_bytes().to_vec(),
        module(KIND_MODULE_UNLOADED).as_bytes().to_vec(),
        in_driver(KIND_OPENING, GPU0, 0, 0),
        in_driver(KIND_OPENED, GPU0, 0, 0),
        in_driver(KIND_RELEASING, GPU0, 0xdef, 0),
        in_driver(KIND_DEFERRED, GPU0, 0xdef, 0),
        in_driver(KIND_RELEASED, GPU0, 0, 0),
        in_driver(KIND_MAPPED, GPU0, 0, 0),
        head(KIND_CALLED, 0).as_bytes().to_vec(),
    ]
}

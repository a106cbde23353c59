//! Records to events of the model.

use std::collections::HashMap;

use gpu_tracer_common::events::{
    DriverRecord, EventHead, ExitHold, ExitRecord, ForkRecord, KIND_DEFERRED, KIND_MAPPED, KIND_OPENED,
    KIND_OPENING, KIND_RELEASING, MAY_WAIT, NO_FD, SignalRecord, TaskRef, TouchKey, TouchRecord, WINDOW_NS,
    access_bits, exit_bits,
};

use super::decode::Record;
use crate::model::{
    DeviceNumber, DeviceTable, FileKey, ProcessId, RawText, TableKey,
    event::{Access, Event, EventKind, Exit, HeldAtExit, MayWait, Sender, Slot, TaskId},
};

/// Unfinished exits that are kept; there are never more than tasks exiting at the same time.
const MAX_PARTS: usize = 1024;
/// Pairs of process and device that are kept until they are asked for.
const MAX_TOUCHED: usize = 8192;
/// How long after the end of a window it is certain that no touch of that window is on its way.
const SLACK_NS: u64 = 10_000_000;

/// A process asked for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Which process.
    pub process: ProcessId,
    /// Which device.
    pub device: DeviceNumber,
    /// When last, ns of boot time.
    pub at_ns: u64,
    /// Id of its cgroup in the v2 hierarchy (the inode number of its directory), where known.
    pub cgroup: Option<u64>,
}

/// Touches that may have been counted and not recorded.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    /// When there will be no more of them in this window.
    pub(super) due_ns: u64,
    /// Touches accounted for.
    pub(super) hits: u64,
    touched: Touched,
    tid: u32,
    access: Access,
    comm: RawText,
}

/// What has to be remembered from one record to another.
#[derive(Debug, Default)]
pub(super) struct Translator {
    devices: DeviceTable,
    /// Files of exits whose last record has not come.
    parts: HashMap<TaskId, Table>,
    touched: HashMap<(ProcessId, DeviceNumber), Touched>,
    doubts: HashMap<TouchKey, Doubt>,
}

impl Translator {
    pub(super) fn set_devices(&mut self, devices: &DeviceTable) {
        self.devices.clone_from(devices);
    }

    /// The event that a record stands for; `None` where it is part of one that follows, or of no interest.
    pub(super) fn translate(&mut self, record: Record) -> Option<Event> {
        let (head, kind) = match record {
            Record::Touched(record) => (record.head, self.touched(&record)?),
            Record::Forked(record) => (record.head, forked(&record)),
            Record::Execed(record) => {
                let comm = RawText::from_c_field(&record.comm);
                (record.head, EventKind::Execed { task: task(record.head.task), comm })
            }
            Record::Exiting(record, held) => (record.head, self.exiting(&record, &held)?),
            Record::Freed(head) => (head, EventKind::Freed { task: task(head.task) }),
            Record::Renamed(record) => {
                let (old, new) = (RawText::from_c_field(&record.old), RawText::from_c_field(&record.new));
                (record.head, EventKind::Renamed { task: task(record.head.task), old, new })
            }
            Record::Signalled(record) => (record.head, signalled(&record)),
            Record::Victim(head) => (head, EventKind::OomKilled { victim: task(head.task) }),
            Record::ModuleLoaded(record) => {
                (record.head, EventKind::ModuleLoaded { name: name(&record.name) })
            }
            Record::ModuleUnloaded(record) => {
                (record.head, EventKind::ModuleUnloaded { name: name(&record.name) })
            }
            Record::InDriver(record) => (record.head, self.in_driver(&record)?),
            Record::Called(head) => (head, EventKind::Called { task: task(head.task) }),
        };
        Some(Event { at_ns: head.at_ns, kind })
    }

    /// What happened to a file inside the driver. A file of a device that is not known yet is found by the next look.
    fn in_driver(&self, record: &DriverRecord) -> Option<EventKind> {
        let task = task(record.head.task);
        let device = DeviceNumber::from_kernel(record.rdev);
        let file = FileKey(record.file);
        let known = self.devices.identify(device).is_some();
        let comm = || RawText::from_c_field(&record.comm);
        let kind = match record.head.header.kind {
            KIND_OPENED if record.result < 0 => {
                return Some(EventKind::OpenFailed { file, error: record.result });
            }
            KIND_OPENING => EventKind::Opening { file, device, task, comm: comm() },
            KIND_OPENED => EventKind::Opened { file, device, task, comm: comm() },
            KIND_RELEASING => EventKind::Releasing { file, device, task },
            KIND_MAPPED => EventKind::Mapped { file, task },
            KIND_DEFERRED => EventKind::ReleaseDeferred { file, device, work: FileKey(record.work) },
            // The file whose release was deferred has gone, and its address may be that of another.
            _ => {
                let file = if record.work == 0 { file } else { FileKey(record.work) };
                return Some(EventKind::Released { file, task: Some(task) });
            }
        };
        known.then_some(kind)
    }

    fn touched(&mut self, record: &TouchRecord) -> Option<EventKind> {
        let device = DeviceNumber::from_kernel(record.rdev);
        // The programs ask for whole majors where a range is long.
        self.devices.identify(device)?;
        let EventHead { detail, at_ns, task: TaskRef { tgid, tid, .. }, .. } = record.head;
        let access =
            Access { read: detail & access_bits::READ != 0, write: detail & access_bits::WRITE != 0 };
        let task = task(record.head.task);
        let comm = RawText::from_c_field(&record.comm);
        let cgroup = (record.cgroup != 0).then_some(record.cgroup);
        let touched = Touched { process: task.process, device, at_ns, cgroup };
        self.remember(touched);
        let key = TouchKey { tgid, rdev: record.rdev };
        if detail & access_bits::LAST_OF_WINDOW == 0 {
            self.doubts.remove(&key);
        } else {
            let due_ns = at_ns + WINDOW_NS + SLACK_NS;
            let comm = comm.clone();
            self.doubts.insert(key, Doubt { due_ns, hits: record.hits, touched, tid, access, comm });
        }
        let slot = (record.table != 0 && record.fd != NO_FD)
            .then_some(Slot { table: TableKey(record.table), fd: record.fd });
        let file = (record.file != 0).then_some(FileKey(record.file));
        let untold_until_ns = (detail & access_bits::LAST_OF_WINDOW != 0).then_some(at_ns + WINDOW_NS);
        Some(EventKind::DeviceTouched { task, device, access, slot, file, untold_until_ns, comm })
    }

    fn remember(&mut self, touched: Touched) {
        if self.touched.len() < MAX_TOUCHED || self.touched.contains_key(&(touched.process, touched.device)) {
            self.touched.insert((touched.process, touched.device), touched);
        }
    }

    /// Who asked for what since this was last asked.
    pub(super) fn take_touched(&mut self) -> Vec<Touched> {
        self.touched.drain().map(|(_, touched)| touched).collect()
    }

    /// When the next doubt can be settled, ns of boot time.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.doubts.values().map(|doubt| doubt.due_ns).min()
    }

    /// Settles the doubts that are due: `hits` says how often a process has touched a device by now, `None` where the
    /// kernel has forgotten. Touches that were only counted become one event, so that somebody goes and looks.
    pub(super) fn settle(
        &mut self,
        now_ns: u64,
        mut hits: impl FnMut(TouchKey, ProcessId) -> Option<u64>,
        events: &mut Vec<Event>,
    ) {
        let due: Vec<TouchKey> =
            self.doubts.iter().filter(|(_, doubt)| doubt.due_ns <= now_ns).map(|(key, _)| *key).collect();
        for key in due {
            let Some(mut doubt) = self.doubts.remove(&key) else { continue };
            let process = doubt.touched.process;
            // What has been forgotten may have been touched again meanwhile.
            let now = hits(key, process).unwrap_or(u64::MAX);
            if now == doubt.hits {
                continue;
            }
            doubt.touched.at_ns = now_ns;
            self.remember(doubt.touched);
            events.push(Event {
                at_ns: now_ns,
                kind: EventKind::DeviceTouched {
                    task: TaskId { process, tid: doubt.tid },
                    device: doubt.touched.device,
                    access: doubt.access,
                    slot: None,
                    file: None,
                    untold_until_ns: None,
                    comm: doubt.comm,
                },
            });
        }
    }

    fn exiting(&mut self, record: &ExitRecord, held: &[ExitHold]) -> Option<EventKind> {
        let task = task(record.head.task);
        let mut table = Table::default();
        for hold in held {
            let device = DeviceNumber::from_kernel(hold.rdev);
            if hold.rdev == MAY_WAIT {
                table.may_wait.push(MayWait { fd: hold.fd, file_system: hold.identity });
            } else if self.devices.contains(device) {
                let file = FileKey(hold.file);
                table.held.push(HeldAtExit { file, device, fd: hold.fd, identity: hold.identity });
            }
        }
        if record.head.detail & exit_bits::MORE != 0 {
            if self.parts.len() >= MAX_PARTS {
                // Their last records are lost, which has been counted.
                self.parts.clear();
            }
            self.parts.entry(task).or_default().append(table);
            return None;
        }
        let mut all = self.parts.remove(&task).unwrap_or_default();
        all.append(table);
        Some(EventKind::Exiting {
            task,
            group_dead: record.head.detail & exit_bits::GROUP_DEAD != 0,
            exit: Exit(record.exit_code),
            table: (record.table != 0).then_some(TableKey(record.table)),
            held: all.held,
            may_wait: all.may_wait,
        })
    }
}

/// What is in the fd table of a task that exits.
#[derive(Debug, Default)]
struct Table {
    held: Vec<HeldAtExit>,
    may_wait: Vec<MayWait>,
}

impl Table {
    fn append(&mut self, mut more: Self) {
        self.held.append(&mut more.held);
        self.may_wait.append(&mut more.may_wait);
    }
}

fn task(task: TaskRef) -> TaskId {
    TaskId { process: ProcessId { tgid: task.tgid, start_ns: task.start_ns }, tid: task.tid }
}

fn forked(record: &ForkRecord) -> EventKind {
    EventKind::Forked {
        parent: task(record.head.task),
        child: task(record.child),
        comm: RawText::from_c_field(&record.comm),
    }
}

fn signalled(record: &SignalRecord) -> EventKind {
    EventKind::Signalled {
        sender: Sender {
            task: task(record.sender),
            comm: RawText::from_c_field(&record.sender_comm),
            uid: record.sender_uid,
        },
        target: task(record.head.task),
        signal: record.head.detail.cast_signed(),
        code: record.code,
    }
}

/// Names of modules are plain, but they are bytes from the kernel all the same.
fn name(field: &[u8]) -> String {
    RawText::from_c_field(field).to_text()
}

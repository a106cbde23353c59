//! From a change of the ledger to a line for people and programs: numbers get the names that go with them.

use std::collections::HashMap;

use crate::kernel::{Clock, Devices};
use crate::ledger::Ledger;
use crate::model::ProcessId;
use crate::model::change::{Change, ChangeKind, Killer};
use crate::model::event::{Exit, TaskId};
use crate::model::happening::{Happening, Party};

/// What is needed to name things.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) devices: &'a Devices,
    pub(super) clock: &'a Clock,
    /// Real users of processes seen lately.
    pub(super) uids: &'a HashMap<ProcessId, u32>,
}

impl Names<'_> {
    /// The line for a change.
    pub(super) fn happening(&self, change: &Change) -> Happening {
        let device = change.device.map(|number| {
            self.devices
                .table
                .identify(number)
                .map_or_else(|| (number.to_string(), None), |known| (known.name, known.gpu))
        });
        let (device, gpu) = device.map_or((None, None), |(name, gpu)| (Some(name), gpu));
        let mut line = Happening {
            at: wall(self.clock, change.at_ns),
            at_ns: change.at_ns,
            file: change.file,
            device,
            gpu,
            process: change.process.map(|process| self.party(process)),
            ..Happening::default()
        };
        self.fill(&mut line, &change.kind);
        line
    }

    fn fill(&self, line: &mut Happening, kind: &ChangeKind) {
        (line.what, line.exact) = (kind.word().to_owned(), !kind.is_by_then());
        match kind {
            ChangeKind::Opened { opener, .. } => {
                if let Some(process) = &mut line.process {
                    process.comm = opener.comm.clone();
                }
            }
            ChangeKind::Opening { task } | ChangeKind::Releasing { task } => line.tid = thread(*task),
            ChangeKind::OpenFailed { error } => line.errno = Some(-error).filter(|errno| *errno > 0),
            ChangeKind::Inherited { from } => line.from = vec![self.party(*from)],
            ChangeKind::HandedOver { from } => line.from = self.parties(from.iter().copied()),
            ChangeKind::Closed { cause } => line.cause = Some(cause.word().to_owned()),
            ChangeKind::Renamed { tid, old, new } => {
                line.tid = line.process.as_ref().is_some_and(|process| process.pid != *tid).then_some(*tid);
                (line.old, line.new) = (Some(old.clone()), Some(new.clone()));
            }
            ChangeKind::Execed { comm } => line.new = Some(comm.clone()),
            ChangeKind::Reparented { from, to } => {
                let bare = |pid: &u32| Party { pid: *pid, ..Party::default() };
                (line.from, line.by) = (vec![bare(from)], vec![bare(to)]);
            }
            ChangeKind::Signalled { by, signal } => {
                line.signal = Some(*signal);
                self.blame(line, by);
            }
            ChangeKind::Killed { by } => {
                line.signal = Some(SIGKILL);
                self.blame(line, by);
            }
            ChangeKind::Exiting { tid, exit, by, .. } => {
                line.tid = line.process.as_ref().is_some_and(|process| process.pid != *tid).then_some(*tid);
                end(line, *exit);
                if let Some(by) = by {
                    self.blame(line, by);
                }
            }
            ChangeKind::Detached { by } => line.by = self.parties(by.iter().map(|task| task.process)),
            ChangeKind::Released { how, last_holder, after_kill_ns, after_exit_ns } => {
                line.cause = Some(how.word().to_owned());
                line.process = line.process.take().or_else(|| last_holder.map(|last| self.party(last)));
                line.after_kill_us = after_kill_ns.map(|ns| ns / 1000);
                line.after_exit_us = after_exit_ns.map(|ns| ns / 1000);
            }
            ChangeKind::Gap(gap) => {
                line.since = Some(wall(self.clock, gap.from_ns));
                (line.cause, line.count) = (Some(gap.cause.word()), gap.cause.events());
            }
            ChangeKind::Module { name, .. } => line.cause = Some(name.clone()),
            ChangeKind::Mapped { .. }
            | ChangeKind::Unmapped
            | ChangeKind::DescriptorsClosed
            | ChangeKind::Queued
            | ChangeKind::Registered
            | ChangeKind::Pinned
            | ChangeKind::Found
            | ChangeKind::Exited
            | ChangeKind::Unreferenced
            | ChangeKind::Deferred => {}
        }
    }

    fn blame(&self, line: &mut Happening, by: &Killer) {
        match by {
            Killer::Process(sender) => {
                let mut party = self.party(sender.task.process);
                party.comm = sender.comm.clone();
                party.uid = Some(sender.uid);
                line.by = vec![party];
            }
            Killer::Kernel => line.by_kernel = Some("kernel".to_owned()),
            Killer::OutOfMemory => line.by_kernel = Some("out-of-memory".to_owned()),
        }
    }

    fn parties(&self, processes: impl Iterator<Item = ProcessId>) -> Vec<Party> {
        processes.map(|process| self.party(process)).collect()
    }

    fn party(&self, process: ProcessId) -> Party {
        let history = self.ledger.history(process);
        Party {
            pid: process.tgid,
            start_ns: process.start_ns,
            uid: self.uids.get(&process).copied(),
            comm: history.map(|history| history.comm.clone()).unwrap_or_default(),
            cmdline: history
                .and_then(|history| history.description.as_ref())
                .map(|description| description.cmdline.clone()),
        }
    }
}

const SIGKILL: i32 = 9;

/// RFC 3339, UTC, milliseconds.
pub(super) fn wall(clock: &Clock, boot_ns: u64) -> String {
    format!("{:.3}", clock.wall(boot_ns))
}

fn thread(task: TaskId) -> Option<u32> {
    (!task.is_leader()).then_some(task.tid)
}

fn end(line: &mut Happening, exit: Exit) {
    line.signal = exit.signal();
    line.exit_status = exit.status();
    if exit.dumped_core() {
        line.cause = Some("core-dump".to_owned());
    }
}

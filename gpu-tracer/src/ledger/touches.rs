//! Who asked for which device lately: the only word of an open that a kernel without kprobes gives.
//!
//! A touch comes before the open it announces, and also for opens that fail and for `access(2)`. When a snapshot shows
//! new files, those of one process on one device are matched with that process's latest touches of it, in order.

use std::collections::VecDeque;

use super::hash::{Map, Set};
use crate::model::event::TaskId;
use crate::model::{DeviceNumber, ProcessId, RawText};

/// Touches remembered per process and device. A CUDA start makes about 30 of one device.
const TIMES_KEPT: usize = 64;
/// Pairs of process and device remembered. When there are more, the older half is forgotten.
const LOGS_KEPT: usize = 8_192;

#[derive(Clone, Debug)]
struct Log {
    tid: u32,
    comm: RawText,
    times: VecDeque<u64>,
    /// Some were forgotten, so that matching them one to one means nothing.
    overflowed: bool,
}

/// Touches that no file has been matched with.
#[derive(Clone, Debug, Default)]
pub(super) struct Touches {
    logs: Map<(ProcessId, DeviceNumber), Log>,
    processes: Set<ProcessId>,
}

/// What the touches say of one or more opens of a device by a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) task: TaskId,
    pub(super) comm: RawText,
    /// One per file, in the order of opening.
    pub(super) times: Vec<u64>,
    /// As many touches as files.
    pub(super) exact: bool,
}

impl Touches {
    pub(super) fn add(&mut self, at_ns: u64, task: TaskId, device: DeviceNumber, comm: &RawText) {
        let log = self.logs.entry((task.process, device)).or_insert_with(|| {
            self.processes.insert(task.process);
            Log { tid: task.tid, comm: comm.clone(), times: VecDeque::new(), overflowed: false }
        });
        if log.times.contains(&at_ns) {
            return;
        }
        log.tid = task.tid;
        log.comm.clone_from(comm);
        if log.times.len() == TIMES_KEPT {
            log.times.pop_front();
            log.overflowed = true;
        }
        log.times.push_back(at_ns);
        if self.logs.len() > LOGS_KEPT {
            self.forget_older_half();
        }
    }

    fn forget_older_half(&mut self) {
        let mut latest: Vec<u64> = self.logs.values().filter_map(|log| log.times.back().copied()).collect();
        let middle = latest.len() / 2;
        let (_, median, _) = latest.select_nth_unstable(middle);
        let median = *median;
        self.logs.retain(|_, log| log.times.back().is_some_and(|last| *last > median));
        self.index();
    }

    /// Has this process touched the device after this moment?
    pub(super) fn since(&self, process: ProcessId, device: DeviceNumber, ns: u64) -> bool {
        self.logs.get(&(process, device)).is_some_and(|log| log.times.iter().any(|at| *at > ns))
    }

    /// Are there touches of this device by this process that no file has been matched with?
    pub(super) fn any(&self, process: ProcessId, device: DeviceNumber) -> bool {
        self.logs.get(&(process, device)).is_some_and(|log| !log.times.is_empty())
    }

    /// For each device that one process alone has touched since: that process.
    pub(super) fn only_touchers(&self, since_ns: u64) -> Map<DeviceNumber, ProcessId> {
        let mut touchers: Map<DeviceNumber, Option<ProcessId>> = Map::default();
        for ((process, device), log) in &self.logs {
            if log.times.iter().any(|at| *at > since_ns) {
                touchers.entry(*device).and_modify(|one| *one = None).or_insert(Some(*process));
            }
        }
        touchers.into_iter().filter_map(|(device, process)| Some((device, process?))).collect()
    }

    /// Matches `files` new files with the latest touches, and forgets those and whatever came before them.
    ///
    /// `all_new`: the files are known to be younger than the first touch; otherwise some may be older, and fewer touches
    /// than files say nothing of any of them.
    pub(super) fn take(
        &mut self,
        process: ProcessId,
        device: DeviceNumber,
        files: usize,
        all_new: bool,
    ) -> Option<Matched> {
        let log = self.logs.get_mut(&(process, device))?;
        log.times.make_contiguous().sort_unstable();
        let touches = log.times.len();
        if touches == 0 || files == 0 || (touches < files && !all_new) {
            return None;
        }
        let exact = touches == files && !log.overflowed;
        let mut times: Vec<u64> = log.times.drain(..).skip(touches.saturating_sub(files)).collect();
        // Fewer touches than files: one was lost, or forgotten. The first is the nearest that can be said.
        while times.len() < files {
            times.insert(0, times[0]);
        }
        log.overflowed = false;
        let task = TaskId { process, tid: log.tid };
        Some(Matched { task, comm: log.comm.clone(), times, exact })
    }

    /// Has this process touched anything that no file has been matched with?
    pub(super) fn has(&self, process: ProcessId) -> bool {
        self.processes.contains(&process)
    }

    /// Processes with touches that no file has been matched with.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.iter().copied()
    }

    /// Forgets touches that have been matched and those of processes that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(ProcessId) -> bool) {
        self.logs.retain(|(process, _), log| !log.times.is_empty() && keep(*process));
        self.index();
    }

    fn index(&mut self) {
        self.processes = self.logs.keys().map(|(process, _)| *process).collect();
    }
}

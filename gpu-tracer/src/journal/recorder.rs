//! The core's side of the journal: what changed becomes records, with what is needed to name processes and devices.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::health::{Health, Shared};
use super::queue::Queue;
use super::record::{GivenVerdict, Lost, ProcessRecord, Record, Standing, StandingFile, StandingHolding};
use crate::ledger::{Ledger, Origin, View};
use crate::model::change::{Change, ChangeKind, Killer, SharedDescription};
use crate::model::{DeviceNumber, DeviceTable, Gpu, ProcessId, RawText};

/// At the end of the daemon the disk gets this long.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Processes whose last record is remembered; when there are more, all are described again.
const TOLD_MAX: usize = 65_536;

/// What the journal was told of a process.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    comm: RawText,
    uid: Option<u32>,
    parent: Option<ProcessId>,
    /// The allocation is enough: descriptions are not changed, only replaced.
    description: Option<usize>,
}

/// Tells the journal. Dropping it ends the writer.
pub struct Recorder {
    queue: Queue,
    health: Shared,
    writer: Option<JoinHandle<()>>,
    /// The writer has lost what it knew.
    wanted: Arc<AtomicBool>,
    told: HashMap<ProcessId, Told>,
    devices: HashSet<DeviceNumber>,
    lost: Option<Lost>,
    latest_ns: u64,
    buffer: Vec<Record>,
    gpus: Vec<Gpu>,
}

impl Recorder {
    pub(super) fn new(
        queue: Queue,
        health: Shared,
        wanted: Arc<AtomicBool>,
        writer: JoinHandle<()>,
        now_ns: u64,
    ) -> Self {
        Self {
            queue,
            health,
            writer: Some(writer),
            wanted,
            told: HashMap::new(),
            devices: HashSet::new(),
            lost: None,
            latest_ns: now_ns,
            buffer: Vec::new(),
            gpus: Vec::new(),
        }
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.get()
    }

    /// Writes down what changed. Never waits.
    pub fn changes(
        &mut self,
        changes: &[Change],
        ledger: &Ledger,
        devices: &DeviceTable,
        uids: &HashMap<ProcessId, u32>,
    ) {
        if let Some(lost) = &mut self.lost {
            lost.records += changes.len() as u64;
            return;
        }
        for change in changes {
            self.latest_ns = self.latest_ns.max(change.at_ns);
            self.name_device(change.device, devices);
            for process in named(change) {
                self.describe(process, change.at_ns, ledger, uids);
            }
            self.buffer.push(Record::Change(change.clone()));
        }
        self.push();
    }

    /// Something more is known of a process.
    pub fn described(
        &mut self,
        process: ProcessId,
        now_ns: u64,
        ledger: &Ledger,
        uids: &HashMap<ProcessId, u32>,
    ) {
        if self.lost.is_none() && self.told.contains_key(&process) {
            self.describe(process, now_ns, ledger, uids);
            self.push();
        }
    }

    /// The devices of this host have been discovered (again).
    pub fn discovered(&mut self, gpus: &[Gpu]) {
        self.devices.clear();
        self.gpus = gpus.to_vec();
        self.other(Record::Gpus(self.gpus.clone()));
    }

    /// A sign of life, with the wall clock at boot.
    pub fn alive(&mut self, at_ns: u64, wall_offset_ns: i128) {
        self.latest_ns = self.latest_ns.max(at_ns);
        let limit = |ns: i128| i64::try_from(ns).unwrap_or(i64::MAX);
        self.other(Record::Alive { at_ns, wall_offset_ns: limit(wall_offset_ns) });
    }

    /// How much memory of a GPU is used.
    pub fn memory(&mut self, at_ns: u64, gpu: u32, used_mib: Option<u64>, total_mib: Option<u64>) {
        self.other(Record::Memory { at_ns, gpu, used_mib, total_mib });
    }

    /// What is said of GPUs.
    pub fn verdicts(&mut self, at_ns: u64, verdicts: Vec<GivenVerdict>) {
        self.other(Record::Verdicts { at_ns, verdicts });
    }

    /// What these say is not missed: it comes again.
    fn other(&mut self, record: Record) {
        if self.lost.is_none() {
            self.buffer.push(record);
            self.push();
        }
    }

    /// Does the journal have to be told all that is held, by [`Recorder::standing`], after a look?
    #[must_use]
    pub fn wants_standing(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) || (self.lost.is_some() && self.queue.is_half_empty())
    }

    /// All that is held, just after a look.
    pub fn standing(
        &mut self,
        view: &View,
        ledger: &Ledger,
        devices: &DeviceTable,
        uids: &HashMap<ProcessId, u32>,
        now_ns: u64,
    ) {
        self.wanted.store(false, Ordering::Relaxed);
        self.told.clear();
        self.devices.clear();
        let lost = self.lost.take();
        // It may be another file by now.
        self.buffer.push(Record::Gpus(self.gpus.clone()));
        let files: Vec<StandingFile> = view
            .files
            .iter()
            .map(|file| StandingFile {
                id: file.id,
                device: file.device,
                opened: file.opened.as_ref().map(|opened| (opened.at_ns, opened.opener.process)),
            })
            .collect();
        for file in &files {
            self.name_device(Some(file.device), devices);
            if let Some((at_ns, opener)) = file.opened {
                self.describe(opener, at_ns, ledger, uids);
            }
        }
        let holdings = holdings(view);
        for holding in &holdings {
            self.describe(holding.process, holding.since_ns, ledger, uids);
        }
        self.buffer.push(Record::Standing(Standing { at_ns: now_ns, lost, files, holdings }));
        self.push();
        if let (Some(lost), Some(again)) = (lost, &mut self.lost) {
            again.from_ns = lost.from_ns;
            again.records += lost.records;
        }
    }

    fn push(&mut self) {
        let changes = self.buffer.iter().filter(|record| matches!(record, Record::Change(_))).count();
        if !self.queue.push(&mut self.buffer) {
            self.buffer.clear();
            self.health.change(|health| health.dropped += changes as u64);
            self.lost = Some(Lost { from_ns: self.latest_ns, records: changes as u64 });
        }
    }

    fn name_device(&mut self, number: Option<DeviceNumber>, devices: &DeviceTable) {
        let Some(number) = number.filter(|number| self.devices.insert(*number)) else { return };
        if let Some(device) = devices.identify(number) {
            self.buffer.push(Record::Device { number, name: device.name, gpu: device.gpu });
        }
    }

    fn describe(&mut self, process: ProcessId, at_ns: u64, ledger: &Ledger, uids: &HashMap<ProcessId, u32>) {
        let Some(history) = ledger.history(process) else { return };
        let told = Told {
            comm: history.comm.clone(),
            uid: uids.get(&process).copied(),
            parent: history.parent,
            description: history.description.as_ref().map(address),
        };
        if self.told.get(&process) == Some(&told) {
            return;
        }
        self.buffer.push(Record::Process(ProcessRecord {
            process,
            at_ns,
            comm: told.comm.clone(),
            uid: told.uid,
            parent: told.parent,
            description: history.description.clone(),
        }));
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        self.told.insert(process, told);
    }

    /// Has everything written that has come so far, and ends the writer. False: the disk took too long, or failed.
    pub fn close(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.queue.close();
        let Some(writer) = self.writer.take() else { return true };
        let end = Instant::now() + LAST_WORDS;
        while !writer.is_finished() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        writer.join().is_ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

fn address(description: &SharedDescription) -> usize {
    Arc::as_ptr(description) as usize
}

/// Everybody whom a change names.
fn named(change: &Change) -> Vec<ProcessId> {
    let mut named: Vec<ProcessId> = change.process.into_iter().collect();
    match &change.kind {
        ChangeKind::Inherited { from } => named.push(*from),
        ChangeKind::HandedOver { from } => named.extend(from),
        ChangeKind::Signalled { by, .. }
        | ChangeKind::Killed { by }
        | ChangeKind::Exiting { by: Some(by), .. } => {
            if let Killer::Process(sender) = by {
                named.push(sender.task.process);
            }
        }
        ChangeKind::Detached { by } => named.extend(by.iter().map(|task| task.process)),
        ChangeKind::Released { last_holder, .. } => named.extend(last_holder),
        _ => {}
    }
    named
}

fn holdings(view: &View) -> Vec<StandingHolding> {
    let mut holdings: Vec<StandingHolding> = Vec::new();
    for holder in &view.holders {
        for held in &holder.held {
            let how = match held.origin {
                _ if held.fds + held.maps + held.in_flight + held.io_uring + held.driver_pins == 0 => {
                    super::store::DROPPING
                }
                Origin::Unknown => "found",
                Origin::Opened => "opened",
                Origin::Inherited { .. } => "inherited",
                Origin::Passed { .. } => "handed-over",
            };
            let since_ns = if held.since_ns == 0 { view.taken_ns } else { held.since_ns };
            holdings.push(StandingHolding { file: held.id, process: holder.process, since_ns, how });
        }
    }
    // Threads with tables of their own are holders of their own there.
    holdings.sort_by_key(|holding| (holding.file, holding.process, holding.since_ns));
    holdings.dedup_by_key(|holding| (holding.file, holding.process));
    holdings
}

//! Facts about the journal, on small worlds with a real file.

mod hostile;
mod incident;
mod intervals;
mod trouble;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{At, Opened, Options, Reader, Recorder, State, Window};
use crate::gpu::selector::Selection;
use crate::ledger::Ledger;
use crate::model::change::Change;
use crate::model::device::{DeviceRange, Naming};
use crate::model::snapshot::Source;
use crate::model::{
    DeviceNumber, DeviceTable, FileKey, MmKey, ModuleUses, OpenFile, ProcessId, RawText, Reference, Snapshot,
    TableKey, Task, TaskState, Via,
};

const GPU0: DeviceNumber = DeviceNumber { major: 195, minor: 0 };
/// Wall clock at boot of the small worlds.
const BOOTED: i64 = 1_795_920_920_000_000_000;
const MS: u64 = 1_000_000;

/// Who has which descriptors of which file, by hand.
#[derive(Clone, Debug, Default)]
struct World {
    /// By tgid: (parent, name, files).
    processes: BTreeMap<u32, (u32, String, BTreeSet<u64>)>,
}

impl World {
    fn add(&mut self, tgid: u32, parent: u32, name: &str, files: &[u64]) {
        self.processes.insert(tgid, (parent, name.to_owned(), files.iter().copied().collect()));
    }

    fn snapshot(&self, taken_ns: u64) -> Snapshot {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut references = Vec::new();
        let mut tasks = Vec::new();
        for (tgid, (parent, name, files)) in &self.processes {
            tasks.push(task(*tgid, *parent, name));
            for (fd, file) in (3..).zip(files) {
                *counts.entry(*file).or_default() += 1;
                let via = Via::Fd { table: TableKey(u64::from(*tgid)), fd };
                references.push(Reference { file: FileKey(*file), via });
            }
        }
        let file = |(key, count): (u64, u64)| OpenFile {
            key: FileKey(key),
            device: DeviceNumber { minor: (key % 8) as u32, ..GPU0 },
            count: Some(count),
            identity: key,
            seen_ns: 0,
        };
        let files = counts.into_iter().map(file).collect();
        let source = Source::Iterators;
        Snapshot {
            taken_ns,
            source,
            tasks,
            files,
            references,
            missing: Vec::new(),
            modules: ModuleUses::default(),
        }
    }
}

/// Old, except for the workers of [`incident`], which are born in it.
fn process(tgid: u32) -> ProcessId {
    let born = |rank: u32| (1_090 + u64::from(rank) * 3) * 1_000 * MS;
    let start_ns = if (430..438).contains(&tgid) { born(tgid - 430) } else { u64::from(tgid) * 10 };
    ProcessId { tgid, start_ns }
}

fn task(tgid: u32, ppid: u32, comm: &str) -> Task {
    Task {
        tgid,
        tid: tgid,
        start_ns: process(tgid).start_ns,
        ppid,
        uid: 1000,
        comm: comm.into(),
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

fn devices() -> DeviceTable {
    let naming = Naming::Numbered("nvidia".to_owned());
    DeviceTable {
        ranges: vec![DeviceRange { major: 195, first: 0, last: 7, naming }],
        gpu_nodes: (0..8).map(|gpu| (DeviceNumber { minor: gpu, ..GPU0 }, gpu)).collect(),
    }
}

fn everything() -> Selection {
    Selection { all: true, ..Selection::default() }
}

fn wall(boot_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(BOOTED) + i128::from(boot_ns)).unwrap()
}

fn options(directory: &Path, boot_id: &str, now_ns: u64) -> Options {
    let options =
        Options { retry: Duration::from_millis(5), ..Options::new(directory, boot_id, now_ns, BOOTED) };
    Options { retention: super::Retention { free: 0, ..options.retention }, ..options }
}

/// A daemon without a kernel: a ledger that is fed by hand, and its journal.
struct Desk {
    ledger: Ledger,
    recorder: Recorder,
    devices: DeviceTable,
    uids: HashMap<ProcessId, u32>,
}

impl Desk {
    fn open(options: Options) -> Self {
        let now_ns = options.now_ns;
        let Opened { mut recorder, last_file, .. } = super::open(options).unwrap();
        let mut ledger = Ledger::new();
        ledger.continue_after(last_file);
        recorder.alive(now_ns, i128::from(BOOTED));
        Self { ledger, recorder, devices: devices(), uids: HashMap::new() }
    }

    fn tell(&mut self, changes: &[Change]) {
        self.recorder.changes(changes, &self.ledger, &self.devices, &self.uids);
    }

    fn happen(&mut self, event: &crate::model::event::Event) {
        let changes = self.ledger.apply(event);
        self.tell(&changes);
    }

    fn look(&mut self, snapshot: &Snapshot) {
        let changes = self.ledger.reconcile(snapshot).changes;
        self.tell(&changes);
        if self.recorder.wants_standing() {
            let view = self.ledger.view();
            let now_ns = snapshot.taken_ns;
            self.recorder.standing(&view, &self.ledger, &self.devices, &self.uids, now_ns);
        }
        self.recorder.alive(snapshot.taken_ns, i128::from(BOOTED));
    }

    fn close(self) {
        assert!(self.recorder.close(), "the journal was not written to its end");
    }

    #[track_caller]
    fn await_state(&self, state: State) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.recorder.health().state != state {
            assert!(Instant::now() < end, "{:?}", self.recorder.health());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn read(directory: &Path) -> Reader {
    Reader::open(&directory.join(super::NAME)).unwrap()
}

/// (PID, file) of who held what at a boot time.
fn held_at(reader: &Reader, boot_ns: u64) -> BTreeSet<(u32, u64)> {
    let At { holdings, .. } = reader.at(wall(boot_ns), &everything(), None).unwrap();
    holdings.iter().map(|held| (held.process.pid, held.file)).collect()
}

fn all(reader: &Reader) -> Window {
    Window { from: reader.begin(), to: reader.end() }
}

/// What the ledger says: who has what open.
fn view(ledger: &Ledger) -> BTreeSet<(u32, u64)> {
    let view = ledger.view();
    view.holders
        .iter()
        .flat_map(|holder| holder.held.iter().map(|held| (holder.process.tgid, held.id)))
        .collect()
}

/// Text of one byte after another.
fn raw(bytes: &[u8]) -> RawText {
    RawText(bytes.into())
}

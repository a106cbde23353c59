//! The iterator programs, loaded, and reading one pass of one of them.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, RingBuf},
};
use gpu_tracer_common::{
    LAYOUT,
    snapshot::{Control, Header, HoldRecord, MAX_SUBJECTS, mode},
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    OBJECT, ProbeError, events, kallsyms, layout,
    loader::Loader,
    module_use::ModuleCounts,
    programs::{self, Mappings, Sockets, link},
    ring,
    spares::Spares,
    subjects::Subjects,
    sys,
    wanted::Wanted,
};
use crate::{kernel::btf::Btf, model::DeviceTable};

/// Bytes asked for in one read; the kernel gives at most 32 KiB a time.
const READ: usize = 64 * 1024;
/// Reads in a row that may bring nothing but "try again". Programs without `bpf_loop` go through what is long in runs of
/// 256 steps, most of which find nothing.
const PATIENCE: u32 = 16_384;

#[repr(transparent)]
#[derive(Clone, Copy)]
struct ControlPod(Control);
// SAFETY: `Control` is `repr(C)`, integers only, without padding.
unsafe impl aya::Pod for ControlPod {}

/// How files registered with io_urings can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingAccess {
    /// This kernel has no io_uring.
    NotThere,
    /// In the kernel, exactly.
    Walk,
    /// The rings are found; what they hold has to be read from `/proc/PID/fdinfo`.
    Fdinfo,
    /// Not at all, and why.
    Unknown(String),
}

/// The loaded programs. One snapshot at a time.
pub struct Iterators {
    pub(super) tasks: OwnedFd,
    pub(super) mappings: Mappings,
    pub(super) sockets: Sockets,
    pub(super) spares: Spares,
    rings: RingAccess,
    ring_operations: u64,
    holds: RingBuf<MapData>,
    control: Array<MapData, ControlPod>,
    wanted: Wanted,
    carriers: HashMap<MapData, u64, u8>,
    subjects: Subjects,
    /// Records of the last snapshot: so much room the next will need.
    pub(super) records: usize,
    pub(super) modules: ModuleCounts,
}

impl std::fmt::Debug for Iterators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iterators")
            .field("mappings", &self.mappings)
            .field("sockets", &self.sockets)
            .field("spares", &self.spares)
            .field("rings", &self.rings)
            .finish_non_exhaustive()
    }
}

impl Iterators {
    /// Loads the programs into the running kernel: needs CAP_BPF and CAP_PERFMON (or root), BTF, and Linux 5.8.
    pub fn load(btf: &Btf) -> Result<Self, ProbeError> {
        let mut iterators = Self::load_the_least(btf)?;
        iterators.spares.load_all();
        Ok(iterators)
    }

    /// The same for who looks once or twice: what most looks can do without is loaded when it is wanted.
    pub fn load_the_least(btf: &Btf) -> Result<Self, ProbeError> {
        if OBJECT.is_empty() {
            return Err(ProbeError::NoObject);
        }
        let loader = Loader::begin()?;
        let layout = layout::resolve(btf)?;
        let kernel = programs::targets(btf)?;
        let mut loader = loader.made();
        loader.override_global("KERNEL", layout.as_bytes(), true);
        // Maps of programs that are not loaded here; each is made as small as can be.
        events::MAPS.iter().for_each(|(map, least)| {
            loader.map_max_entries(map, *least);
        });
        let mut ebpf = loader.load(OBJECT).map_err(ProbeError::Load)?;

        let can_loop = programs::can_loop(btf);
        let walk = can_loop.then(|| link(&mut ebpf, "iter_tasks", "task", &kernel));
        let tasks = match walk {
            Some(Ok(tasks)) => tasks,
            Some(Err(error)) if error.is_denied() => return Err(error),
            _ => link(&mut ebpf, "iter_tasks_in_steps", "task", &kernel)?,
        };
        let mappings = Mappings::load(&mut ebpf, &kernel, &layout);
        let sockets = Sockets::load(&mut ebpf, &kernel, can_loop);
        let mut iterators = Self {
            tasks,
            mappings,
            sockets,
            rings: RingAccess::NotThere,
            ring_operations: 0,
            holds: RingBuf::try_from(take(&mut ebpf, "HOLDS")?).map_err(on("HOLDS"))?,
            control: Array::try_from(take(&mut ebpf, "CONTROL")?).map_err(on("CONTROL"))?,
            wanted: Wanted::take(|map| take(&mut ebpf, map))?,
            carriers: HashMap::try_from(take(&mut ebpf, "CARRIERS")?).map_err(on("CARRIERS"))?,
            subjects: Subjects::map(take(&mut ebpf, "SUBJECTS")?)?,
            records: 0,
            modules: ModuleCounts::new(Path::new("/")),
            spares: Spares::new(ebpf, kernel, can_loop),
        };
        iterators.rings = iterators.learn_rings(layout.ring_known != 0)?;
        iterators.learn_socket_table()?;
        Ok(iterators)
    }

    /// How files registered with io_urings can be found.
    #[must_use]
    pub fn rings(&self) -> &RingAccess {
        &self.rings
    }

    /// Why mappings cannot be seen, if they cannot.
    #[must_use]
    pub fn mappings_refused(&self) -> Option<&str> {
        match &self.mappings {
            Mappings::Unseen(why) => Some(why),
            _ => None,
        }
    }

    /// Why descriptors in flight cannot be seen, if they cannot.
    #[must_use]
    pub fn sockets_refused(&self) -> Option<&str> {
        match &self.sockets {
            Sockets::Unseen(why) => Some(why),
            _ => None,
        }
    }

    /// Makes a ring, lets the task program read its `f_op`, and forgets it again.
    fn learn_rings(&mut self, known: bool) -> Result<RingAccess, ProbeError> {
        let operations = match ring::create() {
            Ok(ring) => {
                let learnt = self.learn(mode::LEARN_RING, ring.as_fd())?;
                Some(learnt.ring_fops).filter(|address| *address != 0)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(RingAccess::NotThere),
            Err(_) => None,
        };
        match operations.or_else(|| kallsyms::address_of("io_uring_fops")) {
            Some(address) => {
                self.ring_operations = address;
                Ok(if known { RingAccess::Walk } else { RingAccess::Fdinfo })
            }
            None => Ok(RingAccess::Unknown(
                "io_uring is disabled for this process and /proc/kallsyms hides its address".into(),
            )),
        }
    }

    /// Lets the task program look at a file of our own; the control block with what it has learnt.
    pub(super) fn learn(&mut self, mode: u32, own: BorrowedFd<'_>) -> Result<Control, ProbeError> {
        self.start(mode, |control| control.learn_fd = own.as_raw_fd() as u32)?;
        let link = self.tasks.try_clone().map_err(ProbeError::Thread)?;
        self.read_pass("task", sys::open_iterator(link.as_fd())?, &mut Vec::new())?;
        Ok(self.control.get(&0, 0).map_err(on("CONTROL"))?.0)
    }

    /// Tells the programs which device numbers to report.
    pub(super) fn want(&mut self, devices: &DeviceTable) -> Result<(), ProbeError> {
        self.wanted.set(devices)
    }

    /// Prepares the control block for a pass.
    pub(super) fn start(&mut self, mode: u32, adjust: impl FnOnce(&mut Control)) -> Result<(), ProbeError> {
        let mut control = Control { mode, ring_fops: self.ring_operations, ..Control::default() };
        adjust(&mut control);
        self.control.set(0, ControlPod(control), 0).map_err(on("CONTROL"))
    }

    /// Lists that were not followed to their end, in the pass just made.
    pub(super) fn truncated(&self) -> Result<u64, ProbeError> {
        Ok(self.control.get(&0, 0).map_err(on("CONTROL"))?.0.truncated)
    }

    /// Did the pass just made list the network namespaces, if it was to?
    pub(super) fn has_listed_namespaces(&self) -> Result<bool, ProbeError> {
        Ok(self.control.get(&0, 0).map_err(on("CONTROL"))?.0.list_namespaces == 0)
    }

    /// Names the files whose holders the next pass in [`mode::CARRIERS`] is to find; returns how many did not fit.
    pub(super) fn set_carriers(&mut self, files: impl Iterator<Item = u64>) -> Result<usize, ProbeError> {
        let old: Vec<u64> = self.carriers.keys().filter_map(Result::ok).collect();
        for key in old {
            // Another snapshot's leftovers; gone is as good as removed.
            let _ = self.carriers.remove(&key);
        }
        Ok(files.filter(|file| self.carriers.insert(file, 1, 0).is_err()).count())
    }

    /// Gives each of `files` to a program that looks at one file per run. Returns how many lists it did not follow to their
    /// end.
    pub(super) fn look_closer(
        &mut self,
        link: &OwnedFd,
        files: &[u64],
        holds: &mut Vec<HoldRecord>,
    ) -> Result<u64, ProbeError> {
        let mut truncated = 0;
        for chunk in files.chunks(MAX_SUBJECTS as usize) {
            self.subjects.write(chunk);
            self.start(mode::DEVICES, |control| control.subjects = chunk.len() as u32)?;
            let mut done = 0;
            // A program that looks at one in a run has as many runs as the host has tasks.
            while done < chunk.len() as u32 {
                self.read_pass("task", sys::open_iterator(link.as_fd())?, holds)?;
                let now = self.control.get(&0, 0).map_err(on("CONTROL"))?.0.subject;
                if now == done {
                    return Err(ProbeError::Overflow { iterator: "task" });
                }
                done = now;
            }
            truncated += self.truncated()?;
        }
        Ok(truncated)
    }

    /// Reads an iterator that cannot block to its end; holds are appended, the sequence file's bytes returned.
    pub(super) fn read_pass(
        &mut self,
        iterator: &'static str,
        mut file: File,
        holds: &mut Vec<HoldRecord>,
    ) -> Result<Vec<u8>, ProbeError> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; READ];
        let mut patience = PATIENCE;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    patience = patience.checked_sub(1).ok_or(ProbeError::Overflow { iterator })?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(sys::SyscallError { call: "read of a BPF iterator", source }.into());
                }
            }
            if self.drain(holds)? > 0 {
                patience = PATIENCE;
            }
        }
        self.drain(holds)?;
        Ok(bytes)
    }

    /// Begins to read iterators in a thread of its own: they may block in the kernel, or have better things done meanwhile.
    ///
    /// `open` runs in that thread and gives one iterator after the other. [`Iterators::finish`] must follow.
    pub(super) fn begin(
        iterator: &'static str,
        open: impl FnMut() -> Option<io::Result<File>> + Send + 'static,
    ) -> Result<Reading, ProbeError> {
        let (sender, progress) = sync_channel(16);
        thread::Builder::new()
            .name(format!("{iterator}-reader"))
            .spawn(move || read_all(open, &sender))
            .map_err(ProbeError::Thread)?;
        Ok(Reading { iterator, progress })
    }

    /// Takes what the thread reads until it is done; returns the iterators that could not be opened.
    ///
    /// When the time is up the thread is left behind: it waits killably and ends with the process.
    pub(super) fn finish(
        &mut self,
        Reading { iterator, progress }: Reading,
        within: Duration,
        holds: &mut Vec<HoldRecord>,
    ) -> Result<Vec<io::Error>, ProbeError> {
        let deadline = Instant::now() + within;
        let mut refused = Vec::new();
        let mut patience = PATIENCE;
        loop {
            let message = progress.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let drained = self.drain(holds)?;
            match message {
                Ok(Progress::Moved) => patience = PATIENCE,
                Ok(Progress::RingFull) if drained > 0 => patience = PATIENCE,
                Ok(Progress::RingFull) => {
                    patience = patience.checked_sub(1).ok_or(ProbeError::Overflow { iterator })?;
                }
                Ok(Progress::Refused(error)) => refused.push(error),
                Ok(Progress::Failed(source)) => {
                    return Err(sys::SyscallError { call: "read of a BPF iterator", source }.into());
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(refused),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(ProbeError::Hung { iterator, seconds: within.as_secs() });
                }
            }
        }
    }

    fn drain(&mut self, holds: &mut Vec<HoldRecord>) -> Result<usize, ProbeError> {
        let before = holds.len();
        while let Some(item) = self.holds.next() {
            let record =
                HoldRecord::read_from_bytes(&item).ok().filter(|record| record.header.layout == LAYOUT);
            match record {
                Some(record) => holds.push(record),
                None => return Err(foreign(&item)),
            }
        }
        Ok(holds.len() - before)
    }
}

/// The error for a record that is not one of ours.
pub(super) fn foreign(bytes: &[u8]) -> ProbeError {
    let header = Header::read_from_prefix(bytes).map_or(Header { kind: 0, layout: 0 }, |(header, _)| header);
    ProbeError::Record { kind: header.kind, layout: header.layout }
}

/// A thread that reads.
pub(super) struct Reading {
    iterator: &'static str,
    progress: Receiver<Progress>,
}

enum Progress {
    Moved,
    RingFull,
    Refused(io::Error),
    Failed(io::Error),
}

fn read_all(mut open: impl FnMut() -> Option<io::Result<File>>, sender: &SyncSender<Progress>) {
    let mut buffer = vec![0; READ];
    while let Some(opened) = open() {
        let mut file = match opened {
            Ok(file) => file,
            Err(error) => {
                if sender.send(Progress::Refused(error)).is_err() {
                    return;
                }
                continue;
            }
        };
        loop {
            let progress = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => Progress::Moved,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::RingFull,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Progress::Failed(error),
            };
            let failed = matches!(progress, Progress::Failed(_));
            if sender.send(progress).is_err() || failed {
                return;
            }
        }
    }
}

fn take(ebpf: &mut Ebpf, map: &'static str) -> Result<aya::maps::Map, ProbeError> {
    ebpf.take_map(map).ok_or(ProbeError::Incompatible(map))
}

fn on(map: &'static str) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map { map, source }
}

//! From what was seen to the report of the contract.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::closing::closing;
use super::look::Looked;
use crate::diagnose::{self, Evidence, Roles};
use crate::gpu::claims::NvmlAnswer;
use crate::kernel::{self, Clock, Devices};
use crate::ledger::{FileState, FileView, HolderView, Origin, View};
use crate::model::event::TaskId;
use crate::model::report::{
    Cost, Coverage, FileReport, GpuReport, HeldDevice, HeldMemory, Holder, MissingReport, Opener, Report,
    SCHEMA, TaskReport,
};
use crate::model::{DeviceNumber, DeviceTable, Gpu, Missing, Name, ProcessId, TaskState, counted};
use crate::process::facts::read_stat;
use crate::process::{self, FactOptions, MmReadable, ProcFs, ProcessFacts};

/// The whole report, for all GPUs. Takes what was seen, because both are long where ten thousand files are open.
pub(super) fn report(
    devices: &Devices,
    looked: Looked,
    nvml: &NvmlAnswer,
    roles: &Roles,
    clock: &Clock,
) -> Report {
    let mut names = Names { table: &devices.table, known: HashMap::new(), last: None };
    let releasing: Vec<TaskId> = looked.view.files.iter().filter_map(releasing).collect();
    let holders: Vec<Holder> = looked
        .view
        .holders
        .iter()
        .map(|view| holder(view, (&looked, &releasing), &mut names, roles, clock))
        .collect();
    let Looked { view: View { files, taken_ns, .. }, plan, missing, ended, .. } = looked;
    let mut openers = Openers { ended: &ended, known: HashMap::new(), last: None };
    // Where one lay, the other fits in.
    let report = |file: FileView| file_report(&file, taken_ns, &mut names, &mut openers, clock);
    let files: Vec<FileReport> = files.into_iter().map(report).collect();
    let mut report = Report {
        schema: SCHEMA,
        taken_at: wall(clock, taken_ns),
        boot_id: kernel::boot_id(Path::new("/")).unwrap_or_default(),
        plan: plan.to_owned(),
        coverage: coverage(missing, &files, devices),
        cost: Cost::default(),
        gpus: devices.gpus.iter().map(gpu_report).collect(),
        files,
        holders,
    };
    add_memory(&mut report, nvml);
    report
}

/// A report takes no more room than what it is made of, so that it can be made in its place.
const _: () = assert!(size_of::<FileReport>() <= size_of::<FileView>());

fn wall(clock: &Clock, boot_ns: u64) -> String {
    format!("{:.3}", clock.wall(boot_ns))
}

/// Complete: everything was looked at, and every reference that the kernel counts has a name.
fn coverage(missing: Vec<Missing>, files: &[FileReport], devices: &Devices) -> Coverage {
    let missing = missing.into_iter();
    let mut missing: Vec<MissingReport> =
        missing.map(|missing| MissingReport { what: missing.what.to_owned(), why: missing.why }).collect();
    let unexplained: u64 = files.iter().map(|file| file.unexplained).sum();
    if unexplained > 0 {
        let concerned = files.iter().filter(|file| file.unexplained > 0).count();
        missing.push(MissingReport {
            what: "unexplained-references".to_owned(),
            why: format!(
                "the kernel counts {} to {} that nobody who can be named holds: a system call in progress, or a kernel \
                 user of the device",
                counted(unexplained, "reference", "references"),
                counted(concerned, "open file", "open files")
            ),
        });
    }
    if devices.table.is_empty() {
        missing.push(MissingReport {
            what: "devices".to_owned(),
            why: "this host has no GPU device in /proc/devices; name one with --device MAJOR:MINOR=NAME"
                .to_owned(),
        });
    }
    missing.sort();
    missing.dedup();
    Coverage { complete: missing.is_empty(), missing }
}

fn gpu_report(gpu: &Gpu) -> GpuReport {
    GpuReport {
        index: gpu.index,
        minor: gpu.minor,
        uuid: gpu.uuid.clone(),
        bus_id: gpu.bus_id.clone(),
        name: gpu.name.clone(),
        ..GpuReport::default()
    }
}

/// Adds NVML's figures to a report without any.
pub(super) fn add_memory(report: &mut Report, nvml: &NvmlAnswer) {
    for gpu in &mut report.gpus {
        let claimed = nvml.gpus.iter().find(|claimed| {
            gpu.uuid.is_some() && claimed.identity.uuid == gpu.uuid
                || gpu.uuid.is_none() && claimed.identity.index == gpu.index
        });
        let Some(claimed) = claimed else { continue };
        gpu.memory_used_mib = claimed.memory.used_mib;
        gpu.memory_total_mib = claimed.memory.total_mib;
        gpu.unattributed_mib = claimed.attribution().unattributed_mib;
    }
    for holder in &mut report.holders {
        holder.memory = held_memory(holder, nvml);
    }
}

fn file_report(
    file: &FileView,
    taken_ns: u64,
    names: &mut Names<'_>,
    openers: &mut Openers<'_>,
    clock: &Clock,
) -> FileReport {
    let (device, gpu) = names.of(file.device);
    FileReport {
        id: file.id,
        device,
        gpu,
        state: file.state.word().into(),
        since: file.state.since_ns().map(|since_ns| clock.wall_time(since_ns)),
        for_ms: file.state.since_ns().map(|since_ns| taken_ns.saturating_sub(since_ns) / 1_000_000),
        task: file.state.task().map(|task| TaskReport { pid: task.process.tgid, tid: task.tid }),
        references: file.count,
        unexplained: file.unexplained,
        driver_pins: file.driver_pins,
        opened_at: file.opened.as_ref().map(|opened| clock.wall_time(opened.at_ns)),
        opened_exact: file.opened.as_ref().is_some_and(|opened| opened.exact),
        opener: file.opened.as_ref().map(|opened| Opener {
            pid: opened.opener.process.tgid,
            start_ns: opened.opener.process.start_ns,
            comm: opened.opener.comm.clone(),
            cmdline: opened.opener.cmdline.clone(),
            alive: openers.alive(opened.opener.process),
        }),
    }
}

/// Does that very process still live, and not a later one with its PID?
fn is_alive(process: ProcessId) -> bool {
    let stat = ProcFs::host().process(process.tgid).and_then(|directory| read_stat(&directory));
    stat.is_ok_and(|stat| !stat.is_dead() && process.started_in_tick_of(stat.start_ns))
}

/// Which openers live: thousands of files may have the same one.
struct Openers<'a> {
    /// Their end was seen.
    ended: &'a HashSet<ProcessId>,
    known: HashMap<ProcessId, bool>,
    /// Most files have the opener of the file before.
    last: Option<(ProcessId, bool)>,
}

impl Openers<'_> {
    fn alive(&mut self, process: ProcessId) -> bool {
        if let Some((_, alive)) = self.last.filter(|(last, _)| *last == process) {
            return alive;
        }
        let look_up = || !self.ended.contains(&process) && is_alive(process);
        let alive = *self.known.entry(process).or_insert_with(look_up);
        self.last = Some((process, alive));
        alive
    }
}

/// Names and GPUs of devices, each looked up once.
struct Names<'a> {
    table: &'a DeviceTable,
    known: HashMap<DeviceNumber, (Name, Option<u32>)>,
    /// Likewise.
    last: Option<(DeviceNumber, (Name, Option<u32>))>,
}

impl Names<'_> {
    /// The number stands for a name where there is none.
    fn of(&mut self, number: DeviceNumber) -> (Name, Option<u32>) {
        if let Some((_, found)) = self.last.as_ref().filter(|(last, _)| *last == number) {
            return found.clone();
        }
        let look_up = || match self.table.identify(number) {
            Some(device) => (device.name.into(), device.gpu),
            None => (number.to_string().into(), None),
        };
        let found = self.known.entry(number).or_insert_with(look_up).clone();
        self.last = Some((number, found.clone()));
        found
    }
}

fn holder(
    view: &HolderView,
    (looked, releasing): (&Looked, &[TaskId]),
    names: &mut Names<'_>,
    roles: &Roles,
    clock: &Clock,
) -> Holder {
    let carrier = &view.carrier;
    // The address space of a task that is exiting or in D state must not be read: the read could hang as well.
    let blocked = carrier.exiting || carrier.state == TaskState::Uninterruptible;
    let options = FactOptions { mm: if blocked { MmReadable::No } else { MmReadable::Yes }, stack: true };
    let facts = facts_of(view, options);
    let held = held_devices(view, names);
    let evidence = Evidence {
        carrier,
        leader: view.leader.as_ref(),
        facts: facts.as_ref(),
        devices: &held,
        view: &looked.view,
    };
    let mut why = diagnose::why(&evidence);
    if releasing.contains(&TaskId { process: view.process, tid: carrier.tid }) {
        why.push("releasing");
    }
    why.extend(by_history(view).into_iter().filter(|word| !why.contains(word)).collect::<Vec<_>>());
    let exe = facts.as_ref().and_then(|facts| facts.exe.as_ref()).map(|exe| &exe.0[..]);
    let role = roles.role(exe, &held).to_owned();
    why.extend(diagnose::reason_of(&role));
    let why = why.into_iter().map(str::to_owned).collect();
    let facts_or = |pick: fn(&ProcessFacts) -> Option<crate::model::RawText>| facts.as_ref().and_then(pick);
    Holder {
        pid: view.process.tgid,
        tid: carrier.tid,
        tids: view.tids.clone(),
        start_ns: view.process.start_ns,
        started_at: Some(wall(clock, view.process.start_ns)),
        ppid: carrier.ppid,
        session: facts.as_ref().map_or(0, |facts| facts.session),
        uid: carrier.uid,
        comm: view.leader.as_ref().unwrap_or(carrier).comm.clone(),
        cmdline: facts_or(|facts| facts.cmdline.clone()).unwrap_or_default(),
        exe: facts_or(|facts| facts.exe.clone()),
        state: carrier.state.letter().to_string(),
        leader_state: view.leader.as_ref().unwrap_or(carrier).state.letter().to_string(),
        wchan: facts.as_ref().and_then(|facts| facts.wchan.clone()),
        closing: facts.as_ref().and_then(|facts| closing(view, &facts.stack)),
        stack: facts.as_ref().map(|facts| facts.stack.clone()).unwrap_or_default(),
        exiting: carrier.exiting,
        sigkill_pending: carrier.sigkill_pending,
        pid_in_ns: carrier.tgid_in_ns,
        cgroup: facts_or(|facts| facts.cgroup.clone()),
        container: facts_or(|facts| facts.placement.container.clone()),
        pod: facts_or(|facts| facts.placement.pod.clone()),
        unit: facts_or(|facts| facts.placement.unit.clone()),
        job: facts_or(|facts| facts.placement.job.clone()),
        role,
        why,
        memory: Vec::new(),
        devices: held,
    }
}

/// The task that is inside the driver's release of this file, if one is.
fn releasing(file: &FileView) -> Option<TaskId> {
    if let FileState::Releasing { task, .. } = file.state { Some(task) } else { None }
}

/// How it came to hold what it holds, as far as that was seen.
fn by_history(view: &HolderView) -> Vec<&'static str> {
    let any = |which: fn(Origin) -> bool| view.held.iter().any(|file| which(file.origin));
    let inherited = any(|origin| matches!(origin, Origin::Inherited { .. }));
    let passed = any(|origin| matches!(origin, Origin::Passed { .. }));
    inherited.then_some("inherited").into_iter().chain(passed.then_some("passed")).collect()
}

/// What `/proc` says of a holder, if it is of this very process that `/proc` speaks.
///
/// It may have gone since, another may have its PID, and in a PID namespace of our own `/proc` numbers processes
/// differently from the kernel: then the kernel's own facts are all there is.
fn facts_of(view: &HolderView, options: FactOptions) -> Option<ProcessFacts> {
    let carrier = &view.carrier;
    let (pid, tid) = if process::namespaces::is_initial_pid() {
        (carrier.tgid, carrier.tid)
    } else if carrier.is_leader() {
        (carrier.tgid_in_ns, carrier.tgid_in_ns)
    } else {
        return None;
    };
    let facts = ProcFs::host().facts(pid, tid, options).ok()?;
    view.process.started_in_tick_of(facts.start_ns).then_some(facts)
}

/// What a holder holds, by device, GPUs first.
fn held_devices(view: &HolderView, names: &mut Names<'_>) -> Vec<HeldDevice> {
    let mut by_device: BTreeMap<DeviceNumber, HeldDevice> = BTreeMap::new();
    for file in &view.held {
        let held = by_device.entry(file.device).or_insert_with(|| {
            let (device, gpu) = names.of(file.device);
            HeldDevice { device: device.to_string(), gpu, ..HeldDevice::default() }
        });
        held.fds += file.fds;
        held.maps += file.maps;
        held.in_flight += file.in_flight;
        held.io_uring += file.io_uring;
        held.dropping += file.dropping;
        held.files.push(file.id);
    }
    let mut held: Vec<HeldDevice> = by_device.into_values().collect();
    held.sort_by_key(|held| (held.gpu.is_none(), held.gpu, held.device.clone()));
    held
}

/// NVML's figures for this process: it may name the process or one of its threads.
fn held_memory(holder: &Holder, nvml: &NvmlAnswer) -> Vec<HeldMemory> {
    let mut by_gpu: HashMap<u32, u64> = HashMap::new();
    for gpu in &nvml.gpus {
        for process in &gpu.memory.processes {
            let same = process.pid == holder.pid || holder.tids.contains(&process.pid);
            if let (true, Some(mib)) = (same, process.mib) {
                *by_gpu.entry(gpu.memory.gpu).or_default() += mib;
            }
        }
    }
    let mut memory: Vec<HeldMemory> =
        by_gpu.into_iter().map(|(gpu, mib)| HeldMemory { gpu, mib, source: "nvml".to_owned() }).collect();
    memory.sort_by_key(|memory| memory.gpu);
    memory
}

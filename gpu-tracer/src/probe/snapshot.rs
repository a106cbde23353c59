//! One snapshot: the passes in order, and their records turned into the model.

use std::{collections::HashSet, io, os::fd::AsFd, time::Duration};

use gpu_tracer_common::{
    LAYOUT,
    snapshot::{FILE_DEVICE, FILE_RING, HOLD_OWNERS, HoldRecord, TaskRecord, mode, task_bits},
};
use zerocopy::FromBytes;

use super::{
    Iterators, ProbeError,
    iterators::{Reading, RingAccess, foreign},
    programs::Mappings,
    records::{ByFile, distinct, worth_a_closer_look},
    spares::Spare,
    sys,
};
use crate::kernel::boot_now;
use crate::model::{
    DeviceTable, Missing, MmKey, RawText, Snapshot, TableKey, Task, TaskState, counted, snapshot::Source,
};

const PF_EXITING: u32 = 0x4;
const PF_KTHREAD: u32 = 0x20_0000;

impl Iterators {
    /// Looks at everything once. Passes that might block in the kernel get `within` each.
    pub fn snapshot(&mut self, devices: &DeviceTable, within: Duration) -> Result<Snapshot, ProbeError> {
        let taken_ns = boot_now();
        let counts = self.modules.begin();
        let mut missing = Vec::new();
        // And some more, so that a few that are new make no difference.
        let mut holds = Vec::with_capacity(self.records + self.records / 8);
        self.want(devices)?;
        self.start(mode::DEVICES, |_| ())?;
        let mappings = self.begin_mappings()?;
        let tasks = self.pass_tasks(&mut holds)?;
        self.finish_mappings(mappings, &mut holds, &mut missing, within)?;
        self.pass_sockets(&tasks, &mut holds, &mut missing, within)?;
        self.pass_rings(&mut holds, &mut missing)?;
        self.pass_carriers(&mut holds, &mut missing)?;
        let owners = self.pass_driver_pins(&mut holds)?;
        self.records = holds.len();
        let holds = self.pass_file_mappings(holds)?;
        let (files, references) = holds.assemble(devices);
        let modules = self.modules.end(&counts, &owners, devices);
        Ok(Snapshot { taken_ns, source: Source::Iterators, tasks, files, references, missing, modules })
    }

    fn pass_tasks(&mut self, holds: &mut Vec<HoldRecord>) -> Result<Vec<Task>, ProbeError> {
        let file = sys::open_iterator(self.tasks.as_fd())?;
        let bytes = self.read_pass("task", file, holds)?;
        bytes
            .chunks_exact(size_of::<TaskRecord>())
            .map(|chunk| {
                TaskRecord::read_from_bytes(chunk)
                    .ok()
                    .filter(|record| record.header.layout == LAYOUT)
                    .map(|record| task(&record))
                    .ok_or_else(|| foreign(chunk))
            })
            .collect()
    }

    /// Mappings are looked for while this thread looks at the tasks: neither needs the other.
    fn begin_mappings(&self) -> Result<Result<Reading, String>, ProbeError> {
        let (iterator, link) = match &self.mappings {
            Mappings::Trees(link) => ("mm-tree", link),
            Mappings::Lists(link) => ("mm-list", link),
            Mappings::Unseen(why) => return Ok(Err(why.clone())),
        };
        let mut opened = Some(sys::open_iterator(link.as_fd()).map_err(io::Error::other));
        Self::begin(iterator, move || opened.take()).map(Ok)
    }

    fn finish_mappings(
        &mut self,
        mappings: Result<Reading, String>,
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
        within: Duration,
    ) -> Result<(), ProbeError> {
        let why = match mappings {
            Ok(reading) => match self.finish(reading, within, holds) {
                Ok(_) => match self.truncated()? {
                    0 => return Ok(()),
                    truncated => not_followed(truncated, "list of mappings", "lists of mappings"),
                },
                Err(error @ (ProbeError::Hung { .. } | ProbeError::Overflow { .. })) => error.to_string(),
                Err(error) => return Err(error),
            },
            Err(why) => format!("mappings without a descriptor cannot be seen: {why}"),
        };
        missing.push(Missing { what: "mappings", why });
        Ok(())
    }

    /// What do the io_urings hold that were found?
    fn pass_rings(
        &mut self,
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), ProbeError> {
        let rings = distinct(holds, |hold| hold.file_kind == FILE_RING);
        let unseen = |why: &str| format!("files registered with io_urings cannot be seen: {why}");
        let why = match self.rings() {
            RingAccess::NotThere => return Ok(()),
            RingAccess::Unknown(why) => unseen(why),
            _ if rings.is_empty() => return Ok(()),
            RingAccess::Fdinfo => "the file table of io_urings cannot be read on this kernel".to_owned(),
            RingAccess::Walk => match self.spares.link(Spare::RingTables) {
                Ok(link) => return self.look_closer(&link, &rings, holds).map(drop),
                Err(why) => unseen(&why),
            },
        };
        missing.push(Missing { what: "io_uring", why });
        Ok(())
    }

    /// Which files does the driver hold on behalf of those found? Without this they stay unexplained, so it is no gap.
    /// Returns which modules they belong to.
    fn pass_driver_pins(&mut self, holds: &mut Vec<HoldRecord>) -> Result<Vec<HoldRecord>, ProbeError> {
        let (mut owners, mut known) = (Vec::new(), HashSet::new());
        let mut wanted = worth_a_closer_look(holds);
        if wanted.is_empty() {
            return Ok(owners);
        }
        let Ok(link) = self.spares.link(Spare::DriverPins) else { return Ok(owners) };
        // A file that the driver alone holds is found here, and may hold another.
        while !wanted.is_empty() {
            let mut seen = Vec::new();
            self.look_closer(&link, &wanted, &mut seen)?;
            known.extend(wanted);
            let (of_modules, pins): (Vec<_>, Vec<_>) =
                seen.into_iter().partition(|hold| hold.header.kind == HOLD_OWNERS);
            owners.extend(of_modules);
            wanted = distinct(&pins, |hold| hold.file_kind == FILE_DEVICE);
            wanted.retain(|file| !known.contains(file));
            holds.extend(pins);
        }
        Ok(owners)
    }

    /// Which mappings have the files that still do not add up? As above: without this they stay unexplained.
    fn pass_file_mappings(&mut self, holds: Vec<HoldRecord>) -> Result<ByFile, ProbeError> {
        let by_file = ByFile::new(holds);
        let files = by_file.unaccounted();
        if files.is_empty() {
            return Ok(by_file);
        }
        let Ok(link) = self.spares.link(Spare::FileMappings) else { return Ok(by_file) };
        let mut holds = by_file.into_records();
        self.look_closer(&link, &files, &mut holds)?;
        Ok(ByFile::new(holds))
    }
}

/// What is said of lists that were not followed to their end.
pub(super) fn not_followed(lists: u64, one: &str, many: &str) -> String {
    format!(
        "{} could not be followed to the end: too long, or changed all the while",
        counted(lists, one, many)
    )
}

fn task(record: &TaskRecord) -> Task {
    let bit = |bit| record.bits & bit != 0;
    Task {
        tgid: record.tgid,
        tid: record.tid,
        start_ns: record.start_ns,
        ppid: record.ppid,
        uid: record.uid,
        comm: RawText::from_c_field(&record.comm),
        state: state(record),
        exiting: record.flags & PF_EXITING != 0,
        sigkill_pending: bit(task_bits::SIGKILL_PENDING)
            || (bit(task_bits::GROUP_EXIT) && record.flags & PF_EXITING == 0),
        kernel_thread: record.flags & PF_KTHREAD != 0,
        frozen: bit(task_bits::FROZEN),
        dumping_core: bit(task_bits::DUMPING_CORE),
        tgid_in_ns: record.tgid_in_ns,
        pid_ns: record.pid_ns,
        net_ns: record.net_ns,
        table: (record.files != 0).then_some(TableKey(record.files)),
        mm: (record.mm != 0).then_some(MmKey(record.mm)),
    }
}

/// The letter that `ps` prints (`fs/proc/array.c`, `include/linux/sched.h`).
fn state(record: &TaskRecord) -> TaskState {
    const EXIT_DEAD: u32 = 0x10;
    const EXIT_ZOMBIE: u32 = 0x20;
    const TASK_UNINTERRUPTIBLE: u32 = 0x2;
    const TASK_NOLOAD: u32 = 0x400;
    const TASK_RTLOCK_WAIT: u32 = 0x1000;
    const TASK_FROZEN: u32 = 0x8000;
    if record.exit_state & EXIT_ZOMBIE != 0 {
        return TaskState::Zombie;
    }
    if record.exit_state & EXIT_DEAD != 0 {
        return TaskState::Dead;
    }
    let state = record.state;
    if state == 0 {
        TaskState::Running
    } else if state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD) == TASK_UNINTERRUPTIBLE | TASK_NOLOAD {
        TaskState::Idle
    } else if state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT | TASK_FROZEN) != 0 {
        TaskState::Uninterruptible
    } else if state & 0x1 != 0 {
        TaskState::Sleeping
    } else if state & 0x4 != 0 {
        TaskState::Stopped
    } else if state & 0x8 != 0 {
        TaskState::Traced
    } else if state & 0x40 != 0 {
        TaskState::Parked
    } else if state & 0x80 != 0 {
        TaskState::Dead
    } else {
        TaskState::Other
    }
}

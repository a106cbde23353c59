//! What the ledger says: open files, and who holds them.

use std::sync::Arc;

use super::Ledger;
use super::files::{Certainty, FileRecord, FileState, OpenRecord, Origin, Unrest};
use super::lineage::ProcessHistory;
use super::resolve::Ways;
use crate::model::change::Identity;
use crate::model::event::{MayWait, TaskId};
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText, Task};

/// Who holds what, as of one snapshot and the events since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Open device files, by id. A file nobody can be found for is here all the same.
    pub files: Vec<FileView>,
    /// Who holds them, ordered by (tgid, carrier's tid).
    pub holders: Vec<HolderView>,
    /// When the snapshot behind this was begun, ns of boot time; 0 before the first.
    pub taken_ns: u64,
}

/// One open device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileView {
    /// The ledger's own number for it: never used for another file, whatever address that gets.
    pub id: u64,
    /// The device it is open on.
    pub device: DeviceNumber,
    /// Where in its life it is.
    pub state: FileState,
    /// The kernel's count of references; `None` where it could not be read.
    pub count: Option<u64>,
    /// References that were seen, each once. More than `count` only when the snapshot raced with a close.
    pub named: u64,
    /// References that no snapshot shows any more and that `dropped_by` accounts for.
    pub dropping: u64,
    /// References that the kernel counts and nobody accounts for.
    pub unexplained: u64,
    /// Since which snapshot there are unexplained references, ns of boot time. One snapshot alone may have raced.
    pub unexplained_since_ns: Option<u64>,
    /// Those of `named` that the driver itself holds for other device files.
    pub driver_pins: u64,
    /// Its opening, if that was seen.
    pub opened: Option<Opened>,
    /// Tasks that may be dropping references: they are exiting or closing and have not come to the end of it.
    pub dropped_by: Vec<TaskId>,
    /// Who held it last, if nobody does any more.
    pub last_holder: Option<ProcessId>,
}

/// The opening of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// Is that the moment of this very open? If not, it is that of one of several opens by this process.
    pub exact: bool,
    /// By whom, as it was then; shared by the files that one process opened as the same.
    pub opener: Arc<Identity>,
}

/// A process that holds something, or those threads of it that do so through an fd table of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Which process.
    pub process: ProcessId,
    /// The live task that stands for it: the leader if it carries the handle, else one in uninterruptible sleep, else
    /// the one with the lowest id.
    pub carrier: Task,
    /// The leader, dead or alive.
    pub leader: Option<Task>,
    /// All live tasks that carry a handle, ascending.
    pub tids: Vec<u32>,
    /// What it holds, by file id.
    pub held: Vec<HeldFile>,
    /// Where it is exiting: descriptors that are no devices and one of which it cannot get past.
    pub closing: Vec<MayWait>,
    /// What is remembered of it.
    pub history: ProcessHistory,
}

/// How one holder refers to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Id of the file.
    pub id: u64,
    /// Its device.
    pub device: DeviceNumber,
    /// Descriptors, once per fd table.
    pub fds: u64,
    /// Mappings, once per address space.
    pub maps: u64,
    /// Descriptors queued in sockets that it owns, directly or through other sockets; once per process.
    pub in_flight: u64,
    /// Slots of io_urings that it owns; once per process.
    pub io_uring: u64,
    /// References the driver holds for a device file that this holder holds; once per process.
    pub driver_pins: u64,
    /// References that it may still be dropping: taken from its tables by exit or close, and not known to be released.
    pub dropping: u64,
    /// How the process came to hold it.
    pub origin: Origin,
    /// Since when it is known to, ns of boot time.
    pub since_ns: u64,
}

/// A file that should be looked at again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its id.
    pub id: u64,
    /// Its address, for the kernel's eyes only.
    pub file: FileKey,
    /// Its device.
    pub device: DeviceNumber,
    /// `OpenFile::identity`; 0 where it is not known.
    pub identity: u64,
    /// The state it is waiting to leave; of a living file, the state it is in.
    pub state: FileState,
}

/// A task group and what it holds, by file id.
#[derive(Clone, Debug)]
pub(super) struct HolderEntry {
    pub(super) process: ProcessId,
    pub(super) carrier: Task,
    pub(super) leader: Option<Task>,
    pub(super) tids: Vec<u32>,
    pub(super) held: Vec<(u64, Ways)>,
}

impl Ledger {
    /// What is known now.
    #[must_use]
    pub fn view(&self) -> View {
        let holders = self.holders.iter().map(|holder| self.holder_view(holder));
        let mut openers = Openers::default();
        View {
            files: self.files.iter().map(|(id, file)| file_view(id, file, &mut openers)).collect(),
            holders: holders.filter(|holder| !holder.held.is_empty()).collect(),
            taken_ns: self.looked.map_or(0, |look| look.taken_ns),
        }
    }

    /// Is there a file whose references did not add up in the last snapshot, and did before? It may only have raced with a
    /// close.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.unrest().in_doubt
    }

    /// Files that are on their way out, or whose whereabouts are not known: to be looked at again soon, each by
    /// [`FileChecked`](crate::model::event::EventKind::FileChecked) or by a snapshot. Ordered by id.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        if self.is_anything_pending() { self.to_look_at(FileRecord::is_pending) } else { Vec::new() }
    }

    /// Is there any of those?
    #[must_use]
    pub fn is_anything_pending(&self) -> bool {
        self.unrest().pending
    }

    pub(super) fn unrest(&self) -> Unrest {
        self.files.unrest(self.looked.map(|look| look.taken_ns))
    }

    /// Is no device file open, as far as is known?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.files.len() == 0
    }

    /// All files that are believed to live, pending or not: what certainly lives can tell what has become of the others.
    /// Ordered by id.
    #[must_use]
    pub fn living(&self) -> Vec<Pending> {
        // What was deferred has no address any more.
        self.to_look_at(|file| !matches!(file.state, FileState::Deferred { .. }))
    }

    fn to_look_at(&self, which: impl Fn(&FileRecord) -> bool) -> Vec<Pending> {
        let files = self.files.iter().filter(|(_, file)| which(file));
        files
            .map(|(id, file)| Pending {
                id,
                file: file.key,
                device: file.device,
                identity: file.identity,
                state: file.state,
            })
            .collect()
    }

    fn holder_view(&self, holder: &HolderEntry) -> HolderView {
        let files = holder.held.iter().filter_map(|(id, ways)| {
            let file = self.files.get(*id)?;
            let held_by = file.holder(holder.process);
            Some(HeldFile {
                id: *id,
                device: file.device,
                fds: ways.fds.into(),
                maps: ways.maps.into(),
                in_flight: ways.in_flight.into(),
                io_uring: ways.io_uring.into(),
                driver_pins: ways.pins.into(),
                dropping: ways.dropping.into(),
                origin: held_by.map_or(Origin::Unknown, |held| held.origin),
                since_ns: held_by.map_or(0, |held| held.since_ns),
            })
        });
        // A filter cannot tell how many there are going to be, and a vector that grows leaves holes in the heap.
        let mut held: Vec<HeldFile> = Vec::with_capacity(holder.held.len());
        held.extend(files);
        HolderView {
            closing: self.closing(holder.process, &held),
            process: holder.process,
            carrier: holder.carrier.clone(),
            leader: holder.leader.clone(),
            tids: holder.tids.clone(),
            held,
            history: self.history(holder.process).cloned().unwrap_or_default(),
        }
    }
}

/// The last opener: files next to each other mostly have the same one.
#[derive(Default)]
pub(super) struct Openers<'a> {
    last: Option<(&'a OpenRecord, Arc<Identity>)>,
}

impl<'a> Openers<'a> {
    fn of(&mut self, opened: &'a OpenRecord) -> Arc<Identity> {
        if let Some((last, identity)) = &self.last
            && is_same_opener(last, opened)
        {
            return Arc::clone(identity);
        }
        let identity = Arc::new(identity(opened));
        self.last = Some((opened, Arc::clone(&identity)));
        identity
    }
}

fn is_same_opener(a: &OpenRecord, b: &OpenRecord) -> bool {
    let described = |record: &OpenRecord| record.description.as_ref().map(Arc::as_ptr);
    (a.task.process, a.parent, described(a)) == (b.task.process, b.parent, described(b)) && a.comm == b.comm
}

fn file_view<'a>(id: u64, file: &'a FileRecord, openers: &mut Openers<'a>) -> FileView {
    FileView {
        id,
        device: file.device,
        state: file.state,
        count: file.count,
        named: file.named,
        dropping: file.dropping,
        unexplained: file.unexplained(),
        unexplained_since_ns: file.unexplained_since_ns,
        driver_pins: file.driver_pins,
        opened: opened(file, openers),
        dropped_by: file.droppers.iter().map(|dropper| dropper.task).collect(),
        last_holder: file.last_holder,
    }
}

/// The opening of a file, if that was seen.
pub(super) fn opened<'a>(file: &'a FileRecord, openers: &mut Openers<'a>) -> Option<Opened> {
    file.opened.as_ref().map(|opened| Opened {
        at_ns: opened.at_ns,
        exact: opened.certainty == Certainty::Exact,
        opener: openers.of(opened),
    })
}

/// The opener of a file as it was at open.
pub(super) fn identity(opened: &OpenRecord) -> Identity {
    let description = opened.description.as_deref();
    Identity {
        process: opened.task.process,
        comm: opened.comm.clone(),
        cmdline: description.map_or_else(RawText::default, |known| known.cmdline.clone()),
        exe: description.and_then(|known| known.exe.clone()),
        cgroup: description.and_then(|known| known.cgroup.clone()),
        parent: opened.parent,
    }
}

//! What the kernel said happened.
//!
//! Events give history and say when to look; they are never the last word on who holds what. They may come late, twice,
//! in another order, or not at all ([`EventKind::Lost`]). Times are ns of boot time (`CLOCK_BOOTTIME`), ids are those of
//! the initial PID namespace.

use super::{DeviceNumber, FileKey, ProcessId, RawText, TableKey};

/// A task that cannot be confused with a later one that got the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Its process.
    pub process: ProcessId,
    /// Its thread id; equal to `process.tgid` for the leader.
    pub tid: u32,
}

impl TaskId {
    /// The leader of a process.
    #[must_use]
    pub const fn leader(process: ProcessId) -> Self {
        Self { process, tid: process.tgid }
    }

    /// Is it the leader?
    #[must_use]
    pub const fn is_leader(self) -> bool {
        self.tid == self.process.tgid
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A task asked for a device node (`cgroup/dev`): an open may follow. Also fires for `access(2)`, so it proves nothing.
    DeviceTouched {
        /// Who.
        task: TaskId,
        /// Which device.
        device: DeviceNumber,
        /// What was asked for.
        access: Access,
        /// Where the descriptor will be, if it is an open and that could be told.
        slot: Option<Slot>,
        /// The new file, if that could be told: it referred to nothing yet, so whatever was at its address before is gone.
        file: Option<FileKey>,
        /// Until when more touches of this device by this process may follow that are not told, ns of boot time.
        untold_until_ns: Option<u64>,
        /// The name of the task at that moment.
        comm: RawText,
    },
    /// The driver's open was entered.
    Opening {
        /// The new file.
        file: FileKey,
        /// Its device.
        device: DeviceNumber,
        /// Who opens.
        task: TaskId,
        /// The name of the task at that moment.
        comm: RawText,
    },
    /// The driver's open succeeded.
    Opened {
        /// The new file.
        file: FileKey,
        /// Its device.
        device: DeviceNumber,
        /// Who opened.
        task: TaskId,
        /// The name of the task at that moment.
        comm: RawText,
    },
    /// The driver's open failed: the file never was.
    OpenFailed {
        /// The file.
        file: FileKey,
        /// Negative errno.
        error: i32,
    },
    /// The driver's release was entered.
    Releasing {
        /// The file.
        file: FileKey,
        /// Its device.
        device: DeviceNumber,
        /// In whose context it runs: a closer, an exiting task, a kernel worker.
        task: TaskId,
    },
    /// The driver's release returned and left the work to a kernel thread of the driver.
    ReleaseDeferred {
        /// The file.
        file: FileKey,
        /// Its device.
        device: DeviceNumber,
        /// What the driver calls that work. The file itself goes now, and its address may be that of another one at once:
        /// by this it is told that the work is done.
        work: FileKey,
    },
    /// The driver's release is done.
    Released {
        /// The file, or the work that was deferred.
        file: FileKey,
        /// Who did it, where that is known.
        task: Option<TaskId>,
    },
    /// The driver's mmap of a file succeeded.
    Mapped {
        /// The file.
        file: FileKey,
        /// Who maps it.
        task: TaskId,
    },
    /// A task made a system call that may change who refers to what: time to look. Of many in a short time one is told.
    Called {
        /// Who.
        task: TaskId,
    },
    /// A task was created: a process, or a thread when both ids name the same process.
    Forked {
        /// Who forked.
        parent: TaskId,
        /// The new task.
        child: TaskId,
        /// Its name, inherited from the parent.
        comm: RawText,
    },
    /// A process executed another program.
    Execed {
        /// The task afterwards; exec makes it the leader.
        task: TaskId,
        /// Its name afterwards.
        comm: RawText,
    },
    /// A task took another name.
    Renamed {
        /// Which task.
        task: TaskId,
        /// The name it wore.
        old: RawText,
        /// The name it wears now.
        new: RawText,
    },
    /// A task entered `do_exit`. Nothing is released yet.
    Exiting {
        /// Which task.
        task: TaskId,
        /// Was it the last of its process?
        group_dead: bool,
        /// How it ends.
        exit: Exit,
        /// Its fd table.
        table: Option<TableKey>,
        /// The device files in that table at this moment.
        held: Vec<HeldAtExit>,
        /// Other files in it that may keep it from going on, by descriptor; not all where there are many.
        may_wait: Vec<MayWait>,
    },
    /// A task was reaped: nothing of it is left.
    Freed {
        /// Which task.
        task: TaskId,
    },
    /// A signal was sent.
    Signalled {
        /// In whose context.
        sender: Sender,
        /// To whom.
        target: TaskId,
        /// Signal number.
        signal: i32,
        /// `si_code`: 0 `kill(2)`, -6 `tgkill(2)`, above 0 the kernel itself.
        code: i32,
    },
    /// The out-of-memory killer chose a victim.
    OomKilled {
        /// The victim.
        victim: TaskId,
    },
    /// A kernel module of interest was loaded.
    ModuleLoaded {
        /// Its name.
        name: String,
    },
    /// A kernel module of interest was unloaded.
    ModuleUnloaded {
        /// Its name.
        name: String,
    },
    /// Events were lost.
    Lost {
        /// How many, as far as that is known.
        count: u64,
        /// Why, in a stable word: `ring-full`, `map-full`, `rate-limited`, ...
        cause: &'static str,
    },
    /// A remembered file was looked at again in the kernel, by address and identity.
    FileChecked {
        /// The address.
        file: FileKey,
        /// The kernel's count of references; `None`: nothing lives there, it has been released.
        count: Option<u64>,
        /// Is it still the file that was remembered?
        still_same: bool,
    },
}

/// A place in an fd table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The table.
    pub table: TableKey,
    /// The descriptor.
    pub fd: u32,
}

/// What a task asked of a device node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// To read.
    pub read: bool,
    /// To write.
    pub write: bool,
}

/// A descriptor whose close may have to wait for somebody: for the server of its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MayWait {
    /// The descriptor.
    pub fd: u32,
    /// Magic number of the file system (`statfs(2)`).
    pub file_system: u64,
}

/// A device file in the fd table of a task that begins to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldAtExit {
    /// The file.
    pub file: FileKey,
    /// Its device.
    pub device: DeviceNumber,
    /// The descriptor.
    pub fd: u32,
    /// As `OpenFile::identity`.
    pub identity: u64,
}

/// Who sent a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The task in whose context it was sent.
    pub task: TaskId,
    /// Its name.
    pub comm: RawText,
    /// Its real user id.
    pub uid: u32,
}

/// How a task ends: `task_struct.exit_code`, which is also what `wait(2)` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exit(pub i32);

impl Exit {
    /// The status given to `exit(2)`, if no signal ended it.
    #[must_use]
    pub const fn status(self) -> Option<u8> {
        if self.signal().is_some() { None } else { Some((self.0 >> 8) as u8) }
    }

    /// The signal that ended it.
    #[must_use]
    pub const fn signal(self) -> Option<i32> {
        match self.0 & 0x7f {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Did it dump core?
    #[must_use]
    pub const fn dumped_core(self) -> bool {
        self.signal().is_some() && self.0 & 0x80 != 0
    }
}

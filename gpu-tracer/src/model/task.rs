//! Tasks (threads) and the kernel objects through which they refer to files.

use super::RawText;

/// Identity of one `files_struct` (fd table). Opaque: a kernel address, never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableKey(pub u64);

/// Identity of one `mm_struct` (address space). Opaque: a kernel address, never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MmKey(pub u64);

/// A process that cannot be confused with a later one that got the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Thread-group id in the host's (initial) PID namespace.
    pub tgid: u32,
    /// Start of the group leader, ns of boot time. `/proc/PID/stat` has it in 10 ms steps.
    pub start_ns: u64,
}

impl ProcessId {
    /// Is `start_ns`, from `/proc/PID/stat` and therefore in steps of a clock tick, the start of this process?
    #[must_use]
    pub const fn started_in_tick_of(self, start_ns: u64) -> bool {
        /// USER_HZ is 100 on every architecture we build for.
        const TICK_NS: u64 = 10_000_000;
        self.start_ns.abs_diff(start_ns) < TICK_NS
    }
}

/// Scheduler state of a task, as the letter that `ps` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// `R`
    Running,
    /// `S`
    Sleeping,
    /// `D`: uninterruptible
    Uninterruptible,
    /// `T`
    Stopped,
    /// `t`
    Traced,
    /// `I`: idle kernel thread
    Idle,
    /// `P`
    Parked,
    /// `Z`
    Zombie,
    /// `X`
    Dead,
    /// anything a newer kernel may invent
    Other,
}

impl TaskState {
    /// The letter `ps` prints.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Running => 'R',
            Self::Sleeping => 'S',
            Self::Uninterruptible => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Idle => 'I',
            Self::Parked => 'P',
            Self::Zombie => 'Z',
            Self::Dead => 'X',
            Self::Other => '?',
        }
    }

    /// From the letter in `/proc/PID/stat`.
    #[must_use]
    pub const fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => Self::Running,
            b'S' => Self::Sleeping,
            b'D' => Self::Uninterruptible,
            b'T' => Self::Stopped,
            b't' => Self::Traced,
            b'I' => Self::Idle,
            b'P' => Self::Parked,
            b'Z' => Self::Zombie,
            b'X' | b'x' => Self::Dead,
            _ => Self::Other,
        }
    }
}

/// One task at the instant of a snapshot. All ids are those of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread-group id.
    pub tgid: u32,
    /// Thread id; equal to `tgid` for the leader.
    pub tid: u32,
    /// Start of this task, ns of boot time.
    pub start_ns: u64,
    /// Thread-group id of the real parent.
    pub ppid: u32,
    /// Real user id.
    pub uid: u32,
    /// Name, at most 15 bytes, chosen by the task itself.
    pub comm: RawText,
    /// Scheduler state; zombies and dead tasks are `Zombie` and `Dead` whatever the scheduler says.
    pub state: TaskState,
    /// `PF_EXITING`: it is on its way through `do_exit` and will not run user code again.
    pub exiting: bool,
    /// A SIGKILL is pending, to the thread or to its group.
    pub sigkill_pending: bool,
    /// A kernel thread: has no user memory and cannot be killed.
    pub kernel_thread: bool,
    /// Frozen by the cgroup freezer.
    pub frozen: bool,
    /// Its group is writing a core dump.
    pub dumping_core: bool,
    /// Thread-group id in the innermost PID namespace the task lives in.
    pub tgid_in_ns: u32,
    /// Inode number of its PID namespace.
    pub pid_ns: u32,
    /// Inode number of its network namespace; 0 when it has none any more (exiting).
    pub net_ns: u32,
    /// Its fd table; `None` once it has exited past `exit_files`. `None` too where the view cannot tell (`/proc`).
    pub table: Option<TableKey>,
    /// Its address space; `None` for kernel threads and past `exit_mm`.
    pub mm: Option<MmKey>,
}

impl Task {
    /// Is it the thread-group leader?
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.tid == self.tgid
    }

    /// Zombie or already reaped: nothing of it is left but its exit status.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, TaskState::Zombie | TaskState::Dead)
    }

    /// Half-way through exit with its fd table and address space already taken from it.
    ///
    /// What it is still dropping cannot be seen by any scan.
    #[must_use]
    pub fn is_half_gone(&self) -> bool {
        self.exiting && !self.is_dead() && !self.kernel_thread && self.table.is_none()
    }
}

//! What the iterator programs write: one [`TaskRecord`] per task into the sequence file, everything else as
//! [`HoldRecord`]s into the `HOLDS` ring.

use crate::LAYOUT;

/// First word of a record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Header {
    /// One of the `KIND_*` or `HOLD_*` constants.
    pub kind: u16,
    /// [`LAYOUT`].
    pub layout: u16,
}

impl Header {
    /// A header of this layout.
    #[inline(always)]
    #[must_use]
    pub const fn new(kind: u16) -> Self {
        Self { kind, layout: LAYOUT }
    }
}

/// [`TaskRecord`].
pub const KIND_TASK: u16 = 1;
/// [`HoldRecord`]: a slot of an fd table. `by` = `files_struct`, `at` = fd, `end` = [`fd_bits`].
pub const HOLD_FD: u16 = 2;
/// [`HoldRecord`]: a mapping. `by` = `mm_struct`, `at` = first address, `end` = address after the last.
pub const HOLD_MAP: u16 = 3;
/// [`HoldRecord`]: queued in a unix socket. `by` = the socket's `struct file` (or `struct sock` when it has none), `at` = its inode number, `end` tells two descriptors in one queue apart.
pub const HOLD_IN_FLIGHT: u16 = 4;
/// [`HoldRecord`]: `file` is a `struct sock` that nobody accepted yet. `by` = the listening socket's `struct file`, `at` = its inode number.
pub const HOLD_UNACCEPTED: u16 = 5;
/// [`HoldRecord`]: registered with an io_uring. `by` = the ring's `struct file`, `at` = slot.
pub const HOLD_IO_URING: u16 = 6;
/// [`HoldRecord`]: the driver holds `file` (an nvidiactl) on behalf of device file `by`.
pub const HOLD_DRIVER_PIN: u16 = 7;
/// [`HoldRecord`]: a file remembered from earlier, as it is now. `by` = its `struct dentry`, `at` = references to that
/// (`d_lockref.count`), 0 where it is no longer the dentry of the file's inode; `end` = [`check_bits`].
pub const HOLD_CHECKED: u16 = 8;
/// [`HoldRecord`]: the kernel modules that device file `file` keeps from being unloaded, as addresses of `struct module`, 0
/// for none: `at` = that of its operations (`f_op->owner`), `end` = that of its device (`i_cdev->owner`).
pub const HOLD_OWNERS: u16 = 9;
/// [`HoldRecord`]: a network namespace. `by` = its inode number, `file` = its table of unix sockets, an array of [`UNIX_CHAINS`].
pub const HOLD_NAMESPACE: u16 = 10;

/// `end` of a [`HOLD_FD`] record.
pub mod fd_bits {
    /// No module owns the file, and the driver holds no other on its behalf: a closer look would find neither
    /// [`HOLD_DRIVER_PIN`](super::HOLD_DRIVER_PIN) nor [`HOLD_OWNERS`](super::HOLD_OWNERS).
    pub const PLAIN: u64 = 1;
}

/// `end` of a [`HOLD_CHECKED`] record.
pub mod check_bits {
    /// The file has the blob of a security module, which is taken from it only when it is freed.
    pub const HAS_SECURITY_BLOB: u64 = 1;
}

/// `file` is an open GPU device.
pub const FILE_DEVICE: u32 = 0;
/// `file` is a unix socket.
pub const FILE_SOCKET: u32 = 1;
/// `file` is an io_uring.
pub const FILE_RING: u32 = 2;
/// `file` is the table of unix sockets of a network namespace.
pub const FILE_NAMESPACE: u32 = 3;

/// Chains in a table of unix sockets: `2 * UNIX_HASH_SIZE` before 6.0 (`include/net/af_unix.h`), `UNIX_HASH_SIZE` since.
pub const UNIX_CHAINS: u64 = 512;

/// Bits of [`TaskRecord::bits`].
pub mod task_bits {
    /// A SIGKILL is pending, to the thread or its group.
    pub const SIGKILL_PENDING: u32 = 1;
    /// Frozen by the cgroup freezer (v2: `JOBCTL_TRAP_FREEZE`; v1 shows in `state`).
    pub const FROZEN: u32 = 2;
    /// Its thread group is writing a core dump.
    pub const DUMPING_CORE: u32 = 4;
    /// A group stop is in effect (`SIGNAL_STOP_STOPPED`).
    pub const GROUP_STOPPED: u32 = 8;
    /// Its group is being killed (`SIGNAL_GROUP_EXIT`).
    pub const GROUP_EXIT: u32 = 16;
}

/// One task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
pub struct TaskRecord {
    /// [`KIND_TASK`].
    pub header: Header,
    /// Thread-group id, initial PID namespace.
    pub tgid: u32,
    /// Thread id, initial PID namespace.
    pub tid: u32,
    /// Thread-group id of the real parent.
    pub ppid: u32,
    /// Real user id, initial user namespace.
    pub uid: u32,
    /// `task_struct.flags` (`PF_*`).
    pub flags: u32,
    /// `task_struct.__state`.
    pub state: u32,
    /// `task_struct.exit_state`.
    pub exit_state: u32,
    /// [`task_bits`].
    pub bits: u32,
    /// Thread-group id in the innermost PID namespace.
    pub tgid_in_ns: u32,
    /// Inode number of the PID namespace, 0 when unknown.
    pub pid_ns: u32,
    /// Inode number of the network namespace, 0 when unknown.
    pub net_ns: u32,
    /// `task_struct.start_boottime`, ns.
    pub start_ns: u64,
    /// `files_struct` address, 0 when gone.
    pub files: u64,
    /// `mm_struct` address, 0 when gone.
    pub mm: u64,
    /// Name.
    pub comm: [u8; 16],
}
const _: () = assert!(size_of::<TaskRecord>() == 88);

/// One reference to one file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
pub struct HoldRecord {
    /// One of `HOLD_*`.
    pub header: Header,
    /// [`FILE_DEVICE`], [`FILE_SOCKET`] or [`FILE_RING`].
    pub file_kind: u32,
    /// `i_rdev` of a device, kernel encoding; 0 otherwise.
    pub rdev: u32,
    /// Task seen with it, 0 where there is none.
    pub tid: u32,
    /// `struct file` (see the kinds for the exception).
    pub file: u64,
    /// References as the kernel counts them, of `file`; `u64::MAX` when unreadable.
    pub count: u64,
    /// What refers to it; see the kinds.
    pub by: u64,
    /// Where in `by`; see the kinds.
    pub at: u64,
    /// See the kinds; 0 where unused.
    pub end: u64,
    /// For [`FILE_DEVICE`]: a hash of what stays the same for as long as the file lives, and is another for nearly every
    /// other file at the same address: inode, dentry, mount, opener's credentials, security blob. 0 otherwise.
    pub identity: u64,
    /// When that was read, ns of boot time.
    pub seen_ns: u64,
}
const _: () = assert!(size_of::<HoldRecord>() == 72);

/// Minor of a key of the `WANTED` map that stands for every minor of its major.
pub const EVERY_MINOR: u32 = 0xf_ffff;
/// Minors of a range that are asked for one by one; longer ranges are asked for by their major.
pub const MAX_MINORS: u32 = 64;
/// Ranges of device numbers that can be looked for.
pub const MAX_WANTED: usize = 64;
/// Elements of the `WANTED` map.
pub const WANTED_KEYS: u32 = MAX_MINORS * MAX_WANTED as u32;

/// Elements of the only value of `WANTED_MINORS`, one for each major number: bit N stands for minor N, and the last bit says
/// that one of those without a bit may be wanted.
pub const MAJORS: usize = 4096;
/// Minors that have a bit there.
pub const MINORS_WITH_BIT: u32 = 63;

/// What a pass over the tasks is for.
pub mod mode {
    /// Report tasks, device files, and the device files of io_urings.
    pub const DEVICES: u32 = 0;
    /// Report only descriptors whose file is in the `CARRIERS` map.
    pub const CARRIERS: u32 = 1;
    /// Report nothing; learn `io_uring_fops` from the reader's descriptor named in the control block.
    pub const LEARN_RING: u32 = 2;
    /// Report nothing; learn where the kernel keeps the reader's unix socket, whose descriptor is named in the control block.
    pub const LEARN_SOCKET: u32 = 3;
}

/// Instructions to the iterator programs and their state between reads: the single element of the `CONTROL` map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// One of [`mode`].
    pub mode: u32,
    /// For [`mode::LEARN_RING`] and [`mode::LEARN_SOCKET`]: the reader's own descriptor.
    pub learn_fd: u32,
    /// Times that the ring was full and the element had to be repeated.
    pub full: u32,
    /// Non-zero: network namespaces are to be listed; zero again when they have been.
    pub list_namespaces: u32,
    /// `f_op` of io_uring files; 0 while unknown.
    pub ring_fops: u64,
    /// After [`mode::LEARN_SOCKET`]: the socket.
    pub sock: u64,
    /// What points to it in its list: the list's head, or the socket before it.
    pub sock_behind: u64,
    /// fd table in which the walk stopped because the ring was full.
    pub resume_table: u64,
    /// First slot not reported of that table.
    pub resume_slot: u64,
    /// Lists that were not followed to their end: longer than the programs follow, or changed all the while.
    pub truncated: u64,
    /// Next element of `SUBJECTS` to look at.
    pub subject: u32,
    /// Elements of `SUBJECTS` in use.
    pub subjects: u32,
}
const _: () = assert!(size_of::<Control>() == 72);

/// Elements of the `SUBJECTS` map.
pub const MAX_SUBJECTS: u32 = 16_384;

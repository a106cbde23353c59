//! What the event programs write into the `EVENTS` ring, their filters, and the counters of what they could not write.
//!
//! Every record begins with an [`EventHead`]. Times are ns of boot time, ids those of the initial PID namespace.

mod drops;

pub use drops::{Drop, DropCount, DropCounts};

use crate::snapshot::Header;

/// A task, in a way that no later task can be mistaken for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct TaskRef {
    /// Thread-group id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// `start_boottime` of the group leader, ns.
    pub start_ns: u64,
}
const _: () = assert!(size_of::<TaskRef>() == 16);

/// First words of every record of the `EVENTS` ring, and all there is of [`KIND_FREED`] and [`KIND_VICTIM`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct EventHead {
    /// One of the kinds below.
    pub header: Header,
    /// See the kinds; 0 where unused.
    pub detail: u32,
    /// When.
    pub at_ns: u64,
    /// The task that it happened to, or that did it.
    pub task: TaskRef,
}
const _: () = assert!(size_of::<EventHead>() == 32);

/// [`TouchRecord`]. `detail` = [`access_bits`].
pub const KIND_TOUCHED: u16 = 32;
/// [`ForkRecord`].
pub const KIND_FORKED: u16 = 33;
/// [`ExecRecord`].
pub const KIND_EXECED: u16 = 34;
/// [`ExitRecord`]. `detail` = [`exit_bits`].
pub const KIND_EXITING: u16 = 35;
/// [`EventHead`]: reaped.
pub const KIND_FREED: u16 = 36;
/// [`RenameRecord`].
pub const KIND_RENAMED: u16 = 37;
/// [`SignalRecord`]. `detail` = signal number.
pub const KIND_SIGNALLED: u16 = 38;
/// [`EventHead`]: chosen by the out-of-memory killer.
pub const KIND_VICTIM: u16 = 39;
/// [`ModuleRecord`].
pub const KIND_MODULE_LOADED: u16 = 40;
/// [`ModuleRecord`].
pub const KIND_MODULE_UNLOADED: u16 = 41;

/// [`DriverRecord`]: the driver's open of a file was entered.
pub const KIND_OPENING: u16 = 42;
/// [`DriverRecord`]: the driver's open returned.
pub const KIND_OPENED: u16 = 43;
/// [`DriverRecord`]: the driver's release was entered.
pub const KIND_RELEASING: u16 = 44;
/// [`DriverRecord`]: the driver's release has left its work to a kernel thread of the driver.
pub const KIND_DEFERRED: u16 = 45;
/// [`DriverRecord`]: the driver's release, or what it had left to a kernel thread, is done.
pub const KIND_RELEASED: u16 = 46;

/// [`DriverRecord`]: the driver's mmap of a file has succeeded.
pub const KIND_MAPPED: u16 = 47;
/// [`EventHead`]: a system call that may change who refers to what. `detail` = one of [`call_class`].
pub const KIND_CALLED: u16 = 48;

/// `detail` of a [`TouchRecord`].
pub mod access_bits {
    /// To read.
    pub const READ: u32 = 1;
    /// To write.
    pub const WRITE: u32 = 2;
    /// The budget of this window is used up: touches that follow are only counted, until it ends.
    pub const LAST_OF_WINDOW: u32 = 4;
}

/// Descriptors of an exiting task that are looked at where programs cannot loop.
pub const DESCRIPTORS_WITHOUT_LOOP: u32 = 16_384;

/// `fd` of a [`TouchRecord`]: none is known.
pub const NO_FD: u32 = u32::MAX;

/// A task asked for a device node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct TouchRecord {
    /// Who, when.
    pub head: EventHead,
    /// Device number, kernel encoding.
    pub rdev: u32,
    /// The descriptor that was reserved for it in `table`; [`NO_FD`] where there was none or it could not be told.
    pub fd: u32,
    /// Its fd table.
    pub table: u64,
    /// Touches of this device by this process so far, those only counted included.
    pub hits: u64,
    /// Id of its cgroup in the v2 hierarchy, 0 where unknown.
    pub cgroup: u64,
    /// The `struct file` that the device is being opened as, which refers to nothing yet; 0 where there was none, or several
    /// may be it, or none was found.
    pub file: u64,
    /// Its name.
    pub comm: [u8; 16],
}
const _: () = assert!(size_of::<TouchRecord>() == 88);

/// A task was created.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ForkRecord {
    /// The parent.
    pub head: EventHead,
    /// The child.
    pub child: TaskRef,
    /// The child's name.
    pub comm: [u8; 16],
}
const _: () = assert!(size_of::<ForkRecord>() == 64);

/// A process executed another program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ExecRecord {
    /// The task afterwards.
    pub head: EventHead,
    /// Its name afterwards.
    pub comm: [u8; 16],
}
const _: () = assert!(size_of::<ExecRecord>() == 48);

/// A task took another name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct RenameRecord {
    /// Which task.
    pub head: EventHead,
    /// The name it wore.
    pub old: [u8; 16],
    /// The name it wears now.
    pub new: [u8; 16],
}
const _: () = assert!(size_of::<RenameRecord>() == 64);

/// A signal was sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct SignalRecord {
    /// The target.
    pub head: EventHead,
    /// In whose context.
    pub sender: TaskRef,
    /// Its real user id.
    pub sender_uid: u32,
    /// `si_code`.
    pub code: i32,
    /// Its name.
    pub sender_comm: [u8; 16],
}
const _: () = assert!(size_of::<SignalRecord>() == 72);

/// A module was loaded or unloaded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ModuleRecord {
    /// Who did it.
    pub head: EventHead,
    /// Its name (`MODULE_NAME_LEN`).
    pub name: [u8; 56],
}
const _: () = assert!(size_of::<ModuleRecord>() == 88);

/// Something happened to a file inside the driver.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct DriverRecord {
    /// Who does it, when.
    pub head: EventHead,
    /// `struct file`. Where what was deferred is done this is the address of another file, if of any.
    pub file: u64,
    /// [`Call::work`]; 0 where nothing was or can be deferred.
    pub work: u64,
    /// Device number, kernel encoding.
    pub rdev: u32,
    /// What the driver's open returned: 0, or a negative errno.
    pub result: i32,
    /// Name of the task, where it opens.
    pub comm: [u8; 16],
}
const _: () = assert!(size_of::<DriverRecord>() == 72);

/// `detail` of an [`ExitRecord`].
pub mod exit_bits {
    /// It was the last task of its process.
    pub const GROUP_DEAD: u32 = 1;
    /// More of its files follow in another record.
    pub const MORE: u32 = 2;
}

/// Files in one [`ExitRecord`].
pub const EXIT_HOLDS: usize = 128;
/// Records for one exit. Files beyond that are not told ([`Drop::TableTooLong`]).
pub const MAX_EXIT_CHUNKS: u32 = 128;

/// A task entered `do_exit`. As many [`ExitHold`]s as `held` says follow it: none where the leader or the last task of the
/// process tells what is in the table they share, and on kernels without `bpf_loop` (before 5.17).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ExitRecord {
    /// Which task.
    pub head: EventHead,
    /// `task_struct.exit_code`.
    pub exit_code: i32,
    /// [`ExitHold`]s in this record.
    pub held: u32,
    /// Its `files_struct`, 0 where it has none.
    pub table: u64,
}
const _: () = assert!(size_of::<ExitRecord>() == 48);

/// `rdev` of an [`ExitHold`] that is no GPU device, but a file of which a close has something to wait for (`f_op->flush`);
/// `identity` is then the magic number of its file system.
pub const MAY_WAIT: u32 = u32::MAX;
/// So many of those are told of one exit, the lowest descriptors first.
pub const MOST_MAY_WAIT: u32 = 16;

/// A device file in the fd table of a task that begins to exit, or one that is [`MAY_WAIT`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ExitHold {
    /// `struct file`.
    pub file: u64,
    /// As `HoldRecord::identity`.
    pub identity: u64,
    /// Device number, kernel encoding.
    pub rdev: u32,
    /// Descriptor.
    pub fd: u32,
}
const _: () = assert!(size_of::<ExitHold>() == 24);

/// Bytes of the `EVENTS` ring unless the user side wants another size: some 12,000 events.
pub const RING_BYTES: u32 = 1 << 20;

/// Processes that can be in `TRACKED`.
pub const MAX_TRACKED: u32 = 16_384;

/// Counters in `TRACKED_SLOTS`: how many tracked processes have a tgid of that remainder. Nearly every other process is
/// told from them by one load, where a lookup in a hash table costs several misses of the caches.
pub const TRACKED_SLOTS: usize = 1024;

/// Value of `TRACKED`, whose key is the tgid: a process whose doings are of interest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// `start_boottime` of its leader: tells it from another process with the same tgid.
    pub start_ns: u64,
    /// Begin of the current window, ns.
    pub window_ns: u64,
    /// Signals, renames and execs in that window.
    pub in_window: u64,
    /// When a system call of it was told last, ns.
    pub called_ns: u64,
}
const _: () = assert!(size_of::<Tracked>() == 32);

/// Pairs of process and device in `TOUCHES`.
pub const MAX_TOUCHES: u32 = 4096;

/// Key of `TOUCHES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TouchKey {
    /// Thread-group id.
    pub tgid: u32,
    /// Device number, kernel encoding.
    pub rdev: u32,
}
const _: () = assert!(size_of::<TouchKey>() == 8);

/// Value of `TOUCHES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// `start_boottime` of the process.
    pub start_ns: u64,
    /// Begin of the current window, ns.
    pub window_ns: u64,
    /// Touches in that window.
    pub in_window: u64,
    /// Touches ever.
    pub hits: u64,
}
const _: () = assert!(size_of::<Touches>() == 32);

/// Length of the windows in which one process has a budget of records, so that none can fill the ring on purpose.
pub const WINDOW_NS: u64 = 100_000_000;
/// Touches of one device by one process that are recorded in a window; a CUDA start makes about 30. The others are counted.
pub const TOUCHES_PER_WINDOW: u64 = 64;
/// Signals, renames and execs of one process that are recorded in a window. The others are counted.
pub const CHATTER_PER_WINDOW: u64 = 64;

/// Elements of `OPENS` and of `RELEASES`, by the low bits of a thread id; a power of two.
pub const CALL_SLOTS: u32 = 2048;
/// Calls into the driver that `CALLS` can hold: what finds no place in the former, and calls of other kinds.
pub const MAX_CALLS: u32 = 4096;
/// Closes that `DEFERRED` and `TOLD` can hold.
pub const MAX_DEFERRED: u32 = 1024;
/// Processes whose budget is in `SPENT`, and as many in `SPENT_PLACES`; a power of two.
pub const MAX_SPENT: u32 = 1024;
/// Opens, mmaps and releases of one process that are recorded in a window; to end with a thousand handles is ordinary. The
/// others are counted.
pub const CALLS_PER_WINDOW: u32 = 1024;

/// Key of `CALLS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// Thread id.
    pub tid: u32,
    /// One of [`calls`].
    pub what: u32,
}
const _: () = assert!(size_of::<CallKey>() == 8);

/// What a task can be doing in the driver.
pub mod calls {
    /// Its open.
    pub const OPEN: u32 = 0;
    /// Its release.
    pub const RELEASE: u32 = 1;
    /// Of a kernel thread: what a release has left to it.
    pub const WORK: u32 = 2;
    /// Its mmap.
    pub const MAP: u32 = 3;
}

/// Value of `CALLS`: a call that has not returned. Value of `DEFERRED`, whose key is [`Call::work`]: a release that has been left
/// to a kernel thread which has not begun with it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// `struct file`.
    pub file: u64,
    /// What the driver will hand to its kernel thread if it defers this release; 0 where it cannot or does not.
    pub work: u64,
    /// Since when, ns of boot time.
    pub at_ns: u64,
    /// `start_boottime` of the process of the task, ns.
    pub start_ns: u64,
    /// Its thread-group id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// Device number, kernel encoding.
    pub rdev: u32,
    /// 0 if the process has used up its budget: of this call nothing is told.
    pub told: u32,
}
const _: () = assert!(size_of::<Call>() == 48);

/// Element of `OPENS` and `RELEASES`: what a task does in the driver, without a search. Of tasks whose ids have the same low bits
/// one has it, and the others are in `CALLS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSlot {
    /// Who wants it adds one and has it if that makes it one. Who has it, or has not got it, takes that away again.
    pub claims: u32,
    /// Who has it, by thread id; 0 for nobody.
    pub tid: u32,
    /// What it does.
    pub call: Call,
}
const _: () = assert!(size_of::<CallSlot>() == 56);

/// Entries of `CALL_CLASSES`, by the number of a system call: in the low bits what it can do, as an architecture's own
/// programs number it.
pub mod call_class {
    /// Nothing to files of others.
    pub const NONE: u8 = 0;
    /// Closes the descriptor that is its first argument.
    pub const CLOSE: u8 = 1;
    /// Duplicates the descriptor that is its first argument.
    pub const DUP: u8 = 2;
    /// Likewise, onto the descriptor that is its second, which it closes.
    pub const DUP_ONTO: u8 = 3;
    /// `fcntl(2)`: duplicates its first argument where the second says so.
    pub const FCNTL: u8 = 4;
    /// Maps the descriptor that is its fifth argument.
    pub const MAP: u8 = 5;
    /// Sends the message that is its second argument.
    pub const SEND: u8 = 6;
    /// Receives the message that is its second argument.
    pub const RECEIVE: u8 = 7;
    /// Receives several messages.
    pub const RECEIVE_MANY: u8 = 8;
    /// Returns a descriptor that it takes from another process.
    pub const TAKE: u8 = 9;
    /// Anything: no argument tells.
    pub const ANY: u8 = 10;
    /// The bits of the above.
    pub const OWN: u8 = 0x0f;
    /// The call of this number of 32-bit programs can do something. What, nobody asks.
    pub const OF_COMPAT: u8 = 0x80;
}

/// Length of `CALL_CLASSES`; a power of two. No architecture has a call with a greater number.
pub const CALL_NUMBERS: usize = 512;
/// Elements of `CALLING`, by the low bits of a thread id; a power of two.
pub const CALLING_SLOTS: u32 = 32_768;
/// A call that is known to concern a device is told if none of that process was told for so long, ns: the look that follows
/// is no sooner.
pub const CALLS_APART_NS: u64 = 5_000_000;
/// The same for one that may concern a device.
pub const VAGUE_CALLS_APART_NS: u64 = 100_000_000;

/// Value of `SPENT` and `SPENT_PLACES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Begin of the current window, ns.
    pub window_ns: u64,
    /// Whose it is.
    pub tgid: u32,
    /// Calls in that window.
    pub in_window: u32,
}
const _: () = assert!(size_of::<Spent>() == 16);

//! What happens: device nodes asked for, and the lives of the processes that hold something.
//!
//! | file | hooks |
//! |---|---|
//! | `touched.rs` | `cgroup/dev` at the root of the v2 hierarchy: opens (and `access(2)`) of device nodes |
//! | `lifecycle.rs` | fork, exec, reaped, renamed |
//! | `exit.rs` | begin of an exit, and what is in the fd table at that moment |
//! | `signals.rs` | signals that may end or stop a process, and who sent them; victims of the OOM killer |
//! | `modules.rs` | drivers loaded and unloaded |
//! | `driver.rs` | kprobes at the driver's own open and release, where the kernel has kprobes |
//! | `called.rs` | every system call of the host, in plan `exhaustive` only |
//! | `in_progress.rs` | calls into the driver that have not returned |
//! | `tracked.rs` | the set of processes whose doings are of interest |
//!
//! Nothing here ever blocks or denies anything. For a process that is not in the set a hook costs one load.

mod called;
mod driver;
mod exit;
mod in_progress;
mod lifecycle;
mod modules;
mod signals;
mod touched;
mod tracked;

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_boot_ns},
    macros::map,
    maps::{Array, PerCpuArray, RingBuf},
};
use gpu_tracer_common::{
    events::{Drop, DropCounts, EventHead, RING_BYTES, TaskRef, WINDOW_NS},
    snapshot::Header,
};

use crate::access::{increment, offset, peek, read};

/// Records for the user side. Whoever waits for it is woken when the ring was empty, so that an idle host wakes nobody
/// and a busy one does so once for each time the ring is drained.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

/// What could not be written. Only ever counts up.
#[map]
static DROPS: PerCpuArray<DropCounts> = PerCpuArray::with_max_entries(1, 0);

/// How much of that the user side has passed on, kept here so that whoever takes over from it knows. Not used here.
#[map]
static REPORTED: Array<DropCounts> = Array::with_max_entries(1, 0);

#[inline(always)]
fn now() -> u64 {
    // SAFETY: no arguments, no effects.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Is a window of a budget that began then over? What some may do once in it is counted for each.
#[inline(always)]
fn is_over(window_ns: u64, now: u64) -> bool {
    now.wrapping_sub(window_ns) >= WINDOW_NS
}

/// Counts what went wrong, if anything did.
#[inline(always)]
fn account(outcome: Result<(), Drop>) {
    if let Err(cause) = outcome {
        count(cause);
    }
}

#[inline(always)]
fn count(cause: Drop) {
    let Some(counts) = DROPS.get_ptr_mut(0) else { return };
    // SAFETY: the only element of a per-CPU array, and `cause` is one of its indexes.
    let one = unsafe { &mut (*counts).0[cause as usize] };
    // Atomically, as a tracepoint can come in the middle of a program in process context.
    // SAFETY: in a map's value, and aligned.
    unsafe { increment(&raw mut one.count) };
    one.last_ns = now();
}

/// Appends one record.
#[inline(always)]
fn emit<T: 'static>(record: T) -> Result<(), Drop> {
    let Some(mut slot) = EVENTS.reserve::<T>(0) else { return Err(Drop::RingFull) };
    slot.write(record);
    slot.submit(0);
    Ok(())
}

#[inline(always)]
fn head(kind: u16, detail: u32, task: TaskRef) -> EventHead {
    EventHead { header: Header::new(kind), detail, at_ns: now(), task }
}

/// Identity of the task at this address.
#[inline(always)]
fn task_ref(task: u64) -> Result<TaskRef, Drop> {
    let leader = read::<u64>(task, offset!(task_group_leader)).ok_or(Drop::Unreadable)?;
    Ok(TaskRef {
        tgid: tgid_of(task)?,
        tid: read::<u32>(task, offset!(task_pid)).ok_or(Drop::Unreadable)?,
        start_ns: read::<u64>(leader, offset!(task_start_boottime)).ok_or(Drop::Unreadable)?,
    })
}

/// Identity of the current task: as [`task_ref`], with less to read.
#[inline(always)]
fn current_ref() -> Result<TaskRef, Drop> {
    // SAFETY: no arguments, no effects. (Their likes that give typed pointers are not to be had here before 5.11.)
    let (ids, task) = unsafe { (bpf_get_current_pid_tgid(), bpf_get_current_task()) };
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    let leader = if tid == tgid { Some(task) } else { read::<u64>(task, offset!(task_group_leader)) };
    let start_ns = leader.and_then(|leader| read::<u64>(leader, offset!(task_start_boottime)));
    Ok(TaskRef { tgid, tid, start_ns: start_ns.ok_or(Drop::Unreadable)? })
}

#[inline(always)]
fn tgid_of(task: u64) -> Result<u32, Drop> {
    read::<u32>(task, offset!(task_tgid)).ok_or(Drop::Unreadable)
}

#[inline(always)]
fn comm_of(task: u64) -> [u8; 16] {
    peek::<[u8; 16]>(task, offset!(task_comm))
}

/// Argument `index` of a raw tracepoint.
///
/// # Safety
/// `context` must be the context of a raw tracepoint with more than `index` arguments.
#[inline(always)]
unsafe fn argument(context: *mut c_void, index: usize) -> u64 {
    // SAFETY: the caller's promise; the verifier checks it when the program is attached.
    unsafe { context.cast::<u64>().add(index).read_volatile() }
}

//! kprobes at the driver's own functions: when its open and its release begin and end, and what it defers.
//!
//! A program is attached to whatever function of the driver plays its part; the user side knows which those are. A call in
//! progress is remembered by its task. A release whose work the driver leaves to a kernel thread of its own is known by
//! two signs: the function that does the work was not run before the release returned, and the thread gets the pointer
//! that the file had as `private_data` when its release began. The thread may be at it before the release has returned, so
//! whoever of the two comes first tells of it.
//!
//! Nothing of this is ever run for a file of anything but that driver.

use aya_ebpf::{
    helpers::generated::bpf_get_current_task,
    macros::map,
    maps::{HashMap, LruHashMap},
    programs::{ProbeContext, RetProbeContext},
};
use core::ffi::c_void;
use gpu_tracer_common::events::{
    CALLS_PER_WINDOW, Call, CallKey, DriverRecord, Drop, EventHead, KIND_DEFERRED, KIND_MAPPED, KIND_OPENED,
    KIND_OPENING, KIND_RELEASED, KIND_RELEASING, MAX_CALLS, MAX_DEFERRED, MAX_SPENT, Spent, TaskRef,
    WINDOW_NS, calls,
};
use gpu_tracer_common::snapshot::Header;

use super::{account, comm_of, count, emit, now, task_ref, tracked};
use crate::{
    access::{offset, read},
    holds::character_device,
};

/// Calls in progress. Allocated beforehand, as programs at kprobes must have it.
#[map]
static CALLS: HashMap<CallKey, Call> = HashMap::with_max_entries(MAX_CALLS, 0);

/// Releases that may be, or are, left to a kernel thread, by the pointer that it will get.
#[map]
static DEFERRED: HashMap<u64, Call> = HashMap::with_max_entries(MAX_DEFERRED, 0);

/// Those of which nobody has said yet that they are deferred. To take one out succeeds once: who does it, says it.
#[map]
static UNTOLD: HashMap<u64, u8> = HashMap::with_max_entries(MAX_DEFERRED, 0);

/// What each process has been told of lately.
#[map]
static SPENT: LruHashMap<u32, Spent> = LruHashMap::with_max_entries(MAX_SPENT, 0);

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = 17;
/// Low bits of the `private_data` of a file of nvidia-uvm: what kind of file it is. They were two until driver series 570
/// and are three since; the third is 0 in a pointer.
const UVM_TYPE_BITS: u64 = 7;
/// The kind that has a VA space, whose end can be deferred.
const UVM_VA_SPACE: u64 = 2;

/// `(struct inode *, struct file *)`: the driver's open is entered.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/open_begin")]
fn on_open_begin(context: *mut c_void) -> u32 {
    let file = ProbeContext::new(context).arg(1).unwrap_or(0);
    account(begin(KIND_OPENING, calls::OPEN, file, 0));
    0
}

/// It returns.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/open_end")]
fn on_open_end(context: *mut c_void) -> u32 {
    let result = RetProbeContext::new(context).ret::<i32>();
    if let Some(call) = ended(calls::OPEN) {
        account(tell(KIND_OPENED, &call, of(&call), result));
    }
    0
}

/// `(struct file *, struct vm_area_struct *)`: the driver's mmap is entered.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/map_begin")]
fn on_map_begin(context: *mut c_void) -> u32 {
    let file = ProbeContext::new(context).arg(0).unwrap_or(0);
    account(described(file, 0).and_then(|(call, _)| remember(calls::MAP, &call)));
    0
}

/// It returns. One that failed is nobody's business.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/map_end")]
fn on_map_end(context: *mut c_void) -> u32 {
    let result = RetProbeContext::new(context).ret::<i32>();
    if let Some(call) = ended(calls::MAP)
        && result == 0
    {
        account(tell(KIND_MAPPED, &call, of(&call), 0));
    }
    0
}

/// `(struct inode *, struct file *)`: a release that may be deferred is entered (`nvidia_close`).
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_begin")]
fn on_release_begin(context: *mut c_void) -> u32 {
    let file = ProbeContext::new(context).arg(1).unwrap_or(0);
    account(begin(KIND_RELEASING, calls::RELEASE, file, private_data(file)));
    0
}

/// The same of nvidia-uvm (`uvm_release_entry`), whose `private_data` has a type in its low bits.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_begin_uvm")]
fn on_release_begin_uvm(context: *mut c_void) -> u32 {
    let file = ProbeContext::new(context).arg(1).unwrap_or(0);
    let data = private_data(file);
    let work = if data & UVM_TYPE_BITS == UVM_VA_SPACE { data & !UVM_TYPE_BITS } else { 0 };
    account(begin(KIND_RELEASING, calls::RELEASE, file, work));
    0
}

/// `(struct inode *, struct file *)`: a release that is never deferred, or of which that could not be seen.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_begin_plain")]
fn on_release_begin_plain(context: *mut c_void) -> u32 {
    let file = ProbeContext::new(context).arg(1).unwrap_or(0);
    account(begin(KIND_RELEASING, calls::RELEASE, file, 0));
    0
}

/// What a release does if it does not defer it (`rm_cleanup_file_private`, `uvm_va_space_destroy`). In the kernel thread it
/// is run as well, but not within a release.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_in_place")]
fn on_release_in_place(_: *mut c_void) -> u32 {
    let Some(call) = CALLS.get_ptr_mut(key(calls::RELEASE)) else { return 0 };
    // SAFETY: a task is in one release at a time, so nobody else changes what is remembered of it.
    let call = unsafe { &mut *call };
    let _ = UNTOLD.remove(call.work);
    let _ = DEFERRED.remove(call.work);
    call.work = 0;
    0
}

/// A release returns.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/release_end")]
fn on_release_end(_: *mut c_void) -> u32 {
    let Some(call) = ended(calls::RELEASE) else { return 0 };
    if call.work == 0 {
        account(tell(KIND_RELEASED, &call, of(&call), 0));
    } else if UNTOLD.remove(call.work).is_ok() {
        account(tell(KIND_DEFERRED, &call, of(&call), 0));
    }
    0
}

/// `(void *)`: a kernel thread begins with what was deferred (`nvidia_close_deferred`, `uvm_release_deferred`).
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/deferred_begin")]
fn on_deferred_begin(context: *mut c_void) -> u32 {
    let work: u64 = ProbeContext::new(context).arg(0).unwrap_or(0);
    // SAFETY: copied at once; only this thread takes it out from now on.
    let Some(call) = (unsafe { DEFERRED.get(work) }).copied() else { return 0 };
    if UNTOLD.remove(work).is_ok() {
        account(tell(KIND_DEFERRED, &call, of(&call), 0));
    }
    account(remember(calls::WORK, &call));
    0
}

/// It has done it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/deferred_end")]
fn on_deferred_end(_: *mut c_void) -> u32 {
    if let Some(call) = ended(calls::WORK) {
        let _ = DEFERRED.remove(call.work);
        // SAFETY: no arguments, no effects.
        let thread = task_ref(unsafe { bpf_get_current_task() });
        account(thread.and_then(|thread| tell(KIND_RELEASED, &call, thread, 0)));
    }
    0
}

#[inline(always)]
fn key(what: u32) -> CallKey {
    // SAFETY: no arguments, no effects.
    let tid = unsafe { aya_ebpf::helpers::generated::bpf_get_current_pid_tgid() } as u32;
    CallKey { tid, what }
}

#[inline(always)]
fn private_data(file: u64) -> u64 {
    read::<u64>(file, offset!(file_private_data)).unwrap_or(0)
}

/// A call of the current task with this file: as it is remembered, and whose it is.
#[inline(always)]
fn described(file: u64, work: u64) -> Result<(Call, TaskRef), Drop> {
    // SAFETY: no arguments, no effects. (Its like that gives typed pointers is not to be had here before 5.11.)
    let task = task_ref(unsafe { bpf_get_current_task() })?;
    let rdev = character_device(file).ok_or(Drop::Unreadable)?;
    let TaskRef { tgid, tid, start_ns } = task;
    Ok((Call { file, work, at_ns: now(), start_ns, tgid, tid, rdev, _padding: 0 }, task))
}

/// A call is entered: remembers and tells it.
#[inline(always)]
fn begin(kind: u16, what: u32, file: u64, work: u64) -> Result<(), Drop> {
    let (mut call, task) = described(file, work)?;
    if work != 0 {
        // What cannot be followed to its kernel thread is taken to end with the release, and that is said.
        if DEFERRED.insert(work, call, 0).is_err() || UNTOLD.insert(work, 0, 0).is_err() {
            let _ = DEFERRED.remove(work);
            call.work = 0;
            count(Drop::CallsFull);
        }
    }
    if what == calls::OPEN {
        account(tracked::add(task.tgid, task.start_ns));
    }
    let remembered = remember(what, &call);
    tell(kind, &call, task, 0)?;
    remembered
}

#[inline(always)]
fn remember(what: u32, call: &Call) -> Result<(), Drop> {
    let key = key(what);
    match CALLS.insert(key, call, BPF_NOEXIST) {
        Ok(()) => Ok(()),
        // One that is still there was never seen to return.
        Err(error) if error == -EEXIST => {
            count(Drop::ReturnMissed);
            CALLS.insert(key, call, 0).map_err(|_| Drop::CallsFull)
        }
        Err(_) => Err(Drop::CallsFull),
    }
}

/// A call returns: what was remembered of it.
#[inline(always)]
fn ended(what: u32) -> Option<Call> {
    let key = key(what);
    // SAFETY: copied at once; only this task takes it out.
    let call = unsafe { CALLS.get(key) }.copied()?;
    let _ = CALLS.remove(key);
    Some(call)
}

/// Who entered it.
#[inline(always)]
fn of(call: &Call) -> TaskRef {
    TaskRef { tgid: call.tgid, tid: call.tid, start_ns: call.start_ns }
}

/// A task is gone. What it was doing in the driver must have returned, and if it is still remembered nobody was told.
#[inline(always)]
pub(super) fn forget(tid: u32) {
    for what in [calls::OPEN, calls::RELEASE, calls::MAP] {
        if CALLS.remove(CallKey { tid, what }).is_ok() {
            count(Drop::ReturnMissed);
        }
    }
}

#[inline(always)]
fn tell(kind: u16, call: &Call, task: TaskRef, result: i32) -> Result<(), Drop> {
    let now = now();
    spend(call.tgid, now)?;
    let opens = kind == KIND_OPENING || kind == KIND_OPENED;
    // SAFETY: no arguments, no effects.
    let comm = if opens { comm_of(unsafe { bpf_get_current_task() }) } else { [0; 16] };
    let head = EventHead { header: Header::new(kind), detail: 0, at_ns: now, task };
    let (file, work, rdev) = (call.file, call.work, call.rdev);
    emit(DriverRecord { head, file, work, rdev, result, comm })
}

/// Has this process been told of too much lately? Nobody may fill the ring on purpose.
#[inline(always)]
fn spend(tgid: u32, now: u64) -> Result<(), Drop> {
    let Some(spent) = SPENT.get_ptr_mut(tgid) else {
        // Where it does not fit, the next record counts as the first again.
        let _ = SPENT.insert(tgid, Spent { window_ns: now, in_window: 1 }, 0);
        return Ok(());
    };
    // SAFETY: the element may be given to another process meanwhile: a count is then off.
    let spent = unsafe { &mut *spent };
    if now.wrapping_sub(spent.window_ns) >= WINDOW_NS {
        spent.window_ns = now;
        spent.in_window = 0;
    }
    spent.in_window += 1;
    if spent.in_window > CALLS_PER_WINDOW { Err(Drop::RateLimited) } else { Ok(()) }
}

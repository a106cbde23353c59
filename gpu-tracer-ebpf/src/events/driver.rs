//! kprobes at the driver's own functions: when its open, mmap and release begin and end, and what it defers.
//!
//! A program is attached to whatever function of the driver plays its part; the user side knows which those are. A call in
//! progress is remembered by its task ([`in_progress`](super::in_progress)). A release whose work the driver leaves to a kernel
//! thread of its own is known by two signs: the function that does the work was not run before the release returned, and the
//! thread gets the pointer that the file had as `private_data` when its release began. The thread may be at it before the release
//! has returned, so whoever of the two comes first tells of it.
//!
//! Nothing of this is ever run for a file of anything but that driver. Whoever opens one waits for these programs, so they do little:
//! every look into the kernel's memory, every search in a hash counts.

use aya_ebpf::{
    helpers::generated::bpf_get_current_task,
    macros::map,
    maps::{Array, HashMap, LruHashMap},
    programs::{ProbeContext, RetProbeContext},
};
use core::ffi::c_void;
use gpu_tracer_common::{
    events::{
        CALLS_PER_WINDOW, Call, DriverRecord, Drop, EventHead, KIND_DEFERRED, KIND_MAPPED, KIND_OPENED,
        KIND_OPENING, KIND_RELEASED, KIND_RELEASING, MAX_DEFERRED, MAX_SPENT, Spent, TaskRef, calls,
    },
    snapshot::Header,
};

use super::{account, comm_of, current_ref, emit, in_progress, is_over, now, task_ref, tracked};
use crate::access::{offset, peek, read};

/// Releases that have been left to a kernel thread, by the pointer that it gets, until it begins with them. Allocated
/// beforehand, as programs at kprobes must have it.
#[map]
static DEFERRED: HashMap<u64, Call> = HashMap::with_max_entries(MAX_DEFERRED, 0);

/// Those of which one side knows, the release that returns or the thread that begins. The first of them puts it in and tells of it,
/// the second takes it out.
#[map]
static TOLD: HashMap<u64, u8> = HashMap::with_max_entries(MAX_DEFERRED, 0);

/// What each process has been told of lately, by the low bits of its tgid.
#[map]
static SPENT_PLACES: Array<Spent> = Array::with_max_entries(MAX_SPENT, 0);

/// The same of those whose place is in use, by tgid.
#[map]
static SPENT: LruHashMap<u32, Spent> = LruHashMap::with_max_entries(MAX_SPENT, 0);

const BPF_NOEXIST: u64 = 1;
/// Low bits of the `private_data` of a file of nvidia-uvm: what kind of file it is. They were two until driver series 570
/// and are three since; the third is 0 in a pointer.
const UVM_TYPE_BITS: u64 = 7;
/// The kind that has a VA space, whose end can be deferred.
const UVM_VA_SPACE: u64 = 2;

/// `(struct inode *, struct file *)`: the driver's open is entered.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/open_begin")]
fn on_open_begin(context: *mut c_void) -> u32 {
    let (inode, file) = node(context);
    account(begin(KIND_OPENING, calls::OPEN, inode, file, 0));
    0
}

/// It returns.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/open_end")]
fn on_open_end(context: *mut c_void) -> u32 {
    let result = RetProbeContext::new(context).ret::<i32>();
    if let Some(call) = in_progress::take(calls::OPEN) {
        account(tell(KIND_OPENED, &call, of(&call), result));
    }
    0
}

/// `(struct file *, struct vm_area_struct *)`: the driver's mmap is entered.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/map_begin")]
fn on_map_begin(context: *mut c_void) -> u32 {
    let file: u64 = ProbeContext::new(context).arg(0).unwrap_or(0);
    let inode = peek::<u64>(file, offset!(file_inode));
    account(described(inode, file, 0).and_then(|call| in_progress::put(calls::MAP, &call)));
    0
}

/// It returns. One that failed is nobody's business.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/map_end")]
fn on_map_end(context: *mut c_void) -> u32 {
    let result = RetProbeContext::new(context).ret::<i32>();
    if let Some(call) = in_progress::take(calls::MAP)
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
    let (inode, file) = node(context);
    account(begin(KIND_RELEASING, calls::RELEASE, inode, file, private_data(file)));
    0
}

/// The same of nvidia-uvm (`uvm_release_entry`), whose `private_data` has a type in its low bits.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_begin_uvm")]
fn on_release_begin_uvm(context: *mut c_void) -> u32 {
    let (inode, file) = node(context);
    let data = private_data(file);
    let work = if data & UVM_TYPE_BITS == UVM_VA_SPACE { data & !UVM_TYPE_BITS } else { 0 };
    account(begin(KIND_RELEASING, calls::RELEASE, inode, file, work));
    0
}

/// `(struct inode *, struct file *)`: a release that is never deferred, or of which that could not be seen.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_begin_plain")]
fn on_release_begin_plain(context: *mut c_void) -> u32 {
    let (inode, file) = node(context);
    account(begin(KIND_RELEASING, calls::RELEASE, inode, file, 0));
    0
}

/// What a release does if it does not defer it (`rm_cleanup_file_private`, `uvm_va_space_destroy`). In the kernel thread it
/// is run as well, but not within a release.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/release_in_place")]
fn on_release_in_place(_: *mut c_void) -> u32 {
    in_progress::is_not_deferred();
    0
}

/// A release returns.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/release_end")]
fn on_release_end(_: *mut c_void) -> u32 {
    let Some(call) = in_progress::find(calls::RELEASE) else { return 0 };
    if call.work == 0 {
        account(tell(KIND_RELEASED, &call, of(&call), 0));
    } else {
        account(left_to_thread(&call));
    }
    // Not before: the thread may be looking for it there.
    in_progress::remove(calls::RELEASE);
    0
}

/// A release has returned and has not done its work.
#[inline(always)]
fn left_to_thread(call: &Call) -> Result<(), Drop> {
    // What cannot be followed to its kernel thread is taken to end with the release, and that is said.
    if DEFERRED.insert(call.work, call, 0).is_err() {
        tell(KIND_RELEASED, call, of(call), 0)?;
        return Err(Drop::CallsFull);
    }
    if is_first(call.work) {
        tell(KIND_DEFERRED, call, of(call), 0)
    } else {
        // The thread has begun and knows all about it.
        let _ = DEFERRED.remove(call.work);
        Ok(())
    }
}

/// Of the two that come to know of a deferred release: is it the one that is to tell?
#[inline(always)]
fn is_first(work: u64) -> bool {
    let first = TOLD.insert(work, 0, BPF_NOEXIST).is_ok();
    if !first {
        let _ = TOLD.remove(work);
    }
    first
}

/// `(void *)`: a kernel thread begins with what was deferred (`nvidia_close_deferred`, `uvm_release_deferred`).
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/deferred_begin")]
fn on_deferred_begin(context: *mut c_void) -> u32 {
    begin_deferred(context, in_progress::release_of);
    0
}

/// The same for kernels without `bpf_loop`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/deferred_begin_unrolled")]
fn on_deferred_begin_unrolled(context: *mut c_void) -> u32 {
    begin_deferred(context, in_progress::release_of_unrolled);
    0
}

#[inline(always)]
fn begin_deferred(context: *mut c_void, release_of: impl Fn(u64) -> Option<Call>) {
    let work: u64 = ProbeContext::new(context).arg(0).unwrap_or(0);
    // It is put into `DEFERRED` before it is taken from the calls in progress, so that it is seen in one of them.
    let found = deferred(work).or_else(|| release_of(work)).or_else(|| deferred(work));
    let Some(call) = found else { return };
    account(in_progress::put(calls::WORK, &call));
    let _ = DEFERRED.remove(work);
    if is_first(work) {
        account(tell(KIND_DEFERRED, &call, of(&call), 0));
    }
}

#[inline(always)]
fn deferred(work: u64) -> Option<Call> {
    // SAFETY: copied at once.
    unsafe { DEFERRED.get(work) }.copied()
}

/// It has done it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "kretprobe/deferred_end")]
fn on_deferred_end(_: *mut c_void) -> u32 {
    if let Some(call) = in_progress::take(calls::WORK) {
        // SAFETY: no arguments, no effects.
        let thread = task_ref(unsafe { bpf_get_current_task() });
        account(thread.and_then(|thread| tell(KIND_RELEASED, &call, thread, 0)));
    }
    0
}

/// The first two arguments of a driver's open and release.
#[inline(always)]
fn node(context: *mut c_void) -> (u64, u64) {
    let context = ProbeContext::new(context);
    (context.arg(0).unwrap_or(0), context.arg(1).unwrap_or(0))
}

#[inline(always)]
fn private_data(file: u64) -> u64 {
    peek::<u64>(file, offset!(file_private_data))
}

/// A call of the current task with this file. It is put down to the budget of its process.
#[inline(always)]
fn described(inode: u64, file: u64, work: u64) -> Result<Call, Drop> {
    let TaskRef { tgid, tid, start_ns } = current_ref()?;
    let rdev = read::<u32>(inode, offset!(inode_rdev)).ok_or(Drop::Unreadable)?;
    let at_ns = now();
    let affordable = spend(tgid, at_ns);
    let told = u32::from(affordable.is_ok());
    account(affordable);
    Ok(Call { file, work, at_ns, start_ns, tgid, tid, rdev, told })
}

/// A call is entered: remembers and tells it.
#[inline(always)]
fn begin(kind: u16, what: u32, inode: u64, file: u64, work: u64) -> Result<(), Drop> {
    let call = described(inode, file, work)?;
    if what == calls::OPEN {
        account(tracked::add(call.tgid, call.start_ns));
    }
    account(in_progress::put(what, &call));
    tell_at(call.at_ns, kind, &call, of(&call), 0)
}

/// Who entered it.
#[inline(always)]
fn of(call: &Call) -> TaskRef {
    TaskRef { tgid: call.tgid, tid: call.tid, start_ns: call.start_ns }
}

#[inline(always)]
fn tell(kind: u16, call: &Call, task: TaskRef, result: i32) -> Result<(), Drop> {
    tell_at(now(), kind, call, task, result)
}

#[inline(always)]
fn tell_at(at_ns: u64, kind: u16, call: &Call, task: TaskRef, result: i32) -> Result<(), Drop> {
    if call.told == 0 {
        return Ok(());
    }
    let named = kind == KIND_OPENING || kind == KIND_OPENED;
    // SAFETY: no arguments, no effects.
    let comm = if named { comm_of(unsafe { bpf_get_current_task() }) } else { [0; 16] };
    let head = EventHead { header: Header::new(kind), detail: 0, at_ns, task };
    let (file, work, rdev) = (call.file, call.work, call.rdev);
    emit(DriverRecord { head, file, work, rdev, result, comm })
}

/// Has this process been told of too much lately? Nobody may fill the ring on purpose.
#[inline(always)]
fn spend(tgid: u32, now: u64) -> Result<(), Drop> {
    let Some(spent) = place(tgid, now).or_else(|| SPENT.get_ptr_mut(tgid)) else {
        // Where it does not fit, the next call counts as the first again.
        let _ = SPENT.insert(tgid, Spent { window_ns: now, tgid, in_window: 1 }, 0);
        return Ok(());
    };
    // SAFETY: the element may be given to another process meanwhile: a count is then off.
    let spent = unsafe { &mut *spent };
    if is_over(spent.window_ns, now) || spent.tgid != tgid {
        *spent = Spent { window_ns: now, tgid, in_window: 0 };
    }
    spent.in_window += 1;
    if spent.in_window > CALLS_PER_WINDOW { Err(Drop::RateLimited) } else { Ok(()) }
}

/// The place of this process, found without a search. `None`: another one is using it.
#[inline(always)]
fn place(tgid: u32, now: u64) -> Option<*mut Spent> {
    let place = SPENT_PLACES.get_ptr_mut(tgid & (MAX_SPENT - 1))?;
    // SAFETY: as above.
    let spent = unsafe { &*place };
    (spent.tgid == tgid || is_over(spent.window_ns, now)).then_some(place)
}

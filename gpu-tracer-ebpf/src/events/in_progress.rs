//! Calls into the driver that have not returned, by the task that makes them.
//!
//! Opens and releases have a place that is found without a search; where two tasks want the same one, and for calls of other
//! kinds, there is a hash. Only the task itself puts something in and takes it out, and who reaps it.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_pid_tgid, bpf_loop},
    macros::map,
    maps::{Array, HashMap},
};
use gpu_tracer_common::events::{CALL_SLOTS, Call, CallKey, CallSlot, Drop, MAX_CALLS, calls};

use super::count;
use crate::access;

/// Allocated beforehand, as programs at kprobes must have it.
#[map]
static CALLS: HashMap<CallKey, Call> = HashMap::with_max_entries(MAX_CALLS, 0);

/// Opens.
#[map]
static OPENS: Array<CallSlot> = Array::with_max_entries(CALL_SLOTS, 0);

/// Releases.
#[map]
static RELEASES: Array<CallSlot> = Array::with_max_entries(CALL_SLOTS, 0);

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = 17;

#[inline(always)]
fn current_tid() -> u32 {
    // SAFETY: no arguments, no effects.
    unsafe { bpf_get_current_pid_tgid() as u32 }
}

/// The place of calls of this kind by this task, whoever has it.
#[inline(always)]
fn slot(what: u32, tid: u32) -> Option<*mut CallSlot> {
    let index = tid & (CALL_SLOTS - 1);
    match what {
        calls::OPEN => OPENS.get_ptr_mut(index),
        calls::RELEASE => RELEASES.get_ptr_mut(index),
        _ => None,
    }
}

/// The same, if this task has it.
#[inline(always)]
fn own(what: u32, tid: u32) -> Option<*mut CallSlot> {
    // SAFETY: in a map's value; volatile, as others write there.
    slot(what, tid).filter(|slot| unsafe { (&raw const (**slot).tid).read_volatile() } == tid)
}

/// Gives it back.
#[inline(always)]
fn leave(slot: *mut CallSlot) {
    // SAFETY: in a map's value, and aligned. What was written there is not looked at any more before the claim is gone.
    unsafe {
        (&raw mut (*slot).tid).write_volatile(0);
        access::add(&raw mut (*slot).claims, -1);
    }
}

/// The current task makes this call.
#[inline(always)]
pub(super) fn put(what: u32, call: &Call) -> Result<(), Drop> {
    let tid = current_tid();
    if let Some(own) = own(what, tid) {
        // One that is still there was never seen to return.
        count(Drop::ReturnMissed);
        // SAFETY: in a map's value, and ours.
        unsafe { (*own).call = *call };
        return Ok(());
    }
    if let Some(slot) = slot(what, tid) {
        // SAFETY: in a map's value, and aligned; volatile, as others write there.
        unsafe {
            access::add(&raw mut (*slot).claims, 1);
            if (&raw const (*slot).claims).read_volatile() == 1 {
                (*slot).call = *call;
                (&raw mut (*slot).tid).write_volatile(tid);
                return Ok(());
            }
            access::add(&raw mut (*slot).claims, -1);
        }
    }
    let key = CallKey { tid, what };
    let mut call = *call;
    if what == calls::RELEASE && call.work != 0 {
        // Nobody would find it there by its work: it is taken to end with the release, and that is said.
        call.work = 0;
        count(Drop::CallsFull);
    }
    match CALLS.insert(key, call, BPF_NOEXIST) {
        Ok(()) => Ok(()),
        Err(error) if error == -EEXIST => {
            count(Drop::ReturnMissed);
            CALLS.insert(key, call, 0).map_err(|_| Drop::CallsFull)
        }
        Err(_) => Err(Drop::CallsFull),
    }
}

/// The call of this kind that the current task makes.
#[inline(always)]
pub(super) fn find(what: u32) -> Option<Call> {
    let tid = current_tid();
    if let Some(own) = own(what, tid) {
        // SAFETY: in a map's value, and ours.
        return Some(unsafe { (*own).call });
    }
    // SAFETY: copied at once; only this task takes it out.
    unsafe { CALLS.get(CallKey { tid, what }) }.copied()
}

/// It has returned.
#[inline(always)]
pub(super) fn remove(what: u32) {
    let tid = current_tid();
    match own(what, tid) {
        Some(own) => leave(own),
        None => _ = CALLS.remove(CallKey { tid, what }),
    }
}

/// It returns: what was known of it.
#[inline(always)]
pub(super) fn take(what: u32) -> Option<Call> {
    let call = find(what)?;
    remove(what);
    Some(call)
}

/// The release that the current task is in, if it is in one, does its work itself.
#[inline(always)]
pub(super) fn is_not_deferred() {
    if let Some(own) = own(calls::RELEASE, current_tid()) {
        // SAFETY: in a map's value, and this task's alone.
        unsafe { (*own).call.work = 0 };
    }
}

/// Which release in progress may leave this to a kernel thread? A search, for once.
struct Search {
    work: u64,
    /// Index into [`RELEASES`]; beyond its end: none.
    found: u32,
}

impl Search {
    /// Is it the one that has this place?
    #[inline(always)]
    fn look_at(&mut self, index: u32) -> bool {
        let found = leaves(index, self.work);
        if found {
            self.found = index;
        }
        found
    }
}

/// May the release that has this place leave this to a kernel thread?
#[inline(always)]
fn leaves(index: u32, work: u64) -> bool {
    let Some(slot) = RELEASES.get_ptr_mut(index) else { return false };
    // SAFETY: in a map's value; volatile, as others write there.
    let (tid, its) =
        unsafe { ((&raw const (*slot).tid).read_volatile(), (&raw const (*slot).call.work).read_volatile()) };
    tid != 0 && its == work
}

#[inline(always)]
fn release_at(index: u32) -> Option<Call> {
    // SAFETY: in a map's value. Should its task be just returning, then it is in `DEFERRED` as well, and the same.
    RELEASES.get_ptr_mut(index).map(|slot| unsafe { (*slot).call })
}

/// The release in progress that may leave this to a kernel thread.
#[inline(always)]
pub(super) fn release_of(work: u64) -> Option<Call> {
    let mut search = Search { work, found: CALL_SLOTS };
    // SAFETY: the callback has the signature `bpf_loop` wants and the context outlives the call.
    unsafe { bpf_loop(CALL_SLOTS, look_at_slot as *mut c_void, (&raw mut search).cast(), 0) };
    release_at(search.found)
}

#[inline(never)]
unsafe extern "C" fn look_at_slot(index: u32, search: *mut c_void) -> i64 {
    // SAFETY: `release_of` passes a `Search` on its stack.
    i64::from(unsafe { &mut *search.cast::<Search>() }.look_at(index))
}

/// The same for kernels without `bpf_loop` (before 5.17).
#[inline(always)]
pub(super) fn release_of_unrolled(work: u64) -> Option<Call> {
    release_at(place_of_release(work))
}

/// Its place; [`CALL_SLOTS`]: none. A function that others could call, and so is what looks at a place: the verifier follows every
/// round of the loop, but not what is called in it, nor what comes after it for every place that may have been found.
#[unsafe(no_mangle)]
#[inline(never)]
fn place_of_release(work: u64) -> u32 {
    (0..CALL_SLOTS).find(|index| is_place_of_release(*index, work) != 0).unwrap_or(CALL_SLOTS)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn is_place_of_release(index: u32, work: u64) -> u32 {
    u32::from(leaves(index, work))
}

/// A task is gone. What it was doing in the driver must have returned, and if it is still remembered nobody was told.
#[inline(always)]
pub(super) fn forget(tid: u32) {
    for what in [calls::OPEN, calls::RELEASE] {
        if let Some(own) = own(what, tid) {
            leave(own);
            count(Drop::ReturnMissed);
        }
    }
    for what in [calls::OPEN, calls::RELEASE, calls::MAP] {
        if CALLS.remove(CallKey { tid, what }).is_ok() {
            count(Drop::ReturnMissed);
        }
    }
}

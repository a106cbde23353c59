//! The set of processes whose doings are of interest: those that hold a device, asked for one, or descend from one that did.
//!
//! The user side puts in those that it found holding something and takes out those that hold nothing any more. Children
//! and processes that ask for a device are put in here, before they can do anything else.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use gpu_tracer_common::events::{CHATTER_PER_WINDOW, Drop, MAX_TRACKED, TRACKED_SLOTS, Tracked};

use super::is_over;
use crate::access;

/// By tgid.
#[map]
static TRACKED: HashMap<u32, Tracked> = HashMap::with_max_entries(MAX_TRACKED, 0);

/// See [`TRACKED_SLOTS`]. Counted up before an element is put in and down after one is taken out; the user side does
/// the same, in memory that it shares.
#[map(name = "TRACKED_SLOTS")]
static SLOTS: Array<[u32; TRACKED_SLOTS]> = Array::with_max_entries(1, BPF_F_MMAPABLE);

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;
const EEXIST: i32 = 17;

/// Is this process of interest?
#[inline(always)]
pub(super) fn find(tgid: u32) -> Option<&'static mut Tracked> {
    let slot = slot(tgid)?;
    // SAFETY: in the map's value; volatile, as others count in it.
    if unsafe { slot.read_volatile() } == 0 {
        return None;
    }
    // SAFETY: the element may be freed and given to another process meanwhile: its counts may then be off.
    TRACKED.get_ptr_mut(tgid).map(|tracked| unsafe { &mut *tracked })
}

/// From now on it is.
#[inline(always)]
pub(super) fn add(tgid: u32, start_ns: u64) -> Result<(), Drop> {
    if let Some(known) = find(tgid)
        && known.start_ns == start_ns
    {
        return Ok(());
    }
    let fresh = Tracked { start_ns, ..Tracked::default() };
    count(tgid, 1);
    match TRACKED.insert(tgid, fresh, BPF_NOEXIST) {
        Ok(()) => Ok(()),
        Err(error) => {
            count(tgid, -1);
            // An earlier process with this tgid, not yet removed.
            let replaced = if error == -EEXIST { TRACKED.insert(tgid, fresh, BPF_EXIST) } else { Err(error) };
            replaced.map_err(|_| Drop::TrackedFull)
        }
    }
}

/// From now on it is not, unless another process has got its tgid meanwhile.
#[inline(always)]
pub(super) fn remove(tgid: u32, start_ns: u64) {
    if find(tgid).is_some_and(|known| known.start_ns == start_ns) && TRACKED.remove(tgid).is_ok() {
        count(tgid, -1);
    }
}

#[inline(always)]
fn slot(tgid: u32) -> Option<*mut u32> {
    // A mask is what the verifier understands as a bound.
    let index = (u64::from(tgid) & (TRACKED_SLOTS as u64 - 1)) as usize;
    // SAFETY: in the only value of the map.
    SLOTS.get_ptr_mut(0).map(|slots| unsafe { &raw mut (*slots)[index] })
}

#[inline(always)]
fn count(tgid: u32, more: i64) {
    if let Some(slot) = slot(tgid) {
        // SAFETY: aligned, and in a map's value.
        unsafe { access::add(slot, more) };
    }
}

/// Has this process said too much lately? What an unprivileged process can do in a loop must not fill the ring.
#[inline(always)]
pub(super) fn spend(tracked: &mut Tracked, now: u64) -> Result<(), Drop> {
    if is_over(tracked.window_ns, now) {
        tracked.window_ns = now;
        tracked.in_window = 0;
    }
    tracked.in_window += 1;
    if tracked.in_window > CHATTER_PER_WINDOW { Err(Drop::RateLimited) } else { Ok(()) }
}

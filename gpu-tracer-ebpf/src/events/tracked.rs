//! The set of processes whose doings are of interest: those that hold a device, asked for one, or descend from one that did.
//!
//! The user side puts in those that it found holding something and takes out those that hold nothing any more. Children
//! and processes that ask for a device are put in here, before they can do anything else.

use aya_ebpf::{macros::map, maps::HashMap};
use gpu_tracer_common::events::{CHATTER_PER_WINDOW, Drop, MAX_TRACKED, Tracked, WINDOW_NS};

/// By tgid.
#[map]
static TRACKED: HashMap<u32, Tracked> = HashMap::with_max_entries(MAX_TRACKED, 0);

/// Is this process of interest?
#[inline(always)]
pub(super) fn find(tgid: u32) -> Option<&'static mut Tracked> {
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
    TRACKED.insert(tgid, fresh, 0).map_err(|_| Drop::TrackedFull)
}

/// From now on it is not, unless another process has got its tgid meanwhile.
#[inline(always)]
pub(super) fn remove(tgid: u32, start_ns: u64) {
    if find(tgid).is_some_and(|known| known.start_ns == start_ns) {
        let _ = TRACKED.remove(tgid);
    }
}

/// Has this process said too much lately? What an unprivileged process can do in a loop must not fill the ring.
#[inline(always)]
pub(super) fn spend(tracked: &mut Tracked, now: u64) -> Result<(), Drop> {
    if now.wrapping_sub(tracked.window_ns) >= WINDOW_NS {
        tracked.window_ns = now;
        tracked.in_window = 0;
    }
    tracked.in_window += 1;
    if tracked.in_window > CHATTER_PER_WINDOW { Err(Drop::RateLimited) } else { Ok(()) }
}

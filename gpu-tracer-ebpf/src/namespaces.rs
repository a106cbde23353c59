//! Network namespaces that no task lives in: a socket, an open file or a mount keeps them, and what is in flight there has a
//! holder all the same. One reads them from the kernel's list; from any other it is reached.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_task, bpf_loop},
    macros::map,
    maps::Array,
};
use gpu_tracer_common::{
    layout::ABSENT,
    snapshot::{FILE_NAMESPACE, HOLD_NAMESPACE},
};

use crate::{
    access::{offset, peek, read},
    holds::{Found, Full, control, emit},
};

/// Namespaces that are listed.
const MAX_NAMESPACES: u32 = 65_536;

/// How far the list has been followed; in a map, so that the verifier takes every round of the loop for the same.
#[repr(C)]
struct Walk {
    /// The namespace at hand.
    namespace: u64,
    /// The one it began with, and ends with.
    first: u64,
    /// What all of them have as operations, and the head of the list has not.
    operations: u64,
    full: u32,
    done: u32,
}

#[map]
static NAMESPACE_WALK: Array<Walk> = Array::with_max_entries(1, 0);

/// Lists all, once in a snapshot, beginning with the reader's own. If the ring is full, again in the next namespace that is looked into.
#[inline(always)]
pub(crate) fn list_once() -> Result<(), Full> {
    let (Some(control), Some(walk)) = (control(), NAMESPACE_WALK.get_ptr_mut(0)) else { return Ok(()) };
    if control.list_namespaces == 0 {
        return Ok(());
    }
    if [offset!(net_unix_table), offset!(net_list), offset!(net_operations)].contains(&ABSENT) {
        control.list_namespaces = 0;
        return Ok(());
    }
    // SAFETY: no arguments, no effects.
    let reader = unsafe { bpf_get_current_task() };
    let proxy = peek::<u64>(reader, offset!(task_nsproxy));
    let first = peek::<u64>(proxy, offset!(nsproxy_net_ns));
    // SAFETY: the only element of an array, which this program alone uses, by one reader at a time. The callback has the
    // signature `bpf_loop` wants.
    let (full, done) = unsafe {
        (*walk).namespace = first;
        (*walk).first = first;
        (*walk).operations = peek::<u64>(first, offset!(net_operations));
        (*walk).full = 0;
        (*walk).done = 0;
        if (*walk).operations != 0 {
            bpf_loop(MAX_NAMESPACES, list_one as *mut c_void, core::ptr::null_mut(), 0);
        }
        ((*walk).full, (*walk).done)
    };
    if full != 0 {
        return Err(Full);
    }
    control.list_namespaces = 0;
    control.truncated += u64::from(done == 0);
    Ok(())
}

#[inline(never)]
unsafe extern "C" fn list_one(_: u32, _: *mut c_void) -> i64 {
    let Some(walk) = NAMESPACE_WALK.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of an array.
    unsafe {
        let namespace = (*walk).namespace;
        // The head of the list lies in no namespace.
        if read::<u64>(namespace, offset!(net_operations)) == Some((*walk).operations) {
            let by = peek::<u32>(namespace, offset!(net_inum));
            let table = peek::<u64>(namespace, offset!(net_unix_table));
            let found = Found { kind: HOLD_NAMESPACE, tid: 0, by: u64::from(by), at: 0, end: 0 };
            if table != 0 && emit(&found, FILE_NAMESPACE, table, 0).is_err() {
                (*walk).full = 1;
                return 1;
            }
        }
        // The pointer on is the first member of a link. The list is changed only by whoever waits for those that read it.
        match read::<u64>(namespace, offset!(net_list)) {
            Some(next) => (*walk).namespace = next.wrapping_sub(u64::from(offset!(net_list))),
            None => return 1,
        }
        (*walk).done = u32::from((*walk).namespace == (*walk).first);
        i64::from((*walk).done)
    }
}

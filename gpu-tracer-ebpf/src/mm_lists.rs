//! Mappings on kernels that do not keep them in trees (before 6.1).
//!
//! There the mappings of an address space are in a list too. It is walked by reading pointers, without a lock and without
//! a reference, and without `bpf_loop`, which not all of them have: a part of the list in each run of the program, which then asks
//! the kernel for the same task again. A list that changed at the place where the walk was is begun again; what changes all
//! the time is counted as not seen to its end.

use core::ffi::c_void;

use aya_ebpf::{macros::map, maps::Array};
use gpu_tracer_common::snapshot::HOLD_MAP;

use crate::{
    access::{MOST_ATTEMPTS, follow, next_in_list, offset, peek, read},
    holds::{Found, Full, control, look_at_file, may_be_of_interest},
    mappings::{Space, space_to_show},
    subjects::stepped,
};

/// How far a walk has come. Not per CPU: the reader may be moved between two runs.
#[repr(C)]
struct Place {
    /// The address space; 0: no walk is half done.
    mm: u64,
    /// The mapping to look at next.
    vma: u64,
    /// The one before it.
    before: u64,
    /// Times that the list was begun again.
    attempts: u32,
    padding: u32,
}

#[map]
static MM_LIST: Array<Place> = Array::with_max_entries(1, 0);

/// Mappings of every process, by its list.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_mm_lists(context: *mut c_void) -> i32 {
    let Some(space) = space_to_show(context) else { return 0 };
    if walk_list(&space).is_err() {
        return 1;
    }
    space.is_shown();
    0
}

#[inline(always)]
fn walk_list(space: &Space) -> Result<(), Full> {
    stepped::on(|| step_in_mm_list(space.mm, space.tid))
}

/// The next step of the walk of this task's mappings; one of [`stepped`].
#[unsafe(no_mangle)]
#[inline(never)]
fn step_in_mm_list(mm: u64, tid: u32) -> u32 {
    stepped::from(try_step(mm, tid))
}

/// Is that the end?
#[inline(always)]
fn try_step(mm: u64, tid: u32) -> Result<bool, Full> {
    let Some(place) = MM_LIST.get_ptr_mut(0) else { return Ok(true) };
    // SAFETY: the only element of an array, which this program alone uses, by one reader at a time.
    unsafe {
        if (*place).mm != mm {
            (*place).mm = mm;
            (*place).attempts = 0;
            begin_list(place);
        }
        let vma = (*place).vma;
        if vma == 0 {
            (*place).mm = 0;
            return Ok(true);
        }
        let file = follow(vma, offset!(vma_file));
        if file != 0 && may_be_of_interest(file) {
            let found = Found {
                kind: HOLD_MAP,
                tid,
                by: mm,
                at: peek::<u64>(vma, offset!(vma_start)),
                end: peek::<u64>(vma, offset!(vma_end)),
            };
            look_at_file(file, &found)?;
        }
        next_mapping(place);
    }
    Ok(false)
}

/// # Safety
/// `place` must be the element of [`MM_LIST`]; so below.
#[inline(always)]
unsafe fn begin_list(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe {
        (*place).vma = follow((*place).mm, offset!(mm_list));
        (*place).before = 0;
    }
}

#[inline(always)]
unsafe fn next_mapping(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe {
        let vma = (*place).vma;
        // The first points back to none, wherever the walk came from.
        let next = next_in_list(vma, offset!(vma_next), (*place).before, 0).filter(|next| {
            // One that was freed may belong to another address space by now, and the last of those that are being
            // unmapped points nowhere. Only that of the highest address is the end.
            let is_end =
                || read::<u64>(vma, offset!(vma_end)) == read::<u64>((*place).mm, offset!(mm_highest_end));
            read::<u64>(vma, offset!(vma_mm)) == Some((*place).mm) && (*next != 0 || is_end())
        });
        match next {
            Some(next) => {
                (*place).before = vma;
                (*place).vma = next;
            }
            None if (*place).attempts < MOST_ATTEMPTS => {
                (*place).attempts += 1;
                begin_list(place);
            }
            None => {
                if let Some(control) = control() {
                    control.truncated += 1;
                }
                (*place).vma = 0;
            }
        }
    }
}

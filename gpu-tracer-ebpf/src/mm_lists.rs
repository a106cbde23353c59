//! Mappings on kernels that have neither a tree of them that can be walked (6.1) nor `iter/task_vma` (5.12).
//!
//! There the mappings of an address space are in a list too. It is walked by reading pointers, without a lock and without
//! a reference, and without `bpf_loop`, which came later: a part of the list in each run of the program, which then asks
//! the kernel for the same task again.

use core::ffi::c_void;

use aya_ebpf::{macros::map, maps::Array};
use gpu_tracer_common::snapshot::HOLD_MAP;

use crate::{
    access::{offset, read},
    holds::{Found, Full, look_at_file, may_be_of_interest},
    mappings::{Space, space_to_show},
};

/// Mappings that one run looks at. Old verifiers follow each round of a loop by itself.
const IN_ONE_RUN: u32 = 32;

/// How far a walk has come. Not per CPU: the reader may be moved between two runs.
#[repr(C)]
struct Place {
    /// The address space; 0: no walk is half done.
    mm: u64,
    /// The mapping to look at next.
    vma: u64,
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
    let Some(place) = MM_LIST.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: the only element of an array, which this program alone uses, by one reader at a time.
    unsafe {
        if (*place).mm != space.mm {
            (*place).mm = space.mm;
            (*place).vma = read::<u64>(space.mm, offset!(mm_list)).unwrap_or(0);
        }
        for _ in 0..IN_ONE_RUN {
            let vma = (*place).vma;
            // One that is being freed may belong to another address space by now.
            if vma == 0 || read::<u64>(vma, offset!(vma_mm)) != Some(space.mm) {
                (*place).mm = 0;
                return Ok(());
            }
            let file = read::<u64>(vma, offset!(vma_file)).unwrap_or(0);
            if file != 0 && may_be_of_interest(file) {
                let found = Found {
                    kind: HOLD_MAP,
                    tid: space.tid,
                    by: space.mm,
                    at: read::<u64>(vma, offset!(vma_start)).unwrap_or(0),
                    end: read::<u64>(vma, offset!(vma_end)).unwrap_or(0),
                };
                look_at_file(file, &found)?;
            }
            (*place).vma = read::<u64>(vma, offset!(vma_next)).unwrap_or(0);
        }
    }
    Err(Full)
}

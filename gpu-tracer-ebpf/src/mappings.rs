//! `iter/task_vma`: mappings. A mapping keeps its file open after the descriptor is closed.

use core::ffi::c_void;

use gpu_tracer_common::snapshot::HOLD_MAP;

use crate::{
    access::{field, offset},
    holds::{Found, Full, look_at_file},
    tasks::IterMeta,
};

#[repr(C)]
struct TaskVmaContext {
    _meta: *mut IterMeta,
    task: *mut c_void,
    vma: *mut c_void,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_vma")]
fn iter_mappings(context: *mut c_void) -> i32 {
    // SAFETY: the kernel passes `struct bpf_iter__task_vma`, whose layout is ABI.
    let context = unsafe { &*context.cast::<TaskVmaContext>() };
    let (task, vma) = (context.task, context.vma);
    if task.is_null() || vma.is_null() {
        return 0;
    }
    // SAFETY: `vma` is the context's BTF pointer, checked for null.
    let file = unsafe { field::<u64>(vma, offset!(vma_file)) };
    if file == 0 {
        return 0;
    }
    // SAFETY: as above, `task` too.
    let found = unsafe {
        Found {
            kind: HOLD_MAP,
            tid: field::<u32>(task, offset!(task_pid)),
            by: field::<u64>(vma, offset!(vma_mm)),
            at: field::<u64>(vma, offset!(vma_start)),
            end: field::<u64>(vma, offset!(vma_end)),
        }
    };
    match look_at_file(file, &found) {
        Ok(()) => 0,
        Err(Full) => 1,
    }
}

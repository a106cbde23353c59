//! `iter/task_vma`: mappings. A mapping keeps its file open after the descriptor is closed.

use core::ffi::c_void;

use gpu_tracer_common::snapshot::HOLD_MAP;

use crate::{
    access::{field, offset},
    holds::{Found, look_at_device, look_at_file},
    tasks::IterMeta,
};

#[repr(C)]
struct TaskVmaContext {
    _meta: *mut IterMeta,
    task: *mut c_void,
    vma: *mut c_void,
}

/// Mappings of devices and of io_urings.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_vma")]
fn iter_mappings(context: *mut c_void) -> i32 {
    match file_of(context) {
        Some((file, found)) => i32::from(look_at_file(file, &found).is_err()),
        None => 0,
    }
}

/// Mappings of devices only, for kernels without `bpf_loop` (before 5.17).
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_vma")]
fn iter_mappings_only(context: *mut c_void) -> i32 {
    match file_of(context) {
        Some((file, found)) => i32::from(look_at_device(file, &found).is_err()),
        None => 0,
    }
}

#[inline(always)]
fn file_of(context: *mut c_void) -> Option<(u64, Found)> {
    // SAFETY: the kernel passes `struct bpf_iter__task_vma`, whose layout is ABI.
    let context = unsafe { &*context.cast::<TaskVmaContext>() };
    let (task, vma) = (context.task, context.vma);
    if task.is_null() || vma.is_null() {
        return None;
    }
    // SAFETY: `vma` and `task` are the context's BTF pointers, checked for null.
    unsafe {
        let file = field::<u64>(vma, offset!(vma_file));
        if file == 0 {
            return None;
        }
        let found = Found {
            kind: HOLD_MAP,
            tid: field::<u32>(task, offset!(task_pid)),
            by: field::<u64>(vma, offset!(vma_mm)),
            at: field::<u64>(vma, offset!(vma_start)),
            end: field::<u64>(vma, offset!(vma_end)),
        };
        Some((file, found))
    }
}

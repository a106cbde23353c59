//! `iter/task_file`: descriptors on kernels without `bpf_loop` (before 5.17).
//!
//! The kernel holds a reference to the file while the program looks at it, which the user side subtracts.

use core::ffi::c_void;

use gpu_tracer_common::snapshot::{HOLD_FD, mode};

use crate::{
    access::{field, number, offset, pointer},
    holds::{Found, Full, control, look_at_carrier, look_at_file},
    tasks::IterMeta,
};

#[repr(C)]
struct TaskFileContext {
    _meta: *mut IterMeta,
    task: *mut c_void,
    fd: u32,
    file: *mut c_void,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
fn iter_task_files(context: *mut c_void) -> i32 {
    // SAFETY: the kernel passes `struct bpf_iter__task_file`, whose layout is ABI.
    let context = unsafe { &*context.cast::<TaskFileContext>() };
    let (task, file) = (context.task, context.file);
    if task.is_null() || file.is_null() {
        return 0;
    }
    let carriers = control().is_some_and(|control| control.mode == mode::CARRIERS);
    // SAFETY: `task` is the context's BTF pointer, checked for null.
    let tid = unsafe { field::<u32>(task, offset!(task_pid)) };
    let by = pointer(task, offset!(task_files));
    let found = Found { kind: HOLD_FD, tid, by, at: u64::from(context.fd), end: 0 };
    let file = number(file);
    match if carriers { look_at_carrier(file, &found) } else { look_at_file(file, &found) } {
        Ok(()) => 0,
        Err(Full) => 1,
    }
}

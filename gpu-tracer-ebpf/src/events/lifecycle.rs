//! `sched_process_fork`, `sched_process_exec`, `sched_process_free`, `task_rename`.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_get_current_pid_tgid, bpf_probe_read_kernel_str};
use gpu_tracer_common::events::{
    Drop, ExecRecord, ForkRecord, KIND_EXECED, KIND_FORKED, KIND_FREED, KIND_RENAMED, RenameRecord, TaskRef,
};

use super::{account, argument, comm_of, emit, head, in_progress, now, task_ref, tgid_of, tracked};
use crate::access::{offset, read};

#[inline(always)]
fn current_tgid() -> u32 {
    // SAFETY: no arguments, no effects.
    (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32
}

/// `(struct task_struct *parent, struct task_struct *child)`, in the parent's context. The child has not run yet.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_fork")]
fn on_fork(context: *mut c_void) -> i32 {
    if tracked::find(current_tgid()).is_some() {
        // SAFETY: the tracepoint has two arguments.
        account(try_on_fork(unsafe { argument(context, 0) }, unsafe { argument(context, 1) }));
    }
    0
}

#[inline(always)]
fn try_on_fork(parent: u64, child: u64) -> Result<(), Drop> {
    let (parent, task) = (task_ref(parent)?, task_ref(child)?);
    let tracked = if task.tgid == parent.tgid { Ok(()) } else { tracked::add(task.tgid, task.start_ns) };
    emit(ForkRecord { head: head(KIND_FORKED, 0, parent), child: task, comm: comm_of(child) })?;
    tracked
}

/// `(struct task_struct *task, pid_t old_pid, struct linux_binprm *)`, in the task's context.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_exec")]
fn on_exec(context: *mut c_void) -> i32 {
    if let Some(known) = tracked::find(current_tgid()) {
        let allowed = tracked::spend(known, now());
        // SAFETY: the tracepoint has three arguments.
        account(allowed.and_then(|()| try_on_exec(unsafe { argument(context, 0) })));
    }
    0
}

#[inline(always)]
fn try_on_exec(task: u64) -> Result<(), Drop> {
    emit(ExecRecord { head: head(KIND_EXECED, 0, task_ref(task)?), comm: comm_of(task) })
}

/// `(struct task_struct *task)`, some time after the task was reaped.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_free")]
fn on_free(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has one argument.
    let task = unsafe { argument(context, 0) };
    if let Ok(tgid) = tgid_of(task)
        && let Some(known) = tracked::find(tgid)
    {
        account(try_on_free(task, tgid, known.start_ns));
    }
    0
}

#[inline(always)]
fn try_on_free(task: u64, tgid: u32, known_start_ns: u64) -> Result<(), Drop> {
    let tid = read::<u32>(task, offset!(task_pid)).ok_or(Drop::Unreadable)?;
    in_progress::forget(tid);
    let mut start_ns = known_start_ns;
    if tid == tgid {
        // The tgid may belong to another process by now, so the start is this task's own.
        start_ns = read::<u64>(task, offset!(task_start_boottime)).ok_or(Drop::Unreadable)?;
        tracked::remove(tgid, start_ns);
    }
    emit(head(KIND_FREED, 0, TaskRef { tgid, tid, start_ns }))
}

/// `(struct task_struct *task, const char *new_name)`. The task still wears the old one.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/task_rename")]
fn on_rename(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has two arguments.
    let (task, name) = unsafe { (argument(context, 0), argument(context, 1)) };
    if let Ok(tgid) = tgid_of(task)
        && let Some(known) = tracked::find(tgid)
    {
        account(tracked::spend(known, now()).and_then(|()| try_on_rename(task, name)));
    }
    0
}

#[inline(always)]
fn try_on_rename(task: u64, name: u64) -> Result<(), Drop> {
    let mut new = [0; 16];
    // SAFETY: writes at most 16 bytes, a NUL included; the source is checked by the helper.
    let length = unsafe { bpf_probe_read_kernel_str(new.as_mut_ptr().cast(), 16, name as *const c_void) };
    if length < 0 {
        return Err(Drop::Unreadable);
    }
    emit(RenameRecord { head: head(KIND_RENAMED, 0, task_ref(task)?), old: comm_of(task), new })
}

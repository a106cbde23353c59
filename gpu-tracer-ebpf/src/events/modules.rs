//! `module_load` and `module_free`. A driver that comes back may have other device numbers, and its entry points are new.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_task;
use gpu_tracer_common::events::{Drop, KIND_MODULE_LOADED, KIND_MODULE_UNLOADED, ModuleRecord};

use super::{account, argument, emit, head, task_ref};
use crate::access::{offset, read};

/// `(struct module *)`. Its own initialisation, which registers devices, has not run yet.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/module_load")]
fn on_module_load(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has one argument.
    account(try_on_module(KIND_MODULE_LOADED, unsafe { argument(context, 0) }));
    0
}

/// `(struct module *)`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/module_free")]
fn on_module_free(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has one argument.
    account(try_on_module(KIND_MODULE_UNLOADED, unsafe { argument(context, 0) }));
    0
}

#[inline(always)]
fn try_on_module(kind: u16, module: u64) -> Result<(), Drop> {
    let name = read::<[u8; 56]>(module, offset!(module_name)).ok_or(Drop::Unreadable)?;
    // SAFETY: no arguments, no effects.
    let current = unsafe { bpf_get_current_task() };
    emit(ModuleRecord { head: head(kind, 0, task_ref(current)?), name })
}

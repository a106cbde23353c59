//! `sys_enter` and `sys_exit`: calls that may change who refers to what (plan `exhaustive`, and no other).
//!
//! That these tracepoints are in use makes every system call of the host slower, whoever makes it; what the programs add
//! is two loads for calls that cannot matter. The others are looked at if a tracked process makes them: is it about a
//! descriptor of a device? What takes a descriptor away is told when it is entered, as it may take long to return (it may be in
//! the driver's release all that time); what brings something is told when it has done so.
//!
//! A call is told to have somebody look, and not for itself. So of many in a short time one is told.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_probe_read_user},
    macros::map,
    maps::Array,
};
use gpu_tracer_common::events::{
    CALL_NUMBERS, CALLING_SLOTS, CALLS_APART_NS, Drop, KIND_CALLED, VAGUE_CALLS_APART_NS, call_class,
};

use super::{account, argument, current_ref, emit, head, now, touched, tracked};
use crate::{
    access::{offset, peek, read},
    holds::{character_device, is_socket, is_wanted},
};

/// What each call can do. Written by the loader, which knows the numbers.
#[unsafe(no_mangle)]
static CALL_CLASSES: [u8; CALL_NUMBERS] = [0; CALL_NUMBERS];

/// Tasks that are in a call that is to be told when it returns: thread id above, class below. Two whose ids have the same low
/// bits get into each other's way; one of them is then not told, which a look in its turn makes up for.
#[map]
static CALLING: Array<u64> = Array::with_max_entries(CALLING_SLOTS, 0);

const AF_UNIX: u16 = 1;
const F_DUPFD: u32 = 0;
const F_DUPFD_CLOEXEC: u32 = 1030;
/// Where `struct msghdr` has its control data and the length of them.
const CONTROL_IN_MESSAGE: u64 = 32;

/// How sure it is that a call concerns a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Concern {
    None,
    Perhaps,
    Device,
}

/// `(struct pt_regs *regs, long id)`
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sys_enter")]
fn on_call(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has two arguments.
    let number = unsafe { argument(context, 1) };
    let entry = class_of(number);
    if entry != call_class::NONE {
        // SAFETY: as above.
        account(try_on_call(unsafe { argument(context, 0) }, number, entry));
    }
    0
}

/// `(struct pt_regs *regs, long ret)`
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sys_exit")]
fn on_return(context: *mut c_void) -> i32 {
    let current = current();
    let Some(calling) = CALLING.get_ptr_mut(slot(current as u32)) else { return 0 };
    // SAFETY: an element of the map; other tasks write to it as well, in one piece.
    let value = unsafe { calling.read_volatile() };
    if value != 0 && (value >> 32) as u32 == current as u32 {
        // SAFETY: as above.
        unsafe { calling.write_volatile(0) };
        // SAFETY: the tracepoint has two arguments.
        let result = unsafe { argument(context, 1) } as i64;
        if result >= 0 {
            account(try_on_return(value as u8, result));
        }
    }
    0
}

#[inline(always)]
fn class_of(number: u64) -> u8 {
    // The same numbers with a bit set are those of x32 programs. A mask is what the verifier understands as a bound.
    let index = (number & (CALL_NUMBERS as u64 - 1)) as usize;
    // SAFETY: within the table; volatile, so that the compiler does not fold the initial value.
    unsafe { core::ptr::read_volatile(&CALL_CLASSES[index]) }
}

#[inline(always)]
fn current() -> u64 {
    // SAFETY: no arguments, no effects.
    unsafe { bpf_get_current_pid_tgid() }
}

#[inline(always)]
fn slot(tid: u32) -> u32 {
    tid & (CALLING_SLOTS - 1)
}

#[inline(always)]
fn try_on_call(regs: u64, number: u64, entry: u8) -> Result<(), Drop> {
    let class = entry & call_class::OWN;
    let is_tracked = tracked::find((current() >> 32) as u32).is_some();
    // Somebody of no interest so far may be given a device.
    let is_given = class >= call_class::RECEIVE && class <= call_class::TAKE;
    if !is_tracked && !is_given {
        return Ok(());
    }
    // SAFETY: no arguments, no effects.
    let task = unsafe { bpf_get_current_task() };
    // Of other programs the arguments are laid out otherwise.
    let of_x32 = number >= CALL_NUMBERS as u64;
    if of_x32 || is_compat(task) {
        if is_tracked && (of_x32 || entry & call_class::OF_COMPAT != 0) {
            tell_at_return(call_class::ANY);
        }
        return Ok(());
    }
    let files = peek::<u64>(task, offset!(task_files));
    let first = read::<u64>(regs, offset!(regs_argument0)).ok_or(Drop::Unreadable)?;
    let second = read::<u64>(regs, offset!(regs_argument1)).ok_or(Drop::Unreadable)?;
    match class {
        call_class::CLOSE => return tell(class, concern(files, first as u32)),
        call_class::DUP_ONTO => {
            let closed = concern(files, second as u32);
            if closed != Concern::None {
                return tell(class, closed);
            }
            if concern(files, first as u32) == Concern::Device {
                tell_at_return(class);
            }
        }
        call_class::DUP => {
            if concern(files, first as u32) == Concern::Device {
                tell_at_return(class);
            }
        }
        call_class::FCNTL => {
            let duplicates = second as u32 == F_DUPFD || second as u32 == F_DUPFD_CLOEXEC;
            if duplicates && concern(files, first as u32) == Concern::Device {
                tell_at_return(class);
            }
        }
        call_class::MAP => {
            let fd = read::<u64>(regs, offset!(regs_argument4)).ok_or(Drop::Unreadable)?;
            if concern(files, fd as u32) == Concern::Device {
                tell_at_return(class);
            }
        }
        call_class::SEND | call_class::RECEIVE => {
            if has_control_data(second) {
                tell_at_return(class);
            }
        }
        call_class::NONE => {}
        _ => tell_at_return(class),
    }
    Ok(())
}

#[inline(always)]
fn try_on_return(class: u8, result: i64) -> Result<(), Drop> {
    // SAFETY: no arguments, no effects.
    let task = unsafe { bpf_get_current_task() };
    let sure = class == call_class::DUP
        || class == call_class::DUP_ONTO
        || class == call_class::FCNTL
        || class == call_class::MAP;
    let mut concerned = if sure { Concern::Device } else { Concern::Perhaps };
    if class >= call_class::RECEIVE && class <= call_class::TAKE {
        let files = peek::<u64>(task, offset!(task_files));
        // The last of the descriptors that it may have been given.
        let fd = if class == call_class::TAKE {
            result as u32
        } else {
            peek::<u32>(files, offset!(files_next_fd)).wrapping_sub(1)
        };
        if concern(files, fd) == Concern::Device {
            concerned = Concern::Device;
            let task = current_ref()?;
            tracked::add(task.tgid, task.start_ns)?;
        }
    }
    tell(class, concerned)
}

#[inline(always)]
fn tell_at_return(class: u8) {
    let tid = current() as u32;
    if let Some(calling) = CALLING.get_ptr_mut(slot(tid)) {
        // SAFETY: an element of the map, written in one piece.
        unsafe { calling.write_volatile(u64::from(tid) << 32 | u64::from(class)) };
    }
}

/// Tells of a call of a tracked process, unless that is due to a look that is still to come.
#[inline(always)]
fn tell(class: u8, concerned: Concern) -> Result<(), Drop> {
    let apart = match concerned {
        Concern::None => return Ok(()),
        Concern::Perhaps => VAGUE_CALLS_APART_NS,
        Concern::Device => CALLS_APART_NS,
    };
    let Some(known) = tracked::find((current() >> 32) as u32) else { return Ok(()) };
    let now = now();
    if now.wrapping_sub(known.called_ns) < apart {
        return Ok(());
    }
    known.called_ns = now;
    emit(head(KIND_CALLED, u32::from(class), current_ref()?))
}

/// Is the task in a system call of a 32-bit program?
#[inline(always)]
fn is_compat(task: u64) -> bool {
    peek::<u32>(task, offset!(thread_word)) & offset!(thread_compat) != 0
}

/// What closing this descriptor may come to: it is a device's, or a unix socket's, in which devices may wait.
#[inline(always)]
fn concern(files: u64, fd: u32) -> Concern {
    let Some(file) = touched::file_at(files, fd) else { return Concern::None };
    if let Some(rdev) = character_device(file) {
        return if is_wanted(rdev) { Concern::Device } else { Concern::None };
    }
    let family = if is_socket(file) {
        read::<u64>(file, offset!(file_private_data))
            .and_then(|socket| read::<u64>(socket, offset!(socket_sk)))
            .and_then(|sock| read::<u16>(sock, offset!(sock_family)))
    } else {
        None
    };
    if family == Some(AF_UNIX) { Concern::Perhaps } else { Concern::None }
}

/// Does this `struct msghdr` of the program have room for control data, or any?
#[inline(always)]
fn has_control_data(message: u64) -> bool {
    let mut control = [0_u64; 2];
    let source = (message + CONTROL_IN_MESSAGE) as *const c_void;
    // SAFETY: the helper checks the source; the destination is 16 bytes of our stack.
    let failed = unsafe { bpf_probe_read_user(control.as_mut_ptr().cast(), 16, source) };
    failed == 0 && control[0] != 0 && control[1] != 0
}

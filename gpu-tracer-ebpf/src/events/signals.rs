//! `signal_generate` and `mark_victim`: what may end a process, and on whose behalf.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_task;
use gpu_tracer_common::events::{Drop, KIND_SIGNALLED, KIND_VICTIM, SignalRecord, TaskRef};

use super::{account, argument, comm_of, emit, head, now, task_ref, tgid_of, tracked};
use crate::access::{offset, peek, read};

/// HUP INT QUIT ILL ABRT BUS FPE KILL SEGV TERM, CONT STOP TSTP, XCPU XFSZ SYS. The others that end a process by default
/// (USR1, ALRM, PIPE, PROF, IO, real-time) are everyday messages between programs that expect them.
const OF_INTEREST: u64 = bits(&[1, 2, 3, 4, 6, 7, 8, 9, 11, 15, 18, 19, 20, 24, 25, 31]);

/// `TRACE_SIGNAL_DELIVERED`; the others mean that it changed nothing: ignored, pending already, or refused.
const DELIVERED: i32 = 0;
const TRACE_SIGNAL_ALREADY_PENDING: i32 = 2;
/// `SEND_SIG_NOINFO` and `SEND_SIG_PRIV`: numbers in place of a pointer.
const NO_INFO: u64 = 0;
const FROM_KERNEL: u64 = 1;
const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;

const fn bits(signals: &[u32]) -> u64 {
    let mut bits = 0;
    let mut index = 0;
    while index < signals.len() {
        bits |= 1 << signals[index];
        index += 1;
    }
    bits
}

/// `(int signal, struct kernel_siginfo *, struct task_struct *target, int group, int result)`, in the sender's context.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/signal_generate")]
fn on_signal(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has five arguments.
    let (signal, info, target, result) = unsafe {
        (argument(context, 0) as u32, argument(context, 1), argument(context, 2), argument(context, 4) as i32)
    };
    if signal > 31 || OF_INTEREST >> signal & 1 == 0 {
        return 0;
    }
    // A second SIGKILL changes nothing, but that somebody tried is worth knowing.
    if result != DELIVERED && result != TRACE_SIGNAL_ALREADY_PENDING {
        return 0;
    }
    if let Ok(tgid) = tgid_of(target)
        && let Some(known) = tracked::find(tgid)
    {
        account(tracked::spend(known, now()).and_then(|()| try_on_signal(signal, info, target)));
    }
    0
}

#[inline(always)]
fn try_on_signal(signal: u32, info: u64, target: u64) -> Result<(), Drop> {
    let code = match info {
        NO_INFO => SI_USER,
        FROM_KERNEL => SI_KERNEL,
        info => read::<i32>(info, offset!(siginfo_code)).ok_or(Drop::Unreadable)?,
    };
    // SAFETY: no arguments, no effects.
    let sender = unsafe { bpf_get_current_task() };
    let credentials = peek::<u64>(sender, offset!(task_real_cred));
    emit(SignalRecord {
        head: head(KIND_SIGNALLED, signal, task_ref(target)?),
        sender: task_ref(sender)?,
        sender_uid: read::<u32>(credentials, offset!(cred_uid)).unwrap_or(u32::MAX),
        code,
        sender_comm: comm_of(sender),
    })
}

/// `(struct task_struct *victim, uid_t)`; before 6.8 `(int pid)`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/mark_victim")]
fn on_victim(context: *mut c_void) -> i32 {
    // SAFETY: the tracepoint has an argument.
    let victim = unsafe { argument(context, 0) };
    account(try_on_victim(victim));
    0
}

#[inline(always)]
fn try_on_victim(victim: u64) -> Result<(), Drop> {
    if offset!(victim_is_task) != 0 {
        let task = task_ref(victim)?;
        return if tracked::find(task.tgid).is_some() { emit(head(KIND_VICTIM, 0, task)) } else { Ok(()) };
    }
    // The killer marks one task of each process it kills, most often the leader, which is all that can be looked up.
    let pid = victim as u32;
    let Some(known) = tracked::find(pid) else { return Ok(()) };
    emit(head(KIND_VICTIM, 0, TaskRef { tgid: pid, tid: pid, start_ns: known.start_ns }))
}

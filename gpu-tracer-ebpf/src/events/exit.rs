//! `sched_process_exit`: a task begins to exit.
//!
//! Its fd table is still whole, on every kernel. Nobody will ever see it again from outside: a task that gets stuck while
//! it closes one descriptor takes all the others with it into the dark. So the device files in it are written down here,
//! and those of which a close may have to wait for somebody.
//!
//! Threads share one table. It is looked at by the leader, by the last task of the process, and by whoever has a table
//! that is not the leader's; the others have nothing to add.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    helpers::generated::{bpf_get_current_pid_tgid, bpf_loop, bpf_probe_read_kernel, bpf_ringbuf_output},
    macros::map,
    maps::PerCpuArray,
};
use gpu_tracer_common::events::{
    DESCRIPTORS_WITHOUT_LOOP, Drop, EXIT_HOLDS, ExitHold, ExitRecord, KIND_EXITING, MAX_EXIT_CHUNKS,
    MAY_WAIT, MOST_MAY_WAIT, exit_bits,
};

use super::{EVENTS, account, argument, count, head, now, task_ref, tracked};
use crate::{
    access::{offset, peek, read},
    holds::{FMODE_PATH, character_device, identity, is_wanted},
};

/// An [`ExitRecord`] and its files, which the stack has no room for, and the state of the walk that finds them.
///
/// The state is in a map too. Verifiers before 6.7 follow the callback of a `bpf_loop` once: they take what it counts on
/// the stack for known, and remove the branches that only a later round takes.
#[repr(C)]
struct Draft {
    record: ExitRecord,
    held: [ExitHold; EXIT_HOLDS],
    slots: u64,
    open: u64,
    max: u32,
    base: u32,
    /// Drafts sent before it was complete.
    chunks: u32,
    /// Files among them that are no devices.
    may_wait: u32,
}

/// A raw tracepoint's program does not run twice on one CPU at a time, so nobody else is writing here.
#[map]
static DRAFT: PerCpuArray<Draft> = PerCpuArray::with_max_entries(1, 0);

/// Room for one word's worth of file pointers.
#[map]
static EXIT_SLOTS: PerCpuArray<[u64; SLOTS_PER_WORD]> = PerCpuArray::with_max_entries(1, 0);

const SLOTS_PER_WORD: usize = 64;
/// `sysctl_nr_open` cannot exceed this.
const MAX_FDS: u32 = 1 << 30;

/// `(struct task_struct *task, bool group_dead)`; before 6.16 only the task. In the task's own context.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_exit")]
fn on_exit(context: *mut c_void) -> i32 {
    if is_tracked() {
        account(try_on_exit(context, walk_table));
    }
    0
}

/// The same for kernels without `bpf_loop` (before 5.17): only the first [`DESCRIPTORS_WITHOUT_LOOP`] are looked at.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_exit")]
fn on_exit_in_steps(context: *mut c_void) -> i32 {
    if is_tracked() {
        account(try_on_exit(context, walk_in_steps));
    }
    0
}

/// The same without a look at the fd table, should a verifier refuse the others.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_exit")]
fn on_exit_only(context: *mut c_void) -> i32 {
    if is_tracked() {
        account(try_on_exit_only(context));
    }
    0
}

#[inline(always)]
fn is_tracked() -> bool {
    // SAFETY: no arguments, no effects.
    let current = unsafe { bpf_get_current_pid_tgid() };
    tracked::find((current >> 32) as u32).is_some()
}

#[inline(always)]
fn try_on_exit_only(context: *mut c_void) -> Result<(), Drop> {
    let draft = DRAFT.get_ptr_mut(0).ok_or(Drop::Unreadable)?;
    // SAFETY: the only element, ours alone.
    describe(context, unsafe { &mut (*draft).record })?;
    send(draft, 0)
}

#[inline(always)]
fn try_on_exit(context: *mut c_void, walk: impl Fn(*mut Draft, u64) -> Result<(), Drop>) -> Result<(), Drop> {
    let draft = DRAFT.get_ptr_mut(0).ok_or(Drop::Unreadable)?;
    // SAFETY: the only element, ours alone.
    let record = unsafe { &mut (*draft).record };
    let leader = describe(context, record)?;
    let table = record.table;
    let is_leader = record.head.task.tid == record.head.task.tgid;
    let is_last = record.head.detail & exit_bits::GROUP_DEAD != 0;
    let leaves_it_to_others = !is_leader
        && !is_last
        && peek::<u32>(table, offset!(files_count)) > 1
        && read::<u64>(leader, offset!(task_files)).is_some_and(|leaders| leaders == table);
    if table == 0 || leaves_it_to_others {
        return send(draft, 0);
    }
    account(walk(draft, table));
    send(draft, 0)
}

/// Fills in everything but the files; returns the group leader.
#[inline(always)]
fn describe(context: *mut c_void, record: &mut ExitRecord) -> Result<u64, Drop> {
    // SAFETY: the tracepoint has an argument.
    let task = unsafe { argument(context, 0) };
    let signal = read::<u64>(task, offset!(task_signal)).ok_or(Drop::Unreadable)?;
    let is_last = if offset!(exit_says_group_dead) != 0 {
        // SAFETY: a second argument is there on the kernels of which this is known.
        unsafe { argument(context, 1) & 0xff != 0 }
    } else {
        read::<i32>(signal, offset!(signal_live)) == Some(0)
    };
    let table = peek::<u64>(task, offset!(task_files));
    *record = ExitRecord {
        head: head(KIND_EXITING, if is_last { exit_bits::GROUP_DEAD } else { 0 }, task_ref(task)?),
        exit_code: peek::<i32>(task, offset!(task_exit_code)),
        held: 0,
        table,
    };
    Ok(peek::<u64>(task, offset!(task_group_leader)))
}

/// Appends the draft to the ring. `detail` is for this record alone.
#[inline(always)]
fn send(draft: *mut Draft, detail: u32) -> Result<(), Drop> {
    // SAFETY: the only element, ours alone.
    let held = unsafe {
        let group_dead = (*draft).record.head.detail & exit_bits::GROUP_DEAD;
        (*draft).record.head.detail = group_dead | detail;
        // What is told was so before this moment, and not after it.
        (*draft).record.head.at_ns = now();
        (&raw const (*draft).record.held).read_volatile()
    };
    if held > EXIT_HOLDS as u32 {
        return Err(Drop::TableTooLong);
    }
    let size = size_of::<ExitRecord>() as u64 + u64::from(held) * size_of::<ExitHold>() as u64;
    let ring = (&raw const EVENTS).cast_mut().cast();
    // SAFETY: `size` bytes of the draft are initialised: maps begin as zeros.
    let result = unsafe { bpf_ringbuf_output(ring, draft.cast(), size, 0) };
    if result == 0 { Ok(()) } else { Err(Drop::RingFull) }
}

#[inline(always)]
fn walk_table(draft: *mut Draft, files: u64) -> Result<(), Drop> {
    let max = begin_walk(draft, files)?;
    // SAFETY: the callback has the signature `bpf_loop` wants.
    unsafe { bpf_loop(max / 64 + u32::from(max % 64 != 0), walk_word as *mut c_void, ptr::null_mut(), 0) };
    Ok(())
}

#[inline(always)]
fn walk_in_steps(draft: *mut Draft, files: u64) -> Result<(), Drop> {
    let max = begin_walk(draft, files)?;
    for index in 0..DESCRIPTORS_WITHOUT_LOOP / 64 {
        if index * 64 >= max {
            return Ok(());
        }
        if walk_exit_word(index) != 0 {
            return Ok(());
        }
    }
    if max > DESCRIPTORS_WITHOUT_LOOP { Err(Drop::TableTooLong) } else { Ok(()) }
}

/// [`walk_word`] as a function that others could call: such a one is verified by itself, once, and not at each of its calls. So is that
/// for each descriptor.
#[unsafe(no_mangle)]
#[inline(never)]
fn walk_exit_word(index: u32) -> i32 {
    let slots = |wanted| {
        for slot in 0..SLOTS_PER_WORD as u32 {
            if slot < wanted {
                walk_exit_slot(slot);
            }
        }
    };
    walk_slots(index, slots) as i32
}

#[unsafe(no_mangle)]
#[inline(never)]
fn walk_exit_slot(slot: u32) -> i32 {
    // SAFETY: it does not use its second argument.
    unsafe { walk_slot(slot, ptr::null_mut()) as i32 }
}

/// Makes the draft ready for a walk; returns how many descriptors the table has room for.
#[inline(always)]
fn begin_walk(draft: *mut Draft, files: u64) -> Result<u32, Drop> {
    let table = read::<u64>(files, offset!(files_fdt)).ok_or(Drop::Unreadable)?;
    let max = read::<u32>(table, offset!(fdtable_max_fds)).ok_or(Drop::Unreadable)?.min(MAX_FDS);
    // SAFETY: the only element, ours alone.
    unsafe {
        (*draft).max = max;
        (*draft).slots = read::<u64>(table, offset!(fdtable_fd)).ok_or(Drop::Unreadable)?;
        (*draft).open = read::<u64>(table, offset!(fdtable_open_fds)).ok_or(Drop::Unreadable)?;
        (*draft).chunks = 0;
        (*draft).may_wait = 0;
    }
    Ok(max)
}

/// 64 descriptors, by one word of the table's bitmap of open descriptors.
#[inline(never)]
unsafe extern "C" fn walk_word(index: u32, _: *mut c_void) -> i64 {
    // SAFETY: the callback has the signature `bpf_loop` wants.
    walk_slots(index, |wanted| _ = unsafe { bpf_loop(wanted, walk_slot as *mut c_void, ptr::null_mut(), 0) })
}

/// The descriptors of one word, so many of [`EXIT_SLOTS`] by this walk. 1: no further word.
#[inline(always)]
fn walk_slots(index: u32, walk: impl Fn(u32)) -> i64 {
    let Some(draft) = DRAFT.get_ptr_mut(0) else { return 1 };
    match read_word(draft, index) {
        Ok(wanted) => {
            if let Some(wanted) = wanted {
                walk(wanted);
            }
            0
        }
        Err(drop) => {
            count(drop);
            1
        }
    }
}

/// Fills [`EXIT_SLOTS`] from one word of the table; returns how many of its descriptors there are. `None`: nothing to look at.
#[inline(always)]
fn read_word(draft: *mut Draft, index: u32) -> Result<Option<u32>, Drop> {
    let slots = EXIT_SLOTS.get_ptr_mut(0).ok_or(Drop::Unreadable)?;
    // SAFETY: the only element, ours alone.
    let (held, open, max) = unsafe { ((*draft).record.held, (*draft).open, (*draft).max) };
    if peek::<u64>(open + u64::from(index) * 8, 0) == 0 {
        return Ok(None);
    }
    // So that the files of this word fit.
    if held > (EXIT_HOLDS - SLOTS_PER_WORD) as u32 {
        make_room(draft)?;
    }
    let base = index * 64;
    let wanted = max.wrapping_sub(base).min(64);
    // SAFETY: at most 64 pointers into a buffer of 64; the source is checked by the helper.
    let failed = unsafe {
        let from = ((*draft).slots + u64::from(base) * 8) as *const c_void;
        bpf_probe_read_kernel(slots.cast(), wanted * 8, from)
    };
    if failed != 0 {
        count(Drop::Unreadable);
        return Ok(None);
    }
    // SAFETY: the only element, ours alone.
    unsafe { (*draft).base = base };
    Ok(Some(wanted))
}

/// Sends what is there, unless enough has been sent for one exit.
#[inline(always)]
fn make_room(draft: *mut Draft) -> Result<(), Drop> {
    // SAFETY: the only element, ours alone.
    unsafe {
        if (*draft).chunks >= MAX_EXIT_CHUNKS - 1 {
            return Err(Drop::TableTooLong);
        }
        (*draft).chunks += 1;
        account(send(draft, exit_bits::MORE));
        (*draft).record.held = 0;
    }
    Ok(())
}

/// One of the 64 descriptors in [`EXIT_SLOTS`].
#[inline(never)]
unsafe extern "C" fn walk_slot(slot: u32, _: *mut c_void) -> i64 {
    let (Some(draft), Some(slots)) = (DRAFT.get_ptr_mut(0), EXIT_SLOTS.get(0)) else { return 1 };
    // A mask is what the verifier understands as a bound, whatever register it ends up in.
    let file = slots[(u64::from(slot) & (SLOTS_PER_WORD as u64 - 1)) as usize];
    if file == 0 {
        return 0;
    }
    let (rdev, identity) = match character_device(file) {
        Some(rdev) if is_wanted(rdev) => (rdev, identity(file)),
        Some(_) => return 0,
        None => match may_wait(draft, file) {
            Some(file_system) => (MAY_WAIT, file_system),
            None => return 0,
        },
    };
    // O_PATH descriptors never reached the device, and need no flush.
    if peek::<u32>(file, offset!(file_mode)) & FMODE_PATH != 0 {
        return 0;
    }
    // SAFETY: the only element, ours alone; a mask, as above.
    unsafe {
        let at = (&raw const (*draft).record.held).read_volatile();
        let held = ExitHold { file, identity, rdev, fd: (*draft).base + slot };
        (*draft).held[(u64::from(at) & (EXIT_HOLDS as u64 - 1)) as usize] = held;
        (*draft).record.held = at + 1;
    }
    0
}

/// The file system of a file of which a close has something to wait for.
#[inline(always)]
fn may_wait(draft: *mut Draft, file: u64) -> Option<u64> {
    let operations = read::<u64>(file, offset!(file_op))?;
    read::<u64>(operations, offset!(file_operations_flush)).filter(|flush| *flush != 0)?;
    // SAFETY: the only element, ours alone.
    unsafe {
        let told = (&raw const (*draft).may_wait).read_volatile();
        if told >= MOST_MAY_WAIT {
            return None;
        }
        (*draft).may_wait = told + 1;
    }
    let inode = read::<u64>(file, offset!(file_inode))?;
    let super_block = read::<u64>(inode, offset!(inode_sb))?;
    read::<u64>(super_block, offset!(super_block_magic))
}

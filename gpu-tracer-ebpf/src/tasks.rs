//! `iter/task`: every task, and a walk of its fd table.
//!
//! The walk reads pointers and takes no reference, so it can never be the one who runs a driver's release
//! (the kernel's own `iter/task_file` can). It races with `close` and `exit` of the task it looks at; what it reads then is stale or
//! empty, never unsafe, and the user side looks twice at anything that does not add up.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    helpers::generated::{bpf_loop, bpf_probe_read_kernel, bpf_seq_write},
    macros::map,
    maps::{HashMap, PerCpuArray},
};
use gpu_tracer_common::{
    layout::{ABSENT, FILE_COPY},
    snapshot::{FILE_DEVICE, HOLD_FD, Header, KIND_TASK, TaskRecord, fd_bits, mode, task_bits},
};

use crate::{
    access::{Copied, Fields as _, field, offset, peek, pointer, read},
    holds::{
        BPF_F_NO_PREALLOC, FMODE_PATH, Found, Full, S_IFCHR, S_IFMT, control, emit_by, emit_read, is_wanted,
        look_at_carrier, look_at_file, look_at_ring,
    },
    subjects::{may_pin, owner_of_device, owner_of_operations, stepped},
};

#[repr(C)]
pub(crate) struct IterMeta {
    pub(crate) seq: *mut c_void,
    pub(crate) session: u64,
    _number: u64,
}

#[repr(C)]
pub(crate) struct TaskContext {
    pub(crate) meta: *mut IterMeta,
    pub(crate) task: *mut c_void,
}

/// fd tables that some thread showed already in the session of the value. Only a shortcut: the user side counts each table once anyway.
#[map]
static SHOWN: HashMap<u64, u64> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// The state of a walk; in a map and not on the stack, so that the verifier takes every round of its loops for the same.
#[repr(C)]
struct Walk {
    /// One word's worth of file pointers.
    slots: [u64; SLOTS_PER_WORD],
    /// The file looked at.
    copy: Copied<FILE_WORDS>,
    /// The last inode met in this run, and what it is. It is not freed before the run ends, for that is a read-side critical
    /// section of RCU.
    inode: u64,
    kind: u32,
    rdev: u32,
    /// It is of a device that is looked for.
    wanted: u64,
    /// Then: does a module own the device?
    device_owner: u64,
    /// The operations of the last file of such a device, and does a module own them?
    operations: u64,
    operations_owner: u64,
    files: u64,
    fds: u64,
    open: u64,
    max: u32,
    tid: u32,
    first_word: u32,
    pass: u32,
    full: u32,
    base: u32,
    /// Of a walk in steps: the word to look at next, and how many there are.
    next: u32,
    words: u32,
}

#[map]
static WALK: PerCpuArray<Walk> = PerCpuArray::with_max_entries(1, 0);

const FILE_WORDS: usize = FILE_COPY / 8;
const SLOTS_PER_WORD: usize = 64;
/// `sysctl_nr_open` cannot exceed this.
const MAX_FDS: u32 = 1 << 30;

const PF_FROZEN: u32 = 0x0001_0000;
const TASK_FROZEN: u32 = 0x8000;
const JOBCTL_TRAP_FREEZE: u64 = 1 << 23;
const SIGNAL_STOP_STOPPED: u32 = 1;
const SIGNAL_GROUP_EXIT: u32 = 4;
const SIGKILL_BIT: u64 = 1 << 8;

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_tasks(context: *mut c_void) -> i32 {
    visit(context, walk_table)
}

/// The same for kernels without `bpf_loop` (before 5.17).
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_tasks_in_steps(context: *mut c_void) -> i32 {
    visit(context, walk_table_in_steps)
}

#[inline(always)]
fn visit(context: *mut c_void, walk: impl Fn(u64, u32, u32) -> Result<(), Full>) -> i32 {
    // SAFETY: the kernel passes `struct bpf_iter__task`, whose layout is ABI.
    let context = unsafe { &*context.cast::<TaskContext>() };
    // Once: to the verifier each load is another pointer, which may be null again.
    // SAFETY: a reference is valid.
    let task = unsafe { core::ptr::read_volatile(&raw const context.task) };
    if task.is_null() {
        return 0;
    }
    // SAFETY: `meta` is never null.
    let meta = unsafe { &*context.meta };
    match try_iter_tasks(meta, task, walk) {
        Ok(()) => 0,
        Err(Full) => {
            if let Some(control) = control() {
                control.full += 1;
            }
            1
        }
    }
}

/// Thread-group id, thread id and fd table.
///
/// # Safety
/// `task` must be a BTF pointer that is not null.
#[inline(always)]
unsafe fn identify(task: *mut c_void) -> (u32, u32, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        (
            field::<u32>(task, offset!(task_tgid)),
            field::<u32>(task, offset!(task_pid)),
            pointer(task, offset!(task_files)),
        )
    }
}

#[inline(always)]
fn try_iter_tasks(
    meta: &IterMeta,
    task: *mut c_void,
    walk: impl Fn(u64, u32, u32) -> Result<(), Full>,
) -> Result<(), Full> {
    let Some(control) = control() else { return Ok(()) };
    // SAFETY: `task` is the context's BTF pointer, checked for null.
    let (tgid, tid, files) = unsafe { identify(task) };
    if learn(tgid, tid, files) {
        return Ok(());
    }
    // A copy of our own: the helpers take no pointer into the iterator's memory.
    // SAFETY: `meta` is valid.
    let session = unsafe { core::ptr::read_volatile(&meta.session) };
    if files != 0 && !is_shown(task, files, tid != tgid, session) {
        walk(files, tid, control.mode)?;
        if tid != tgid {
            let _ = SHOWN.insert(&files, &session, 0);
        }
    }
    if control.mode == mode::DEVICES {
        // SAFETY: as above.
        unsafe { describe(meta, task, tgid, tid, files) };
    }
    Ok(())
}

/// Is this [`mode::LEARN_RING`] or [`mode::LEARN_SOCKET`]? Then learns, if the task is the one that asks.
#[inline(always)]
fn learn(tgid: u32, tid: u32, files: u64) -> bool {
    let Some(control) = control() else { return false };
    let is_ring = control.mode == mode::LEARN_RING;
    if !is_ring && control.mode != mode::LEARN_SOCKET {
        return false;
    }
    // An iterator runs in the context of its reader, whatever PID namespace that is in.
    if u64::from(tgid) != bpf_get_current_pid_tgid() >> 32 || tid != tgid {
        return true;
    }
    let file = file_of_own(files, control.learn_fd);
    if is_ring {
        control.ring_fops = peek(file, offset!(file_op));
    } else {
        let socket = peek::<u64>(file, offset!(file_private_data));
        control.sock = peek(socket, offset!(socket_sk));
        // The second member of its node.
        control.sock_behind = peek(control.sock + 8, offset!(sock_node));
    }
    true
}

/// A thread that shares its leader's table has nothing to add; one whose leader is gone shares with its siblings.
#[inline(always)]
fn is_shown(task: *mut c_void, files: u64, is_thread: bool, session: u64) -> bool {
    if !is_thread {
        return false;
    }
    let leader = pointer(task, offset!(task_group_leader));
    if read::<u64>(leader, offset!(task_files)) == Some(files) {
        return true;
    }
    // SAFETY: a map lookup by a value on our stack.
    let shown = unsafe { SHOWN.get(&files) };
    shown == Some(&session)
}

/// The file at a descriptor that is in use.
#[inline(always)]
fn file_of_own(files: u64, fd: u32) -> u64 {
    let table = peek::<u64>(files, offset!(files_fdt));
    let slots = peek::<u64>(table, offset!(fdtable_fd));
    peek::<u64>(slots + u64::from(fd) * 8, 0)
}

#[inline(always)]
fn walk_table(files: u64, tid: u32, pass: u32) -> Result<(), Full> {
    let Some((_, words)) = begin_walk(files, tid, pass) else { return Ok(()) };
    // SAFETY: the callback has the signature `bpf_loop` wants.
    unsafe { bpf_loop(words, walk_word as *mut c_void, core::ptr::null_mut(), 0) };
    end_walk()
}

#[inline(always)]
fn walk_table_in_steps(files: u64, tid: u32, pass: u32) -> Result<(), Full> {
    let (Some((first, words)), Some(walk), Some(control)) =
        (begin_walk(files, tid, pass), WALK.get_ptr_mut(0), control())
    else {
        return Ok(());
    };
    // SAFETY: as in `begin_walk`.
    unsafe { ((*walk).next, (*walk).words) = (first, words) };
    control.resume_table = files;
    control.resume_slot = u64::from(first) * 64;
    stepped::on(|| step_in_table(pass))?;
    end_walk()
}

/// Makes [`WALK`] ready for a walk of this table; the first word to look at, and how many there are.
#[inline(always)]
fn begin_walk(files: u64, tid: u32, pass: u32) -> Option<(u32, u32)> {
    let table = read::<u64>(files, offset!(files_fdt))?;
    let max = peek::<u32>(table, offset!(fdtable_max_fds)).min(MAX_FDS);
    let fds = read::<u64>(table, offset!(fdtable_fd))?;
    let open = read::<u64>(table, offset!(fdtable_open_fds))?;
    let (control, walk) = (control()?, WALK.get_ptr_mut(0)?);
    let first_word = if control.resume_table == files { control.resume_slot as u32 / 64 } else { 0 };
    // SAFETY: the only element of a per-CPU array; this program does not nest.
    unsafe {
        (*walk).files = files;
        (*walk).fds = fds;
        (*walk).open = open;
        (*walk).max = max;
        (*walk).tid = tid;
        (*walk).first_word = first_word;
        (*walk).pass = pass;
        (*walk).full = 0;
        (*walk).inode = 0;
        (*walk).wanted = 0;
        (*walk).operations = 0;
    }
    Some((first_word, max / 64 + u32::from(max % 64 != 0)))
}

/// [`Full`] if the walk has not come to its end.
#[inline(always)]
fn end_walk() -> Result<(), Full> {
    let (Some(control), Some(walk)) = (control(), WALK.get_ptr(0)) else { return Ok(()) };
    // SAFETY: as in `begin_walk`.
    if unsafe { (*walk).full } != 0 {
        return Err(Full);
    }
    control.resume_table = 0;
    Ok(())
}

/// 64 descriptors, by one word of the table's bitmap of open descriptors.
#[inline(never)]
unsafe extern "C" fn walk_word(index: u32, _: *mut c_void) -> i64 {
    // SAFETY: the callback has the signature `bpf_loop` wants.
    look_at_word(index, |slots| {
        _ = unsafe { bpf_loop(slots, walk_slot as *mut c_void, core::ptr::null_mut(), 0) }
    })
}

/// The next word; one of [`stepped`].
#[unsafe(no_mangle)]
#[inline(never)]
fn step_in_table(_pass: u32) -> u32 {
    stepped::from(try_step())
}

/// Is that the end?
#[inline(always)]
fn try_step() -> Result<bool, Full> {
    let (Some(control), Some(walk)) = (control(), WALK.get_ptr_mut(0)) else { return Ok(true) };
    // SAFETY: as in `begin_walk`.
    let (next, words) = unsafe { ((*walk).next, (*walk).words) };
    if next >= words {
        return Ok(true);
    }
    let each = |slots| {
        for slot in 0..SLOTS_PER_WORD as u32 {
            if slot < slots {
                walk_fd_slot(slot);
            }
        }
    };
    if look_at_word(next, each) != 0 {
        return Err(Full);
    }
    // SAFETY: as above.
    unsafe { (*walk).next = next + 1 };
    control.resume_slot = u64::from(next + 1) * 64;
    Ok(false)
}

/// [`walk_slot`] as a function that is verified by itself, once.
#[unsafe(no_mangle)]
#[inline(never)]
fn walk_fd_slot(slot: u32) -> u32 {
    // SAFETY: as in `begin_walk`; the callback does not use its second argument.
    unsafe {
        let is_full = WALK.get_ptr(0).is_none_or(|walk| (*walk).full != 0);
        if is_full { 1 } else { walk_slot(slot, core::ptr::null_mut()) as u32 }
    }
}

/// Has each of the slots of a word looked at. 1: no further word.
#[inline(always)]
fn look_at_word(index: u32, each: impl Fn(u32)) -> i64 {
    let Some(walk) = WALK.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array. At most 64 pointers go into a buffer of 64, and the helper checks their
    // source.
    unsafe {
        if index < (*walk).first_word || peek::<u64>((*walk).open + u64::from(index) * 8, 0) == 0 {
            return 0;
        }
        let base = index * 64;
        let wanted = (*walk).max.wrapping_sub(base).min(64);
        let source = ((*walk).fds + u64::from(base) * 8) as *const c_void;
        if bpf_probe_read_kernel((&raw mut (*walk).slots).cast(), wanted * 8, source) != 0 {
            return 0;
        }
        (*walk).base = base;
        each(wanted);
        i64::from((*walk).full != 0)
    }
}

/// One of the 64 descriptors of a word.
#[inline(never)]
unsafe extern "C" fn walk_slot(slot: u32, _: *mut c_void) -> i64 {
    let Some(walk) = WALK.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array. A mask is what the verifier understands as a bound, whatever register
    // it ends up in.
    let (file, found, pass) = unsafe {
        let file = (*walk).slots[(u64::from(slot) & 63) as usize];
        let at = u64::from((*walk).base + slot);
        (file, Found { kind: HOLD_FD, tid: (*walk).tid, by: (*walk).files, at, end: 0 }, (*walk).pass)
    };
    if file == 0 {
        return 0;
    }
    let looked = if pass == mode::CARRIERS {
        look_at_carrier(file, &found)
    } else if offset!(file_span) == ABSENT {
        look_at_file(file, &found)
    } else {
        // SAFETY: as above.
        look_at_descriptor(unsafe { &mut *walk }, file, found)
    };
    if looked.is_ok() {
        return 0;
    }
    // SAFETY: as above.
    unsafe { (*walk).full = 1 };
    if let Some(control) = control() {
        control.resume_table = found.by;
        control.resume_slot = found.at;
    }
    1
}

/// The same as [`look_at_file`] with as few reads as can be: a process may have ten thousand files of one device.
#[inline(always)]
fn look_at_descriptor(walk: &mut Walk, file: u64, mut found: Found) -> Result<(), Full> {
    // After one of a device there are mostly more.
    let copied = walk.wanted != 0 && walk.copy.take(file, offset!(file_span));
    let inode =
        if copied { walk.copy.get::<u64>(offset!(file_inode)) } else { read(file, offset!(file_inode)) };
    let inode = inode.unwrap_or(0);
    if inode != walk.inode {
        let Some(mode) = read::<u16>(inode, offset!(inode_mode)) else { return Ok(()) };
        walk.inode = inode;
        walk.kind = u32::from(mode & S_IFMT);
        walk.rdev = peek::<u32>(inode, offset!(inode_rdev));
        walk.wanted = u64::from(mode & S_IFMT == S_IFCHR && is_wanted(walk.rdev));
        if walk.wanted != 0 {
            walk.device_owner = owner_of_device(inode);
        }
    }
    if walk.wanted == 0 {
        // As in `look_at_file`.
        return if inode != 0 && walk.kind == 0 { look_at_ring(file, &found) } else { Ok(()) };
    }
    if !copied {
        let is_same = walk.copy.take(file, offset!(file_span))
            && walk.copy.get::<u64>(offset!(file_inode)) == Some(inode);
        if !is_same {
            return look_at_file(file, &found);
        }
    }
    if walk.copy.peek::<u32>(offset!(file_mode)) & FMODE_PATH != 0 {
        return Ok(());
    }
    let operations = walk.copy.peek::<u64>(offset!(file_op));
    if operations != walk.operations {
        walk.operations = operations;
        walk.operations_owner = owner_of_operations(operations);
    }
    let private = walk.copy.peek::<u64>(offset!(file_private_data));
    if walk.device_owner | walk.operations_owner == 0 && !may_pin(walk.rdev, private) {
        found.end = fd_bits::PLAIN;
    }
    emit_by(emit_descriptor, &found, FILE_DEVICE, file, walk.rdev)
}

/// [`emit_read`] of the copy.
#[unsafe(no_mangle)]
#[inline(never)]
fn emit_descriptor(file: u64, by: u64, at: u64, end: u64, what: u64) -> u32 {
    // SAFETY: the only element of a per-CPU array; this program does not nest.
    WALK.get_ptr(0).map_or(0, |walk| emit_read(unsafe { &(*walk).copy }, file, by, at, end, what))
}

/// Writes the record of a task. Not inlined: the walk of its descriptors, which comes before, has none of the stack to spare that
/// this takes.
///
/// # Safety
/// `task` must be a BTF pointer that is not null.
#[inline(never)]
unsafe fn describe(meta: &IterMeta, task: *mut c_void, tgid: u32, tid: u32, files: u64) {
    let address = task as u64;
    // SAFETY: the caller's promise.
    let (flags, state, exit_state, start_ns) = unsafe {
        (
            field::<u32>(task, offset!(task_flags)),
            field::<u32>(task, offset!(task_state)),
            field::<u32>(task, offset!(task_exit_state)),
            field::<u64>(task, offset!(task_start_boottime)),
        )
    };
    let mm = pointer(task, offset!(task_mm));
    let parent = pointer(task, offset!(task_real_parent));
    let credentials = pointer(task, offset!(task_real_cred));
    let (tgid_in_ns, pid_ns) = innermost_pid(pointer(task, offset!(task_group_leader)), tgid);
    let net = peek::<u64>(pointer(task, offset!(task_nsproxy)), offset!(nsproxy_net_ns));
    let record = TaskRecord {
        header: Header::new(KIND_TASK),
        tgid,
        tid,
        ppid: peek::<u32>(parent, offset!(task_tgid)),
        uid: read::<u32>(credentials, offset!(cred_uid)).unwrap_or(u32::MAX),
        flags,
        state,
        exit_state,
        bits: bits(address, flags, state, mm),
        tgid_in_ns,
        pid_ns,
        net_ns: peek::<u32>(net, offset!(net_inum)),
        start_ns,
        files,
        mm,
        comm: peek::<[u8; 16]>(address, offset!(task_comm)),
    };
    let written: *const TaskRecord = &raw const record;
    // SAFETY: the record is initialised, padding included, and `seq` is the iterator's own.
    unsafe { bpf_seq_write(meta.seq.cast(), written.cast_mut().cast(), size_of::<TaskRecord>() as u32) };
}

/// PID of the thread group in its own namespace, and that namespace's inode number.
#[inline(always)]
fn innermost_pid(leader: u64, tgid: u32) -> (u32, u32) {
    let pid = peek::<u64>(leader, offset!(task_thread_pid));
    let Some(level) = read::<u32>(pid, offset!(pid_level)) else { return (tgid, 0) };
    // The kernel allows 32 levels.
    let number =
        pid + u64::from(offset!(pid_numbers)) + u64::from(level.min(32)) * u64::from(offset!(upid_size));
    let namespace = peek::<u64>(number, offset!(upid_ns));
    (read::<u32>(number, offset!(upid_nr)).unwrap_or(tgid), peek::<u32>(namespace, offset!(pid_ns_inum)))
}

#[inline(always)]
fn bits(task: u64, flags: u32, state: u32, mm: u64) -> u32 {
    let signal = peek::<u64>(task, offset!(task_signal));
    let own = peek::<u64>(task, offset!(task_pending_signal));
    let shared = peek::<u64>(signal, offset!(signal_shared_pending_signal));
    let group = peek::<u32>(signal, offset!(signal_flags));
    let jobctl = peek::<u64>(task, offset!(task_jobctl));
    let core = if offset!(signal_core_state) != ABSENT {
        peek::<u64>(signal, offset!(signal_core_state))
    } else {
        peek::<u64>(mm, offset!(mm_core_state))
    };
    let mut bits = 0;
    if (own | shared) & SIGKILL_BIT != 0 {
        bits |= task_bits::SIGKILL_PENDING;
    }
    if jobctl & JOBCTL_TRAP_FREEZE != 0 || flags & PF_FROZEN != 0 || state & TASK_FROZEN != 0 {
        bits |= task_bits::FROZEN;
    }
    if core != 0 {
        bits |= task_bits::DUMPING_CORE;
    }
    if group & SIGNAL_STOP_STOPPED != 0 {
        bits |= task_bits::GROUP_STOPPED;
    }
    if group & SIGNAL_GROUP_EXIT != 0 {
        bits |= task_bits::GROUP_EXIT;
    }
    bits
}

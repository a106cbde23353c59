//! `cgroup/dev`, attached to the root of the cgroup v2 hierarchy beside whatever else is there.
//!
//! It is asked in the context of the task that opens a device node, before the open, and for `access(2)` too. It says yes,
//! always: it is here to be told, not to decide. What it tells is which descriptor is reserved for the open and which file
//! the device is being opened as, where these can be found.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_task, bpf_loop},
    macros::map,
    maps::{Array, LruHashMap, PerCpuArray},
};
use gpu_tracer_common::events::{
    Drop, KIND_TOUCHED, MAX_TOUCHES, NO_FD, TOUCHES_PER_WINDOW, TaskRef, TouchKey, TouchRecord, Touches,
    access_bits,
};

use super::{account, comm_of, emit, head, is_over, now, task_ref, tracked};
use crate::{
    access::{InPlace, increment, offset, peek, read},
    holds::{is_wanted, references},
};

/// How often each process asked for each device lately.
#[map]
static TOUCHES: LruHashMap<TouchKey, Touches> = LruHashMap::with_max_entries(MAX_TOUCHES, 0);

const ALLOW: i32 = 1;
const BPF_DEVCG_DEV_CHAR: u32 = 2;
const BPF_DEVCG_ACC_READ: u32 = 2;
const BPF_DEVCG_ACC_WRITE: u32 = 4;

/// `struct bpf_cgroup_dev_ctx`.
#[repr(C)]
struct DeviceContext {
    /// `BPF_DEVCG_ACC_*` in the high half, `BPF_DEVCG_DEV_*` in the low.
    access_type: u32,
    major: u32,
    minor: u32,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/dev")]
fn on_touch(context: *mut c_void) -> i32 {
    touched(context, |task| file_being_opened(task, in_a_loop))
}

/// The same for kernels without `bpf_loop`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/dev")]
fn on_touch_unrolled(context: *mut c_void) -> i32 {
    touched(context, |task| file_being_opened(task, one_by_one))
}

/// The same without a look for the file, should a verifier refuse the other.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/dev")]
fn on_touch_only(context: *mut c_void) -> i32 {
    touched(context, |_| None)
}

#[inline(always)]
fn touched(context: *mut c_void, file_of: impl Fn(u64) -> Option<u64>) -> i32 {
    // SAFETY: the kernel passes `struct bpf_cgroup_dev_ctx`, whose layout is ABI.
    let context = unsafe { &*context.cast::<DeviceContext>() };
    let (kind, access) = (context.access_type & 0xffff, context.access_type >> 16);
    let rdev = (context.major << 20) | (context.minor & 0xf_ffff);
    // Making a node is not asking for the device.
    if kind == BPF_DEVCG_DEV_CHAR
        && access & (BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE) != 0
        && is_wanted(rdev)
    {
        account(try_on_touch(rdev, access, file_of));
    }
    ALLOW
}

#[inline(always)]
fn try_on_touch(rdev: u32, access: u32, file_of: impl Fn(u64) -> Option<u64>) -> Result<(), Drop> {
    // SAFETY: no arguments, no effects. (Its like that gives the ids is not to be had here before 6.10.)
    let current = unsafe { bpf_get_current_task() };
    // What is only counted need not be looked for. Otherwise this comes first, while there is nothing else that the verifier would
    // have to go through it for once more.
    let file = if is_over_budget(rdev, current) { 0 } else { file_of(current).unwrap_or(0) };
    let task = task_ref(current)?;
    let tracked = tracked::add(task.tgid, task.start_ns);
    let (hits, left) = hit(rdev, &task);
    let mut detail = 0;
    if access & BPF_DEVCG_ACC_READ != 0 {
        detail |= access_bits::READ;
    }
    if access & BPF_DEVCG_ACC_WRITE != 0 {
        detail |= access_bits::WRITE;
    }
    match left {
        0 => return Err(Drop::RateLimited),
        1 => detail |= access_bits::LAST_OF_WINDOW,
        _ => {}
    }
    let table = peek::<u64>(current, offset!(task_files));
    emit(TouchRecord {
        head: head(KIND_TOUCHED, detail, task),
        rdev,
        fd: reserved_fd(table).unwrap_or(NO_FD),
        table,
        hits,
        cgroup: cgroup_of(current),
        file,
        comm: comm_of(current),
    })?;
    tracked
}

/// The descriptor that an open has reserved and not filled yet.
///
/// `open(2)` takes the lowest free descriptor before it looks at the path, and leaves the one after it in `next_fd`. Another
/// thread that closes a lower one in between moves that back: then the slot before it is in use, and nothing is known.
#[inline(always)]
fn reserved_fd(files: u64) -> Option<u32> {
    let fd = read::<u32>(files, offset!(files_next_fd))?.checked_sub(1)?;
    (file_at(files, fd)? == 0).then_some(fd)
}

/// What is at a descriptor, 0 for nothing; `None` beyond the end of the table.
#[inline(always)]
pub(super) fn file_at(files: u64, fd: u32) -> Option<u64> {
    let table = read::<u64>(files, offset!(files_fdt))?;
    if fd >= read::<u32>(table, offset!(fdtable_max_fds))? {
        return None;
    }
    let slots = read::<u64>(table, offset!(fdtable_fd))?;
    read::<u64>(slots + u64::from(fd) * 8, 0)
}

/// Words of the stack below an open's `nameidata` that are gone through: the frames of `path_openat` and of the functions
/// through which it asks for permission, one of which keeps the file for it. Some kernels have it within 32 words, 5.10 within
/// 64, Debian's 6.1 beyond that.
const STACK_WORDS: u32 = 128;

/// The file that the device is being opened as: `path_openat` allocates it before it walks the path.
///
/// Nothing points to it but the stack of this task, where `nameidata` lies, too. Words below that are believed to be its
/// address if what is there is a file with the credentials of this task, one reference and no inode: that holds for files
/// that are being opened and for no others. `None` where there is none, as in `access(2)`, or more than one: what is left on
/// the stack of calls before may be the address of a file that another thread is opening.
///
/// A kernel keeps it at the same place in every open. Where it was found a few times it is looked for first, which costs a tenth.
#[inline(always)]
fn file_being_opened(task: u64, find: impl Fn(&mut Search)) -> Option<u64> {
    let cred = read::<u64>(task, offset!(task_cred))?;
    let nameidata = read::<u64>(task, offset!(task_nameidata)).filter(|at| *at != 0)?;
    if let Some(depth) = usual_depth() {
        let word = file_in(nameidata.wrapping_sub(depth), task, cred);
        if word != 0 {
            return Some(word);
        }
    }
    let mut search = Search { task, cred, nameidata, found: nameidata, place: nameidata };
    find(&mut search);
    let Search { found, place, .. } = search;
    if found == nameidata || found == task {
        return None;
    }
    found_at(nameidata.wrapping_sub(place));
    Some(found)
}

/// What has been found on the stack of a task.
///
/// Nothing in it ever has a value that the verifier knows. What it knows of the state in which a loop goes on it would keep apart.
struct Search {
    task: u64,
    cred: u64,
    nameidata: u64,
    /// The file; `nameidata`: none yet; `task`: there are several.
    found: u64,
    /// Where it was found: of several places the one nearest to `nameidata`.
    place: u64,
}

impl Search {
    /// Of the words; the first is the farthest from `nameidata`.
    #[inline(always)]
    fn place_of(&self, index: u32) -> u64 {
        self.nameidata.wrapping_sub(u64::from(STACK_WORDS - index) * 8)
    }

    /// Looks at the word there; was it one?
    #[inline(always)]
    fn look_at(&mut self, place: u64) -> bool {
        let word = file_in(place, self.task, self.cred);
        if word != 0 {
            self.found = if self.found == self.nameidata || self.found == word { word } else { self.task };
            self.place = place;
        }
        word != 0
    }
}

/// All words, one by one.
#[inline(always)]
fn one_by_one(search: &mut Search) {
    let Some(place) = FOUND_AT.get_ptr_mut(0) else { return };
    let (first, unsearched) = (search.place_of(0), search.found);
    for index in 0..STACK_WORDS {
        search.found =
            found_in_word(first + u64::from(index) * 8, search.task, search.cred, search.found, unsearched);
    }
    // SAFETY: the only element; volatile, as a task may have been interrupted by others that write there. A wrong place costs the next
    // search its time.
    search.place = unsafe { place.read_volatile() };
}

/// [`Search::place`] of [`found_in_word`].
#[map]
static FOUND_AT: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// [`Search::found`] after a look at the word at this place. A function that others could call: such a one is verified by itself, once,
/// and not at each of the calls.
#[unsafe(no_mangle)]
#[inline(never)]
fn found_in_word(place: u64, task: u64, cred: u64, found: u64, nameidata: u64) -> u64 {
    let mut search = Search { task, cred, nameidata, found, place };
    if search.look_at(place)
        && let Some(place) = FOUND_AT.get_ptr_mut(0)
    {
        // SAFETY: as above.
        unsafe { place.write_volatile(search.place) };
    }
    search.found
}

/// The file that a task with these credentials is opening whose address is at this place on its stack; 0 for none.
#[inline(always)]
fn file_in(place: u64, task: u64, cred: u64) -> u64 {
    let word = peek(place, 0);
    if may_be_file(word, task) && is_being_opened(word, cred) { word } else { 0 }
}

/// The same with `bpf_loop` (5.17), for which the verifier looks at one word instead of all of them. One, as Linux 7.2 would follow
/// every combination of several that are files or are not.
#[inline(always)]
fn in_a_loop(search: &mut Search) {
    // SAFETY: the callback has the signature `bpf_loop` wants and the context outlives the call.
    unsafe { bpf_loop(STACK_WORDS, look_at_word as *mut c_void, (&raw mut *search).cast(), 0) };
}

#[inline(never)]
unsafe extern "C" fn look_at_word(index: u32, search: *mut c_void) -> i64 {
    // SAFETY: `in_a_loop` passes a `Search` on its stack.
    let search = unsafe { &mut *search.cast::<Search>() };
    search.look_at(search.place_of(index));
    0
}

/// How far below `nameidata` the file was found the last times, in bytes, and in the upper half how often in a row.
#[map]
static DEPTH: Array<u64> = Array::with_max_entries(1, 0);

/// As often in a row: what is left of earlier calls has not been found instead.
const OFTEN: u64 = 3;

/// Where it is usually found.
#[inline(always)]
fn usual_depth() -> Option<u64> {
    // SAFETY: the only value; volatile, as others write there.
    let known = unsafe { DEPTH.get_ptr(0)?.read_volatile() };
    (known >> 32 >= OFTEN).then_some(known & (u64::from(STACK_WORDS) * 8 * 2 - 1))
}

#[inline(always)]
fn found_at(depth: u64) {
    let Some(known) = DEPTH.get_ptr_mut(0) else { return };
    // SAFETY: the only value, in one word; volatile, as others write there. One of two writes may be lost, and nothing is with it.
    unsafe {
        let before = known.read_volatile();
        let times = if before & u64::from(u32::MAX) == depth { (before >> 32) + 1 } else { 1 };
        known.write_volatile(depth | times.min(OFTEN) << 32);
    }
}

/// Does this look like the address of what the kernel has allocated, as the task itself is? Its code, to which a stack has many
/// addresses, lies above that. What is no address at all must not be read from: older kernels warn of it.
#[inline(always)]
fn may_be_file(word: u64, task: u64) -> bool {
    /// Of the kernel's half on x86 with page tables of 4 levels; with 5, and on other machines, memory lies lower.
    const UPPER: u64 = 0xffff_8000_0000_0000;
    const LOWEST: u64 = 0xff00_0000_0000_0000;
    const CODE: u64 = 0xffff_ffff_8000_0000;
    /// Files come from a cache of the allocator whose objects begin with a line of the processor's cache (`SLAB_HWCACHE_ALIGN`).
    const ALIGNMENT: u64 = 64;
    let lowest = if task >= UPPER { UPPER } else { LOWEST };
    word >= lowest && word < CODE && word & (ALIGNMENT - 1) == 0
}

/// Is this the address of a file that somebody with these credentials is opening?
#[inline(always)]
fn is_being_opened(word: u64, cred: u64) -> bool {
    peek::<u64>(word, offset!(file_cred)) == cred
        && peek::<u64>(word, offset!(file_inode)) == 0
        && references(&InPlace(word)) == 1
}

/// Has its process had more touches of this device in this window than are told?
#[inline(always)]
fn is_over_budget(rdev: u32, current: u64) -> bool {
    let key = TouchKey { tgid: peek::<u32>(current, offset!(task_tgid)), rdev };
    // SAFETY: a copy of an element that may be changed meanwhile; what is wrong for a moment costs time or a touch's file.
    let touches = unsafe { TOUCHES.get(key) };
    touches
        .is_some_and(|touches| touches.in_window >= TOUCHES_PER_WINDOW && !is_over(touches.window_ns, now()))
}

/// Touches so far, and how many more of them, this one included, may be recorded in this window.
#[inline(always)]
fn hit(rdev: u32, task: &TaskRef) -> (u64, u64) {
    let key = TouchKey { tgid: task.tgid, rdev };
    let now = now();
    if let Some(touches) = TOUCHES.get_ptr_mut(key) {
        // SAFETY: the element may be given to another pair meanwhile; a count is then off.
        let touches = unsafe { &mut *touches };
        if touches.start_ns == task.start_ns {
            if is_over(touches.window_ns, now) {
                touches.window_ns = now;
                touches.in_window = 0;
            }
            // Threads of one process may be here together. Two may count as one, but each count is some thread's: what one of them
            // has written is not read again, so that none steps over the last that is told.
            let in_window = touches.in_window + 1;
            touches.in_window = in_window;
            // SAFETY: in a map's value, and aligned.
            unsafe { increment(&raw mut touches.hits) };
            return (touches.hits, (TOUCHES_PER_WINDOW + 1).saturating_sub(in_window));
        }
    }
    let first = Touches { start_ns: task.start_ns, window_ns: now, in_window: 1, hits: 1 };
    // Where it does not fit, the next touch counts as the first again.
    let _ = TOUCHES.insert(key, first, 0);
    (1, TOUCHES_PER_WINDOW)
}

/// Id of the task's cgroup in the v2 hierarchy.
#[inline(always)]
fn cgroup_of(task: u64) -> u64 {
    read::<u64>(task, offset!(task_cgroups))
        .and_then(|set| read::<u64>(set, offset!(css_set_dfl_cgrp)))
        .and_then(|cgroup| read::<u64>(cgroup, offset!(cgroup_kn)))
        .and_then(|node| read::<u64>(node, offset!(kernfs_node_id)))
        .unwrap_or(0)
}

//! Mappings. A mapping keeps its file open after the descriptor is closed.
//!
//! Since 6.1 the mappings of an address space are in a maple tree, which is walked here like an fd table: by reading
//! pointers, without a lock and without a reference. Before that they are in a list: `mm_lists.rs`.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_loop, bpf_probe_read_kernel},
    macros::map,
    maps::{HashMap, PerCpuArray},
};
use gpu_tracer_common::snapshot::HOLD_MAP;

use crate::{
    access::{field, offset, peek, pointer, read},
    holds::{BPF_F_NO_PREALLOC, Found, Full, look_at_file, may_be_of_interest},
    tasks::TaskContext,
};

/// Address spaces that some thread of a dead leader showed already in the session of the value.
#[map]
static SHOWN_MMS: HashMap<u64, u64> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// Room for one node and for the nodes still to be visited, which the stack does not have.
#[map]
static TREE: PerCpuArray<Tree> = PerCpuArray::with_max_entries(1, 0);

/// `struct maple_node`, in words.
const NODE_WORDS: usize = 32;
/// Nodes waiting to be visited: 16 children on each of a handful of levels.
const WAITING: usize = 128;
/// Nodes of one tree that are followed: a million mappings.
const MAX_NODES: u32 = 1 << 17;

/// The state of a walk. In a map and not on the stack: what the verifier cannot follow it does not try to follow, and
/// takes every round of the loop for the same.
#[repr(C)]
struct Tree {
    node: [u64; NODE_WORDS],
    waiting_nodes: [u64; WAITING],
    mm: u64,
    waiting: u32,
    tid: u32,
    is_leaf: u32,
    first_slot: u32,
    full: u32,
    _padding: u32,
}

/// Mappings of every process, by its tree.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_mm_trees(context: *mut c_void) -> i32 {
    let Some(space) = space_to_show(context) else { return 0 };
    if walk_mm(space.mm, space.tid).is_err() {
        return 1;
    }
    space.is_shown();
    0
}

/// An address space, and through whom it was found.
pub(crate) struct Space {
    pub(crate) mm: u64,
    pub(crate) tid: u32,
    is_thread: bool,
    session: u64,
}

impl Space {
    /// Remembers that it has been shown.
    #[inline(always)]
    pub(crate) fn is_shown(&self) {
        if self.is_thread {
            let _ = SHOWN_MMS.insert(&self.mm, &self.session, 0);
        }
    }
}

/// The address space of an iterator's task, unless another thread has shown it already.
#[inline(always)]
pub(crate) fn space_to_show(context: *mut c_void) -> Option<Space> {
    // SAFETY: the kernel passes `struct bpf_iter__task`, whose layout is ABI.
    let context = unsafe { &*context.cast::<TaskContext>() };
    let task = context.task;
    if task.is_null() {
        return None;
    }
    // SAFETY: `task` is the context's BTF pointer, checked for null; `meta` never is.
    let (tgid, tid, mm, leader, session) = unsafe {
        (
            field::<u32>(task, offset!(task_tgid)),
            field::<u32>(task, offset!(task_pid)),
            pointer(task, offset!(task_mm)),
            pointer(task, offset!(task_group_leader)),
            core::ptr::read_volatile(&(*context.meta).session),
        )
    };
    if mm == 0 {
        return None;
    }
    let space = Space { mm, tid, is_thread: tid != tgid, session };
    if space.is_thread {
        if read::<u64>(leader, offset!(task_mm)) == Some(mm) {
            return None;
        }
        // SAFETY: a map lookup by a value on our stack.
        let shown = unsafe { SHOWN_MMS.get(&mm) };
        if shown == Some(&session) {
            return None;
        }
    }
    Some(space)
}

#[inline(always)]
fn walk_mm(mm: u64, tid: u32) -> Result<(), Full> {
    let root = peek::<u64>(mm, offset!(mm_tree_root));
    let Some(tree) = TREE.get_ptr_mut(0) else { return Ok(()) };
    // `xa_is_node`: anything else is a tree of at most one mapping, which no process has.
    if !is_kernel_address(root) || root & 3 != 2 {
        return Ok(());
    }
    // SAFETY: the only element of a per-CPU array; this program does not nest.
    unsafe {
        (*tree).waiting_nodes[0] = root;
        (*tree).waiting = 1;
        (*tree).mm = mm;
        (*tree).tid = tid;
        (*tree).full = 0;
        // The callback has the signature `bpf_loop` wants.
        bpf_loop(MAX_NODES, visit_node as *mut c_void, core::ptr::null_mut(), 0);
        if (*tree).full == 0 { Ok(()) } else { Err(Full) }
    }
}

#[inline(always)]
fn is_kernel_address(value: u64) -> bool {
    value >> 63 == 1
}

/// One node of the tree: `struct maple_range_64` (leaves, 16 slots) or `struct maple_arange_64` (10 slots).
#[inline(never)]
unsafe extern "C" fn visit_node(_: u32, _: *mut c_void) -> i64 {
    const RANGE_SLOT: u32 = 16;
    const ARANGE_SLOT: u32 = 10;
    const TYPE_LEAF: u64 = 1;
    const TYPE_ARANGE: u64 = 3;
    let Some(tree) = TREE.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array. Masks keep indexes within arrays; the helper checks its source and
    // writes one node; the callback has the signature `bpf_loop` wants.
    unsafe {
        if (*tree).waiting == 0 {
            return 1;
        }
        (*tree).waiting -= 1;
        let encoded = (*tree).waiting_nodes[(u64::from((*tree).waiting) & (WAITING as u64 - 1)) as usize];
        let node = (encoded & !0xff) as *const c_void;
        if bpf_probe_read_kernel((&raw mut (*tree).node).cast(), (NODE_WORDS * 8) as u32, node) != 0 {
            return 0;
        }
        let kind = (encoded >> 3) & 0xf;
        (*tree).is_leaf = u32::from(kind <= TYPE_LEAF);
        (*tree).first_slot = if kind == TYPE_ARANGE { ARANGE_SLOT } else { RANGE_SLOT };
        let slots = (*tree).first_slot;
        bpf_loop(slots, visit_slot as *mut c_void, core::ptr::null_mut(), 0);
        i64::from((*tree).full != 0)
    }
}

/// One slot: a mapping in a leaf, a node elsewhere; metadata and unused slots are no addresses.
#[inline(never)]
unsafe extern "C" fn visit_slot(slot: u32, _: *mut c_void) -> i64 {
    let Some(tree) = TREE.get_ptr_mut(0) else { return 1 };
    // SAFETY: as in `visit_node`.
    let (entry, mm, tid) = unsafe {
        let index = u64::from((*tree).first_slot.wrapping_add(slot)) & (NODE_WORDS as u64 - 1);
        let entry = (*tree).node[index as usize];
        if !is_kernel_address(entry) {
            return 0;
        }
        if (*tree).is_leaf == 0 {
            let waiting = u64::from((*tree).waiting);
            if waiting < WAITING as u64 {
                (*tree).waiting_nodes[(waiting & (WAITING as u64 - 1)) as usize] = entry;
                (*tree).waiting += 1;
            }
            return 0;
        }
        (entry, (*tree).mm, (*tree).tid)
    };
    let file = peek::<u64>(entry, offset!(vma_file));
    // Most mappings are of nothing or of a library. One that is being freed may belong to another address space by now.
    if file == 0 || !may_be_of_interest(file) || read::<u64>(entry, offset!(vma_mm)) != Some(mm) {
        return 0;
    }
    let found = Found {
        kind: HOLD_MAP,
        tid,
        by: mm,
        at: peek::<u64>(entry, offset!(vma_start)),
        end: peek::<u64>(entry, offset!(vma_end)),
    };
    if look_at_file(file, &found).is_err() {
        // SAFETY: as above.
        unsafe { (*tree).full = 1 };
        return 1;
    }
    0
}

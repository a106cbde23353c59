//! A closer look at single files that an earlier pass found: which file does the driver hold on behalf of this one,
//! what does this io_uring hold, and (`recheck.rs`) is this still the file that it was?
//!
//! The user side lists the files in [`SUBJECTS`]. A program that is simple enough looks at all of them in its first run; where
//! there is no `bpf_loop` (before 5.17), and where a look has a loop of its own, each run (once per task, whichever it is)
//! takes the next. The files may have been released since, so everything read is checked before it is believed.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::bpf_loop,
    macros::map,
    maps::{Array, PerCpuArray},
};
use gpu_tracer_common::{
    layout::ABSENT,
    snapshot::{FILE_DEVICE, HOLD_DRIVER_PIN, HOLD_IO_URING, HOLD_MAP, HOLD_OWNERS, MAX_SUBJECTS},
};

use crate::{
    access::{follow, offset, peek, read},
    holds::{Found, Full, character_device, control, emit, is_wanted},
};

/// `struct file` addresses. Mapped by the user side, for which a system call for each would take longer than the look.
#[map]
static SUBJECTS: Array<u64> = Array::with_max_entries(MAX_SUBJECTS, BPF_F_MMAPABLE);

const BPF_F_MMAPABLE: u32 = 1 << 10;
/// Low bits of a file pointer in an io_uring table are flags.
const RING_FLAGS: u64 = 7;
/// Registered files of one ring that are looked at.
const MAX_RING_FILES: u32 = 1 << 20;

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_driver_pins(_: *mut c_void) -> i32 {
    all_subjects!(driver_pin_of_next)
}

/// The same for kernels without `bpf_loop`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_driver_pins_singly(_: *mut c_void) -> i32 {
    next_subject(look_at_driver_pin)
}

#[inline(never)]
unsafe extern "C" fn driver_pin_of_next(_: u32, _: *mut c_void) -> i64 {
    step(look_at_driver_pin)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_rings(_: *mut c_void) -> i32 {
    next_subject(look_into_ring)
}

#[inline(always)]
pub(crate) fn next_subject(look: impl Fn(u64) -> Result<(), Full>) -> i32 {
    let Some(control) = control() else { return 0 };
    if control.subject >= control.subjects {
        return 0;
    }
    let Some(&file) = SUBJECTS.get(control.subject) else { return 0 };
    if look(file).is_err() {
        return 1;
    }
    control.subject += 1;
    0
}

/// [`next_subject`] as a step of a loop over all of them, which it ends after the last and when the ring is full.
#[inline(always)]
pub(crate) fn step(look: impl Fn(u64) -> Result<(), Full>) -> i64 {
    let stopped = next_subject(look) != 0;
    i64::from(stopped || !are_left())
}

/// One of many looks at the next subject, which says whether it was the last of them, as a step of a loop over all subjects.
#[inline(always)]
pub(crate) fn step_into(look: impl Fn(u64) -> Result<bool, Full>) -> i64 {
    let Some(control) = control() else { return 1 };
    let next = if are_left() { SUBJECTS.get(control.subject) } else { None };
    match next.map(|subject| look(*subject)) {
        Some(Ok(false)) => 0,
        Some(Ok(true)) => {
            control.subject += 1;
            i64::from(!are_left())
        }
        Some(Err(Full)) | None => 1,
    }
}

/// What a step of a walk tells, as functions that others could call do it. Without `bpf_loop` a verifier follows every round of a loop,
/// but such a function it verifies by itself, once.
pub(crate) mod stepped {
    use super::Full;

    const ON: u32 = 0;
    const TO_THE_END: u32 = 1;
    /// The ring is.
    const FULL: u32 = 2;

    /// Steps that one run makes: the program then asks the kernel for the same task again.
    const IN_ONE_RUN: u32 = 256;

    /// Goes on by these steps to the end; [`Full`] where that takes another run.
    #[inline(always)]
    pub(crate) fn on(step: impl Fn() -> u32) -> Result<(), Full> {
        for _ in 0..IN_ONE_RUN {
            match step() {
                ON => {}
                TO_THE_END => return Ok(()),
                _ => return Err(Full),
            }
        }
        Err(Full)
    }

    #[inline(always)]
    pub(crate) fn from(step: Result<bool, Full>) -> u32 {
        match step {
            Ok(false) => ON,
            Ok(true) => TO_THE_END,
            Err(Full) => FULL,
        }
    }
}

/// Are there subjects that nobody has looked at? After a loop over all of them: the ring is full.
#[inline(always)]
pub(crate) fn are_left() -> bool {
    control().is_some_and(|control| control.subject < control.subjects)
}

/// Looks at all subjects by this callback, which does a [`step`] or [`step_into`] one; what a program returns then.
macro_rules! all_subjects {
    ($callback:ident) => {{
        if $crate::subjects::are_left() {
            // SAFETY: the callback has the signature `bpf_loop` wants and uses no context.
            unsafe {
                aya_ebpf::helpers::generated::bpf_loop(
                    gpu_tracer_common::snapshot::MAX_SUBJECTS,
                    $callback as *mut c_void,
                    core::ptr::null_mut(),
                    0,
                )
            };
        }
        i32::from($crate::subjects::are_left())
    }};
}
pub(crate) use all_subjects;

const NVIDIA_MAJOR: u32 = 195;
const UVM_TYPE_BITS: u64 = 7;
const UVM_TYPE_MM: u64 = 3;

/// Can [`look_at_driver_pin`] find anything in a file of this device with this `private_data`?
#[inline(always)]
pub(crate) fn may_pin(rdev: u32, private: u64) -> bool {
    private != 0 && (rdev >> 20 == NVIDIA_MAJOR || private & UVM_TYPE_BITS == UVM_TYPE_MM)
}

/// NVIDIA's driver lets one file hold another without any descriptor: a device file its control file
/// (`nv_file_private_t.ctl_nvfp_priv`), a UVM "MM" file its VA-space file (tagged `private_data`).
///
/// Layouts differ by driver series, so each guess must prove itself before it is believed.
#[inline(always)]
fn look_at_driver_pin(file: u64) -> Result<(), Full> {
    const NVIDIACTL: u32 = (NVIDIA_MAJOR << 20) | 255;
    /// `ctl_nvfp` and `ctl_nvfp_priv`: 545 and later; 470 to 535.
    const CONTROL_FILE_AT: [(u32, u32); 2] = [(88, 96), (80, 88)];

    let Some(rdev) = character_device(file) else { return Ok(()) };
    say_owners(file, rdev)?;
    let private = follow(file, offset!(file_private_data));
    if !may_pin(rdev, private) {
        return Ok(());
    }
    let pin = Found { kind: HOLD_DRIVER_PIN, tid: 0, by: file, at: 0, end: 0 };
    if rdev >> 20 == NVIDIA_MAJOR {
        for (private_at, file_at) in CONTROL_FILE_AT {
            let pinned = follow(private, file_at);
            if pinned == 0 || pinned == file || character_device(pinned) != Some(NVIDIACTL) {
                continue;
            }
            let claimed = peek::<u64>(private, private_at);
            if claimed != 0 && read::<u64>(pinned, offset!(file_private_data)) == Some(claimed) {
                return emit(&pin, FILE_DEVICE, pinned, NVIDIACTL);
            }
        }
    } else {
        let pinned = private & !UVM_TYPE_BITS;
        if pinned != file && character_device(pinned) == Some(rdev) {
            return emit(&pin, FILE_DEVICE, pinned, rdev);
        }
    }
    Ok(())
}

/// The module of these `file_operations`; 0 for none.
#[inline(always)]
pub(crate) fn owner_of_operations(operations: u64) -> u64 {
    peek::<u64>(operations, offset!(file_operations_owner))
}

/// The module of the device that this inode is a node of; 0 for none.
#[inline(always)]
pub(crate) fn owner_of_device(inode: u64) -> u64 {
    let device = follow(inode, offset!(inode_cdev));
    peek::<u64>(device, offset!(cdev_owner))
}

/// An open file takes a reference to the module of its operations, and another to that of its device where the driver
/// names one (`chrdev_open`). The kernel's count of these shows whether all files have been found.
#[inline(always)]
fn say_owners(file: u64, rdev: u32) -> Result<(), Full> {
    let at = owner_of_operations(follow(file, offset!(file_op)));
    let end = owner_of_device(follow(file, offset!(file_inode)));
    if at == 0 && end == 0 {
        return Ok(());
    }
    emit(&Found { kind: HOLD_OWNERS, tid: 0, by: 0, at, end }, FILE_DEVICE, file, rdev)
}

/// Mappings of a file found from the file's side: also those in an address space that no task has any more.
///
/// NVIDIA's UVM keeps the address space of a dead process alive through a descriptor that a child inherited, and with it
/// every mapping of the parent. A walk of tasks does not get there.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_file_mappings(_: *mut c_void) -> i32 {
    next_subject(look_for_mappings)
}

/// Mappings of one file that are followed.
const MAX_MAPPINGS: u32 = 65_536;
/// Nodes waiting to be visited: a red-black tree of that many nodes is no deeper than twice the logarithm.
const MAX_DEPTH: usize = 32;

/// The state of a walk; in a map, so that the verifier takes every round of the loop for the same.
#[repr(C)]
struct FileTree {
    /// Nodes still to be visited.
    waiting_nodes: [u64; MAX_DEPTH],
    file: u64,
    waiting: u32,
    full: u32,
}

#[map]
static FILE_TREE: PerCpuArray<FileTree> = PerCpuArray::with_max_entries(1, 0);

#[inline(always)]
fn look_for_mappings(file: u64) -> Result<(), Full> {
    if character_device(file).is_none() {
        return Ok(());
    }
    let mapping = follow(file, offset!(file_mapping));
    let root = follow(mapping, offset!(mapping_tree));
    let Some(tree) = FILE_TREE.get_ptr_mut(0) else { return Ok(()) };
    if root == 0 {
        return Ok(());
    }
    // SAFETY: the only element of a per-CPU array; this program does not nest. The callback has the signature `bpf_loop`
    // wants.
    unsafe {
        (*tree).waiting_nodes[0] = root;
        (*tree).file = file;
        (*tree).waiting = 1;
        (*tree).full = 0;
        bpf_loop(MAX_MAPPINGS, visit_mapping as *mut c_void, core::ptr::null_mut(), 0);
        if (*tree).full == 0 { Ok(()) } else { Err(Full) }
    }
}

#[inline(never)]
unsafe extern "C" fn visit_mapping(_: u32, _: *mut c_void) -> i64 {
    let Some(tree) = FILE_TREE.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array; the mask keeps the index within the array.
    let (node, file) = unsafe {
        if (*tree).waiting == 0 {
            return 1;
        }
        (*tree).waiting -= 1;
        let index = u64::from((*tree).waiting) & (MAX_DEPTH as u64 - 1);
        ((*tree).waiting_nodes[index as usize], (*tree).file)
    };
    let vma = node.wrapping_sub(u64::from(offset!(vma_tree_node)));
    // Files that share a mapping share its tree.
    if read::<u64>(vma, offset!(vma_file)) == Some(file) {
        let found = Found {
            kind: HOLD_MAP,
            tid: 0,
            by: peek::<u64>(vma, offset!(vma_mm)),
            at: peek::<u64>(vma, offset!(vma_start)),
            end: peek::<u64>(vma, offset!(vma_end)),
        };
        let rdev = character_device(file).unwrap_or(0);
        if emit(&found, FILE_DEVICE, file, rdev).is_err() {
            // SAFETY: as above.
            unsafe { (*tree).full = 1 };
            return 1;
        }
    }
    visit_later(tree, follow(node, offset!(node_left)));
    visit_later(tree, follow(node, offset!(node_right)));
    0
}

#[inline(always)]
fn visit_later(tree: *mut FileTree, node: u64) {
    // SAFETY: as in `visit_mapping`.
    unsafe {
        let waiting = &raw mut (*tree).waiting;
        if node != 0 && waiting.read_volatile() < MAX_DEPTH as u32 {
            // Read again, so that the mask, which is what the verifier understands as a bound, is not found to be superfluous.
            let index = u64::from(waiting.read_volatile()) & (MAX_DEPTH as u64 - 1);
            (*tree).waiting_nodes[index as usize] = node;
            *waiting += 1;
        }
    }
}

/// How far the walk of a ring's table has come. Not per CPU: the reader may be moved between two runs.
#[repr(C)]
struct RingPlace {
    /// The ring; 0: no walk is half done.
    ring: u64,
    slot: u64,
}

#[map]
static RING_PLACE: Array<RingPlace> = Array::with_max_entries(1, 0);

/// The same as [`iter_rings`] for kernels without `bpf_loop` (before 5.17).
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_rings_in_steps(_: *mut c_void) -> i32 {
    next_subject(step_into_ring)
}

#[inline(always)]
fn step_into_ring(file: u64) -> Result<(), Full> {
    stepped::on(|| step_in_ring(file))
}

/// The next step of the walk of a ring's table; one of [`stepped`].
#[unsafe(no_mangle)]
#[inline(never)]
fn step_in_ring(file: u64) -> u32 {
    stepped::from(try_step_in_ring(file))
}

/// Is that its end?
#[inline(always)]
fn try_step_in_ring(file: u64) -> Result<bool, Full> {
    let (Some(table), Some(place)) = (RingTable::of(file), RING_PLACE.get_ptr_mut(0)) else {
        return Ok(true);
    };
    // SAFETY: the only element of an array, which this program alone uses, by one reader at a time.
    unsafe {
        if (*place).ring != file {
            (*place).ring = file;
            (*place).slot = 0;
        }
        if (*place).slot >= u64::from(table.count) {
            (*place).ring = 0;
            return Ok(true);
        }
        look_at_slot(table.address, file, (*place).slot)?;
        (*place).slot += 1;
    }
    Ok(false)
}

/// The table of an io_uring.
struct RingTable {
    address: u64,
    count: u32,
}

impl RingTable {
    /// `None` if the file is no io_uring, or has none.
    #[inline(always)]
    fn of(file: u64) -> Option<Self> {
        let control = control()?;
        if control.ring_fops == 0 || read::<u64>(file, offset!(file_op)) != Some(control.ring_fops) {
            return None;
        }
        let ring = follow(file, offset!(file_private_data));
        let count = peek::<u32>(ring, offset!(ring_nr_files)).min(MAX_RING_FILES);
        let address = follow(ring, offset!(ring_files));
        if address == 0 { None } else { Some(Self { address, count }) }
    }
}

struct RingWalk {
    table: u64,
    ring: u64,
    full: u32,
    _padding: u32,
}

/// Reports the device files in the table of an io_uring.
#[inline(always)]
fn look_into_ring(file: u64) -> Result<(), Full> {
    let Some(RingTable { address, count }) = RingTable::of(file) else { return Ok(()) };
    let mut walk = RingWalk { table: address, ring: file, full: 0, _padding: 0 };
    // SAFETY: the callback has the signature `bpf_loop` wants and the context outlives the call.
    unsafe { bpf_loop(count, look_at_ring_slot as *mut c_void, (&raw mut walk).cast(), 0) };
    if walk.full == 0 { Ok(()) } else { Err(Full) }
}

#[inline(never)]
unsafe extern "C" fn look_at_ring_slot(slot: u32, walk: *mut c_void) -> i64 {
    // SAFETY: `look_into_ring` passes a `RingWalk` on its stack.
    let walk = unsafe { &mut *walk.cast::<RingWalk>() };
    if look_at_slot(walk.table, walk.ring, u64::from(slot)).is_err() {
        walk.full = 1;
        return 1;
    }
    0
}

/// One slot of the table of the io_uring `ring`.
#[inline(always)]
fn look_at_slot(table: u64, ring: u64, slot: u64) -> Result<(), Full> {
    let mut entry = follow(table + slot * 8, 0);
    if offset!(ring_node_file) != ABSENT {
        entry = follow(entry, offset!(ring_node_file));
    }
    let file = entry & !RING_FLAGS;
    match character_device(file) {
        Some(rdev) if is_wanted(rdev) => {
            emit(&Found { kind: HOLD_IO_URING, tid: 0, by: ring, at: slot, end: 0 }, FILE_DEVICE, file, rdev)
        }
        _ => Ok(()),
    }
}

//! Reading kernel memory at offsets resolved from BTF.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use gpu_tracer_common::layout::{ABSENT, KernelLayout};

const UNRESOLVED: [u32; size_of::<KernelLayout>() / 4] = [ABSENT; size_of::<KernelLayout>() / 4];

/// Offsets on this kernel. Written by the loader; `.rodata` is frozen, so the verifier knows every value.
// SAFETY: `KernelLayout` is `repr(C)` and consists of `u32`s only.
#[unsafe(no_mangle)]
pub(crate) static KERNEL: KernelLayout = unsafe { core::mem::transmute(UNRESOLVED) };

/// Value of one field of [`KERNEL`]: `offset!(task_tgid)`.
macro_rules! offset {
    ($field:ident) => {
        $crate::access::resolved(&$crate::access::KERNEL.$field)
    };
}
pub(crate) use offset;

/// What the loader wrote into `offset`.
#[inline(always)]
pub(crate) fn resolved(offset: &u32) -> u32 {
    // SAFETY: a reference is valid; volatile, so that the compiler does not fold the initial value.
    unsafe { core::ptr::read_volatile(offset) }
}

/// Copy of a `T` at `base + offset`; `None` on a fault, a null base, or an absent field.
#[inline(always)]
pub(crate) fn read<T: Copy>(base: u64, offset: u32) -> Option<T> {
    if base == 0 || offset == ABSENT {
        return None;
    }
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let source = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the source; the destination is `size_of::<T>()` bytes of our stack.
    let failed = unsafe { bpf_probe_read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, source) };
    if failed != 0 {
        return None;
    }
    // SAFETY: filled by the helper; only plain integers and arrays of them are read.
    Some(unsafe { value.assume_init() })
}

/// As [`read`], for what need not be told from 0: 0 where nothing can be read. One path for the verifier to follow.
#[inline(always)]
pub(crate) fn peek(base: u64, offset: u32) -> u64 {
    let mut value = 0_u64;
    let source = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the source, and fills the 8 bytes of the destination with zeros if it is not readable.
    unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, source) };
    value
}

/// A typed load from a pointer that the verifier knows: checked against BTF at load time, no helper call.
///
/// # Safety
/// `base` must be a BTF pointer (a member of an iterator's context, or loaded through this function) and not null.
#[inline(always)]
pub(crate) unsafe fn field<T: Copy>(base: *const c_void, offset: u32) -> T {
    // SAFETY: the verifier refuses the program unless the offset lies on a member of the struct.
    unsafe { base.cast::<u8>().add(offset as usize).cast::<T>().read_volatile() }
}

/// Adds one, atomically: other programs may be doing the same on this CPU or another.
///
/// # Safety
/// `counter` must be aligned and lie in a map's value.
#[inline(always)]
pub(crate) unsafe fn increment(counter: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1_u64, options(nostack))
    };
}

/// Adds `more`, atomically.
///
/// # Safety
/// As [`increment`].
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u32, more: i64) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("lock *(u32 *)({0} + 0) += {1}", in(reg) counter, in(reg) more, options(nostack))
    };
}

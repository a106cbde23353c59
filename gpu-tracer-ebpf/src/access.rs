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

/// As [`read`], for what need not be told from 0: 0 where nothing can be read, or the field is absent. One path for the verifier to
/// follow instead of three.
#[inline(always)]
pub(crate) fn peek<T: Copy + Default>(base: u64, offset: u32) -> T {
    if offset == ABSENT {
        return T::default();
    }
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let source = (base + u64::from(offset)) as *const c_void;
    // SAFETY: the helper checks the source, and fills the destination, which is of that size, with zeros if it is not readable. Only
    // plain integers and arrays of them are read.
    unsafe {
        bpf_probe_read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, source);
        value.assume_init()
    }
}

/// The pointer at `base + offset` in memory that may have been given to somebody else by now, as an address that one may try to read
/// at; 0 where there is none.
///
/// What is there may be no pointer. The kernel refuses to read at what is no address, but for some that are too long
/// ([`KernelLayout::short_addresses`]): of these the upper bits are made what they have to be, so that they are addresses at which
/// there may be nothing.
#[inline(always)]
pub(crate) fn follow(base: u64, offset: u32) -> u64 {
    as_address(peek(base, offset))
}

/// [`follow`], where the pointer has been read already.
#[inline(always)]
pub(crate) fn as_address(word: u64) -> u64 {
    if offset!(short_addresses) != 0 { ((word << 16) as i64 >> 16) as u64 } else { word }
}

/// Fields of one struct, wherever they are read.
pub(crate) trait Fields {
    /// Copy of the field at `offset`; `None` where it cannot be read or is absent.
    fn get<T: Copy>(&self, offset: u32) -> Option<T>;

    /// The same; 0 where it cannot be read or is absent.
    fn peek<T: Copy + Default>(&self, offset: u32) -> T;
}

/// A struct where it is, at this address: each field is read by itself.
#[derive(Clone, Copy)]
pub(crate) struct InPlace(pub(crate) u64);

impl Fields for InPlace {
    #[inline(always)]
    fn get<T: Copy>(&self, offset: u32) -> Option<T> {
        read(self.0, offset)
    }

    #[inline(always)]
    fn peek<T: Copy + Default>(&self, offset: u32) -> T {
        peek(self.0, offset)
    }
}

/// Room for the beginning of a struct, in a map's value: one read brings all its fields, of the same moment.
#[repr(C)]
pub(crate) struct Copied<const WORDS: usize> {
    words: [u64; WORDS],
}

impl<const WORDS: usize> Copied<WORDS> {
    /// Copies the first `length` bytes of what is at `base`. False on a fault, and where there is no such length.
    #[inline(always)]
    pub(crate) fn take(&mut self, base: u64, length: u32) -> bool {
        if length as usize > size_of::<Self>() {
            return false;
        }
        // SAFETY: the helper checks the source; there is room for `length` bytes.
        unsafe { bpf_probe_read_kernel((&raw mut self.words).cast(), length, base as *const c_void) == 0 }
    }
}

impl<const WORDS: usize> Fields for Copied<WORDS> {
    #[inline(always)]
    fn get<T: Copy>(&self, offset: u32) -> Option<T> {
        if offset == ABSENT || offset as usize + size_of::<T>() > size_of::<Self>() {
            return None;
        }
        let field = (&raw const self.words).cast::<u8>();
        // SAFETY: it lies within the copy, and fields are aligned; only plain integers are read.
        Some(unsafe { field.add(offset as usize).cast::<T>().read_volatile() })
    }

    #[inline(always)]
    fn peek<T: Copy + Default>(&self, offset: u32) -> T {
        self.get(offset).unwrap_or_default()
    }
}

/// How often a list is begun again that changed while it was followed.
pub(crate) const MOST_ATTEMPTS: u32 = 16;

/// In an element of a kernel's list (`hlist_node`, `sk_buff`, `vm_area_struct`) the pointer back lies behind the pointer on.
const POINTER: u32 = 8;

/// The element behind this one of a list that is followed without its lock.
///
/// `None` unless the element still points back to `before`, from where it was reached, or to the list's `head`: it has
/// been taken out, and what it points to may be the end of nothing, freed, or in another list. `link` is where its
/// pointer on is.
#[inline(always)]
pub(crate) fn next_in_list(element: u64, link: u32, before: u64, head: u64) -> Option<u64> {
    let next = read::<u64>(element, link)?;
    let back = read::<u64>(element, link + POINTER)?;
    (back == before || back == head).then_some(as_address(next))
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

/// The pointer at `offset` of what `base` points to, as a number; 0 where there is none. Not by its type, as [`field`]: for each
/// load of a pointer that it knows the verifier of Linux 6.18 searches all of the kernel's types by name, 300 us.
#[inline(always)]
pub(crate) fn pointer(base: *mut c_void, offset: u32) -> u64 {
    peek(base as u64, offset)
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

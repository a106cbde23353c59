//! One file looked at, and the record of it.

use aya_ebpf::{
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::map,
    maps::{Array, HashMap, RingBuf},
};
use gpu_tracer_common::{
    layout::ABSENT,
    snapshot::{
        Control, EVERY_MINOR, FILE_DEVICE, FILE_NAMESPACE, FILE_RING, FILE_SOCKET, HOLD_NAMESPACE, Header,
        HoldRecord, MAJORS, MINORS_WITH_BIT, WANTED_KEYS,
    },
};

use crate::access::{Fields, InPlace, follow, offset, peek, read};

/// Records for the user side, drained after every read of an iterator. Nobody is woken.
#[map]
static HOLDS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// See [`Control`].
#[map]
static CONTROL: Array<Control> = Array::with_max_entries(1, 0);

/// Device numbers to look for, in the kernel's encoding; minor [`EVERY_MINOR`] stands for all of a major. In a map and
/// not in `.rodata` because a module reload changes them. Allocated beforehand, as tracepoint programs must have it.
#[map]
static WANTED: HashMap<u32, u8> = HashMap::with_max_entries(WANTED_KEYS, 0);

/// The same as bits, by major: the answer for most devices, wanted or not, without a look into a hash.
#[map]
static WANTED_MINORS: Array<[u64; MAJORS]> = Array::with_max_entries(1, 0);

/// Files (sockets) whose holders are wanted because device files sit in them.
#[map]
static CARRIERS: HashMap<u64, u8> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Costs nothing until it is used, which is rarely.
pub(crate) const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;
pub(crate) const S_IFMT: u16 = 0o170_000;
pub(crate) const S_IFCHR: u16 = 0o020_000;
const S_IFSOCK: u16 = 0o140_000;
pub(crate) const FMODE_PATH: u32 = 0x4000;

/// The ring is full: stop, let the user side drain it, and come back to the same element.
pub(crate) struct Full;

/// The control block.
#[inline(always)]
pub(crate) fn control() -> Option<&'static mut Control> {
    // SAFETY: the only element of an array map; concurrent programs would at worst miscount.
    CONTROL.get_ptr_mut(0).map(|control| unsafe { &mut *control })
}

/// How a file was found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// `HOLD_*`.
    pub(crate) kind: u16,
    /// Task seen with it.
    pub(crate) tid: u32,
    /// What refers to it.
    pub(crate) by: u64,
    /// Where in it.
    pub(crate) at: u64,
    /// End of a mapping.
    pub(crate) end: u64,
}

/// How a file was found and what it is, in one word: the functions that write a record take five.
#[derive(Clone, Copy)]
struct What(u64);

impl What {
    /// Bits of a kind of record, of a kind of file, and of a thread's id, of which the kernel uses 22.
    const KIND: u32 = 4;
    const FILE_KIND: u32 = 2;
    const TID: u32 = 32 - Self::KIND - Self::FILE_KIND;

    #[inline(always)]
    fn new(found: &Found, file_kind: u32, rdev: u32) -> Self {
        let low = found.tid << (32 - Self::TID) | file_kind << Self::KIND | u32::from(found.kind);
        Self(u64::from(rdev) << 32 | u64::from(low))
    }

    #[inline(always)]
    fn kind(self) -> u16 {
        (self.0 & ((1 << Self::KIND) - 1)) as u16
    }

    #[inline(always)]
    fn file_kind(self) -> u32 {
        (self.0 >> Self::KIND) as u32 & ((1 << Self::FILE_KIND) - 1)
    }

    #[inline(always)]
    fn tid(self) -> u32 {
        self.0 as u32 >> (32 - Self::TID)
    }

    #[inline(always)]
    fn rdev(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

const _: () = assert!(HOLD_NAMESPACE < 1 << What::KIND && FILE_NAMESPACE < 1 << What::FILE_KIND);

/// Appends one record.
#[inline(always)]
pub(crate) fn emit(found: &Found, file_kind: u32, file: u64, rdev: u32) -> Result<(), Full> {
    emit_by(emit_hold, found, file_kind, file, rdev)
}

/// The same by this function, which has the fields of the file from elsewhere.
#[inline(always)]
pub(crate) fn emit_by(
    emit: fn(u64, u64, u64, u64, u64) -> u32,
    found: &Found,
    file_kind: u32,
    file: u64,
    rdev: u32,
) -> Result<(), Full> {
    let What(what) = What::new(found, file_kind, rdev);
    if emit(file, found.by, found.at, found.end, what) == 0 { Ok(()) } else { Err(Full) }
}

/// [`emit_read`], with the file where it is. A function that others could call, as such a one is verified by itself, once: there
/// are many ways to it, and a verifier would follow it at the end of each. Not 0: the ring is full.
#[unsafe(no_mangle)]
#[inline(never)]
fn emit_hold(file: u64, by: u64, at: u64, end: u64, what: u64) -> u32 {
    emit_read(&InPlace(file), file, by, at, end, what)
}

/// Appends one record, with the fields of the file from wherever they have been read. Not 0: the ring is full.
#[inline(always)]
pub(crate) fn emit_read(fields: &impl Fields, file: u64, by: u64, at: u64, end: u64, what: u64) -> u32 {
    let what = What(what);
    let count = references(fields);
    let identity = if what.file_kind() == FILE_DEVICE { identity_of(fields) } else { 0 };
    // SAFETY: no arguments, no effects.
    let seen_ns = unsafe { bpf_ktime_get_boot_ns() };
    let Some(mut slot) = HOLDS.reserve::<HoldRecord>(0) else { return 1 };
    slot.write(HoldRecord {
        header: Header::new(what.kind()),
        file_kind: what.file_kind(),
        rdev: what.rdev(),
        tid: what.tid(),
        file,
        count,
        by,
        at,
        end,
        identity,
        seen_ns,
    });
    slot.submit(BPF_RB_NO_WAKEUP);
    0
}

/// See [`HoldRecord::identity`].
///
/// `private_data`, `f_op` and `f_flags` are left out: drivers and system calls change them while a file lives. The
/// credentials are a copy that each process has for itself, and the file keeps them alive.
#[inline(always)]
pub(crate) fn identity(file: u64) -> u64 {
    identity_of(&InPlace(file))
}

#[inline(always)]
fn identity_of(file: &impl Fields) -> u64 {
    let parts = [
        offset!(file_inode),
        offset!(file_path_dentry),
        offset!(file_path_mnt),
        offset!(file_cred),
        offset!(file_security),
    ];
    let mut hash = 0_u64;
    for at in parts {
        hash = (hash ^ file.peek::<u64>(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    // 0 stands for none.
    hash | 1
}

/// References as the kernel counts them.
#[inline(always)]
pub(crate) fn references(file: &impl Fields) -> u64 {
    if offset!(file_ref) != ABSENT {
        // `file_ref_t` holds references - 1; the top bits mark a dead or saturated count.
        match file.get::<u64>(offset!(file_ref)) {
            Some(count) if count >> 62 == 0 => count + 1,
            Some(_) => 0,
            None => u64::MAX,
        }
    } else {
        file.get::<u64>(offset!(file_count)).unwrap_or(u64::MAX)
    }
}

/// Device number of a character device file; `None` for anything else.
#[inline(always)]
pub(crate) fn character_device(file: u64) -> Option<u32> {
    let inode = follow(file, offset!(file_inode));
    let mode = read::<u16>(inode, offset!(inode_mode))?;
    if mode & S_IFMT == S_IFCHR { read::<u32>(inode, offset!(inode_rdev)) } else { None }
}

/// Is this file a socket?
#[inline(always)]
pub(crate) fn is_socket(file: u64) -> bool {
    let inode = follow(file, offset!(file_inode));
    peek::<u16>(inode, offset!(inode_mode)) & S_IFMT == S_IFSOCK
}

#[inline(always)]
pub(crate) fn is_wanted(rdev: u32) -> bool {
    let Some(majors) = WANTED_MINORS.get(0) else { return false };
    // A mask is what the verifier understands as a bound.
    let bits = majors[(u64::from(rdev >> 20) & (MAJORS as u64 - 1)) as usize];
    let every = rdev | EVERY_MINOR;
    let minor = rdev & EVERY_MINOR;
    if minor < MINORS_WITH_BIT {
        return bits >> minor & 1 != 0;
    }
    if bits >> MINORS_WITH_BIT == 0 {
        return false;
    }
    // SAFETY: map lookups by values on our stack.
    unsafe { WANTED.get(&rdev).is_some() || WANTED.get(&every).is_some() }
}

/// Is this file a GPU device, or an io_uring that holds some? Then say so.
#[inline(never)]
pub(crate) fn look_at_file(file: u64, found: &Found) -> Result<(), Full> {
    // anon_inode files, io_urings among them, have no type bits at all.
    if look_at_device(file, found)? == 0 { look_at_ring(file, found) } else { Ok(()) }
}

/// Is this file a GPU device? Then say so. Returns the type bits of its inode.
#[inline(always)]
pub(crate) fn look_at_device(file: u64, found: &Found) -> Result<u16, Full> {
    let inode = follow(file, offset!(file_inode));
    let Some(mode) = read::<u16>(inode, offset!(inode_mode)) else { return Ok(S_IFMT) };
    let kind = mode & S_IFMT;
    if kind == S_IFCHR
        && let Some(rdev) = read::<u32>(inode, offset!(inode_rdev))
        && is_wanted(rdev)
        // O_PATH descriptors never reached the device.
        && peek::<u32>(file, offset!(file_mode)) & FMODE_PATH == 0
    {
        emit(found, FILE_DEVICE, file, rdev)?;
    }
    Ok(kind)
}

/// Could [`look_at_file`] find anything in this file? A quick no for regular files, which most are.
#[inline(always)]
pub(crate) fn may_be_of_interest(file: u64) -> bool {
    let inode = follow(file, offset!(file_inode));
    read::<u16>(inode, offset!(inode_mode)).is_some_and(|mode| mode & S_IFMT == S_IFCHR || mode & S_IFMT == 0)
}

/// In-flight files may be sockets themselves, which may carry more.
#[inline(always)]
pub(crate) fn look_at_in_flight(file: u64, found: &Found) -> Result<(), Full> {
    if is_socket(file) {
        return emit(found, FILE_SOCKET, file, 0);
    }
    look_at_device(file, found).map(drop)
}

/// Is this file one whose holders are wanted?
#[inline(always)]
pub(crate) fn look_at_carrier(file: u64, found: &Found) -> Result<(), Full> {
    // SAFETY: a map lookup by a value on our stack.
    if unsafe { CARRIERS.get(&file) }.is_some() { emit(found, FILE_SOCKET, file, 0) } else { Ok(()) }
}

/// An io_uring can hold files in a table of its own; `rings.rs` looks into those that hold any.
#[inline(always)]
pub(crate) fn look_at_ring(file: u64, found: &Found) -> Result<(), Full> {
    let Some(control) = control() else { return Ok(()) };
    if control.ring_fops == 0 || read::<u64>(file, offset!(file_op)) != Some(control.ring_fops) {
        return Ok(());
    }
    // Where the table cannot be read here, the user side reads `/proc/PID/fdinfo` instead.
    if offset!(ring_known) != 0 {
        let ring = follow(file, offset!(file_private_data));
        if peek::<u32>(ring, offset!(ring_nr_files)) == 0 {
            return Ok(());
        }
    }
    emit(found, FILE_RING, file, 0)
}

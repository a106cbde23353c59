//! The C functions. Each looks up the world, suffers its faults, and writes its answer.

#![expect(unreachable_pub, reason = "they are exported to C, not to Rust")]

use std::ffi::{c_char, c_uint, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use crate::world::{Kind, StandinProcess, Status, World, status};

/// NVML's "not available" for 64-bit and 32-bit fields.
const NO_FIGURE: u64 = u64::MAX;
const NO_INSTANCE: c_uint = c_uint::MAX;

/// `NVML_STRUCT_VERSION(Memory, 2)`: size in the low bytes, version in the high one.
const MEMORY_VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

/// `nvmlMemory_t`, bytes.
#[repr(C)]
#[derive(Debug)]
pub struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, bytes.
#[repr(C)]
#[derive(Debug)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Debug)]
pub struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlProcessInfo_v2_t`, which the third version of the calls uses as well.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// What the third version of the calls wrote in early drivers of the 535 series.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WideProcessInfo {
    process: ProcessInfo,
    protected: u64,
}

const _: () = assert!(size_of::<MemoryV1>() == 24);
const _: () = assert!(size_of::<MemoryV2>() == 40);
const _: () = assert!(size_of::<PciInfo>() == 68);
const _: () = assert!(size_of::<ProcessInfo>() == 24);
const _: () = assert!(size_of::<WideProcessInfo>() == 32);

/// `nvmlDevice_t`: index plus one, never dereferenced.
type Handle = *mut c_void;

static WORLD: RwLock<Option<Arc<World>>> = RwLock::new(None);

fn world() -> Result<Arc<World>, Status> {
    WORLD.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(status::UNINITIALIZED)
}

/// Runs one call about the whole library.
fn answer(call: &str, body: impl FnOnce(&World) -> Result<(), Status>) -> Status {
    let answered = world().and_then(|world| {
        world.suffer(call, None)?;
        body(&world)
    });
    answered.err().unwrap_or(status::SUCCESS)
}

/// Runs one call about a GPU.
fn answer_for(call: &str, device: Handle, body: impl FnOnce(&World, u32) -> Result<(), Status>) -> Status {
    let answered = world().and_then(|world| {
        let gpu = u32::try_from((device as usize).wrapping_sub(1)).map_err(|_| status::INVALID_ARGUMENT)?;
        world.gpu(gpu)?;
        world.suffer(call, Some(gpu))?;
        body(&world, gpu)
    });
    answered.err().unwrap_or(status::SUCCESS)
}

/// Writes through a pointer of the caller.
///
/// # Safety
///
/// `to` is null or valid for a write of `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(status::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and valid by the contract of this function.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text with its end into a buffer of the caller.
///
/// # Safety
///
/// `to` is null or valid for writes of `room` bytes.
unsafe fn put_text(to: *mut c_char, room: c_uint, text: &str) -> Result<(), Status> {
    if to.is_null() {
        return Err(status::INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(status::INSUFFICIENT_SIZE);
    }
    // SAFETY: `text` and its end fit into `room` bytes, and a Rust text does not overlap a buffer of the caller.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

fn init(call: &str) -> Status {
    let loaded = World::load().and_then(|world| world.suffer(call, None).map(|()| world));
    match loaded {
        Ok(world) => {
            *WORLD.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(world));
            status::SUCCESS
        }
        Err(status) => status,
    }
}

/// `nvmlInit_v2`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Status {
    init("nvmlInit_v2")
}

/// `nvmlInitWithFlags`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Status {
    init("nvmlInitWithFlags")
}

/// `nvmlShutdown`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Status {
    let status = answer("nvmlShutdown", |_| Ok(()));
    *WORLD.write().unwrap_or_else(PoisonError::into_inner) = None;
    status
}

/// `nvmlErrorString`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    if status == status::SUCCESS { c"Success".as_ptr() } else { c"Stand-in error".as_ptr() }
}

/// `nvmlSystemGetDriverVersion`
///
/// # Safety
///
/// As NVML documents it: `version` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Status {
    answer("nvmlSystemGetDriverVersion", |world| {
        let text = world.driver_version.as_deref().unwrap_or("580.0");
        // SAFETY: the contract of this function.
        unsafe { put_text(version, length, text) }
    })
}

/// `nvmlDeviceGetCount_v2`
///
/// # Safety
///
/// As NVML documents it: `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    answer("nvmlDeviceGetCount_v2", |world| {
        // SAFETY: the contract of this function.
        unsafe { put(count, world.gpus.len() as c_uint) }
    })
}

/// `nvmlDeviceGetHandleByIndex_v2`
///
/// # Safety
///
/// As NVML documents it: `device` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) -> Status {
    let handle = (index as usize + 1) as Handle;
    answer_for("nvmlDeviceGetHandleByIndex_v2", handle, |_, _| {
        // SAFETY: the contract of this function.
        unsafe { put(device, handle) }
    })
}

/// `nvmlDeviceGetHandleByUUID`
///
/// # Safety
///
/// As NVML documents it: `uuid` is null or a C string, `device` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle) -> Status {
    answer("nvmlDeviceGetHandleByUUID", |world| {
        if uuid.is_null() {
            return Err(status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and a C string by the contract of this function.
        let wanted = unsafe { std::ffi::CStr::from_ptr(uuid) }.to_bytes();
        let index =
            world.gpus.iter().position(|gpu| gpu.uuid.as_bytes() == wanted).ok_or(status::NOT_FOUND)?;
        // SAFETY: the contract of this function.
        unsafe { put(device, (index + 1) as Handle) }
    })
}

/// `nvmlDeviceGetIndex`
///
/// # Safety
///
/// As NVML documents it: `index` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: Handle, index: *mut c_uint) -> Status {
    answer_for("nvmlDeviceGetIndex", device, |_, gpu| {
        // SAFETY: the contract of this function.
        unsafe { put(index, gpu) }
    })
}

/// `nvmlDeviceGetMinorNumber`
///
/// # Safety
///
/// As NVML documents it: `minor` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, minor: *mut c_uint) -> Status {
    answer_for("nvmlDeviceGetMinorNumber", device, |world, gpu| {
        // SAFETY: the contract of this function.
        unsafe { put(minor, world.gpu(gpu)?.minor) }
    })
}

/// `nvmlDeviceGetName`
///
/// # Safety
///
/// As NVML documents it: `name` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Handle, name: *mut c_char, length: c_uint) -> Status {
    answer_for("nvmlDeviceGetName", device, |world, gpu| {
        // SAFETY: the contract of this function.
        unsafe { put_text(name, length, &world.gpu(gpu)?.name) }
    })
}

/// `nvmlDeviceGetUUID`
///
/// # Safety
///
/// As NVML documents it: `uuid` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint) -> Status {
    answer_for("nvmlDeviceGetUUID", device, |world, gpu| {
        // SAFETY: the contract of this function.
        unsafe { put_text(uuid, length, &world.gpu(gpu)?.uuid) }
    })
}

/// `nvmlDeviceGetPciInfo_v3`
///
/// # Safety
///
/// As NVML documents it: `pci` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut PciInfo) -> Status {
    answer_for("nvmlDeviceGetPciInfo_v3", device, |world, gpu| {
        let text = world.gpu(gpu)?.bus_id.as_str();
        let part = |place: usize, otherwise| {
            text.split([':', '.'])
                .nth(place)
                .and_then(|part| c_uint::from_str_radix(part, 16).ok())
                .unwrap_or(otherwise)
        };
        let mut info = PciInfo {
            bus_id_legacy: [0; 16],
            domain: part(0, 0),
            bus: part(1, 0),
            device: part(2, 0),
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        // SAFETY: the buffer is as long as said.
        unsafe { put_text(info.bus_id.as_mut_ptr(), info.bus_id.len() as c_uint, text)? };
        // SAFETY: the contract of this function.
        unsafe { put(pci, info) }
    })
}

/// `nvmlDeviceGetMemoryInfo`
///
/// # Safety
///
/// As NVML documents it: `memory` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut MemoryV1) -> Status {
    answer_for("nvmlDeviceGetMemoryInfo", device, |world, gpu| {
        let (used, total) = world.memory(gpu)?;
        let info = MemoryV1 { total: total << 20, free: total.saturating_sub(used) << 20, used: used << 20 };
        // SAFETY: the contract of this function.
        unsafe { put(memory, info) }
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`: refuses any other structure version than the second.
///
/// # Safety
///
/// As NVML documents it: `memory` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) -> Status {
    answer_for("nvmlDeviceGetMemoryInfo_v2", device, |world, gpu| {
        if memory.is_null() {
            return Err(status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and readable by the contract of this function.
        if unsafe { (*memory).version } != MEMORY_VERSION {
            return Err(status::VERSION_MISMATCH);
        }
        let (used, total) = world.memory(gpu)?;
        let free = total.saturating_sub(used) << 20;
        let info =
            MemoryV2 { version: MEMORY_VERSION, total: total << 20, reserved: 0, free, used: used << 20 };
        // SAFETY: the contract of this function.
        unsafe { put(memory, info) }
    })
}

/// `nvmlDeviceGetMigMode`
///
/// # Safety
///
/// As NVML documents it: both can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Handle,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Status {
    answer_for("nvmlDeviceGetMigMode", device, |world, gpu| {
        let mode = c_uint::from(world.gpu(gpu)?.mig.ok_or(status::NOT_SUPPORTED)?);
        // SAFETY: the contract of this function.
        unsafe { put(current, mode).and_then(|()| put(pending, mode)) }
    })
}

/// Writes one process list as C expects it: too small a buffer gets the size it should have.
///
/// # Safety
///
/// `count` can be read and written; `to` is null or has room for `*count` entries.
unsafe fn put_list<T>(
    list: &[StandinProcess],
    entry: impl Fn(&StandinProcess) -> T,
    count: *mut c_uint,
    to: *mut T,
) -> Result<(), Status> {
    if count.is_null() {
        return Err(status::INVALID_ARGUMENT);
    }
    let wanted = list.len() as c_uint;
    // SAFETY: not null, and readable and writable by the contract of this function.
    let room = unsafe { count.replace(wanted) };
    if room < wanted {
        return Err(status::INSUFFICIENT_SIZE);
    }
    for (place, process) in list.iter().enumerate() {
        // SAFETY: `place` is below `room`, so the entry is inside the caller's buffer.
        unsafe { put(to.wrapping_add(place), entry(process))? };
    }
    Ok(())
}

fn narrow(process: &StandinProcess) -> ProcessInfo {
    ProcessInfo {
        pid: process.pid,
        used: process.mib.map_or(NO_FIGURE, |mib| mib << 20),
        gpu_instance: process.gpu_instance.unwrap_or(NO_INSTANCE),
        compute_instance: NO_INSTANCE,
    }
}

fn wide(process: &StandinProcess) -> WideProcessInfo {
    WideProcessInfo { process: narrow(process), protected: 0 }
}

macro_rules! process_lists {
    ($($name:ident, $kind:expr, $third:expr;)*) => {$(
        /// One of NVML's process lists.
        ///
        /// # Safety
        ///
        /// As NVML documents it: `count` can be read and written, `list` is null or has room for `*count` entries.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: Handle, count: *mut c_uint, list: *mut ProcessInfo) -> Status {
            answer_for(stringify!($name), device, |world, gpu| {
                let processes = world.processes(gpu, $kind)?;
                if $third && world.has_wide_entries() {
                    // SAFETY: not sound for a caller that believes the header: that is the defect of those drivers
                    // which this reproduces. Callers leave room beyond what they announce.
                    return unsafe { put_list(&processes, wide, count, list.cast::<WideProcessInfo>()) };
                }
                // SAFETY: the contract of this function.
                unsafe { put_list(&processes, narrow, count, list) }
            })
        }
    )*};
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses_v2, Kind::Compute, false;
    nvmlDeviceGetComputeRunningProcesses_v3, Kind::Compute, true;
    nvmlDeviceGetGraphicsRunningProcesses_v2, Kind::Graphics, false;
    nvmlDeviceGetGraphicsRunningProcesses_v3, Kind::Graphics, true;
    nvmlDeviceGetMPSComputeRunningProcesses_v2, Kind::Mps, false;
    nvmlDeviceGetMPSComputeRunningProcesses_v3, Kind::Mps, true;
}

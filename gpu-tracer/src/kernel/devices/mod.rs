//! Which character devices are GPU handles on this host.
//!
//! Majors are dynamic for all but the GPUs themselves, so they are looked up in `/proc/devices` by the names under
//! which the drivers register. Nodes in `/dev` are no evidence: they are made by hand, missing in containers, and a
//! second node of another name opens the same device.

mod extra;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use gpu_tracer_common::snapshot::MAX_WANTED;

pub use self::extra::{ExtraDevice, ExtraDeviceError};
use crate::gpu::identity::{self, IdentityError};
use crate::model::device::{DeviceRange, Naming};
use crate::model::{DeviceNumber, DeviceTable, Gpu};

/// Environment variable with further devices, separated by commas.
pub const DEVICES_VARIABLE: &str = "GPU_TRACER_DEVICES";

/// `NV_MAJOR_DEVICE_NUMBER`: GPUs, the control device and modesetting. Static.
const NVIDIA_MAJOR: u32 = 195;
/// `NV_MINOR_DEVICE_NUMBER_REGULAR_MAX`.
const LAST_GPU_MINOR: u32 = 247;
const MODESET_MINOR: u32 = 254;
const CONTROL_MINOR: u32 = 255;
/// `NV_CAP_DRV_MINOR_COUNT`.
const CAPABILITY_MINORS: u32 = 8192;
/// Largest minor there is.
const MAX_MINOR: u32 = (1 << 20) - 1;

/// Why devices could not be found.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The list of drivers is not readable.
    #[error("cannot read {}: {source}; is /proc mounted?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The driver's GPUs are not readable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// One number was given two names.
    #[error("device {number} is given two names, {first} and {second}; keep one")]
    TwoNames {
        /// The number.
        number: DeviceNumber,
        /// A name.
        first: String,
        /// Another.
        second: String,
    },
    /// More ranges than the kernel side can be told.
    #[error(
        "{count} ranges of devices are too many, at most {MAX_WANTED} can be watched; give fewer --device"
    )]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// What counts as a GPU handle on this host, and the GPUs themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Device numbers and names. Empty: there is nothing to look for, which is not the same as "nobody holds it".
    pub table: DeviceTable,
    /// GPUs in order of index, those of `--device` included.
    pub gpus: Vec<Gpu>,
    /// Version of the loaded NVIDIA driver.
    pub driver_version: Option<String>,
    /// Indexes of GPUs of which the driver did not say which minor is theirs: it is assumed to equal the index, which
    /// is usual and not certain. An answer about these has to say so.
    pub assumed: BTreeSet<u32>,
}

/// Finds the devices of the host whose root is `root` (`/` but for tests) and adds `extra`, which take precedence.
///
/// NVIDIA's devices count when their driver is in `/proc/devices`, GPUs get their index from
/// [`identity::read`]. Takes a few seconds at most, when the driver is stuck.
pub fn discover(root: &Path, extra: &[ExtraDevice]) -> Result<Devices, DeviceError> {
    let path = root.join("proc/devices");
    let text = std::fs::read_to_string(&path).map_err(|source| DeviceError::Read { path, source })?;
    let registered = registered(&text);
    let mut devices = Devices::default();
    add_extra(&mut devices, extra)?;
    if registered.iter().any(|(major, _)| *major == NVIDIA_MAJOR) {
        add_real(&mut devices, root)?;
    }
    for (major, name) in &registered {
        for range in ranges(*major, name) {
            if !devices.table.ranges.contains(&range) {
                devices.table.ranges.push(range);
            }
        }
        if *name == "nvidia-caps" {
            add_capabilities(&mut devices, root, *major);
        }
    }
    devices.gpus.sort_by_key(|gpu| gpu.index);
    match devices.table.ranges.len() {
        count if count > MAX_WANTED => Err(DeviceError::TooMany { count }),
        _ => Ok(devices),
    }
}

/// (major, name) of NVIDIA's drivers among the character devices of `/proc/devices`.
fn registered(text: &str) -> Vec<(u32, &str)> {
    text.lines()
        .take_while(|line| !line.starts_with("Block devices"))
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            Some((major.parse().ok()?, name.trim()))
        })
        .filter(|(_, name)| name.starts_with("nvidia") || *name == "gdrdrv")
        .collect()
}

/// What the driver that is registered as `name` has under `major`.
fn ranges(major: u32, name: &str) -> Vec<DeviceRange> {
    let fixed = |minor, name: &str| DeviceRange {
        major,
        first: minor,
        last: minor,
        naming: Naming::Fixed(name.to_owned()),
    };
    let numbered =
        |last, prefix: String| DeviceRange { major, first: 0, last, naming: Naming::Numbered(prefix) };
    match name {
        // Up to 535 one registration (`nvidia-frontend`) covers all three; later each has its own, and this program
        // may see `nvidia` before `nvidia-modeset` is loaded. The numbers never changed.
        _ if major == NVIDIA_MAJOR => vec![
            numbered(LAST_GPU_MINOR, "nvidia".to_owned()),
            fixed(MODESET_MINOR, "nvidia-modeset"),
            fixed(CONTROL_MINOR, "nvidiactl"),
        ],
        "nvidia-uvm" => vec![fixed(0, "nvidia-uvm"), fixed(1, "nvidia-uvm-tools")],
        "nvidia-caps" => vec![numbered(CAPABILITY_MINORS - 1, "nvidia-caps/nvidia-cap".to_owned())],
        "nvidia-caps-imex-channels" => {
            vec![numbered(MAX_MINOR, "nvidia-caps-imex-channels/channel".to_owned())]
        }
        "nvidia-nvswitch" => {
            vec![numbered(63, "nvidia-nvswitch".to_owned()), fixed(255, "nvidia-nvswitchctl")]
        }
        "nvidia-nvlink" => vec![fixed(0, "nvidia-nvlink")],
        // Registered for 256 minors, all of which are the one device.
        "gdrdrv" => vec![DeviceRange { last: 255, ..fixed(0, "gdrdrv") }],
        // `nvidia-fs`, and whatever a newer driver brings.
        _ => vec![numbered(MAX_MINOR, name.to_owned())],
    }
}

/// The devices that the user named: their ranges, and a GPU for each index that a name stands for.
fn add_extra(devices: &mut Devices, extra: &[ExtraDevice]) -> Result<(), DeviceError> {
    for (at, device) in extra.iter().enumerate() {
        match extra[..at].iter().find(|other| other.number == device.number) {
            Some(other) if other.name == device.name => continue,
            Some(other) => {
                return Err(DeviceError::TwoNames {
                    number: device.number,
                    first: other.name.clone(),
                    second: device.name.clone(),
                });
            }
            None => {}
        }
        devices.table.ranges.push(DeviceRange {
            major: device.number.major,
            first: device.number.minor,
            last: device.number.minor,
            naming: Naming::Fixed(device.name.clone()),
        });
        let Some(index) = device.gpu() else { continue };
        devices.table.gpu_nodes.push((device.number, index));
        if devices.gpus.iter().all(|gpu| gpu.index != index) {
            devices.gpus.push(Gpu { index, minor: Some(device.number.minor), ..Gpu::default() });
        }
    }
    Ok(())
}

/// The GPUs of the loaded driver and their nodes. A GPU that a `--device` already named becomes one with it.
fn add_real(devices: &mut Devices, root: &Path) -> Result<(), DeviceError> {
    let identity = identity::read(root)?;
    devices.driver_version = identity.driver_version;
    let mut gpus = identity.gpus;
    devices.assumed.extend(identity.unanswered);
    if gpus.is_empty() {
        // The driver lists no GPU, as in a container or a driver that has no such files: go by the nodes.
        gpus = gpu_nodes(root)
            .into_iter()
            .map(|minor| Gpu { index: minor, minor: Some(minor), ..Gpu::default() })
            .collect();
        devices.assumed.extend(gpus.iter().map(|gpu| gpu.index));
    }
    let known: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.minor).collect();
    for gpu in &mut gpus {
        if gpu.minor.is_none() && !known.contains(&gpu.index) {
            gpu.minor = Some(gpu.index);
        }
        if let Some(minor) = gpu.minor {
            devices.table.gpu_nodes.push((DeviceNumber { major: NVIDIA_MAJOR, minor }, gpu.index));
        }
    }
    devices.gpus.retain(|extra| gpus.iter().all(|gpu| gpu.index != extra.index));
    devices.gpus.append(&mut gpus);
    Ok(())
}

/// Minors of GPU nodes in `/dev`.
fn gpu_nodes(root: &Path) -> BTreeSet<u32> {
    let Ok(entries) = root.join("dev").read_dir() else { return BTreeSet::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("nvidia")))
        .filter_map(|entry| entry.path().metadata().ok())
        .filter(|metadata| metadata.file_type().is_char_device())
        .map(|metadata| DeviceNumber::from_stat(metadata.rdev()))
        .filter(|number| number.major == NVIDIA_MAJOR && number.minor <= LAST_GPU_MINOR)
        .map(|number| number.minor)
        .collect()
}

/// Says of the capability devices that stand for a MIG instance which GPU it is on.
///
/// The driver keeps a fixed list (`gpuMINOR/giN/access CAPABILITY`) for all instances there could be, so instances made
/// later are covered. Capabilities that are not in it are shared.
fn add_capabilities(devices: &mut Devices, root: &Path, major: u32) {
    let Some(list) = identity::read_driver_file(root, "proc/driver/nvidia-caps/mig-minors") else { return };
    for line in String::from_utf8_lossy(&list).lines() {
        let Some((gpu_minor, capability)) = mig_capability(line) else { continue };
        let node = DeviceNumber { major: NVIDIA_MAJOR, minor: gpu_minor };
        // What the driver says, not what a `--device` makes of the number.
        let owner = devices
            .gpus
            .iter()
            .find(|gpu| gpu.bus_id.is_some() && devices.table.gpu_nodes.contains(&(node, gpu.index)));
        if let Some(index) = owner.map(|gpu| gpu.index) {
            devices.table.gpu_nodes.push((DeviceNumber { major, minor: capability }, index));
        }
    }
}

/// (minor of the GPU, minor of the capability) from `gpu0/gi1/ci2/access 30`.
fn mig_capability(line: &str) -> Option<(u32, u32)> {
    let (path, capability) = line.trim().split_once(' ')?;
    let (gpu, _) = path.strip_prefix("gpu")?.split_once('/')?;
    Some((gpu.parse().ok()?, capability.trim().parse().ok()?))
}

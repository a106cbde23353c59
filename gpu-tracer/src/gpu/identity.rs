//! Which GPUs there are: index, node minor, UUID and PCI address of each, as the driver states them in `/proc`.
//!
//! The index is the position in PCI bus order among GPUs that are not excluded, as NVML numbers them. It is *not* the
//! minor of the node, which is the order in which the driver found the cards.

mod patient;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use self::patient::Outcome;
use crate::model::Gpu;

/// How long the driver may take to say who its GPUs are. A healthy one takes milliseconds, a stuck one for ever.
///
/// Tests of what is not stuck must pass on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// Why GPUs could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The driver's directory is there and cannot be listed.
    #[error("cannot list {}: {source}; run as root", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What the driver says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// GPUs in order of index; the first has index 0.
    pub gpus: Vec<Gpu>,
    /// Version of the loaded driver, such as `580.159.04`; `None` without one.
    pub driver_version: Option<String>,
    /// Indexes of GPUs of which the driver would say nothing, because it is stuck, suspended, or the entry is not
    /// readable. Of these only the PCI address is known, and the index is right unless one of them is excluded.
    pub unanswered: Vec<u32>,
}

/// A PCI address: domain, bus, device, function.
///
/// Ordered as the bus is. Displayed as sysfs does (`0000:0f:00.0`); read from that, from NVML's form with a domain of
/// eight digits, or without a domain (then it is 0), in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusId {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device (slot).
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no PCI address; one looks like 0000:0f:00.0")]
pub struct BusIdError;

impl BusId {
    /// As [`BusId::from_str`], and whether the text names a domain.
    pub(crate) fn parse(text: &str) -> Option<(Self, bool)> {
        let (address, function) = text.rsplit_once('.')?;
        let mut parts = address.rsplit(':');
        let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() {
            return None;
        }
        let id = Self {
            domain: domain.map_or(Some(0), |domain| hex(domain, 8))?,
            bus: u8::try_from(hex(bus, 2)?).ok()?,
            device: u8::try_from(hex(device, 2)?).ok().filter(|device| *device < 32)?,
            function: u8::try_from(hex(function, 1)?).ok().filter(|function| *function < 8)?,
        };
        Some((id, domain.is_some()))
    }
}

fn hex(text: &str, max_len: usize) -> Option<u32> {
    let plain = (1..=max_len).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

impl FromStr for BusId {
    type Err = BusIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).map(|(id, _)| id).ok_or(BusIdError)
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Reads `proc/driver/nvidia` under `root`, which is `/` but for tests. Without the driver the answer is empty.
///
/// Takes little more than a second even when the driver is stuck; see [`Identity::unanswered`]. The driver powers up a
/// GPU that it had put to sleep in order to answer.
pub fn read(root: &Path) -> Result<Identity, IdentityError> {
    read_within(root, PATIENCE)
}

fn read_within(root: &Path, patience: Duration) -> Result<Identity, IdentityError> {
    let driver = root.join("proc/driver/nvidia");
    let mut bus_ids = list(&driver.join("gpus"))?;
    bus_ids.sort_unstable();
    let files: Vec<PathBuf> = std::iter::once(driver.join("version"))
        .chain(bus_ids.iter().map(|(_, directory)| directory.join("information")))
        .collect();
    let mut outcomes =
        if driver.is_dir() { patient::read_all(&files, patience) } else { Vec::new() }.into_iter();
    let driver_version = match outcomes.next() {
        Some(Outcome::Read(contents)) => version(&String::from_utf8_lossy(&contents)),
        _ => None,
    };
    let mut identity = Identity { driver_version, ..Identity::default() };
    for ((bus_id, _), outcome) in bus_ids.into_iter().zip(outcomes) {
        let information = match &outcome {
            Outcome::Read(contents) => Information::parse(&String::from_utf8_lossy(contents)),
            Outcome::Failed | Outcome::Late => Information::default(),
        };
        if information.excluded {
            continue;
        }
        let index = identity.gpus.len() as u32;
        if information.minor.is_none() {
            identity.unanswered.push(index);
        }
        identity.gpus.push(Gpu {
            index,
            minor: information.minor,
            uuid: information.uuid,
            bus_id: Some(bus_id.to_string()),
            name: information.name,
        });
    }
    Ok(identity)
}

/// Reads a file of the driver under `root`: `None` if it is absent or does not answer within a second.
pub(crate) fn read_driver_file(root: &Path, path: &str) -> Option<Vec<u8>> {
    match patient::read_all(&[root.join(path)], PATIENCE).pop() {
        Some(Outcome::Read(contents)) => Some(contents),
        _ => None,
    }
}

/// The PCI addresses that the driver has entries for. Listing takes none of the driver's locks.
fn list(path: &Path) -> Result<Vec<(BusId, PathBuf)>, IdentityError> {
    let failed = |source| IdentityError::List { path: path.to_owned(), source };
    let entries = match path.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Some(bus_id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((bus_id, entry.path()));
        }
    }
    Ok(found)
}

/// The driver's version in the line `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`.
fn version(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("NVRM version:"))?;
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.clone().count() > 1 && parts.all(number)
    };
    line.split_whitespace().find(is_version).map(str::to_owned)
}

/// What matters of a GPU's `information`.
#[derive(Debug, Default)]
struct Information {
    name: Option<String>,
    uuid: Option<String>,
    minor: Option<u32>,
    excluded: bool,
}

impl Information {
    fn parse(text: &str) -> Self {
        let mut information = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim() {
                "Model" if !value.is_empty() && value != "Unknown" => {
                    information.name = Some(value.to_owned())
                }
                // Question marks until somebody has opened the GPU for the first time.
                "GPU UUID" if !value.is_empty() && !value.contains('?') => {
                    information.uuid = Some(value.to_owned());
                }
                "Device Minor" => information.minor = value.parse().ok(),
                "GPU Excluded" => information.excluded = value == "Yes",
                _ => {}
            }
        }
        information
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a GPU's entry as driver 580 does.
    pub(crate) fn write_gpu(root: &Path, bus_id: &str, minor: u32, uuid: &str) {
        let directory = root.join("proc/driver/nvidia/gpus").join(bus_id);
        std::fs::create_dir_all(&directory).unwrap();
        let text = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 35\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.A9.00.01\n\
             Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {bus_id}\n\
             Device Minor: \t {minor}\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t No\n"
        );
        std::fs::write(directory.join("information"), text).unwrap();
    }

    #[test]
    fn the_index_is_bus_order_and_not_the_minor() {
        let root = tempfile::tempdir().unwrap();
        write_gpu(root.path(), "0001:00:00.0", 0, "GPU-c");
        write_gpu(root.path(), "0000:0f:00.0", 2, "GPU-a");
        write_gpu(root.path(), "0000:a0:00.0", 1, "GPU-b");
        let identity = read(root.path()).unwrap();
        let seen: Vec<_> =
            identity.gpus.iter().map(|gpu| (gpu.index, gpu.minor, gpu.uuid.as_deref())).collect();
        assert_eq!(
            seen,
            [(0, Some(2), Some("GPU-a")), (1, Some(1), Some("GPU-b")), (2, Some(0), Some("GPU-c"))]
        );
        assert_eq!(identity.gpus[0].bus_id.as_deref(), Some("0000:0f:00.0"));
        assert_eq!(identity.gpus[0].name.as_deref(), Some("NVIDIA H200"));
        assert_eq!(identity.unanswered, [] as [u32; 0]);
    }

    #[test]
    fn a_uuid_that_the_driver_does_not_know_yet_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        write_gpu(root.path(), "0000:00:06.0", 0, "GPU-????????-????-????-????-????????????");
        let identity = read(root.path()).unwrap();
        assert_eq!((identity.gpus[0].uuid.as_deref(), identity.gpus[0].minor), (None, Some(0)));
    }

    #[test]
    fn an_excluded_gpu_has_no_index() {
        let root = tempfile::tempdir().unwrap();
        write_gpu(root.path(), "0000:01:00.0", 0, "GPU-a");
        write_gpu(root.path(), "0000:02:00.0", 1, "GPU-b");
        let information = root.path().join("proc/driver/nvidia/gpus/0000:01:00.0/information");
        let text =
            std::fs::read_to_string(&information).unwrap().replace("Excluded:\t No", "Excluded:\t Yes");
        std::fs::write(information, text).unwrap();
        let identity = read(root.path()).unwrap();
        assert_eq!(identity.gpus.len(), 1);
        assert_eq!((identity.gpus[0].index, identity.gpus[0].minor), (0, Some(1)));
    }

    #[test]
    fn a_driver_that_does_not_answer_costs_the_details_and_not_the_gpu() {
        let root = tempfile::tempdir().unwrap();
        write_gpu(root.path(), "0000:02:00.0", 1, "GPU-b");
        let stuck = root.path().join("proc/driver/nvidia/gpus/0000:01:00.0");
        std::fs::create_dir_all(&stuck).unwrap();
        // Opening a FIFO that nobody writes to blocks, as the stuck driver does.
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, stuck.join("information"), fifo, 0o600.into(), 0).unwrap();
        let identity = read_within(root.path(), Duration::from_secs(3)).unwrap();
        assert_eq!(identity.unanswered, [0]);
        assert_eq!(identity.gpus[0].bus_id.as_deref(), Some("0000:01:00.0"));
        assert_eq!((identity.gpus[0].minor, identity.gpus[1].minor), (None, Some(1)));
    }

    #[test]
    fn without_the_driver_there_is_nothing() {
        assert_eq!(read(tempfile::tempdir().unwrap().path()).unwrap(), Identity::default());
    }

    #[test]
    fn the_version_is_found_in_both_flavours_of_the_driver() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (u@h)\n\
                    GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        assert_eq!(version(closed).as_deref(), Some("535.104.05"));
        assert_eq!(version(open).as_deref(), Some("580.159.04"));
        assert_eq!(version("GCC version:  gcc version 12.2.0"), None);
    }

    #[test]
    fn pci_addresses_are_read_in_every_form_that_tools_print() {
        let expected = BusId { domain: 0, bus: 0x0f, device: 0, function: 0 };
        for text in ["0000:0f:00.0", "00000000:0F:00.0", "0F:00.0", "0f:0.0"] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "0f:00",
            "1:5",
            "0000:0f:20.0",
            "0000:0f:00.8",
            "0000:0f:00.0.0",
            "000000000:0f:00.0",
            "+0:0f:00.0",
        ] {
            assert_eq!(text.parse::<BusId>(), Err(BusIdError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_displayed_address_reads_back(domain: u32, bus: u8, device in 0_u8..32, function in 0_u8..8) {
            let id = BusId { domain, bus, device, function };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn hostile_text_never_panics(text in "\\PC*|[0-9a-f:.\n\t]*") {
            let _ = text.parse::<BusId>();
            let _ = Information::parse(&text);
            let _ = version(&text);
        }
    }
}

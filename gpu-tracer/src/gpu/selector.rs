//! What people write to say which GPUs they mean.
//!
//! | written | means |
//! |---|---|
//! | `3` | the GPU with index 3: PCI bus order, as `nvidia-smi` numbers them, not the minor of a node |
//! | `0-3` | the GPUs with these indexes; each must exist |
//! | `GPU-8f6` | the GPU whose UUID begins like this, if only one does; any case |
//! | `0000:0f:00.0`, `00000000:0F:00.0`, `0f:00.0` | the GPU at this PCI address |
//! | `/dev/nvidia4`, `/dev/anything` | the GPU or shared device that this path is a node of, by its device number; a path that does not exist stands for the device of that name |
//! | `nvidia4`, `nvidiactl` | the device of this name |
//! | `all` | everything |
//!
//! Several may be joined by commas or given one by one.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::str::FromStr;

use super::identity::BusId;
use crate::model::device::{DeviceRange, Naming};
use crate::model::{Device, DeviceNumber, DeviceTable, Gpu};

/// One selector as written, before it is known what this host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Everything.
    All,
    /// GPUs from the first index to the last, inclusive.
    Indexes(u32, u32),
    /// A UUID or the beginning of one, in lower case.
    Uuid(String),
    /// A PCI address; in any domain if the text names none.
    Bus(BusId, Option<u32>),
    /// A path of a device node.
    Path(String),
    /// A device's name without `/dev/`.
    Name(String),
}

/// What was selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Indexes of GPUs.
    pub gpus: BTreeSet<u32>,
    /// Devices that all GPUs share, asked for by name; in order of number.
    pub devices: Vec<Device>,
    /// Everything was asked for, by `all` or by saying nothing: every GPU, and every shared device too.
    pub all: bool,
}

/// Why a selector selects nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Not a selector of any form.
    #[error("{text:?} selects nothing: {problem}")]
    Form {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No GPU has this index.
    #[error("GPU {index} does not exist; this host has {present}")]
    NoSuchIndex {
        /// Index asked for.
        index: u32,
        /// What there is.
        present: String,
    },
    /// Nothing is called this.
    #[error("{text:?} does not exist; this host has {present}")]
    NoSuchDevice {
        /// What was given.
        text: String,
        /// What there is.
        present: String,
    },
    /// The path is there and is no GPU device.
    #[error("{path:?} is no GPU device; this host has {present} (--device makes any character device one)")]
    NotGpuDevice {
        /// The path.
        path: String,
        /// What there is.
        present: String,
    },
    /// Several GPUs match.
    #[error("{text:?} could be {candidates}; write more of it")]
    Ambiguous {
        /// What was given.
        text: String,
        /// What it could be.
        candidates: String,
    },
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = |problem| SelectorError::Form { text: text.to_owned(), problem };
        if text.is_empty() {
            return Err(malformed("it is empty"));
        }
        if text.eq_ignore_ascii_case("all") {
            return Ok(Self::All);
        }
        if text.starts_with('/') {
            return Ok(Self::Path(text.to_owned()));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else {
                return Err(malformed("an index is a number such as 3, several are 0-3"));
            };
            return if first <= last {
                Ok(Self::Indexes(first, last))
            } else {
                Err(malformed("the range runs backwards"))
            };
        }
        if let Some((id, has_domain)) = BusId::parse(text) {
            return Ok(Self::Bus(id, has_domain.then_some(id.domain)));
        }
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("mig-") {
            return Err(malformed("MIG instances cannot be selected, select the GPU they are on"));
        }
        if lower.starts_with("gpu-") {
            return Ok(Self::Uuid(lower));
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// Finds out which GPUs and devices `texts` select. Nothing written selects everything.
///
/// Looks at paths given as selectors (`stat`), and at nothing else.
pub fn resolve(texts: &[String], gpus: &[Gpu], table: &DeviceTable) -> Result<Selection, SelectorError> {
    resolve_with(texts, gpus, table, character_device)
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    CharacterDevice(DeviceNumber),
    Other,
    Absent,
}

fn character_device(path: &Path) -> Node {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_char_device() => {
            Node::CharacterDevice(DeviceNumber::from_stat(metadata.rdev()))
        }
        Ok(_) => Node::Other,
        Err(_) => Node::Absent,
    }
}

fn resolve_with(
    texts: &[String],
    gpus: &[Gpu],
    table: &DeviceTable,
    look: impl Fn(&Path) -> Node,
) -> Result<Selection, SelectorError> {
    let host = Host { gpus, table };
    let mut selection = Selection { all: texts.is_empty(), ..Selection::default() };
    for text in texts.iter().flat_map(|text| text.split(',')).map(str::trim) {
        match text.parse()? {
            Selector::All => selection.all = true,
            Selector::Indexes(first, last) => {
                // Ends at the first index that does not exist, however large the last is.
                for index in first..=last {
                    selection.gpus.insert(host.index(index)?);
                }
            }
            Selector::Uuid(prefix) => {
                selection.gpus.insert(host.uuid(text, &prefix)?);
            }
            Selector::Bus(id, domain) => {
                selection.gpus.insert(host.bus(text, id, domain)?);
            }
            Selector::Path(path) => match look(Path::new(&path)) {
                Node::CharacterDevice(number) => match table.identify(number) {
                    Some(device) => selection.add(device),
                    None => return Err(SelectorError::NotGpuDevice { path, present: host.to_string() }),
                },
                Node::Other => return Err(SelectorError::NotGpuDevice { path, present: host.to_string() }),
                Node::Absent => {
                    let name = path.strip_prefix("/dev/").unwrap_or(&path);
                    host.named(text, name)?.into_iter().for_each(|device| selection.add(device));
                }
            },
            Selector::Name(name) => {
                host.named(text, &name)?.into_iter().for_each(|device| selection.add(device));
            }
        }
    }
    if selection.all {
        selection.gpus.extend(gpus.iter().map(|gpu| gpu.index));
    }
    selection.devices.sort_by_key(|device| device.number);
    selection.devices.dedup();
    Ok(selection)
}

impl Selection {
    fn add(&mut self, device: Device) {
        match device.gpu {
            Some(index) => {
                self.gpus.insert(index);
            }
            None => self.devices.push(device),
        }
    }
}

/// What there is to select from. Displayed as the list of it.
struct Host<'h> {
    gpus: &'h [Gpu],
    table: &'h DeviceTable,
}

impl Host<'_> {
    fn index(&self, index: u32) -> Result<u32, SelectorError> {
        if self.gpus.iter().any(|gpu| gpu.index == index) {
            return Ok(index);
        }
        let present: BTreeSet<u32> = self.gpus.iter().map(|gpu| gpu.index).collect();
        let present = if present.is_empty() { "no GPU".to_owned() } else { ranges(&present) };
        Err(SelectorError::NoSuchIndex { index, present })
    }

    fn uuid(&self, text: &str, prefix: &str) -> Result<u32, SelectorError> {
        let of = |gpu: &Gpu| gpu.uuid.as_deref().map(str::to_ascii_lowercase);
        // A whole UUID is meant even where it begins another.
        if let Some(gpu) = self.gpus.iter().find(|gpu| of(gpu).as_deref() == Some(prefix)) {
            return Ok(gpu.index);
        }
        self.only(text, |gpu| of(gpu).is_some_and(|uuid| uuid.starts_with(prefix)), |gpu| gpu.uuid.clone())
    }

    fn bus(&self, text: &str, id: BusId, domain: Option<u32>) -> Result<u32, SelectorError> {
        let matches = |gpu: &Gpu| {
            gpu.bus_id
                .as_deref()
                .and_then(|own| own.parse::<BusId>().ok())
                .is_some_and(|own| own == BusId { domain: domain.unwrap_or(own.domain), ..id })
        };
        self.only(text, matches, |gpu| gpu.bus_id.clone())
    }

    /// The one GPU that matches.
    fn only(
        &self,
        text: &str,
        matches: impl Fn(&Gpu) -> bool,
        label: impl Fn(&Gpu) -> Option<String>,
    ) -> Result<u32, SelectorError> {
        let found: Vec<&Gpu> = self.gpus.iter().filter(|gpu| matches(gpu)).collect();
        let list = |gpus: &mut dyn Iterator<Item = &Gpu>| {
            let lines: Vec<String> = gpus
                .map(|gpu| format!("GPU {} ({})", gpu.index, label(gpu).as_deref().unwrap_or("not known")))
                .collect();
            lines.join(", ")
        };
        match found.as_slice() {
            [gpu] => Ok(gpu.index),
            [] if self.gpus.is_empty() => {
                Err(SelectorError::NoSuchDevice { text: text.to_owned(), present: "no GPU".to_owned() })
            }
            [] => Err(SelectorError::NoSuchDevice {
                text: text.to_owned(),
                present: list(&mut self.gpus.iter()),
            }),
            several => Err(SelectorError::Ambiguous {
                text: text.to_owned(),
                candidates: list(&mut several.iter().copied()),
            }),
        }
    }

    /// The devices called `name`.
    fn named(&self, text: &str, name: &str) -> Result<Vec<Device>, SelectorError> {
        let devices: Vec<Device> = self
            .table
            .ranges
            .iter()
            .filter_map(|range| number_called(range, name))
            // A number that another range names differently is not this device.
            .filter_map(|number| self.table.identify(number).filter(|device| device.name == name))
            // Of GPU nodes, a name is one only if there is such a GPU.
            .filter(|device| device.gpu.is_some() || !is_gpu_name(&device.name))
            .collect();
        if devices.is_empty() {
            return Err(SelectorError::NoSuchDevice { text: text.to_owned(), present: self.to_string() });
        }
        Ok(devices)
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indexes: BTreeSet<u32> = self.gpus.iter().map(|gpu| gpu.index).collect();
        match indexes.len() {
            0 => f.write_str("no GPU")?,
            1 => write!(f, "GPU {}", ranges(&indexes))?,
            _ => write!(f, "GPUs {}", ranges(&indexes))?,
        }
        let mut separator = " and ";
        for range in &self.table.ranges {
            let name = match &range.naming {
                Naming::Fixed(name) => name.clone(),
                Naming::Numbered(prefix) if prefix == "nvidia" => continue,
                Naming::Numbered(prefix) => format!("{prefix}N"),
            };
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Is it one of the 248 names `nvidiaN` that the driver reserves, whether there is a GPU or not?
fn is_gpu_name(name: &str) -> bool {
    name.strip_prefix("nvidia").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The number that `range` calls `name`.
fn number_called(range: &DeviceRange, name: &str) -> Option<DeviceNumber> {
    let minor = match &range.naming {
        Naming::Fixed(own) => (own == name).then_some(range.first)?,
        Naming::Numbered(prefix) => {
            let digits = name.strip_prefix(prefix.as_str())?;
            let relative: u32 = digits.parse().ok()?;
            let minor = range.first.checked_add(relative).filter(|minor| *minor <= range.last)?;
            (relative.to_string() == digits).then_some(minor)?
        }
    };
    Some(DeviceNumber { major: range.major, minor })
}

/// Indexes as people write them, `0-3,5`. Reads back as a selector.
#[must_use]
pub fn ranges(indexes: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let texts: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests;

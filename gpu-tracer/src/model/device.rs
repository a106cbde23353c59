//! Character devices that count as GPU handles.
//!
//! A device is known by its number, never by the path it was opened through:
//! containers make their own nodes, and nodes are deleted and re-created.

use std::fmt;

/// A character device number, `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Major number, 12 bits.
    pub major: u32,
    /// Minor number, 20 bits.
    pub minor: u32,
}

impl DeviceNumber {
    /// From the kernel's own `dev_t` (`inode->i_rdev`): major in the high 12 bits, minor in the low 20.
    #[must_use]
    pub const fn from_kernel(dev: u32) -> Self {
        Self { major: dev >> 20, minor: dev & 0xf_ffff }
    }

    /// The kernel's own `dev_t` encoding.
    #[must_use]
    pub const fn to_kernel(self) -> u32 {
        (self.major << 20) | (self.minor & 0xf_ffff)
    }

    /// From `st_rdev` as `stat(2)` returns it (the C library's encoding, not the kernel's).
    #[must_use]
    pub fn from_stat(rdev: u64) -> Self {
        Self { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One device with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: DeviceNumber,
    /// Its conventional name without `/dev/`: `nvidia0`, `nvidiactl`, `nvidia-caps/nvidia-cap1`.
    pub name: String,
    /// Index of the GPU it belongs to, in PCI bus order; `None` for devices that all GPUs share.
    pub gpu: Option<u32>,
}

/// How the minors of a [`DeviceRange`] are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Every minor has this name (ranges of one minor).
    Fixed(String),
    /// `PREFIX` followed by the minor number relative to the start of the range.
    Numbered(String),
}

impl Naming {
    /// The name, or what all the names begin with.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Fixed(name) | Self::Numbered(name) => name,
        }
    }
}

/// A contiguous range of minors under one major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// Major number.
    pub major: u32,
    /// First minor, inclusive.
    pub first: u32,
    /// Last minor, inclusive.
    pub last: u32,
    /// How minors in the range are named.
    pub naming: Naming,
}

/// Everything that counts as a GPU handle on this host.
///
/// Built by `kernel::devices` from `/proc/devices` and `--device`; the BPF programs get
/// [`DeviceTable::ranges`], the user side asks [`DeviceTable::identify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTable {
    /// Ranges in order of precedence: the first that matches names the device.
    pub ranges: Vec<DeviceRange>,
    /// (device number of a per-GPU node, GPU index). Index is PCI bus order, not the minor.
    pub gpu_nodes: Vec<(DeviceNumber, u32)>,
}

impl DeviceTable {
    /// The device with this number, or `None` if it is no GPU device.
    #[must_use]
    pub fn identify(&self, number: DeviceNumber) -> Option<Device> {
        let range = self.range_of(number)?;
        let name = match &range.naming {
            Naming::Fixed(name) => name.clone(),
            Naming::Numbered(prefix) => format!("{prefix}{}", number.minor - range.first),
        };
        let gpu = self.gpu_nodes.iter().find(|(node, _)| *node == number).map(|(_, gpu)| *gpu);
        Some(Device { number, name, gpu })
    }

    /// Does this number count as a GPU device?
    #[must_use]
    pub fn contains(&self, number: DeviceNumber) -> bool {
        self.range_of(number).is_some()
    }

    fn range_of(&self, number: DeviceNumber) -> Option<&DeviceRange> {
        self.ranges
            .iter()
            .find(|range| range.major == number.major && (range.first..=range.last).contains(&number.minor))
    }

    /// Is there anything to look for at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

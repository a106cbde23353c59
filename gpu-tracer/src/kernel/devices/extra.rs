//! Devices that the user names: `--device` and `GPU_TRACER_DEVICES`.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str::FromStr;

use crate::model::DeviceNumber;

/// Largest major and minor that the kernel's 12 and 20 bits hold.
const MAX_MAJOR: u32 = (1 << 12) - 1;
const MAX_MINOR: u32 = (1 << 20) - 1;
/// Longest name. It is shown in tables.
const MAX_NAME: usize = 64;

/// A character device that is to count as a GPU: `MAJOR:MINOR=NAME`, or `/dev/PATH=NAME` for the device at that path.
///
/// A name `nvidiaN` makes it a node of GPU N; any other name a device that all GPUs share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its name, without `/dev/`.
    pub name: String,
}

/// Why a `--device` was not understood.
#[derive(Debug, thiserror::Error)]
pub enum ExtraDeviceError {
    /// Not of the form.
    #[error("{text:?} is no device; write MAJOR:MINOR=NAME or /dev/PATH=NAME, for example 195:0=nvidia0")]
    Form {
        /// What was given.
        text: String,
    },
    /// A number that no device can have.
    #[error("{text:?} is out of range: majors go to {MAX_MAJOR} and minors to {MAX_MINOR}")]
    Number {
        /// What was given.
        text: String,
    },
    /// A name that cannot be shown in a table or asked for.
    #[error(
        "{name:?} cannot name a device; use up to {MAX_NAME} letters, digits and any of `-_./` (nvidiaN for GPU N)"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// The path cannot be looked at.
    #[error("cannot look at {path}: {source}; write its number instead, MAJOR:MINOR=NAME")]
    Stat {
        /// The path.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The path is something else.
    #[error("{path} is no character device")]
    NotCharacterDevice {
        /// The path.
        path: String,
    },
}

impl ExtraDevice {
    /// Reads a list separated by commas, as `GPU_TRACER_DEVICES` holds it. Empty entries are skipped.
    pub fn list(text: &str) -> Result<Vec<Self>, ExtraDeviceError> {
        text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::parse).collect()
    }

    /// Index of the GPU that the name makes it a node of.
    #[must_use]
    pub fn gpu(&self) -> Option<u32> {
        let digits = self.name.strip_prefix("nvidia")?;
        let index: u32 = digits.parse().ok()?;
        // `nvidia007` and `nvidia+7` are names like any other.
        (index.to_string() == digits).then_some(index)
    }
}

impl FromStr for ExtraDevice {
    type Err = ExtraDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ExtraDeviceError::Form { text: text.to_owned() };
        // A path may contain `=`, a name may not.
        let (device, name) = text.rsplit_once('=').ok_or_else(form)?;
        let number = if device.starts_with('/') {
            number_of(device)?
        } else {
            let (major, minor) = device.split_once(':').ok_or_else(form)?;
            numbers(major, minor)
                .ok_or_else(form)?
                .map_err(|()| ExtraDeviceError::Number { text: text.to_owned() })?
        };
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) || name.starts_with('/') {
            return Err(ExtraDeviceError::Name { name: name.to_owned() });
        }
        Ok(Self { number, name: name.to_owned() })
    }
}

/// `None` if they are no numbers, an error if they are too large.
fn numbers(major: &str, minor: &str) -> Option<Result<DeviceNumber, ()>> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(major) || !digits(minor) {
        return None;
    }
    let number = |text: &str, max: u32| text.parse().ok().filter(|number| *number <= max).ok_or(());
    Some(
        number(major, MAX_MAJOR)
            .and_then(|major| number(minor, MAX_MINOR).map(|minor| DeviceNumber { major, minor })),
    )
}

fn number_of(path: &str) -> Result<DeviceNumber, ExtraDeviceError> {
    let metadata =
        std::fs::metadata(path).map_err(|source| ExtraDeviceError::Stat { path: path.to_owned(), source })?;
    if !metadata.file_type().is_char_device() {
        return Err(ExtraDeviceError::NotCharacterDevice { path: path.to_owned() });
    }
    Ok(DeviceNumber::from_stat(metadata.rdev()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(major: u32, minor: u32, name: &str) -> ExtraDevice {
        ExtraDevice { number: DeviceNumber { major, minor }, name: name.to_owned() }
    }

    #[test]
    fn a_device_is_given_by_number_or_by_path() {
        assert_eq!("1:5=nvidia0".parse::<ExtraDevice>().unwrap(), device(1, 5, "nvidia0"));
        assert_eq!("/dev/zero=nvidia0".parse::<ExtraDevice>().unwrap(), device(1, 5, "nvidia0"));
        assert_eq!(
            "226:128=/dev/dri/renderD128".parse::<ExtraDevice>().unwrap(),
            device(226, 128, "dri/renderD128")
        );
        assert_eq!(
            ExtraDevice::list("1:5=nvidia0, 1:3=kfd,").unwrap(),
            [device(1, 5, "nvidia0"), device(1, 3, "kfd")]
        );
    }

    #[test]
    fn only_a_canonical_name_is_a_gpu() {
        let gpu = |name: &str| device(1, 5, name).gpu();
        assert_eq!((gpu("nvidia0"), gpu("nvidia12")), (Some(0), Some(12)));
        for name in ["nvidiactl", "nvidia", "nvidia007", "nvidia-1", "nvidia99999999999", "kfd"] {
            assert_eq!(gpu(name), None, "{name}");
        }
    }

    #[test]
    fn each_mistake_is_explained() {
        let error = |text: &str| text.parse::<ExtraDevice>().unwrap_err().to_string();
        for text in ["", "nvidia0", "1=nvidia0", "1:=nvidia0", "1:+5=nvidia0", "1:5:6=x", "zero=nvidia0"] {
            assert!(error(text).contains("MAJOR:MINOR=NAME"), "{text}: {}", error(text));
        }
        assert!(error("4096:0=x").contains("out of range"), "{}", error("4096:0=x"));
        assert!(error("1:99999999999999=x").contains("out of range"));
        assert!(error("1:5=").contains("cannot name a device"));
        assert!(error("1:5=a b").contains("cannot name a device"));
        assert!(error("1:5=\u{1b}[2J").contains("\\u{1b}"), "the escape is escaped");
        assert!(error("/dev/no-such-node=x").contains("cannot look at /dev/no-such-node"));
        assert!(error("/proc/self/status=x").contains("no character device"));
    }

    proptest! {
        #[test]
        fn a_device_reads_back(major in 0..=MAX_MAJOR, minor in 0..=MAX_MINOR, name in "[a-zA-Z0-9][a-zA-Z0-9._/-]{0,20}") {
            let text = format!("{major}:{minor}={name}");
            prop_assert_eq!(text.parse::<ExtraDevice>().unwrap(), device(major, minor, &name));
        }

        #[test]
        fn hostile_text_never_panics(text in "\\PC*|[0-9:=,/a-z]*") {
            let _ = ExtraDevice::list(&text);
        }
    }
}

//! What the stand-in answers from: the file, the driver's table, and the faults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;

use crate::table::{self, Row};

/// A call has taken the driver's global lock and keeps it.
static DEADLOCK: AtomicBool = AtomicBool::new(false);

/// `nvmlReturn_t`.
pub type Status = u32;

/// The statuses that the stand-in has reason to return.
pub mod status {
    use super::Status;
    /// `NVML_SUCCESS`
    pub const SUCCESS: Status = 0;
    /// `NVML_ERROR_UNINITIALIZED`
    pub const UNINITIALIZED: Status = 1;
    /// `NVML_ERROR_INVALID_ARGUMENT`
    pub const INVALID_ARGUMENT: Status = 2;
    /// `NVML_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Status = 3;
    /// `NVML_ERROR_NOT_FOUND`
    pub const NOT_FOUND: Status = 6;
    /// `NVML_ERROR_INSUFFICIENT_SIZE`
    pub const INSUFFICIENT_SIZE: Status = 7;
    /// `NVML_ERROR_DRIVER_NOT_LOADED`
    pub const DRIVER_NOT_LOADED: Status = 9;
    /// `NVML_ERROR_FUNCTION_NOT_FOUND`
    pub const FUNCTION_NOT_FOUND: Status = 13;
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`
    pub const VERSION_MISMATCH: Status = 25;
    /// `NVML_ERROR_UNKNOWN`
    pub const UNKNOWN: Status = 999;
}

/// The file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct World {
    /// Driver version to claim.
    pub driver_version: Option<String>,
    /// GPUs, by index.
    pub gpus: Vec<StandinGpu>,
    /// The driver's memory table.
    pub driver: Option<PathBuf>,
    /// The driver's directory of GPUs, for when `gpus` is empty.
    pub information: Option<PathBuf>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// One GPU of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StandinGpu {
    /// UUID.
    pub uuid: String,
    /// Bus id as NVML writes it.
    pub bus_id: String,
    /// Minor of the device node.
    pub minor: u32,
    /// Marketing name.
    pub name: String,
    /// MIG mode; none: not supported.
    pub mig: Option<bool>,
    /// MiB; none: not supported.
    pub used_mib: Option<u64>,
    /// MiB.
    pub total_mib: u64,
    /// What the process lists hold.
    pub processes: Vec<StandinProcess>,
}

/// One line of a process list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandinProcess {
    /// Any number.
    pub pid: u32,
    /// MiB; none: not available.
    pub mib: Option<u64>,
    /// The list it stands in.
    #[serde(default)]
    pub kind: Kind,
    /// MIG instance.
    pub gpu_instance: Option<u32>,
}

/// The three lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Compute contexts.
    #[default]
    Compute,
    /// Graphics contexts.
    Graphics,
    /// MPS clients.
    Mps,
}

/// Something that goes wrong.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// C function or group.
    pub call: String,
    /// Only for this GPU.
    pub gpu: Option<u32>,
    /// What happens.
    #[serde(flatten)]
    pub action: Action,
}

/// What happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Action {
    /// Never returns.
    Hang,
    /// Never returns, and no call that is not answered yet does.
    Deadlock,
    /// Returns a status.
    Error {
        /// The status.
        status: Status,
    },
    /// The driver lacks the function.
    Absent,
    /// The structure version is unknown.
    Old,
    /// SIGSEGV.
    Crash,
    /// Prints, and goes on.
    Chatter {
        /// What.
        text: String,
    },
    /// Waits, and goes on.
    Sleep {
        /// Milliseconds.
        ms: u64,
    },
}

impl World {
    /// Reads the file that `STANDIN_NVML` names.
    ///
    /// # Errors
    ///
    /// A status and, on standard error, the reason: a mistake in a test's file should not be searched for.
    pub fn load() -> Result<Self, Status> {
        let path = std::env::var_os("STANDIN_NVML").ok_or_else(|| {
            eprintln!("stand-in NVML: STANDIN_NVML is not set");
            status::DRIVER_NOT_LOADED
        })?;
        let complain = |error: &dyn std::fmt::Display| {
            eprintln!("stand-in NVML: {}: {error}", Path::new(&path).display());
            status::UNKNOWN
        };
        let text = std::fs::read(&path).map_err(|error| complain(&error))?;
        let mut world: Self = serde_json::from_slice(&text).map_err(|error| complain(&error))?;
        if world.gpus.is_empty()
            && let Some(directory) = &world.information
        {
            world.gpus = gpus_of(directory).map_err(|error| complain(&error))?;
        }
        Ok(world)
    }

    /// Does what the faults for this call say; an error is what the call must return.
    ///
    /// # Errors
    ///
    /// The status of the first fault that has one.
    pub fn suffer(&self, call: &str, gpu: Option<u32>) -> Result<(), Status> {
        let meant = |fault: &&Fault| {
            (fault.call == call || fault.call == group_of(call)) && (fault.gpu.is_none() || fault.gpu == gpu)
        };
        for fault in self.faults.iter().filter(meant) {
            match &fault.action {
                Action::Hang => hang(),
                Action::Deadlock => {
                    DEADLOCK.store(true, Ordering::SeqCst);
                    hang()
                }
                Action::Error { status } => return Err(*status),
                Action::Absent => return Err(status::FUNCTION_NOT_FOUND),
                Action::Old => return Err(status::VERSION_MISMATCH),
                Action::Crash => crash(),
                Action::Chatter { text } => println!("{text}"),
                Action::Sleep { ms } => std::thread::sleep(std::time::Duration::from_millis(*ms)),
            }
        }
        if DEADLOCK.load(Ordering::SeqCst) {
            hang()
        }
        Ok(())
    }

    /// Used (if known) and installed MiB of a GPU, now.
    ///
    /// # Errors
    ///
    /// `UNKNOWN` when the driver's table cannot be read; `NOT_SUPPORTED` when the figure is not available.
    pub fn memory(&self, gpu: u32) -> Result<(u64, u64), Status> {
        if let Some(row) = self.rows()?.remove(&gpu) {
            return Ok((row.used, row.total));
        }
        let gpu = self.gpu(gpu)?;
        Ok((gpu.used_mib.ok_or(status::NOT_SUPPORTED)?, gpu.total_mib))
    }

    /// One process list of a GPU, now.
    ///
    /// # Errors
    ///
    /// As [`Self::memory`].
    pub fn processes(&self, gpu: u32, kind: Kind) -> Result<Vec<StandinProcess>, Status> {
        if let Some(row) = self.rows()?.remove(&gpu) {
            let client = |(pid, mib): &(u32, u64)| StandinProcess {
                pid: *pid,
                mib: Some(*mib),
                kind: Kind::Compute,
                gpu_instance: None,
            };
            return Ok(if kind == Kind::Compute {
                row.clients.iter().map(client).collect()
            } else {
                Vec::new()
            });
        }
        Ok(self.gpu(gpu)?.processes.iter().filter(|process| process.kind == kind).copied().collect())
    }

    /// A GPU by index.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` when there is none.
    pub fn gpu(&self, gpu: u32) -> Result<&StandinGpu, Status> {
        self.gpus.get(gpu as usize).ok_or(status::INVALID_ARGUMENT)
    }

    /// Whether this driver's third process calls write entries of 32 bytes.
    #[must_use]
    pub fn has_wide_entries(&self) -> bool {
        let version = self.driver_version.as_deref().and_then(|version| version.strip_prefix("535."));
        let minor = version.and_then(|rest| rest.split('.').next()?.parse().ok());
        minor.is_some_and(|minor: u32| (43..98).contains(&minor))
    }

    fn rows(&self) -> Result<BTreeMap<u32, Row>, Status> {
        let Some(path) = &self.driver else { return Ok(BTreeMap::new()) };
        let complain = |error: &dyn std::fmt::Display| {
            eprintln!("stand-in NVML: {}: {error}", path.display());
            status::UNKNOWN
        };
        let text = std::fs::read_to_string(path).map_err(|error| complain(&error))?;
        table::parse(&text).map_err(|line| complain(&format_args!("no line of a memory table: {line:?}")))
    }
}

fn group_of(call: &str) -> &'static str {
    match call {
        "nvmlInit_v2" | "nvmlInitWithFlags" => "init",
        call if call.starts_with("nvmlDeviceGetMemoryInfo") => "memory",
        call if call.contains("RunningProcesses") => "processes",
        "nvmlDeviceGetMigMode" => "mig",
        call if call.starts_with("nvmlDeviceGet") && call != "nvmlDeviceGetCount_v2" => "identity",
        _ => "other",
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn crash() -> ! {
    // SAFETY: both calls have no preconditions; the process is meant to die here.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    std::process::abort()
}

/// The GPUs of the driver's directory: one directory per bus id with a file `information` in it.
fn gpus_of(directory: &Path) -> std::io::Result<Vec<StandinGpu>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    paths.iter().map(|path| Ok(gpu_of(&std::fs::read_to_string(path.join("information"))?))).collect()
}

fn gpu_of(information: &str) -> StandinGpu {
    let field = |name: &str| {
        let line =
            information.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name));
        line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let bus_id = field("Bus Location");
    StandinGpu {
        uuid: field("GPU UUID"),
        // NVML writes eight digits of domain.
        bus_id: if bus_id.len() == "0000:00:00.0".len() {
            format!("0000{bus_id}").to_uppercase()
        } else {
            bus_id
        },
        minor: field("Device Minor").parse().unwrap_or_default(),
        name: field("Model"),
        ..StandinGpu::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_documentation_is_read() {
        let documentation = include_str!("lib.rs");
        let from = documentation.find("//! {\n").expect("it has an example");
        let to = documentation[from..].find("//! ```").expect("the example ends") + from;
        let example: String =
            documentation[from..to].lines().map(|line| line.trim_start_matches("//!")).collect();
        let world: World = serde_json::from_str(&example).expect("it is a world");
        assert_eq!(
            world.gpus[0].processes[1],
            StandinProcess { pid: 7, mib: None, kind: Kind::Compute, gpu_instance: None }
        );
        assert!(
            matches!(world.faults[0], Fault { gpu: Some(0), action: Action::Hang, .. }),
            "{:?}",
            world.faults
        );
    }

    #[test]
    fn a_fault_meets_its_call_its_group_and_its_gpu_only() {
        let text = r#"{"faults":[{"call":"memory","gpu":1,"do":"error","status":15},{"call":"nvmlInit_v2","do":"old"}]}"#;
        let world: World = serde_json::from_str(text).expect("it is a world");
        assert_eq!(world.suffer("nvmlDeviceGetMemoryInfo_v2", Some(1)), Err(15));
        assert_eq!(world.suffer("nvmlDeviceGetMemoryInfo", Some(1)), Err(15));
        assert_eq!(world.suffer("nvmlDeviceGetMemoryInfo_v2", Some(0)), Ok(()));
        assert_eq!(world.suffer("nvmlDeviceGetName", Some(1)), Ok(()));
        assert_eq!(world.suffer("nvmlInit_v2", None), Err(status::VERSION_MISMATCH));
    }

    #[test]
    fn the_drivers_information_is_read_as_the_driver_writes_it() {
        let gpu = gpu_of(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t GPU-6e3e\nBus Location: \t 0000:0f:00.0\nDevice Minor: \t 3\n",
        );
        assert_eq!((gpu.uuid.as_str(), gpu.minor, gpu.name.as_str()), ("GPU-6e3e", 3, "NVIDIA H200"));
        assert_eq!(gpu.bus_id, "00000000:0F:00.0");
    }
}

//! The helper process: the only place that loads and calls NVML.
//!
//! It asks in the order in which answers are most wanted should it hang: who the GPUs are, then the memory of all of
//! them, then processes. Each GPU has a thread, so that one stuck GPU does not keep the others from answering where
//! the driver lets them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_try, nvml_try_count};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use rustix::process::{Pid, Resource, Rlimit, Signal};

use super::facts::{Fact, ListedProcess, Question};
use super::library;

/// First argument of this program when it is to be the helper: `gpu-tracer __nvml-helper [PARENT-PID [LIBRARY]]`.
pub const HELPER_ARGUMENT: &str = "__nvml-helper";

/// How long a GPU that has told its memory waits for the others before it is asked for processes. The process query
/// takes the driver's global lock, and where it hangs no memory figure comes after it.
const MEMORY_FIRST: Duration = Duration::from_millis(200);

/// How often a list is asked for again because it grew while it was asked for.
const LIST_ATTEMPTS: usize = 3;

/// NVML's status for a structure version it does not know.
const VERSION_MISMATCH: u32 = 25;

/// NVML's status for a function that has been retired.
const DEPRECATED: u32 = 26;

/// Runs the helper. To be called first thing in `main`, before any file is opened or thread started, when the first
/// argument is [`HELPER_ARGUMENT`].
///
/// Ends the process without running the library's destructors once everything is told, since they may hang.
#[must_use]
pub fn helper_main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2);
    let parent = arguments.next();
    let named = arguments.next();
    let told = settle(parent).and_then(|()| take_over_stdout()).map(|out| Teller { out: Mutex::new(out) });
    match told {
        Ok(teller) => {
            if !ask_everything(&teller, named) {
                return ExitCode::FAILURE;
            }
            // SAFETY: `_exit` ends the process; nothing of it is needed any more and every fact has been written.
            unsafe { libc::_exit(0) }
        }
        Err(error) => {
            // Nobody may be listening, and that is fine.
            let _ = writeln!(io::stderr(), "gpu-tracer: the NVML helper cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes this process one that ends with its parent, leaves no core, and holds nothing it did not open itself.
fn settle(parent: Option<OsString>) -> io::Result<()> {
    if let Some(parent) = parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let expected = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
        let expected =
            expected.ok_or_else(|| io::Error::other("usage: __nvml-helper [PARENT-PID [LIBRARY]]"))?;
        // The parent may have died before the death signal was asked for.
        if rustix::process::getppid() != Some(expected) {
            return Err(io::Error::other("its parent is gone"));
        }
    }
    // A core of a process with GPU mappings takes long to write, and holds the GPU meanwhile.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::thread::set_name(c"gpu-tracer-nvml");
    close_inherited_files()
}

fn close_inherited_files() -> io::Result<()> {
    // SAFETY: `helper_main` runs before this process opens any file of its own, so no owner of a descriptor above
    // standard error exists in it; they are all inherited.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    if closed == 0 {
        return Ok(());
    }
    // Before Linux 5.9.
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // SAFETY: as above; the descriptor of the directory itself is closed already, and closing it again is an
        // error without effect in a process with one thread.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Keeps the pipe for facts alone: whatever the library prints goes nowhere.
fn take_over_stdout() -> io::Result<File> {
    let out = io::stdout().as_fd().try_clone_to_owned()?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(File::from(out))
}

/// Writes facts, one line each, whole.
struct Teller {
    out: Mutex<File>,
}

impl Teller {
    /// Ends the process when nobody listens any more.
    fn tell(&self, fact: &Fact) {
        let Ok(mut line) = serde_json::to_vec(fact) else { return };
        line.push(b'\n');
        let written = self.out.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        if written.is_err() {
            // SAFETY: `_exit` ends the process; there is nobody left to work for.
            unsafe { libc::_exit(1) }
        }
    }

    /// Announces a question, asks it, and tells the answer or the refusal.
    fn ask(
        &self,
        question: Question,
        gpu: Option<u32>,
        answer: impl FnOnce() -> Result<Fact, NvmlError>,
    ) -> bool {
        self.tell(&Fact::Asking { question, gpu });
        let answer = answer();
        let answered = answer.is_ok();
        self.tell(&answer.unwrap_or_else(|error| Fact::Refused {
            question,
            gpu,
            unsupported: is_missing(&error) || matches!(error, NvmlError::NotSupported),
            reason: in_words(&error),
        }));
        answered
    }
}

/// Returns whether the conversation came to its end.
fn ask_everything(teller: &Teller, named: Option<OsString>) -> bool {
    teller.tell(&Fact::Asking { question: Question::Load, gpu: None });
    let (nvml, name) = match load(&library::candidates(named)) {
        Ok(loaded) => loaded,
        Err(fact) => {
            teller.tell(&fact);
            teller.tell(&Fact::Done);
            return true;
        }
    };
    let driver = nvml.sys_driver_version().ok();
    teller.tell(&Fact::Library { name, driver: driver.clone() });
    let mut count = 0;
    teller.ask(Question::Count, None, || {
        count = nvml.device_count()?;
        Ok(Fact::Count { gpus: count })
    });
    let devices: Vec<(u32, Device<'_>)> =
        (0..count).filter_map(|gpu| Some((gpu, identify(teller, &nvml, gpu)?))).collect();
    let older_lists = driver.as_deref().is_some_and(has_wide_process_entries);
    let gate = Gate::new(devices.len());
    std::thread::scope(|scope| {
        for (gpu, device) in &devices {
            let task = || {
                ask_memory(teller, *gpu, device);
                gate.pass();
                ask_processes(teller, *gpu, device, older_lists);
            };
            if std::thread::Builder::new().spawn_scoped(scope, task).is_err() {
                // Out of threads: in turn, then.
                ask_memory(teller, *gpu, device);
                gate.leave();
                ask_processes(teller, *gpu, device, older_lists);
            }
        }
    });
    teller.tell(&Fact::Done);
    // Unloading runs code of the library, and could hang.
    std::mem::forget(nvml);
    true
}

/// Loads and initialises the first library that works.
fn load(candidates: &[OsString]) -> Result<(Nvml, String), Fact> {
    let mut not_loaded = Vec::new();
    let mut not_working = None;
    for name in candidates {
        match Nvml::builder().lib_path(name).init() {
            Ok(nvml) => return Ok((nvml, name.to_string_lossy().into_owned())),
            Err(NvmlError::LibloadingError(error)) => not_loaded.push(error.to_string()),
            Err(error) => {
                not_working.get_or_insert((name, error));
            }
        }
    }
    Err(match not_working {
        Some((_, NvmlError::DriverNotLoaded)) => {
            Fact::Absent { reason: "the NVIDIA driver is not loaded".to_owned() }
        }
        Some((name, error)) => Fact::Refused {
            question: Question::Load,
            gpu: None,
            reason: format!("{}: {}", name.display(), in_words(&error)),
            unsupported: false,
        },
        None => Fact::Absent { reason: why_none_was_loaded(&not_loaded) },
    })
}

/// The loader's errors, without those that only say that a usual place is empty.
fn why_none_was_loaded(errors: &[String]) -> String {
    let empty_place = |error: &&String| error.ends_with("No such file or directory");
    let telling: Vec<&str> = errors.iter().filter(|error| !empty_place(error)).map(String::as_str).collect();
    match (errors, &telling[..]) {
        ([only], _) => only.clone(),
        (_, []) => format!(
            "libnvidia-ml.so.1 is not in any usual place (name it in {}, or install the driver's user libraries)",
            library::LIBRARY_VARIABLE
        ),
        (_, telling) => telling.join("; "),
    }
}

fn identify<'nvml>(teller: &Teller, nvml: &'nvml Nvml, gpu: u32) -> Option<Device<'nvml>> {
    let mut found = None;
    teller.ask(Question::Identity, Some(gpu), || {
        let device = nvml.device_by_index(gpu)?;
        let fact = Fact::Gpu {
            gpu,
            minor: device.minor_number().ok(),
            uuid: device.uuid().ok(),
            bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
            name: device.name().ok(),
        };
        found = Some(device);
        Ok(fact)
    });
    found
}

fn ask_memory(teller: &Teller, gpu: u32, device: &Device<'_>) {
    teller.ask(Question::Memory, Some(gpu), || {
        let (used, total) = match device.memory_info() {
            Err(error) if is_missing(&error) => memory_before_510(device)?,
            other => other.map(|memory| (memory.used, memory.total))?,
        };
        Ok(Fact::Memory { gpu, used, total })
    });
}

/// Used and installed bytes by the first version of the call, which counts reserved memory as used.
fn memory_before_510(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref();
    let call = call.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    // SAFETY: `info` is the C structure of three integers that this call fills; all zeroes is a value of it. `device`
    // borrows the initialised library, so its handle is valid, and the call keeps neither pointer.
    let info = unsafe {
        let mut info = std::mem::zeroed();
        nvml_try(call(device.handle(), &mut info))?;
        info
    };
    Ok((info.used, info.total))
}

fn ask_processes(teller: &Teller, gpu: u32, device: &Device<'_>, older_lists: bool) {
    for question in [Question::Compute, Question::Graphics, Question::Mps] {
        teller.ask(question, Some(gpu), || {
            let list = list(device, question, older_lists)?.iter().map(listed).collect();
            Ok(Fact::Processes { gpu, question, list })
        });
    }
    teller.ask(Question::Mig, Some(gpu), || Ok(Fact::Mig { gpu, enabled: device.mig_mode()?.current != 0 }));
}

/// One process list, by the newest version of the call that the driver has. Drivers before 510 have only the second,
/// and those of the 535 series have one that fills larger entries than it says; see [`has_wide_process_entries`].
fn list(device: &Device<'_>, question: Question, older: bool) -> Result<Vec<ProcessInfo>, NvmlError> {
    let newest = || match question {
        Question::Graphics => device.running_graphics_processes(),
        Question::Mps => device.mps_running_compute_processes(),
        _ => device.running_compute_processes(),
    };
    let second = || match question {
        Question::Graphics => device.running_graphics_processes_v2(),
        Question::Mps => second_mps_list(device),
        _ => device.running_compute_processes_v2(),
    };
    let mut attempt = 1;
    loop {
        let list = match if older { second() } else { newest() } {
            Err(error) if !older && is_missing(&error) => second(),
            other => other,
        };
        match list {
            Err(NvmlError::InsufficientSize(_)) if attempt < LIST_ATTEMPTS => attempt += 1,
            other => return other,
        }
    }
}

/// The MPS clients by the second version of the call, which the wrapper does not wrap.
fn second_mps_list(device: &Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let call = device.nvml().lib().nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref();
    let call = call.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    let mut count = 0;
    // SAFETY: `device` borrows the initialised library, so its handle is valid. A count of zero asks for the count, and
    // the call then writes no entry.
    nvml_try_count(unsafe { call(device.handle(), &mut count, std::ptr::null_mut()) })?;
    // Clients may come in between; the driver lists at most 950.
    count = count.saturating_add(5).min(1 << 16);
    let mut list = Vec::new();
    // SAFETY: an entry is a C structure of integers, of which all zeroes is a value.
    list.resize_with(count as usize, || unsafe { std::mem::zeroed() });
    // SAFETY: as above, with room for `count` entries.
    nvml_try(unsafe { call(device.handle(), &mut count, list.as_mut_ptr()) })?;
    list.truncate(count as usize);
    Ok(list.into_iter().map(ProcessInfo::from).collect())
}

fn listed(process: &ProcessInfo) -> ListedProcess {
    ListedProcess {
        pid: process.pid,
        bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        gpu_instance: process.gpu_instance_id,
        compute_instance: process.compute_instance_id,
    }
}

/// Whether `nvmlDevice*RunningProcesses_v3` of this driver writes entries of 32 bytes where every other driver writes
/// 24: the 535 series from 535.43 up to, and without, 535.98. Its second version is as everywhere.
fn has_wide_process_entries(driver: &str) -> bool {
    let minor = driver
        .strip_prefix("535.")
        .and_then(|rest| rest.split('.').next())
        .and_then(|minor| minor.parse().ok());
    minor.is_some_and(|minor: u32| (43..98).contains(&minor))
}

/// The driver does not have this version of the call.
fn is_missing(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::UnexpectedVariant(VERSION_MISMATCH | DEPRECATED)
    )
}

fn in_words(error: &NvmlError) -> String {
    match error {
        NvmlError::LibRmVersionMismatch => {
            "the library and the loaded driver have different versions (reload the driver or reboot)"
                .to_owned()
        }
        NvmlError::NoPermission => "no permission to talk to the driver".to_owned(),
        NvmlError::UnexpectedVariant(status) => format!("NVML status {status}"),
        other => other.to_string(),
    }
}

/// Lets threads on when all have come, or after [`MEMORY_FIRST`].
struct Gate {
    missing: Mutex<usize>,
    moved: Condvar,
}

impl Gate {
    fn new(threads: usize) -> Self {
        Self { missing: Mutex::new(threads), moved: Condvar::new() }
    }

    /// Counts this one as come, without waiting.
    fn leave(&self) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing = missing.saturating_sub(1);
        self.moved.notify_all();
    }

    fn pass(&self) {
        self.leave();
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether it was the others or the time does not matter.
        drop(self.moved.wait_timeout_while(missing, MEMORY_FIRST, |missing| *missing > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_early_535_drivers_write_wide_entries() {
        for driver in ["535.43.02", "535.54.03", "535.86.05", "535.86.10"] {
            assert!(has_wide_process_entries(driver), "{driver}");
        }
        for driver in ["530.41.03", "535.98", "535.183.01", "545.23.06", "580.159.04", "", "535", "535.x"] {
            assert!(!has_wide_process_entries(driver), "{driver}");
        }
    }

    #[test]
    fn a_call_that_the_driver_lacks_is_told_from_one_that_fails() {
        for missing in [13, 25, 26] {
            assert!(is_missing(&NvmlError::from(missing)), "status {missing}");
        }
        for failing in [4, 15, 17, 999] {
            assert!(!is_missing(&NvmlError::from(failing)), "status {failing}");
        }
    }

    #[test]
    fn a_gate_opens_for_the_last_and_does_not_wait_for_the_lost() {
        let gate = Gate::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| gate.pass());
            scope.spawn(|| gate.pass());
        });
        assert_eq!(*gate.missing.lock().expect("nobody panicked"), 0);
        let alone = Gate::new(2);
        alone.pass();
        assert_eq!(*alone.missing.lock().expect("nobody panicked"), 1);
    }
}

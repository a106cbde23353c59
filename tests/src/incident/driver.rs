//! The stand-in driver as a process uses it: its requests, its knobs, its table of memory.
//!
//! Numbers of requests come from `standin.h` itself, so that there is one place where they are written down.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::stage::Undo;
use crate::worker::{Order, Worker};

/// What a test program says to the driver.
const HEADER: &str = include_str!("../../standin-driver/standin.h");
/// Where it takes commands.
const CONTROL: &str = "/proc/driver/standin-nvidia/control";
/// Where it tells who uses how much.
const MEMORY: &str = "/proc/driver/standin-nvidia/memory";
/// GPUs.
pub const GPUS: u32 = 8;
/// Waits in uninterruptible sleep (`STANDIN_HANG_UNINTERRUPTIBLE`).
const UNINTERRUPTIBLE: u32 = 2;

/// The minor number of the GPU with this index: indexes follow the bus, minors do not.
#[must_use]
pub fn minor(index: u32) -> u32 {
    (index + 3) % GPUS
}

/// The number of a request, by its name without `STANDIN_`.
///
/// # Errors
///
/// A name that the header does not define as one.
pub fn number(name: &str) -> Result<u64> {
    let line = HEADER
        .lines()
        .find_map(|line| line.strip_prefix("#define STANDIN_")?.strip_prefix(name)?.strip_prefix(' '))
        .with_context(|| format!("standin.h defines no STANDIN_{name}"))?;
    let (direction, rest) = line.trim().split_once('(').with_context(|| format!("no request: {line}"))?;
    let words: Vec<&str> = rest.trim_end_matches(')').split(',').map(str::trim).collect();
    let direction: u64 = match direction {
        "_IO" => 0,
        "_IOW" => 1,
        "_IOWR" => 3,
        other => bail!("{other} makes no request"),
    };
    let kind = words.first().and_then(|word| word.trim_matches('\'').bytes().next());
    let kind = u64::from(kind.with_context(|| format!("no letter: {line}"))?);
    let place: u64 = words.get(1).with_context(|| format!("no number: {line}"))?.parse()?;
    let size: u64 = match words.get(2).copied() {
        None => 0,
        Some("__u32" | "struct standin_fd") => 4,
        Some("struct standin_memory") => 8,
        Some(other) => bail!("how long is {other}?"),
    };
    Ok(direction << 30 | size << 16 | kind << 8 | place)
}

/// Turns a knob.
///
/// # Errors
///
/// If the driver is not there or does not know it.
pub fn tell(command: &str) -> Result<()> {
    fs::write(CONTROL, command).with_context(|| format!("telling the stand-in driver: {command}"))
}

/// Is this a guest with the stand-in driver (`cargo xtask vm`)? Says so where not, for the tests of `program`.
#[must_use]
pub fn is_loaded(program: &str) -> bool {
    let loaded = Path::new("/proc/driver/standin-nvidia").exists();
    if !loaded {
        eprintln!("SKIPPED: the stand-in driver is not loaded here; run `cargo xtask vm --test {program}`");
    }
    loaded
}

/// As long as it lives a test turns the driver's knobs; they are put back at its end.
#[derive(Debug)]
pub struct Knobs(());

impl Knobs {
    /// If [the driver is there](is_loaded).
    #[must_use]
    pub fn take(program: &str) -> Option<Self> {
        is_loaded(program).then_some(Self(()))
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        let _ = tell("clear");
    }
}

/// Puts every knob back, lets everybody go and, at the very end, resets all GPUs.
#[must_use]
pub fn undo() -> Undo {
    let every = |knob: &str| -> Vec<String> {
        (0..GPUS).map(|minor| knob.replace('N', &minor.to_string())).collect()
    };
    Undo::Tell {
        file: PathBuf::from(CONTROL),
        first: vec!["clear".to_owned()],
        last: [every("leak N 0"), every("baseline N 0"), every("reset N")].concat(),
    }
}

/// Used memory by GPU index, MiB.
///
/// # Errors
///
/// If the driver is not there.
pub fn used() -> Result<BTreeMap<u32, u64>> {
    let table = fs::read_to_string(MEMORY).context(MEMORY)?;
    let mut used = BTreeMap::new();
    for line in table.lines() {
        if let ["gpu", index, "used", mib, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
            used.insert(index.parse()?, mib.parse()?);
        }
    }
    Ok(used)
}

/// A process's client of the driver: its files, as its descriptors.
#[derive(Clone, Debug)]
pub struct Client {
    /// `/dev/nvidiactl`.
    pub ctl: c_int,
    /// `/dev/nvidia-uvm`.
    pub uvm: c_int,
    /// `/dev/nvidiaN`, by GPU index.
    pub gpus: BTreeMap<u32, c_int>,
}

/// How much a process maps of the control device: what a process that only initialised the driver does, and what one that
/// computes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// `cuInit`, no more.
    Idle,
    /// A context with work in it.
    Compute,
}

impl Client {
    /// Opens and maps what a process that uses these GPUs opens and maps.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub fn open(worker: &Worker, gpus: &[u32], how: Use) -> Result<Self> {
        let ctl = worker.open(Path::new("/dev/nvidiactl"))?;
        let uvm = worker.open(Path::new("/dev/nvidia-uvm"))?;
        ask(worker, uvm, "UVM_INITIALIZE", &[])?;
        let mut client = Self { ctl, uvm, gpus: BTreeMap::new() };
        for index in gpus {
            let fd = worker.open(Path::new(&format!("/dev/nvidia{}", minor(*index))))?;
            ask(worker, fd, "REGISTER_FD", &[ctl.cast_unsigned()])?;
            worker.map(fd)?;
            client.gpus.insert(*index, fd);
        }
        let attached = gpus.iter().fold(0u32, |bits, index| bits | 1 << minor(*index));
        ask(worker, ctl, "ATTACH_GPUS", &[attached])?;
        let maps = match how {
            Use::Idle => 2,
            Use::Compute => 6,
        };
        for _ in 0..maps {
            worker.map(ctl)?;
        }
        Ok(client)
    }

    /// Memory that NVML puts down to the worker.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub fn allocate(&self, worker: &Worker, index: u32, mib: u32) -> Result<()> {
        ask(worker, self.ctl, "ALLOCATE", &[minor(index), mib])
    }

    /// Memory that NVML puts down to nobody, gone with the process all the same.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub fn allocate_managed(&self, worker: &Worker, index: u32, mib: u32) -> Result<()> {
        ask(worker, self.uvm, "UVM_ALLOCATE", &[minor(index), mib])
    }

    /// Another file that holds everything this client has: exported memory.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub fn export(&self, worker: &Worker) -> Result<c_int> {
        let exported = worker.open(Path::new("/dev/nvidiactl"))?;
        ask(worker, self.ctl, "EXPORT", &[exported.cast_unsigned()])?;
        Ok(exported)
    }

    /// Has this task wait inside the driver, where no signal reaches it, until it is let go.
    ///
    /// # Errors
    ///
    /// What the task says.
    pub fn hang(&self, task: &Worker) -> Result<()> {
        task.order(Order::RequestForGood(self.ctl, number("HANG")?, UNINTERRUPTIBLE.to_ne_bytes().to_vec()))
    }
}

fn ask(worker: &Worker, fd: c_int, request: &str, words: &[u32]) -> Result<()> {
    let argument = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    worker.order(Order::Request(fd, number(request)?, argument)).with_context(|| request.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_that_c_gives_them() {
        let numbers: Vec<u64> = ["REGISTER_FD", "ATTACH_GPUS", "ALLOCATE", "UVM_INITIALIZE", "UVM_ALLOCATE"]
            .iter()
            .map(|name| number(name).expect("the header defines it"))
            .collect();
        assert_eq!(numbers, [0xc004_46c9, 0x4004_46d4, 0x4008_46e0, 0x5501, 0x4008_5502]);
        assert!(number("HANG_KILLABLE").is_err() && number("ALLOC").is_err());
    }
}

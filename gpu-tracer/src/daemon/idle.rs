//! What each GPU showed when nobody held it: kept in the state directory, so that the next daemon knows it as well.
//!
//! The daemon itself never asks NVML, which opens devices and can hang. Whoever asks it who holds what and has asked NVML
//! besides tells it (`POST /v1/idle`), and it takes that down where its own look says that nobody holds the GPU.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::diagnose::{MOST_IDLE_MIB, idle_gpus};
use crate::kernel;
use crate::model::report::{GpuReport, Report};

const NAME: &str = "idle-memory.json";
/// No more of the file is read.
const MAX: u64 = 1 << 20;
/// GPUs that are remembered: more than any host has.
const MOST: usize = 128;
/// Longest key.
const LONGEST_KEY: usize = 64;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Idle {
    /// The least that it showed.
    mib: u64,
    /// When, wall clock, RFC 3339.
    at: String,
}

/// The file. What was seen under another kernel or driver says nothing about this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Content {
    boot_id: String,
    driver: String,
    gpus: BTreeMap<String, Idle>,
}

/// What GPUs show that nobody holds, as told by somebody who has asked NVML.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    gpus: Vec<ToldOfGpu>,
}

#[derive(Debug, Deserialize)]
struct ToldOfGpu {
    gpu: u32,
    mib: u64,
}

/// What is remembered.
#[derive(Debug)]
pub(super) struct IdleMemory {
    path: PathBuf,
    content: Content,
}

impl IdleMemory {
    /// Reads what an earlier daemon left; nothing, if that cannot be read or is about another kernel or driver.
    pub(super) fn open(directory: &Path) -> Self {
        let path = directory.join(NAME);
        let mut memory = Self { content: Content::default(), path };
        match memory.read() {
            Ok(content) => memory.content = content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                super::log::warning(&format!("{} is not used: {error}", memory.path.display()));
            }
        }
        memory.forget_what_is_over();
        memory
    }

    fn read(&self) -> io::Result<Content> {
        let mut text = Vec::new();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
        file.take(MAX).read_to_end(&mut text)?;
        let mut content: Content = serde_json::from_slice(&text)?;
        content.gpus.retain(|key, _| key.len() <= LONGEST_KEY);
        while content.gpus.len() > MOST {
            content.gpus.pop_last();
        }
        Ok(content)
    }

    /// The driver may have been replaced while the daemon ran.
    fn forget_what_is_over(&mut self) {
        let root = Path::new("/");
        let (boot_id, driver) = (kernel::boot_id(root).unwrap_or_default(), driver());
        if (&self.content.boot_id, &self.content.driver) != (&boot_id, &driver) {
            self.content = Content { boot_id, driver, gpus: BTreeMap::new() };
        }
    }

    /// Adds to a report what is remembered of its GPUs.
    pub(super) fn add_to(&mut self, report: &mut Report) {
        self.forget_what_is_over();
        for gpu in &mut report.gpus {
            let key = key(gpu);
            gpu.idle_mib = self.content.gpus.get(&key).map(|idle| idle.mib);
        }
    }

    /// Takes down what was told of those GPUs that are idle by this report.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn note(&mut self, told: &Told, report: &Report) -> anyhow::Result<()> {
        let idle = idle_gpus(report);
        for told in told.gpus.iter().filter(|told| told.mib <= MOST_IDLE_MIB && idle.contains(&told.gpu)) {
            if let Some(gpu) = report.gpus.iter().find(|gpu| gpu.index == told.gpu) {
                self.record(gpu, told.mib, &report.taken_at)?;
            }
        }
        Ok(())
    }

    /// Takes down what a GPU shows while nobody holds it. The least counts: a leak must not become the measure of leaks.
    ///
    /// # Errors
    /// It cannot be written.
    fn record(&mut self, gpu: &GpuReport, mib: u64, at: &str) -> anyhow::Result<()> {
        self.forget_what_is_over();
        let key = key(gpu);
        let gpus = &mut self.content.gpus;
        let full = gpus.len() >= MOST && !gpus.contains_key(&key);
        if full || key.len() > LONGEST_KEY || gpus.get(&key).is_some_and(|idle| idle.mib <= mib) {
            return Ok(());
        }
        gpus.insert(key, Idle { mib, at: at.to_owned() });
        self.write().with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn write(&self) -> io::Result<()> {
        super::lastly::replace(&self.path, |file| {
            file.write_all(&serde_json::to_vec_pretty(&self.content)?)?;
            file.write_all(b"\n")?;
            file.sync_all()
        })
    }
}

/// UUID, or what comes nearest to one.
fn key(gpu: &GpuReport) -> String {
    let known = gpu.uuid.clone().or_else(|| gpu.bus_id.clone());
    known.unwrap_or_else(|| format!("index {}", gpu.index))
}

/// Version of the driver; empty where there is none.
fn driver() -> String {
    fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::tests::report;

    fn gpu(index: u32) -> GpuReport {
        GpuReport { index, uuid: Some(format!("GPU-{index}")), ..GpuReport::default() }
    }

    fn told(memory: &mut IdleMemory) -> Vec<Option<u64>> {
        let mut report = report(2);
        for gpu in &mut report.gpus {
            gpu.uuid = Some(format!("GPU-{}", gpu.index));
        }
        memory.add_to(&mut report);
        report.gpus.iter().map(|gpu| gpu.idle_mib).collect()
    }

    #[test]
    fn the_least_that_was_seen_is_remembered_by_the_next_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = IdleMemory::open(dir.path());
        assert_eq!(told(&mut memory), [None, None]);
        for mib in [3, 60, 1, 2] {
            memory.record(&gpu(1), mib, "2026-11-29T15:02:11Z").unwrap();
        }
        assert_eq!(told(&mut memory), [None, Some(1)]);
        assert_eq!(told(&mut IdleMemory::open(dir.path())), [None, Some(1)]);
    }

    #[test]
    fn what_was_seen_before_a_boot_or_under_another_driver_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for (key, other) in [("boot_id", "another"), ("driver", "0.0")] {
            IdleMemory::open(dir.path()).record(&gpu(0), 3, "").unwrap();
            let path = dir.path().join(NAME);
            let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(file["gpus"]["GPU-0"]["mib"], 3);
            file[key] = other.into();
            fs::write(&path, file.to_string()).unwrap();
            assert_eq!(told(&mut IdleMemory::open(dir.path())), [None, None], "{key}");
        }
    }

    #[test]
    fn a_spoilt_file_is_an_empty_one_and_a_large_one_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"gpus\": 7}", "\0\0"] {
            fs::write(dir.path().join(NAME), text).unwrap();
            assert_eq!(told(&mut IdleMemory::open(dir.path())), [None, None], "{text:?}");
        }
        let mut memory = IdleMemory::open(dir.path());
        for index in 0..1000 {
            memory.record(&gpu(index), 1, "").unwrap();
        }
        assert_eq!(memory.content.gpus.len(), MOST);
        assert_eq!(told(&mut memory), [Some(1), Some(1)]);
    }
}

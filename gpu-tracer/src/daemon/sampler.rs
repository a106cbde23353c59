//! How much memory of each GPU is used, measured now and then for the journal.
//!
//! It is NVML that knows, in its helper process, which opens the devices for that: off unless asked for, and never while nobody
//! holds a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::inbox::{Order, Outbox};
use crate::gpu::nvml;
use crate::kernel::boot_now;
use crate::model::GpuMemory;

/// NVML hangs behind a stuck teardown, just when it is interesting.
const DEADLINE: Duration = Duration::from_secs(5);

/// The core's side of it.
#[derive(Clone, Default)]
pub(super) struct Sampler(Arc<AtomicBool>);

impl Sampler {
    /// Starts the thread, if somebody wants its figures.
    pub(super) fn start(every: Option<Duration>, core: Outbox) -> std::io::Result<Self> {
        let sampler = Self::default();
        let Some(every) = every else { return Ok(sampler) };
        let wanted = sampler.clone();
        thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            loop {
                thread::sleep(every);
                if !wanted.0.swap(false, Ordering::Relaxed) {
                    continue;
                }
                let answer = nvml::start().finish(DEADLINE);
                let memory: Vec<GpuMemory> = answer.gpus.into_iter().map(|gpu| gpu.memory).collect();
                if !memory.is_empty() && !core.send(Order::Measured(boot_now(), memory)) {
                    return;
                }
            }
        })?;
        Ok(sampler)
    }

    /// Somebody holds a device, or has until now.
    pub(super) fn want(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

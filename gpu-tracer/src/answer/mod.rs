//! Puts ledger, process facts and GPU memory together into one report: the only place where they meet.
//!
//! [`holders`] in three steps: [`look`] takes a snapshot (and a second one where the first leaves a doubt),
//! the ledger says who refers to what, [`assemble`] adds what people want to know about those who do. Where a daemon
//! answers ([`ask`]), it has done all that with a memory longer than one look.

mod ask;
mod assemble;
mod closing;
mod doctor;
mod look;
mod opening;
pub(crate) mod percent;
mod selected;
mod wait;
mod why;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

pub use self::ask::{AskError, stream};
pub use self::doctor::doctor;
use self::look::Looker;
pub(crate) use self::look::{Looked, half_gone, half_gone_task, module_references, pid_namespace};
pub(crate) use self::opening::{opening_task, opening_tasks};
pub(crate) use self::selected::narrow;
pub use self::wait::{WaitOptions, Waited, wait};
pub use self::why::why;
pub(crate) use self::why::{Ask, Inquiry, judge};
use crate::diagnose::{self, MOST_IDLE_MIB, Roles};
use crate::gpu::claims::{NvmlAnswer, NvmlStatus};
use crate::gpu::nvml;
use crate::gpu::selector;
use crate::kernel::{self, Clock, Devices, ExtraDevice};
use crate::model::report::{Cost, GpuReport, Report};

/// How long NVML may take; it hangs behind a stuck teardown.
const NVML_DEADLINE: Duration = Duration::from_secs(2);

/// What is asked, as written on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// GPUs and devices, see [`crate::gpu::selector`]; none means all.
    pub selectors: Vec<String>,
    /// Devices that are to count as GPUs.
    pub devices: Vec<ExtraDevice>,
    /// Where to ask the daemon; `None` means where it usually listens.
    pub socket: Option<PathBuf>,
    /// Do not ask the daemon.
    pub standalone: bool,
    /// Who plays which role; a daemon goes by what it was told itself.
    pub roles: Roles,
}

/// To microseconds: finer is noise.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// Who holds which device now.
///
/// # Errors
/// A device or GPU that does not exist, or a `/proc` that cannot be read. What merely could not be seen is no error: it
/// is in the report's coverage.
pub fn holders(question: &Question) -> anyhow::Result<Report> {
    match ask::holders(question) {
        Ok(mut report) => {
            // After the daemon's look: the helper opens devices itself.
            assemble::add_memory(&mut report, &nvml::start().finish(NVML_DEADLINE));
            tell_idle(question, &report);
            Ok(report)
        }
        Err(AskError::Refused(problem)) => Err(anyhow::anyhow!(problem)),
        Err(why) => {
            tracing::debug!(?why, "the daemon is not asked");
            by_ourselves(question)
        }
    }
}

/// Tells the daemon that gave this report what the idle GPUs show, where that is news to it. Only root is believed.
fn tell_idle(question: &Question, report: &Report) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let idle = diagnose::idle_gpus(report);
    let figure = |gpu: &GpuReport| {
        let used = gpu.memory_used_mib.filter(|used| *used <= MOST_IDLE_MIB && idle.contains(&gpu.index))?;
        gpu.idle_mib.is_none_or(|known| used < known).then_some((gpu.index, used))
    };
    let news: Vec<(u32, u64)> = report.gpus.iter().filter_map(figure).collect();
    if !news.is_empty()
        && let Err(error) = ask::tell_idle(question, &news)
    {
        tracing::debug!(?error, "what idle GPUs show is not remembered");
    }
}

/// The report for what a daemon has seen, without memory figures.
pub(crate) fn report(devices: &Devices, looked: Looked, roles: &Roles, cost: Cost) -> Report {
    let nvml = NvmlAnswer::without_figures(NvmlStatus::Absent(String::new()));
    let mut report = assemble::report(devices, looked, &nvml, roles, &Clock::now());
    report.cost = cost;
    report
}

/// Without a daemon.
fn by_ourselves(question: &Question) -> anyhow::Result<Report> {
    let root = Path::new("/");
    let devices = kernel::discover(root, &question.devices)?;
    let selection = selector::resolve(&question.selectors, &devices.gpus, &devices.table)?;
    // NVML answers from a process of its own while this one looks at the kernel.
    let asking = nvml::start();
    let helper = asking.pid();
    let started = Instant::now();
    let mut looker = Looker::new();
    let loaded = Instant::now();
    let looked = looker.look(&devices.table, helper);
    let look_ms = milliseconds(loaded.elapsed());
    let nvml = asking.finish(NVML_DEADLINE);
    let looked = looked.context("cannot look at this host")?;
    let clock = Clock::now();
    let cost = Cost { load_ms: milliseconds(loaded - started), look_ms, looks: looked.looks };
    let mut report = assemble::report(&devices, looked, &nvml, &question.roles, &clock);
    report.cost = cost;
    selected::narrow(&mut report, &selection);
    Ok(report)
}

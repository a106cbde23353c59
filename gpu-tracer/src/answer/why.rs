//! Gathers what a diagnosis rests on: one look at the kernel, NVML's claims, a second look at what seems stuck.
//!
//! NVML answers from a process of its own while the kernel is looked at; with it or without it an answer comes in bounded
//! time, and what it did not say is said.

mod kernel_log;
mod resolve;
mod second_look;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::ask::{self, AskError};
use super::look::Looker;
use super::{NVML_DEADLINE, Question, assemble, selected};
use crate::diagnose::input::{Claim, HalfGone, Wait};
use crate::diagnose::{self, Input};
use crate::gpu::selector::{self, Selection};
use crate::gpu::{NvmlAnswer, NvmlStatus, nvml};
use crate::kernel::{self, Clock, Devices};
use crate::model::Task;
use crate::model::diagnosis::Diagnosis;
use crate::model::report::Report;

/// Who keeps which GPU, and what will make them let go. `pids` are processes to say a word about as well.
///
/// # Errors
/// A device or GPU that does not exist, or a host that cannot be looked at. What merely could not be seen is no error: it
/// is in the diagnosis.
pub fn why(question: &Question, pids: &[u32]) -> anyhow::Result<Diagnosis> {
    let mut inquiry = Inquiry::new(question)?;
    let input = inquiry.input(&Ask { nvml: true, hints: true, pids: pids.to_vec() })?;
    Ok(diagnose::diagnose(&input))
}

/// What to ask besides the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    /// NVML, which may take two seconds.
    pub(crate) nvml: bool,
    /// The kernel log.
    pub(crate) hints: bool,
    /// Processes to look up.
    pub(crate) pids: Vec<u32>,
}

/// A question that can be asked again and again: what looking needs is set up once.
pub(crate) struct Inquiry {
    question: Question,
    devices: Devices,
    selection: Selection,
    /// Made when it is first needed: a daemon may make it superfluous.
    looker: Option<Looker>,
}

/// What was seen of the whole host.
struct Seen {
    report: Report,
    half_gone: Vec<HalfGone>,
    waits: HashMap<u32, Wait>,
    nvml: NvmlAnswer,
    helper: Option<u32>,
}

impl Inquiry {
    /// For these GPUs.
    pub(crate) fn new(question: &Question) -> anyhow::Result<Self> {
        let devices = kernel::discover(Path::new("/"), &question.devices)?;
        let selection = selector::resolve(&question.selectors, &devices.gpus, &devices.table)?;
        Ok(Self { question: question.clone(), devices, selection, looker: None })
    }

    /// Asks.
    pub(crate) fn input(&mut self, ask: &Ask) -> anyhow::Result<Input> {
        // A reset needs others to let go than those asked about: the whole host is looked at.
        let whole = Question { selectors: Vec::new(), ..self.question.clone() };
        let mut seen = match ask::holders(&whole) {
            Ok(report) => Self::by_daemon(report, ask),
            Err(AskError::Refused(problem)) => return Err(anyhow::anyhow!(problem)),
            Err(why) => {
                tracing::debug!(?why, "the daemon is not asked");
                self.by_ourselves(ask)?
            }
        };
        if !self.selection.all && self.selection.gpus.is_empty() {
            selected::narrow(&mut seen.report, &self.selection);
        }
        let gpus = (!self.selection.all).then(|| self.selection.gpus.clone());
        let hints = if ask.hints { hints(&seen.report, gpus.as_ref()) } else { Vec::new() };
        Ok(Input {
            gpus,
            claims: claims(&seen.nvml, seen.helper),
            nvml: seen.nvml.status,
            report: seen.report,
            half_gone: seen.half_gone,
            waits: seen.waits,
            baselines: BTreeMap::new(),
            asked: ask.pids.iter().map(|pid| (*pid, resolve::resolve(*pid))).collect(),
            hints,
        })
    }

    /// The daemon has looked already: the helper, which opens devices itself, is started after that.
    fn by_daemon(mut report: Report, ask: &Ask) -> Seen {
        let asking = ask.nvml.then(nvml::start);
        let waits = second_look::waits(&report, &[]);
        let helper = asking.as_ref().and_then(nvml::Asking::pid);
        let nvml = finish(asking);
        assemble::add_memory(&mut report, &nvml);
        Seen { report, half_gone: Vec::new(), waits, nvml, helper }
    }

    fn by_ourselves(&mut self, ask: &Ask) -> anyhow::Result<Seen> {
        // NVML answers from a process of its own while this one looks at the kernel.
        let asking = ask.nvml.then(nvml::start);
        let helper = asking.as_ref().and_then(nvml::Asking::pid);
        let looker = self.looker.get_or_insert_with(Looker::new);
        let looked = looker.look(&self.devices.table, helper).context("cannot look at this host")?;
        let half_gone: Vec<HalfGone> = looked.half_gone.iter().map(half_gone).collect();
        let nothing_yet = NvmlAnswer::without_figures(NvmlStatus::Absent(String::new()));
        let mut report = assemble::report(&self.devices, &looked, &nothing_yet, &Clock::now());
        let waits = second_look::waits(&report, &half_gone);
        let nvml = finish(asking);
        assemble::add_memory(&mut report, &nvml);
        Ok(Seen { report, half_gone, waits, nvml, helper })
    }
}

/// What the driver complained of: about the GPUs asked about, and about those that this host does not know (any more).
fn hints(report: &Report, asked: Option<&BTreeSet<u32>>) -> Vec<String> {
    kernel_log::xids(&report.gpus, |gpu| match (gpu, asked) {
        (Some(gpu), Some(asked)) => asked.contains(&gpu),
        _ => true,
    })
}

fn finish(asking: Option<nvml::Asking>) -> NvmlAnswer {
    match asking {
        Some(asking) => asking.finish(NVML_DEADLINE),
        None => NvmlAnswer::without_figures(NvmlStatus::Failed("it was not asked".to_owned())),
    }
}

/// NVML's claims with every PID looked up, without those about the helper that asked.
fn claims(answer: &NvmlAnswer, helper: Option<u32>) -> Vec<Claim> {
    let mut known = HashMap::new();
    let mut claims = Vec::new();
    for gpu in &answer.gpus {
        for process in gpu.memory.processes.iter().filter(|process| Some(process.pid) != helper) {
            let uses = gpu.uses.iter().find(|uses| uses.pid == process.pid);
            claims.push(Claim {
                gpu: gpu.memory.gpu,
                pid: process.pid,
                mib: process.mib,
                mps_client: uses.is_some_and(|uses| uses.mps_client),
                resolved: known.entry(process.pid).or_insert_with(|| resolve::resolve(process.pid)).clone(),
            });
        }
    }
    claims
}

fn half_gone(task: &Task) -> HalfGone {
    let (wchan, stack) = second_look::where_it_waits(task.tgid, task.tid);
    HalfGone {
        pid: task.tgid,
        tid: task.tid,
        start_ns: task.start_ns,
        comm: task.comm.clone(),
        state: task.state.letter().to_string(),
        wchan,
        stack,
    }
}

/// How long may pass between two looks at what seems stuck.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

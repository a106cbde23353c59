//! Gathers what a diagnosis rests on: one look at the kernel, NVML's claims, a second look at what seems stuck.
//!
//! NVML answers from a process of its own while the kernel is looked at; with it or without it an answer comes in bounded
//! time, and what it did not say is said.

mod kernel_log;
mod obstacle;
mod resolve;
mod second_look;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use self::second_look::Patience;
use super::ask::{self, AskError};
use super::look::Looker;
use super::{NVML_DEADLINE, Question, assemble, selected};
use crate::diagnose::input::{Claim, HalfGone, Wait};
use crate::diagnose::{self, Input};
use crate::gpu::selector::{self, Selection};
use crate::gpu::{NvmlAnswer, NvmlStatus, nvml};
use crate::kernel::{self, Clock, Devices};
use crate::model::diagnosis::{Diagnosis, Verdict};
use crate::model::report::{GpuReport, Report};
use crate::model::{Gpu, Task};

/// Who keeps which GPU, and what will make them let go. `pids` are processes to say a word about as well.
///
/// # Errors
/// A device or GPU that does not exist, or a host that cannot be looked at. What merely could not be seen is no error: it
/// is in the diagnosis.
pub fn why(question: &Question, pids: &[u32]) -> anyhow::Result<Diagnosis> {
    let mut inquiry = Inquiry::new(question)?;
    let ask = Ask { nvml: true, hints: true, pids: pids.to_vec() };
    let mut input = inquiry.input(&ask)?;
    let mut diagnosis = diagnose::diagnose(&input);
    let begun = Instant::now();
    for again in 0..MOST_AGAIN {
        if !is_overtaken(&input, &diagnosis) || again > 0 && begun.elapsed() > ENOUGH {
            break;
        }
        input = inquiry.input(&ask)?;
        diagnosis = diagnose::diagnose(&input);
    }
    Ok(diagnosis)
}

/// The same of what a daemon has seen, without NVML: what memory there is used is not known then.
pub(crate) fn judge(report: Report) -> Diagnosis {
    let waits = second_look::waits(&report, &[], Patience::Thorough);
    let nvml = NvmlStatus::Failed("it was not asked".to_owned());
    diagnose::diagnose(&Input { waits, nvml, ..Input::of(report) })
}

/// How often it is asked again where things have moved on.
const MOST_AGAIN: u32 = 2;
/// Nobody is kept waiting for a third answer for longer than this.
const ENOUGH: Duration = Duration::from_millis(500);

/// Has the answer been overtaken while it was sought? Somebody has gone of whom it speaks; or memory has no holder, which is how it
/// looks for an instant when NVML answers before a process ends and the kernel after that.
fn is_overtaken(input: &Input, diagnosis: &Diagnosis) -> bool {
    // One that hangs has taken its two seconds already.
    let hung = matches!(input.nvml, NvmlStatus::Hung { .. });
    let gone = input.waits.values().any(|wait| wait.gone);
    !hung && (gone || diagnosis.gpus.iter().any(|gpu| gpu.verdict == Verdict::NoHandle))
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

impl Ask {
    /// Where not even NVML is waited for, nobody is waited for.
    fn patience(&self) -> Patience {
        if self.nvml { Patience::Thorough } else { Patience::Hasty }
    }
}

/// A question that can be asked again and again: what looking needs is set up once.
pub(crate) struct Inquiry {
    question: Question,
    devices: Devices,
    selection: Selection,
    /// Made when it is first needed: a daemon may make it superfluous.
    looker: Option<Looker>,
    /// The plan of the daemon that gave the last answer, if one did.
    plan: Option<String>,
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
        Ok(Self { question: question.clone(), devices, selection, looker: None, plan: None })
    }

    /// The GPUs asked about; `None` for all, and where a device that belongs to no GPU is asked about.
    pub(crate) fn gpus(&self) -> Option<&BTreeSet<u32>> {
        (!self.selection.all && !self.selection.gpus.is_empty()).then_some(&self.selection.gpus)
    }

    /// Did a daemon give the last answer?
    pub(crate) fn by_daemon(&self) -> bool {
        self.plan.is_some()
    }

    /// Does that daemon tell of closes, too?
    pub(crate) fn hears_closes(&self) -> bool {
        self.plan.as_deref() == Some("exhaustive")
    }

    /// Asks.
    pub(crate) fn input(&mut self, ask: &Ask) -> anyhow::Result<Input> {
        // A reset needs others to let go than those asked about: the whole host is looked at.
        let whole = Question { selectors: Vec::new(), ..self.question.clone() };
        let answer = ask::holders(&whole);
        self.plan = answer.as_ref().ok().map(|report| report.plan.clone());
        let mut seen = match answer {
            Ok(report) => {
                let seen = Self::with_answer(report, ask);
                super::tell_idle(&whole, &seen.report);
                seen
            }
            Err(AskError::Refused(problem)) => return Err(anyhow::anyhow!(problem)),
            Err(why) => {
                tracing::debug!(?why, "the daemon is not asked");
                self.by_ourselves(ask)?
            }
        };
        if !self.selection.all && self.selection.gpus.is_empty() {
            selected::narrow(&mut seen.report, &self.selection);
        }
        let gpus =
            (!self.selection.all).then(|| as_in(&seen.report, &self.devices.gpus, &self.selection.gpus));
        let hints = if ask.hints { hints(&seen.report, gpus.as_ref()) } else { Vec::new() };
        let baselines: BTreeMap<u32, u64> =
            seen.report.gpus.iter().filter_map(|gpu| Some((gpu.index, gpu.idle_mib?))).collect();
        Ok(Input {
            gpus,
            claims: claims(&seen.nvml, seen.helper),
            nvml: seen.nvml.status,
            report: seen.report,
            half_gone: seen.half_gone,
            waits: seen.waits,
            baselines,
            asked: ask.pids.iter().map(|pid| (*pid, resolve::resolve(*pid))).collect(),
            hints,
        })
    }

    /// The daemon has looked already: the helper, which opens devices itself, is started after that.
    fn with_answer(mut report: Report, ask: &Ask) -> Seen {
        let asking = ask.nvml.then(nvml::start);
        let waits = second_look::waits(&report, &[], ask.patience());
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
        let mut report =
            assemble::report(&self.devices, looked, &nothing_yet, &self.question.roles, &Clock::now());
        let waits = second_look::waits(&report, &half_gone, ask.patience());
        let nvml = finish(asking);
        assemble::add_memory(&mut report, &nvml);
        Ok(Seen { report, half_gone, waits, nvml, helper })
    }
}

/// These GPUs by the indexes that a report gives them. A container may see fewer GPUs than the daemon, and count others.
fn as_in(report: &Report, here: &[Gpu], selected: &BTreeSet<u32>) -> BTreeSet<u32> {
    let there = |index: u32| {
        let gpu = here.iter().find(|gpu| gpu.index == index)?;
        let same = |known: &&GpuReport| {
            gpu.uuid.is_some() && known.uuid == gpu.uuid || gpu.bus_id.is_some() && known.bus_id == gpu.bus_id
        };
        report.gpus.iter().find(same).map(|gpu| gpu.index)
    };
    selected.iter().map(|index| there(*index).unwrap_or(*index)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_overtaken_when_somebody_has_gone_or_memory_has_no_holder() {
        let overtaken = |input: &Input| is_overtaken(input, &diagnose::diagnose(input));
        let mut input = diagnose::tests::with_memory(diagnose::tests::report(2), &[3, 3]);
        assert!(!overtaken(&input));
        input.waits.insert(7, Wait { over_ms: 100, ..Wait::default() });
        assert!(!overtaken(&input), "it is still there");
        input.waits.insert(7, Wait { over_ms: 100, gone: true, ..Wait::default() });
        assert!(overtaken(&input));
        let leak = diagnose::tests::with_memory(diagnose::tests::report(2), &[3, 93_699]);
        assert!(overtaken(&leak), "NVML may have answered before a process ended, and the kernel after that");
    }

    #[test]
    fn a_container_with_one_gpu_asks_about_the_one_that_the_daemon_counts_as_another() {
        let gpu = |index, uuid: &str, bus: &str| Gpu {
            index,
            minor: Some(index),
            uuid: Some(uuid.to_owned()),
            bus_id: Some(bus.to_owned()),
            name: None,
        };
        let mut report = crate::diagnose::tests::report(3);
        for known in &mut report.gpus {
            known.uuid = Some(format!("GPU-{}", known.index));
        }
        assert_eq!(as_in(&report, &[gpu(0, "GPU-2", "0000:0f:00.0")], &[0].into()), [2].into());
        // By its address where the UUID cannot be read, and as it is where nothing is known.
        report.gpus[1].bus_id = Some("0000:0f:00.0".to_owned());
        let nameless = Gpu { uuid: None, ..gpu(0, "", "0000:0f:00.0") };
        assert_eq!(as_in(&report, &[nameless], &[0].into()), [1].into());
        assert_eq!(as_in(&report, &[], &[2].into()), [2].into());
    }
}

//! The verdict on each GPU.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;

use super::advice;
use super::finding::{Sharers, fact, finding, half_gone, inferred, sharers};
use super::headline::{self, Headline};
use super::input::{HalfGone, Input, LASTING, Resolved};
use super::lineage;
use super::memory;
use super::place::in_gpu_driver;
use super::role::is_infrastructure;
use crate::gpu::NvmlStatus;
use crate::model::counted;
use crate::model::diagnosis::{
    Advice, Diagnosis, Fact, Finding, GpuVerdict, Innocent, MemoryStory, NvmlReport, Verdict,
};
use crate::model::report::{FileReport, Holder, SCHEMA};
use crate::model::snapshot::MODULE_REFERENCES;

/// Judges every GPU asked about.
///
/// `free` and `no-handle` are said only of what was seen completely; what NVML says is a claim, never proof of a holder.
#[must_use]
pub fn diagnose(input: &Input) -> Diagnosis {
    let report = &input.report;
    let asked = |gpu: &u32| input.gpus.as_ref().is_none_or(|asked| asked.contains(gpu));
    let held = report.holders.iter().flat_map(|holder| &holder.devices).filter_map(|held| held.gpu);
    let gpus: BTreeSet<u32> = report
        .gpus
        .iter()
        .map(|gpu| gpu.index)
        .chain(held)
        .chain(report.files.iter().filter_map(|file| file.gpu))
        .filter(asked)
        .collect();
    let sharers = sharers(&report.holders);
    let mut verdicts: Vec<GpuVerdict> =
        gpus.iter().map(|gpu| Judge::new(input, Some(*gpu), &sharers).verdict()).collect();
    if verdicts.is_empty() {
        verdicts.push(Judge::new(input, None, &sharers).verdict());
    }
    Diagnosis {
        schema: SCHEMA,
        taken_at: report.taken_at.clone(),
        plan: report.plan.clone(),
        coverage: report.coverage.clone(),
        nvml: nvml_report(&input.nvml),
        gpus: verdicts,
        asked: input.asked.iter().map(|(pid, who)| asked_about(input, *pid, who)).collect(),
        hints: input.hints.clone(),
    }
}

fn nvml_report(status: &NvmlStatus) -> NvmlReport {
    let state = match status {
        NvmlStatus::Complete => "complete",
        NvmlStatus::Partial(_) => "partial",
        NvmlStatus::Absent(_) => "absent",
        NvmlStatus::Hung { .. } => "hung",
        NvmlStatus::Failed(_) => "failed",
    };
    NvmlReport { state: state.to_owned(), text: status.to_string() }
}

fn asked_about(input: &Input, pid: u32, who: &Resolved) -> Innocent {
    let holder = input.report.holders.iter().find(|holder| holder.pid == pid || holder.tids.contains(&pid));
    let complete = input.report.coverage.complete;
    let (what, text) = match (holder, who) {
        (Some(holder), _) => {
            let devices: Vec<&str> = holder.devices.iter().map(|held| held.device.as_str()).collect();
            (
                "holder",
                format!(
                    "PID {pid} ({}) is a holder: of {}.",
                    holder.comm.to_text(),
                    super::words::few_of(&devices)
                ),
            )
        }
        (None, Resolved::Zombie { comm, ppid }) => (
            "zombie",
            format!(
                "PID {pid} ({}) is a zombie: it holds nothing and no signal does anything to it. PID {ppid} has to reap it.",
                comm.to_text()
            ),
        ),
        (None, Resolved::Dead) => ("dead", format!("PID {pid} does not exist: it holds nothing.")),
        (None, Resolved::Exiting { comm }) => (
            "exiting",
            format!(
                "PID {pid} ({}) is half-way through exit: what it still holds cannot be seen.",
                comm.to_text()
            ),
        ),
        (None, Resolved::ThreadOf { pid: process, comm }) if complete => (
            "not-a-holder",
            format!("{pid} is a thread of PID {process} ({}), which holds no GPU device.", comm.to_text()),
        ),
        (None, Resolved::Process { comm, .. }) if complete => {
            ("not-a-holder", format!("PID {pid} ({}) holds no GPU device.", comm.to_text()))
        }
        (None, _) => (
            "unknown",
            format!("PID {pid} was not seen to hold a GPU device, but not everything could be seen."),
        ),
    };
    Innocent { pid, what: what.to_owned(), text }
}

/// One GPU and all that concerns it.
pub(super) struct Judge<'a> {
    pub(super) input: &'a Input,
    pub(super) gpu: Option<u32>,
    pub(super) holders: Vec<&'a Holder>,
    /// Open files of this GPU that no holder refers to.
    pub(super) orphans: Vec<&'a FileReport>,
    /// What could not be seen that might matter to this GPU.
    pub(super) doubts: Vec<String>,
    pub(super) findings: Vec<Finding>,
}

/// Ids of the open files that these hold.
fn held_by<'a>(holders: impl Iterator<Item = &'a Holder>) -> HashSet<u64> {
    holders.flat_map(|holder| &holder.devices).flat_map(|held| held.files.iter().copied()).collect()
}

impl<'a> Judge<'a> {
    fn new(input: &'a Input, gpu: Option<u32>, sharers: &Sharers) -> Self {
        let holders: Vec<&Holder> =
            input.report.holders.iter().filter(|holder| concerns(input, gpu, holder)).collect();
        let everybody: HashSet<u64> = held_by(input.report.holders.iter());
        // A GPU's own file that only somebody without that GPU is said to hold has no holder to name here.
        let here: HashSet<u64> = held_by(holders.iter().copied());
        let orphans = input
            .report
            .files
            .iter()
            .filter(|file| match file.gpu {
                Some(_) => file.gpu == gpu && !here.contains(&file.id),
                None => !everybody.contains(&file.id) && (gpu.is_none() || may_keep(input, gpu)),
            })
            .collect();
        let mut findings: Vec<Finding> =
            holders.iter().map(|holder| finding(input, gpu, holder, sharers)).collect();
        let suspects = input.half_gone.iter().filter_map(|task| Some((task, suspected(input, gpu, task)?)));
        findings.extend(suspects.map(|(task, why)| half_gone(input, task, why)));
        let mut judge = Self { input, gpu, holders, orphans, doubts: Vec::new(), findings };
        judge.attribute_to_heirs();
        judge.rank();
        judge.doubts = judge.doubts();
        judge
    }

    /// Memory of dead creators goes to those who keep it, where that is one process.
    fn attribute_to_heirs(&mut self) {
        let Some(gpu) = self.gpu else { return };
        for claim in self.input.claims.iter().filter(|claim| claim.gpu == gpu) {
            let kept = memory::kept(self.input, claim, &self.holders);
            if kept.by.contains(&claim.pid) {
                continue;
            }
            let alone = kept.by.len() == 1;
            let dead = matches!(claim.resolved, Resolved::Dead | Resolved::Zombie { .. });
            for finding in self.findings.iter_mut().filter(|finding| kept.by.contains(&finding.pid)) {
                let much = claim.mib.map_or_else(|| "memory".to_owned(), |mib| format!("{mib} MiB"));
                if alone && finding.memory_mib.is_none() {
                    finding.memory_mib = claim.mib;
                }
                let text = format!(
                    "NVML puts {much} down to PID {}, which does not hold them: they stay with the open files.",
                    claim.pid
                );
                finding.evidence.push(if kept.recorded { fact(text) } else { inferred(text) });
                if dead {
                    finding.created_by = finding.created_by.or(Some(claim.pid));
                    let holder = self.holders.iter().find(|holder| holder.pid == finding.pid);
                    lineage::explain(finding, holder, claim.pid);
                }
                if alone && dead && finding.role == "monitor" {
                    "compute".clone_into(&mut finding.role);
                }
            }
        }
    }

    /// What does not go first; then those that hold on purpose last; then by what they pin.
    fn rank(&mut self) {
        self.findings.sort_by_key(|finding| {
            (
                finding.killable,
                is_infrastructure(&finding.role),
                !finding.direct,
                std::cmp::Reverse(finding.memory_mib),
                finding.pid,
                finding.tid,
            )
        });
    }

    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        // Whatever refers to the driver, it keeps no memory of a GPU that shows what it shows when it is idle.
        let idle = self.gpu.and_then(|gpu| memory::is_noteworthy(self.input, gpu)) == Some(false);
        for missing in &self.input.report.coverage.missing {
            let concerns = match missing.what.as_str() {
                // Said below of this GPU's own files.
                "unexplained-references" => false,
                MODULE_REFERENCES => !idle,
                _ => true,
            };
            if concerns && !doubts.contains(&missing.why) {
                doubts.push(missing.why.clone());
            }
        }
        let unexplained = self.files().map(|file| file.unexplained).fold(0u64, u64::saturating_add);
        if unexplained > 0 {
            doubts.push(format!(
                "{} to nobody that could be named",
                counted(
                    unexplained,
                    "reference to its open files belongs",
                    "references to its open files belong"
                )
            ));
        }
        if doubts.is_empty()
            && !self.input.report.coverage.complete
            && self.input.report.coverage.missing.is_empty()
        {
            doubts.push("not everything could be seen, and no reason was recorded".to_owned());
        }
        doubts
    }

    fn files(&self) -> impl Iterator<Item = &'a FileReport> {
        let gpu = self.gpu;
        self.input.report.files.iter().filter(move |file| file.gpu.is_none() || file.gpu == gpu)
    }

    /// Files that nobody refers to any more and that the driver has not let go of.
    pub(super) fn releasing(&self) -> Releasing {
        let mut releasing = Releasing::default();
        for file in self.orphans.iter().filter(|file| is_leaving(file)) {
            if is_fresh(file, &self.input.report.taken_at) {
                releasing.fresh += 1;
            } else {
                releasing.lasting += 1;
            }
        }
        releasing
    }

    fn decide(&self) -> Verdict {
        let noteworthy = self.gpu.and_then(|gpu| memory::is_noteworthy(self.input, gpu));
        let hung = matches!(self.input.nvml, NvmlStatus::Hung { .. });
        match () {
            () if self.findings.iter().any(|finding| !finding.killable) || self.releasing().lasting > 0 => {
                Verdict::Stuck
            }
            () if !self.findings.is_empty() || self.releasing().fresh > 0 => Verdict::Held,
            () if !self.orphans.is_empty() || !self.doubts.is_empty() => Verdict::Unknown,
            () if noteworthy == Some(true) => Verdict::NoHandle,
            () if hung && noteworthy.is_none() => Verdict::Unknown,
            () => Verdict::Free,
        }
    }

    fn verdict(mut self) -> GpuVerdict {
        let verdict = self.decide();
        if verdict == Verdict::Unknown && self.doubts.is_empty() && self.orphans.is_empty() {
            self.doubts.push(format!("{}; its memory is not known", self.input.nvml));
        }
        let report = self.gpu.and_then(|gpu| memory::gpu_report(self.input, gpu));
        let complete = self.doubts.is_empty();
        let (memory, innocents) = match self.gpu {
            Some(gpu) => (
                memory::story(self.input, gpu, &self.holders),
                memory::innocents(self.input, gpu, &self.holders, complete),
            ),
            None => (MemoryStory::default(), Vec::new()),
        };
        let mut innocents: Vec<Innocent> = innocents;
        let idle_contexts = verdict == Verdict::Held && headline::are_idle_contexts(&self);
        let Headline { line, details } = headline::headline(&self, verdict);
        innocents.extend(self.findings.iter().filter_map(harmless));
        GpuVerdict {
            gpu: self.gpu,
            uuid: report.and_then(|gpu| gpu.uuid.clone()),
            bus_id: report.and_then(|gpu| gpu.bus_id.clone()),
            name: report.and_then(|gpu| gpu.name.clone()),
            verdict,
            headline: line,
            details,
            idle_contexts,
            innocents,
            memory,
            advice: self.advice(verdict),
            holders: self.findings,
            doubts: self.doubts,
        }
    }

    fn advice(&self, verdict: Verdict) -> Vec<Advice> {
        let mut steps = Vec::new();
        for finding in self.findings.iter().filter(|finding| !finding.killable).take(8) {
            steps.extend(advice::unblocking(self.input, self.gpu, finding));
        }
        if self.releasing() != Releasing::default() {
            steps.push(advice::waiting(
                self.gpu,
                "Wait: the driver is releasing it. There is nobody to kill.",
            ));
        }
        steps.extend(advice::killing(self.gpu, &self.findings));
        steps.extend(self.findings.iter().filter_map(|finding| advice::thawing(self.input, finding)).take(3));
        match verdict {
            Verdict::NoHandle => steps.extend(advice::reset(
                self.input,
                self.gpu,
                "Nothing can be killed to free it: reset the GPU",
            )),
            Verdict::Unknown => {
                for task in self.input.half_gone.iter().take(3) {
                    let doubt = inferred("It may still hold this GPU.");
                    let steps_for_it =
                        advice::unblocking(self.input, self.gpu, &half_gone(self.input, task, doubt));
                    // Nothing is reset for what may only be so.
                    steps.extend(steps_for_it.into_iter().take(1));
                }
                if self.input.report.coverage.missing.iter().any(|missing| missing.what == MODULE_REFERENCES)
                {
                    steps.push(advice::kernel_clients());
                }
                steps.push(advice::step(
                    "Ask again as root on the host. What works here, and what is missing:",
                    Some("gpu-tracer doctor".to_owned()),
                ));
            }
            _ => {}
        }
        let mut seen = HashSet::new();
        steps.retain(|step| seen.insert((step.text.clone(), step.command.clone())));
        steps
    }
}

/// Holders that are not to blame for memory.
fn harmless(finding: &Finding) -> Option<Innocent> {
    let small = finding.memory_mib.is_none_or(|mib| mib <= memory::INITIALISED_MIB);
    let who = super::words::who(finding);
    let (what, text) = match finding.role.as_str() {
        "monitor" if small => ("monitor", format!("{who} only looks: it holds the device and no memory.")),
        "initialised" if small => (
            "initialised",
            format!(
                "{who} has initialised the driver (cuInit) and does not use the GPU: a few MiB are its context."
            ),
        ),
        _ => return None,
    };
    Some(Innocent { pid: finding.pid, what: what.to_owned(), text })
}

/// How many files are on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Releasing {
    /// For a moment only: as it is when a process ends.
    pub(super) fresh: usize,
    /// For longer than that, or for an unknown time.
    pub(super) lasting: usize,
}

/// Is it in its state for a moment only?
fn is_fresh(file: &FileReport, now: &str) -> bool {
    let (Some(since), Ok(now)) = (file.since, now.parse::<Timestamp>()) else { return false };
    now.duration_since(since.timestamp()).unsigned_abs() < LASTING
}

/// Has nobody any more, and is not released?
fn is_leaving(file: &FileReport) -> bool {
    matches!(&*file.state, "releasing" | "deferred" | "detached" | "unreferenced")
}

/// May something that holds no GPU's own device keep this GPU's memory? Not if there is none to keep.
fn may_keep(input: &Input, gpu: Option<u32>) -> bool {
    gpu.is_none_or(|gpu| memory::is_noteworthy(input, gpu).unwrap_or(true))
}

/// Does a holder hold this GPU's own device, or shared ones through which it may keep its memory?
fn concerns(input: &Input, gpu: Option<u32>, holder: &Holder) -> bool {
    let Some(gpu) = gpu else { return true };
    if holder.devices.iter().any(|held| held.gpu == Some(gpu))
        || holder.memory.iter().any(|memory| memory.gpu == gpu)
    {
        return true;
    }
    if holder.devices.iter().any(|held| held.gpu.is_some()) {
        return false;
    }
    // What NVML puts down to it elsewhere says where its memory is.
    holder.memory.is_empty() && may_keep(input, Some(gpu))
}

/// Why a task that is half-way through exit is held responsible for this GPU; `None` if it is not.
fn suspected(input: &Input, gpu: Option<u32>, task: &HalfGone) -> Option<Fact> {
    let index = gpu?;
    if input.waits.get(&task.tid).is_some_and(|wait| wait.gone) {
        return None;
    }
    let claim = input
        .claims
        .iter()
        .find(|claim| claim.gpu == index && (claim.pid == task.pid || claim.pid == task.tid));
    if let Some(claim) = claim {
        let much = claim.mib.map_or_else(|| "memory".to_owned(), |mib| format!("{mib} MiB"));
        return Some(fact(format!(
            "NVML puts {much} of this GPU down to PID {}, and it has not ended.",
            claim.pid
        )));
    }
    let opened = input.report.files.iter().any(|file| {
        file.gpu == gpu
            && is_leaving(file)
            && file.opener.as_ref().is_some_and(|opener| opener.pid == task.pid)
    });
    if opened {
        return Some(fact(format!("PID {} opened a handle of this GPU that is not released.", task.pid)));
    }
    if !in_gpu_driver(&task.stack) {
        return None;
    }
    let unexplained = |gpu: u32| {
        memory::is_noteworthy(input, gpu) == Some(true)
            && !input
                .report
                .holders
                .iter()
                .any(|holder| holder.devices.iter().any(|held| held.gpu == Some(gpu)))
            && !input
                .claims
                .iter()
                .any(|claim| claim.gpu == gpu && matches!(claim.resolved, Resolved::Process { .. }))
    };
    let candidates: Vec<u32> =
        input.report.gpus.iter().map(|gpu| gpu.index).filter(|gpu| unexplained(*gpu)).collect();
    let only = input.report.gpus.len() == 1;
    if candidates == [index] {
        return Some(inferred(format!(
            "It is inside the GPU driver, and GPU {index} is the only one with memory that nobody else explains."
        )));
    }
    (only && candidates.is_empty() && memory::is_noteworthy(input, index).is_none())
        .then(|| inferred("It is inside the GPU driver, and there is no other GPU."))
}

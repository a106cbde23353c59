//! What a GPU's memory says, and who it is put down to.
//!
//! NVML names whoever *created* a client of the driver. The memory follows the open files: when the creator dies and a
//! fork of it lives, it stays, and NVML goes on naming the dead.

use std::collections::BTreeSet;

use super::idle::MOST_IDLE_MIB;
use super::input::{Claim, Input, Resolved};
use super::role::is_infrastructure;
use super::words::few;
use crate::model::diagnosis::{ClaimReport, Innocent, MemoryStory};
use crate::model::report::{GpuReport, Holder};

/// What an idle card shows.
const BARE_MIB: u64 = 16;
/// The most that contexts without allocations have been seen to take.
pub(super) const INITIALISED_MIB: u64 = 128;
/// How far the driver's own use moves from one day to another.
const SLACK_MIB: u64 = 64;

/// Above this, used memory without a holder needs an explanation; MiB.
pub(super) fn threshold(input: &Input, gpu: u32) -> u64 {
    input.baselines.get(&gpu).map_or(MOST_IDLE_MIB, |baseline| baseline.saturating_add(SLACK_MIB))
}

/// Is so much used that somebody must hold it? `None` when NVML does not say how much is used.
pub(super) fn is_noteworthy(input: &Input, gpu: u32) -> Option<bool> {
    let used = gpu_report(input, gpu)?.memory_used_mib?;
    Some(used > threshold(input, gpu))
}

pub(super) fn gpu_report(input: &Input, gpu: u32) -> Option<&GpuReport> {
    input.report.gpus.iter().find(|known| known.index == gpu)
}

/// What a little memory on a GPU without a holder is.
pub(super) fn idle_words(used: u64, baseline: Option<u64>) -> String {
    match baseline {
        Some(idle) if used <= idle => format!("{used} MiB is what this GPU has shown when it was idle"),
        Some(idle) => format!("{used} MiB is about what this GPU has shown when it was idle ({idle} MiB)"),
        None if used <= BARE_MIB => format!("{used} MiB is what an idle GPU shows"),
        None => format!("{used} MiB with no holder is what the driver keeps for itself"),
    }
}

/// Who keeps what a claim speaks of, and whether that was seen or is concluded.
pub(super) struct Kept {
    pub(super) by: Vec<u32>,
    pub(super) recorded: bool,
}

/// The holders that keep the memory of a claim, among those of the GPU.
pub(super) fn kept(input: &Input, claim: &Claim, holders: &[&Holder]) -> Kept {
    let own = |pid: u32| holders.iter().any(|holder| holder.pid == pid);
    match &claim.resolved {
        Resolved::Process { start_ns, .. } if is_holder(holders, claim.pid, *start_ns) => {
            return Kept { by: vec![claim.pid], recorded: true };
        }
        Resolved::ThreadOf { pid, .. } if own(*pid) => return Kept { by: vec![*pid], recorded: true },
        _ => {}
    }
    let opened: BTreeSet<u64> = input
        .report
        .files
        .iter()
        .filter(|file| file.gpu.is_none() || file.gpu == Some(claim.gpu))
        .filter(|file| file.opener.as_ref().is_some_and(|opener| opener.pid == claim.pid && !opener.alive))
        .map(|file| file.id)
        .collect();
    let keeps = |holder: &&&Holder| {
        holder.devices.iter().flat_map(|held| &held.files).any(|file| opened.contains(file))
    };
    let by = pids(holders.iter().filter(keeps).copied());
    if !by.is_empty() {
        return Kept { by, recorded: true };
    }
    // What nobody has a figure for can only be with those that have none of their own; least of all with those that only look.
    let without: Vec<&Holder> = holders
        .iter()
        .copied()
        .filter(|holder| holder.memory.iter().all(|memory| memory.gpu != claim.gpu))
        .collect();
    let looks = |holder: &&&Holder| is_infrastructure(&holder.role) || holder.role == "initialised";
    let serious = pids(without.iter().filter(|holder| !looks(holder)).copied());
    Kept { by: if serious.is_empty() { pids(without.into_iter()) } else { serious }, recorded: false }
}

fn pids<'a>(holders: impl Iterator<Item = &'a Holder>) -> Vec<u32> {
    let pids: BTreeSet<u32> = holders.map(|holder| holder.pid).collect();
    pids.into_iter().collect()
}

/// Is that process a holder, and not a later one with the PID of one?
fn is_holder(holders: &[&Holder], pid: u32, start_ns: u64) -> bool {
    let started = |holder: &&&Holder| {
        crate::model::ProcessId { tgid: holder.pid, start_ns: holder.start_ns }.started_in_tick_of(start_ns)
    };
    holders.iter().filter(|holder| holder.pid == pid).any(|holder| started(&holder))
}

/// The claims on one GPU, resolved.
pub(super) fn claims(input: &Input, gpu: u32, holders: &[&Holder]) -> Vec<ClaimReport> {
    let claims = input.claims.iter().filter(|claim| claim.gpu == gpu);
    claims.map(|claim| claim_report(input, claim, holders)).collect()
}

fn claim_report(input: &Input, claim: &Claim, holders: &[&Holder]) -> ClaimReport {
    let kept = kept(input, claim, holders);
    let pid = claim.pid;
    let much = claim.mib.map_or_else(|| "memory of unknown size".to_owned(), |mib| format!("{mib} MiB"));
    let with = if kept.by.is_empty() {
        "; nobody that could be seen keeps it now".to_owned()
    } else {
        let names: Vec<String> = kept.by.iter().map(|pid| format!("PID {pid}")).collect();
        let how = if kept.recorded {
            "recorded when it was opened"
        } else {
            "inferred: nobody else is left who could"
        };
        format!("; kept now by {} ({how})", few(&names))
    };
    let (resolved, text) = match &claim.resolved {
        Resolved::Process { .. } if kept.by == [pid] => {
            let mps = if claim.mps_client { ", which computes through the MPS server" } else { "" };
            ("holder", format!("{much}: PID {pid}{mps}."))
        }
        Resolved::ThreadOf { pid: process, .. } => {
            ("thread", format!("{much}: NVML names {pid}, which is a thread of PID {process}."))
        }
        Resolved::Dead => ("dead", format!("{much}: created by PID {pid}, which is dead{with}.")),
        Resolved::Zombie { .. } => (
            "zombie",
            format!("{much}: created by PID {pid}, which is a zombie and holds nothing itself{with}."),
        ),
        Resolved::Exiting { .. } => {
            ("exiting", format!("{much}: created by PID {pid}, which is on its way through exit."))
        }
        Resolved::Process { comm, .. } => {
            let name = comm.to_text();
            (
                "other",
                format!(
                    "{much}: NVML names PID {pid}; the process that has this PID now ({name}) holds no handle of this GPU{with}."
                ),
            )
        }
        Resolved::Unchecked => {
            ("unchecked", format!("{much}: NVML names PID {pid}, which could not be looked up."))
        }
    };
    ClaimReport { pid, mib: claim.mib, resolved: resolved.to_owned(), kept_by: kept.by, text }
}

/// The story of one GPU's memory; `complete` is whether everything was seen.
pub(super) fn story(input: &Input, gpu: u32, holders: &[&Holder]) -> MemoryStory {
    let Some(report) = gpu_report(input, gpu) else { return MemoryStory::default() };
    let claims = claims(input, gpu, holders);
    let attributed = claims.iter().filter_map(|claim| claim.mib).fold(0u64, u64::saturating_add);
    let mut story = Vec::new();
    let baseline = input.baselines.get(&gpu).copied();
    if let Some(used) = report.memory_used_mib {
        let of = report.memory_total_mib.map_or_else(String::new, |total| format!(" of {total}"));
        let to = if claims.is_empty() {
            "none of that to a process".to_owned()
        } else {
            format!("{attributed} MiB to processes")
        };
        story.push(format!("{used}{of} MiB are used. NVML attributes {to}."));
    }
    story.extend(claims.iter().map(|claim| claim.text.clone()));
    if let Some(left) = report.unattributed_mib.filter(|left| *left > INITIALISED_MIB) {
        let whose = if holders.iter().any(|holder| holder.devices.iter().any(|held| held.in_flight > 0)) {
            "exported memory whose handle is in flight is of this kind"
        } else {
            "managed memory, exported memory and what the driver takes for itself are of this kind"
        };
        story.push(format!("{left} MiB are put down to nobody: {whose}."));
    }
    if let Some(baseline) = baseline {
        story.push(format!("{baseline} MiB is what this GPU showed when it was idle (recorded)."));
    }
    MemoryStory {
        used_mib: report.memory_used_mib,
        total_mib: report.memory_total_mib,
        attributed_mib: (!claims.is_empty() || report.memory_used_mib.is_some()).then_some(attributed),
        unattributed_mib: report.unattributed_mib,
        baseline_mib: baseline,
        claims,
        story,
    }
}

/// Those whom NVML names and who hold nothing. `complete` is whether everything was seen: without it nobody is cleared.
pub(super) fn innocents(input: &Input, gpu: u32, holders: &[&Holder], complete: bool) -> Vec<Innocent> {
    let mut innocents = Vec::new();
    for claim in input.claims.iter().filter(|claim| claim.gpu == gpu) {
        let pid = claim.pid;
        let recorded = input
            .report
            .files
            .iter()
            .filter_map(|file| file.opener.as_ref())
            .find(|opener| opener.pid == pid);
        let (what, text) = match &claim.resolved {
            Resolved::Dead => {
                ("dead", format!("PID {pid} is dead: NVML names who created the memory, not who keeps it."))
            }
            Resolved::Zombie { ppid, .. } => (
                "zombie",
                format!("PID {pid} is a zombie: it holds nothing. It waits only for PID {ppid} to reap it."),
            ),
            Resolved::Process { comm, start_ns, .. } if complete && !is_holder(holders, pid, *start_ns) => {
                let later = recorded.is_some_and(|opener| {
                    !crate::model::ProcessId { tgid: pid, start_ns: opener.start_ns }
                        .started_in_tick_of(*start_ns)
                });
                let name = comm.to_text();
                if later {
                    (
                        "reused-pid",
                        format!(
                            "PID {pid} ({name}) is a later process that got the PID of the one that NVML means: it holds nothing."
                        ),
                    )
                } else {
                    (
                        "not-a-holder",
                        format!(
                            "PID {pid} ({name}) holds no handle of this GPU, whatever NVML says: the PID may have been reused."
                        ),
                    )
                }
            }
            _ => continue,
        };
        innocents.push(Innocent { pid, what: what.to_owned(), text });
    }
    innocents
}

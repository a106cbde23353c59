//! The first line: one sentence or two for somebody who reads nothing else.

use std::collections::BTreeSet;

use super::super::View;
use super::super::columns::Tone;
use super::super::ranges::{name_ranges, ranges};
use super::super::text::escape_str;
use super::{Summary, is_dying, is_stuck, paragraph};
use crate::model::counted;

/// More than an idle driver takes for itself on any GPU. What is below is no news; what is above, without a holder, is.
const NOTEWORTHY_MIB: u64 = 1024;

/// The answer in short.
pub(super) fn section(summary: &Summary<'_>, view: &View<'_>) -> String {
    let (text, tone) = if !summary.report.holders.is_empty() {
        let stuck = summary.report.holders.iter().any(is_stuck);
        (held(summary), if stuck { Tone::Bad } else { Tone::Strong })
    } else if !summary.report.files.is_empty() {
        (held_by_nobody(summary), Tone::Bad)
    } else if summary.complete {
        let memory = memory_in_use(summary);
        let tone = if memory.is_empty() { Tone::Good } else { Tone::Warn };
        (format!("Nobody holds {}.{memory}", asked(summary)), tone)
    } else if summary.report.coverage.missing.iter().any(|missing| missing.what == "devices") {
        ("Unknown: no GPU device is known on this host (see below).".to_owned(), Tone::Warn)
    } else {
        let memory = memory_in_use(summary);
        let asked = asked(summary);
        (
            format!(
                "Unknown: no holder of {asked} was seen, but not everything could be seen (see below).{memory}"
            ),
            Tone::Warn,
        )
    };
    paragraph(&text, 0, tone, view)
}

fn held(summary: &Summary<'_>) -> String {
    let mut sentences: Vec<String> = held_directly(summary).into_iter().chain(held_shared(summary)).collect();
    let ownerless: BTreeSet<u32> = summary.orphans.iter().filter_map(|file| file.gpu).collect();
    if !ownerless.is_empty() {
        let ownerless: Vec<u32> = ownerless.into_iter().collect();
        let verb = if ownerless.len() == 1 { "has" } else { "have" };
        sentences.push(format!("{} {verb} open files that no process holds.", gpu_list(&ownerless)));
    }
    let free = free_gpus(summary);
    if !summary.complete {
        sentences.push("There may be more: not everything could be seen (see below).".to_owned());
    } else if !free.is_empty() && summary.shared_only.is_empty() {
        sentences.push(format!("Nobody holds {}.", gpu_list(&free)));
    }
    sentences.join(" ")
}

/// Who holds GPUs' own devices.
fn held_directly(summary: &Summary<'_>) -> Option<String> {
    let holders = summary.by_gpu.values().flatten().copied();
    let processes = summary.processes(holders.clone()).len();
    let gpus: Vec<u32> = summary.by_gpu.keys().copied().collect();
    let verb = if gpus.len() == 1 { "is" } else { "are" };
    let state = condition(summary, holders, processes);
    let who = counted(processes, "process", "processes");
    (processes > 0).then(|| format!("{} {verb} held by {who}{state}.", gpu_list(&gpus)))
}

/// Who holds nothing but devices that all GPUs share.
fn held_shared(summary: &Summary<'_>) -> Option<String> {
    let direct = summary.processes(summary.by_gpu.values().flatten().copied());
    let shared: Vec<usize> = summary.shared_only.clone();
    let processes = summary.processes(shared.iter().copied()).difference(&direct).count();
    let state = condition(summary, shared.into_iter(), processes);
    let names = shared_names(summary);
    let verb = if names.len() == 1 { "is" } else { "are" };
    match processes {
        0 => None,
        1 if !direct.is_empty() => Some(format!(
            "1 more process holds only {}{state}, which can keep memory of any GPU in use.",
            listed(&names)
        )),
        _ if !direct.is_empty() => Some(format!(
            "{processes} more processes hold only {}{state}, which can keep memory of any GPU in use.",
            listed(&names)
        )),
        _ if summary.report.gpus.is_empty() => Some(format!(
            "{} {verb} held by {}{state}.",
            listed(&names),
            counted(processes, "process", "processes")
        )),
        _ => Some(format!(
            "No GPU's own device is held, but {} {verb}, by {}{state}, and can keep memory of any GPU in use.",
            listed(&names),
            counted(processes, "process", "processes")
        )),
    }
}

/// A sentence about memory that is in use although nobody was found.
fn memory_in_use(summary: &Summary<'_>) -> String {
    let used = summary.report.gpus.iter().filter_map(|gpu| Some((gpu.index, gpu.memory_used_mib?)));
    let used: Vec<(u32, u64)> = used.filter(|(_, mib)| *mib >= NOTEWORTHY_MIB).collect();
    match &used[..] {
        [] => String::new(),
        [(gpu, mib)] => format!(" Yet {mib} MiB are in use on GPU {gpu}."),
        several => {
            let gpus: Vec<u32> = several.iter().map(|(gpu, _)| *gpu).collect();
            format!(" Yet memory is in use on {} (see below).", gpu_list(&gpus))
        }
    }
}

/// GPUs asked about of which no file is open.
fn free_gpus(summary: &Summary<'_>) -> Vec<u32> {
    let has_orphan = |gpu: u32| summary.orphans.iter().any(|file| file.gpu == Some(gpu));
    summary.gpus().into_iter().filter(|gpu| !summary.by_gpu.contains_key(gpu) && !has_orphan(*gpu)).collect()
}

fn held_by_nobody(summary: &Summary<'_>) -> String {
    let files = &summary.orphans;
    let ending = files.iter().all(|file| matches!(&*file.state, "unreferenced" | "releasing" | "deferred"));
    let gpus: BTreeSet<u32> = files.iter().filter_map(|file| file.gpu).collect();
    let gpus: Vec<u32> = gpus.into_iter().collect();
    let subject = if gpus.is_empty() {
        let names: BTreeSet<String> = files.iter().map(|file| escape_str(&file.device)).collect();
        listed(&name_ranges(&names.into_iter().collect::<Vec<_>>()))
    } else {
        gpu_list(&gpus)
    };
    let verb = if gpus.len() > 1 { "are" } else { "is" };
    let rest = if ending {
        "still being released by the kernel (see below)"
    } else {
        "still open, held by nothing that can be named (see below)"
    };
    let files = counted(files.len(), "open file is", "open files are");
    format!("{subject} {verb} not free: no process holds it, but {files} {rest}.")
}

/// ` (1 will not react to SIGKILL, 2 are already dying)`
fn condition(summary: &Summary<'_>, holders: impl Iterator<Item = usize> + Clone, of: usize) -> String {
    let chosen = |pick: fn(&crate::model::report::Holder) -> bool| {
        summary.processes(holders.clone().filter(|at| pick(&summary.report.holders[*at])))
    };
    let stuck = chosen(is_stuck);
    let dying = chosen(is_dying).difference(&stuck).count();
    let who = |number: usize| match number {
        number if number == of && of == 1 => "it".to_owned(),
        number if number == of && of == 2 => "both".to_owned(),
        number if number == of => format!("all {number}"),
        number => number.to_string(),
    };
    let mut parts = Vec::new();
    if !stuck.is_empty() {
        parts.push(format!("{} will not react to SIGKILL", who(stuck.len())));
    }
    if dying > 0 {
        parts.push(format!("{} {} already dying", who(dying), if dying == 1 { "is" } else { "are" }));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// What was asked about.
fn asked(summary: &Summary<'_>) -> String {
    let gpus: Vec<u32> = summary.report.gpus.iter().map(|gpu| gpu.index).collect();
    if gpus.is_empty() { "any of the devices asked about".to_owned() } else { gpu_list(&gpus) }
}

fn gpu_list(gpus: &[u32]) -> String {
    format!("GPU {}", ranges(gpus.iter().copied().map(u64::from)))
}

/// Devices that the holders of shared devices hold.
fn shared_names(summary: &Summary<'_>) -> Vec<String> {
    let holders = summary.shared_only.iter().map(|at| &summary.report.holders[*at]);
    let names: BTreeSet<String> =
        holders.flat_map(|holder| &holder.devices).map(|device| escape_str(&device.device)).collect();
    let names = name_ranges(&names.into_iter().collect::<Vec<_>>());
    if names.is_empty() { vec!["a GPU device".to_owned()] } else { names }
}

/// `a, b and c`; many are counted.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] if names.len() <= 4 => format!("{} and {last}", first.join(", ")),
        _ => format!("{}, {} and {} other devices", names[0], names[1], names.len() - 2),
    }
}

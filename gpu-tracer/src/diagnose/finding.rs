//! What is to be said of one holder of one GPU.

use std::collections::{BTreeSet, HashMap};

use super::going::{ENDING, Going, going, waits};
use super::input::{HalfGone, Input, Wait};
use super::place::{in_gpu_driver, place};
use super::role::reason_of;
use crate::model::diagnosis::{Fact, Finding};
use crate::model::report::{FileReport, Holder, Opener};
use crate::model::{RawText, counted, seconds};

pub(super) fn fact(text: impl Into<String>) -> Fact {
    Fact { text: text.into(), inferred: false }
}

pub(super) fn inferred(text: impl Into<String>) -> Fact {
    Fact { text: text.into(), inferred: true }
}

/// By how many processes each open file is held, by its id.
pub(super) type Sharers = HashMap<u64, usize>;

/// Who shares what.
pub(super) fn sharers(holders: &[Holder]) -> Sharers {
    let mut by: HashMap<u64, BTreeSet<u32>> = HashMap::new();
    for holder in holders {
        for held in holder.devices.iter().filter(|held| held.fds > 0 || held.maps > 0) {
            for file in &held.files {
                by.entry(*file).or_default().insert(holder.pid);
            }
        }
    }
    by.into_iter().map(|(file, pids)| (file, pids.len())).collect()
}

/// A holder as it concerns `gpu`.
pub(super) fn finding(input: &Input, gpu: Option<u32>, holder: &Holder, sharers: &Sharers) -> Finding {
    let going = going(holder, input.waits.get(&holder.tid), is_releasing(input, holder));
    let concerned = holder.devices.iter().filter(|held| held.gpu.is_none() || held.gpu == gpu);
    let sum = |pick: fn(&crate::model::report::HeldDevice) -> u64| {
        concerned.clone().map(pick).fold(0u64, u64::saturating_add)
    };
    let direct = holder.devices.iter().any(|held| held.gpu.is_some() && held.gpu == gpu);
    let others: BTreeSet<u32> =
        holder.devices.iter().filter_map(|held| held.gpu).filter(|other| Some(*other) != gpu).collect();
    let memory = holder.memory.iter().find(|memory| Some(memory.gpu) == gpu).map(|memory| memory.mib);
    let openers = openers(input, holder);
    let started_as = openers
        .iter()
        .find(|opener| (opener.pid, opener.start_ns) == (holder.pid, holder.start_ns))
        .map(|opener| opener.cmdline.clone())
        .filter(|cmdline| !cmdline.is_empty() && *cmdline != holder.cmdline);
    let Going { killable, ending, because, place, waits } = going;
    let mut why = holder.why.clone();
    if ending {
        // What one look took for stuck has turned out to be on its way.
        why.retain(|word| word != "stuck-in-kernel");
    }
    if why.is_empty() {
        why.push("exiting".to_owned());
    }
    // A daemon of an earlier version does not say it.
    if let Some(reason) = reason_of(&holder.role).filter(|reason| !why.iter().any(|word| word == reason)) {
        why.push(reason.to_owned());
    }
    let mut finding = Finding {
        pid: holder.pid,
        tid: holder.tid,
        start_ns: holder.start_ns,
        started_at: holder.started_at.clone(),
        uid: holder.uid,
        comm: holder.comm.clone(),
        cmdline: holder.cmdline.clone(),
        started_as,
        exe: holder.exe.clone(),
        container: holder.container.clone(),
        pod: holder.pod.clone(),
        unit: holder.unit.clone(),
        job: holder.job.clone(),
        role: holder.role.clone(),
        why,
        fds: sum(|held| held.fds),
        maps: sum(|held| held.maps),
        in_flight: sum(|held| held.in_flight),
        io_uring: sum(|held| held.io_uring),
        direct,
        other_gpus: others.into_iter().collect(),
        memory_mib: memory,
        created_by: None,
        killable,
        ending,
        killable_because: because,
        waits_in: place.map(|place| place.word().to_owned()),
        runs: place.is_some() && holder.state == "R",
        waits,
        evidence: Vec::new(),
    };
    finding.evidence = evidence(input, holder, &finding, &openers);
    finding.evidence.extend(shared(holder, sharers).filter(|_| openers.is_empty()));
    finding
}

/// Is its task inside the driver's release, as somebody who follows the driver has seen? The stack of one that runs is not to be had.
fn is_releasing(input: &Input, holder: &Holder) -> bool {
    let releasing = input.report.files.iter().filter(|file| file.state == "releasing");
    releasing.filter_map(|file| file.task).any(|task| (task.pid, task.tid) == (holder.pid, holder.tid))
}

/// Who opened what it holds, each once, as far as that was recorded.
fn openers<'a>(input: &'a Input, holder: &Holder) -> Vec<&'a Opener> {
    let ids: BTreeSet<u64> = holder.devices.iter().flat_map(|held| held.files.iter().copied()).collect();
    let files = input.report.files.iter().filter(|file: &&FileReport| ids.contains(&file.id));
    let mut openers: Vec<&Opener> = files.filter_map(|file| file.opener.as_ref()).collect();
    openers.sort_by_key(|opener| (opener.pid, opener.start_ns));
    openers.dedup_by_key(|opener| (opener.pid, opener.start_ns));
    openers
}

fn evidence(input: &Input, holder: &Holder, finding: &Finding, openers: &[&Opener]) -> Vec<Fact> {
    let mut facts = Vec::new();
    if holder.tid != holder.pid {
        facts.push(fact(format!(
            "The leader {} is in state {} and shows no descriptors in /proc/{}/fd; task {} (state {}) carries them.",
            holder.pid, holder.leader_state, holder.pid, holder.tid, holder.state
        )));
    }
    if holder.sigkill_pending {
        facts.push(fact(format!("SIGKILL is pending for task {} (state {}).", holder.tid, holder.state)));
    }
    if let Some(wait) = input.waits.get(&holder.tid).filter(|wait| wait.unmoved && holder.state == "D") {
        facts.push(fact(format!("Task {} did not move for {} ms.", holder.tid, wait.over_ms)));
    }
    for file in input.report.files.iter().filter(|file| file.state == "releasing") {
        if let Some(task) = file.task.filter(|task| (task.pid, task.tid) == (holder.pid, holder.tid)) {
            let age = file.for_ms.map_or_else(String::new, |ms| format!(" for {}", seconds(ms)));
            facts.push(fact(format!(
                "Task {} has been inside the driver's release of {}{age}.",
                task.tid, file.device
            )));
        }
    }
    for opener in
        openers.iter().filter(|opener| opener.pid != holder.pid || opener.start_ns != holder.start_ns).take(3)
    {
        let line = if opener.cmdline.is_empty() { &opener.comm } else { &opener.cmdline };
        let end = if opener.alive { "which lives" } else { "which is dead" };
        facts.push(fact(format!(
            "What it holds was opened by PID {} ({}), {end}.",
            opener.pid,
            line.to_text()
        )));
    }
    facts.extend(disguise(holder, finding));
    let named = |number: u64, one: &str, many: &str, rest: &str| {
        (number > 0).then(|| fact(format!("{} {rest}", counted(number, one, many))))
    };
    facts.extend(named(
        finding.in_flight,
        "handle waits",
        "handles wait",
        "in a socket whose receiving end it has open: sent and not received, in no /proc/PID/fd.",
    ));
    facts.extend(named(
        finding.io_uring,
        "handle is",
        "handles are",
        "registered with an io_uring of its: in no /proc/PID/fd.",
    ));
    if finding.fds == 0 && finding.maps > 0 {
        facts.push(fact(format!(
            "{} and no descriptor: the file was closed after it was mapped.",
            counted(finding.maps, "mapping", "mappings")
        )));
    }
    facts
}

/// It holds what others hold as well.
fn shared(holder: &Holder, sharers: &Sharers) -> Option<Fact> {
    let files = holder.devices.iter().flat_map(|held| &held.files);
    let most = files.filter_map(|file| sharers.get(file)).max().copied().unwrap_or(0);
    (most > 1).then(|| {
        fact(format!(
            "{most} processes share an open file of its: one of them at most opened it, the others inherited it or were given it."
        ))
    })
}

/// It is called something that says nothing of the program it runs.
fn disguise(holder: &Holder, finding: &Finding) -> Option<Fact> {
    let exe = holder.exe.as_ref().filter(|exe| !exe.is_empty())?;
    let path = exe.0.strip_suffix(b" (deleted)").unwrap_or(&exe.0);
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let stem: &[u8] = match file.iter().position(|byte| byte.is_ascii_digit() || *byte == b'.') {
        Some(end) if end > 0 => &file[..end],
        _ => file,
    };
    let stem = &stem[..stem.len().min(15)];
    let shows = |text: &RawText| text.0.windows(stem.len().max(1)).any(|window| window == stem);
    if stem.is_empty() || shows(&holder.comm) || shows(&holder.cmdline) {
        return None;
    }
    let started = finding
        .started_as
        .as_ref()
        .map_or_else(String::new, |line| format!(", was started as `{}`", line.to_text()));
    Some(fact(format!(
        "It calls itself `{}`{started}, and runs {}: a pattern for the program's name (pkill -f {}) misses it.",
        holder.comm.to_text(),
        exe.to_text(),
        String::from_utf8_lossy(stem)
    )))
}

/// A task that is half-way through exit, for the GPU that it is held responsible for.
pub(super) fn half_gone(input: &Input, task: &HalfGone, why: Fact) -> Finding {
    let wait = input.waits.get(&task.tid);
    let place = place(task.wchan.as_deref(), &task.stack);
    let lasting = wait.is_some_and(Wait::is_lasting);
    let mut words = vec!["exiting".to_owned()];
    match (in_gpu_driver(&task.stack), lasting) {
        (true, _) => words.push("releasing".to_owned()),
        (false, true) => words.push("stuck-in-kernel".to_owned()),
        (false, false) => {}
    }
    let because = if lasting {
        "It is past the point where signals matter: another SIGKILL will not help."
    } else {
        ENDING
    };
    let mut evidence = vec![
        why,
        fact(format!(
            "Task {} (state {}) is half-way through exit: its descriptors are in no table any more and not all released.",
            task.tid, task.state
        )),
    ];
    if !task.stack.is_empty() {
        let frames: Vec<&str> = task.stack.iter().take(6).map(String::as_str).collect();
        evidence.push(fact(format!("Its kernel stack: {}.", frames.join(" < "))));
    }
    Finding {
        pid: task.pid,
        tid: task.tid,
        start_ns: task.start_ns,
        comm: task.comm.clone(),
        role: "unknown".to_owned(),
        why: words,
        killable: !lasting,
        ending: !lasting,
        killable_because: because.to_owned(),
        waits_in: Some(place.word().to_owned()),
        runs: task.state == "R",
        waits: Some(waits((task.tid, &task.state), task.wchan.as_deref(), place, wait)),
        memory_mib: input
            .claims
            .iter()
            .filter(|claim| claim.pid == task.pid || claim.pid == task.tid)
            .find_map(|claim| claim.mib),
        evidence,
        ..Finding::default()
    }
}

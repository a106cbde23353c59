//! Ends the holders that can be ended, and waits for the *release*, not for the exit.
//!
//! A pidfd is opened for every process before it is checked to be the one that was diagnosed; signals go through that. First
//! SIGTERM, then, after a grace, SIGKILL. Afterwards the kernel is looked at until no handle is left and, where NVML tells,
//! memory is back. New holders that turn up meanwhile (children that were started again) are ended too, a few times.

pub mod ending;
pub mod plan;

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::ending::{EndingError, Held, await_end};
use self::plan::{Plan, Protected, Target, plan};
use crate::answer::{Ask, Inquiry, Question};
use crate::diagnose;
use crate::model::diagnosis::{Diagnosis, Verdict};
use crate::process::ProcFs;
use crate::process::facts::read_stat;

/// How often those who turn up meanwhile are ended.
const ROUNDS: usize = 3;
/// Between two looks at what is left.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Generations followed upwards.
const GENERATIONS: usize = 64;

/// What may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseOptions {
    /// Only say what would be done.
    pub dry_run: bool,
    /// Time from SIGTERM to SIGKILL, and from there to giving up.
    pub grace: Duration,
    /// Do not ask.
    pub yes: bool,
    /// End infrastructure too.
    pub include_infrastructure: bool,
}

/// Whom to talk to.
pub trait Talk {
    /// Tells what is going on.
    fn say(&mut self, line: &str);
    /// Asks whether to go on.
    ///
    /// # Errors
    /// There is nobody to ask.
    fn confirm(&mut self, question: &str) -> io::Result<bool>;
}

/// Releases GPUs; returns how things are afterwards.
///
/// # Errors
/// As for [`why`](crate::answer::why()); also when there is nobody to ask.
pub fn release(
    question: &Question,
    options: &ReleaseOptions,
    talk: &mut dyn Talk,
) -> anyhow::Result<Diagnosis> {
    let mut inquiry = Inquiry::new(question)?;
    let everything = Ask { nvml: true, ..Ask::default() };
    let mut diagnosis = diagnose::diagnose(&inquiry.input(&everything)?);
    let protected = protected();
    let mut tried: BTreeSet<(u32, u64)> = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut plan = plan(&diagnosis, &protected, options.include_infrastructure);
        plan.targets.retain(|target| !tried.contains(&(target.pid, target.start_ns)));
        if round == 0 {
            tell(&plan, options, talk);
            if options.dry_run || plan.targets.is_empty() && !is_leaving(&diagnosis) {
                return Ok(diagnosis);
            }
            let asks = plan.targets.iter().any(|target| !target.ending) && !options.yes;
            if asks && !talk.confirm("End them?")? {
                talk.say("Nothing was done.");
                return Ok(diagnosis);
            }
        } else if plan.targets.is_empty() {
            break;
        } else {
            talk.say("These hold it by now:");
            tell(&plan, options, talk);
        }
        tried.extend(plan.targets.iter().map(|target| (target.pid, target.start_ns)));
        let stays = end(plan.targets, options.grace, talk);
        diagnosis = await_release(&mut inquiry, &stays, options, &protected)?;
    }
    report_what_stays(&diagnosis, talk);
    Ok(diagnosis)
}

/// Something will be released without anybody being ended.
fn is_leaving(diagnosis: &Diagnosis) -> bool {
    diagnosis.gpus.iter().any(|gpu| gpu.verdict == Verdict::Stuck)
}

fn tell(plan: &Plan, options: &ReleaseOptions, talk: &mut dyn Talk) {
    let beyond: Vec<&Target> = plan.targets.iter().filter(|target| !target.beyond.is_empty()).collect();
    for target in beyond {
        let others: Vec<String> = target.beyond.iter().map(u32::to_string).collect();
        talk.say(&format!(
            "Note: {} holds GPU {} too: ending it affects that.",
            name(target),
            others.join(", ")
        ));
    }
    for target in &plan.targets {
        let line = match &target.stuck {
            Some(why) => format!("{}: SIGKILL will not help now. {why}", name(target)),
            None if target.ending => format!("{}: on its way out already; it is waited for", name(target)),
            None if target.stopped => format!(
                "{}: SIGTERM and SIGCONT, SIGKILL after {} s",
                name(target),
                options.grace.as_secs_f64()
            ),
            None => format!("{}: SIGTERM, SIGKILL after {} s", name(target), options.grace.as_secs_f64()),
        };
        talk.say(&line);
    }
    for spared in &plan.spared {
        talk.say(&format!("PID {} ({}): left alone, {}", spared.pid, spared.comm.to_text(), spared.because));
    }
    if plan.targets.is_empty() {
        talk.say("There is nobody to end.");
    }
}

fn name(target: &Target) -> String {
    format!("PID {} ({})", target.pid, target.comm.to_text())
}

/// Ends these; returns the PIDs of those that did not go.
fn end(targets: Vec<Target>, grace: Duration, talk: &mut dyn Talk) -> BTreeSet<u32> {
    let mut held = Vec::new();
    for target in targets {
        match Held::of(target) {
            Ok(one) => held.push(one),
            Err(EndingError::Gone { .. }) => {}
            Err(error) => talk.say(&error.to_string()),
        }
    }
    let mut send = |held: &[Held], signal: Signal, wanted: &dyn Fn(&Target) -> bool| {
        for one in held.iter().filter(|one| !one.has_ended() && wanted(&one.target)) {
            if let Err(error) = one.signal(signal) {
                talk.say(&error.to_string());
            }
        }
    };
    // Those that cannot go anyway are not waited for before SIGKILL is sent to the others.
    send(&held, Signal::TERM, &|target| !target.ending);
    send(&held, Signal::CONT, &|target| target.stopped);
    let hopeful = held.iter().any(|one| one.target.stuck.is_none());
    let mut left = if hopeful { await_hopeful(&mut held, grace) } else { held.len() };
    if left > 0 {
        send(&held, Signal::KILL, &|target| !target.ending);
        left = await_hopeful(&mut held, grace);
    }
    if left == 0 {
        return BTreeSet::new();
    }
    held.iter().filter(|one| !one.has_ended()).map(|one| one.target.pid).collect()
}

/// Waits for those of whom an end can be expected; returns how many of all are left.
fn await_hopeful(held: &mut [Held], patience: Duration) -> usize {
    held.sort_by_key(|one| one.target.stuck.is_some());
    let hopeful = held.iter().take_while(|one| one.target.stuck.is_none()).count();
    let left = await_end(&mut held[..hopeful], patience);
    left + await_end(&mut held[hopeful..], Duration::ZERO)
}

/// Looks until nothing is left that could still be released, or the grace is over. `stays` are those that did not end.
fn await_release(
    inquiry: &mut Inquiry,
    stays: &BTreeSet<u32>,
    options: &ReleaseOptions,
    protected: &Protected,
) -> anyhow::Result<Diagnosis> {
    let until = Instant::now() + options.grace;
    loop {
        let diagnosis = diagnose::diagnose(&inquiry.input(&Ask { nvml: true, ..Ask::default() })?);
        let over = Instant::now() >= until;
        let left = plan(&diagnosis, protected, options.include_infrastructure);
        // Somebody new has come: that needs another round, not patience.
        let new = left.targets.iter().any(|target| target.stuck.is_none() && !stays.contains(&target.pid));
        let settled = diagnosis.gpus.iter().all(|gpu| match gpu.verdict {
            Verdict::Free => true,
            Verdict::Held => left.targets.is_empty(),
            Verdict::Stuck | Verdict::NoHandle | Verdict::Unknown => false,
        });
        if settled || over || new {
            return Ok(diagnosis);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

fn report_what_stays(diagnosis: &Diagnosis, talk: &mut dyn Talk) {
    let mut told = BTreeSet::new();
    for finding in diagnosis.gpus.iter().flat_map(|gpu| &gpu.holders) {
        if finding.killable || !told.insert((finding.pid, finding.tid)) {
            continue;
        }
        let task =
            if finding.tid == finding.pid { String::new() } else { format!("thread {} of ", finding.tid) };
        let waits = finding.waits.as_deref().unwrap_or_default();
        talk.say(&format!("{task}PID {} does not go: SIGKILL will not help. {waits}", finding.pid));
    }
}

/// This process and those that it was started from.
fn protected() -> Protected {
    let own = std::process::id();
    let mut ancestors = BTreeSet::new();
    let mut pid = own;
    for _ in 0..GENERATIONS {
        let parent =
            ProcFs::host().process(pid).and_then(|directory| read_stat(&directory)).map(|stat| stat.ppid);
        match parent {
            Ok(parent) if parent > 0 && ancestors.insert(parent) => pid = parent,
            _ => break,
        }
    }
    Protected { own, ancestors }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_and_its_parents_are_protected() {
        let protected = protected();
        assert_eq!(protected.own, std::process::id());
        let parent = std::os::unix::process::parent_id();
        assert!(protected.ancestors.contains(&parent), "{parent} in {:?}", protected.ancestors);
    }
}

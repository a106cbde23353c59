//! The one line that somebody reads who reads nothing else, and the sentences that have no place in it.

use std::collections::{BTreeMap, BTreeSet};

use super::memory::{INITIALISED_MIB, gpu_report, idle_words};
use super::place::Place;
use super::role::is_infrastructure;
use super::verdict::Judge;
use super::words::{few_within, name, process, subject, who};
use crate::gpu::NvmlStatus;
use crate::model::counted;
use crate::model::diagnosis::{Finding, Verdict};

/// Characters of a headline: more would be two lines on most terminals. Only names that need escapes make one longer.
pub(super) const LONGEST: usize = 120;

/// A headline and what follows it.
#[derive(Debug, Default)]
pub(super) struct Headline {
    pub(super) line: String,
    pub(super) details: Vec<String>,
}

impl From<String> for Headline {
    fn from(line: String) -> Self {
        Self { line, details: Vec::new() }
    }
}

impl Headline {
    /// A further sentence: in the line if there is room.
    fn then(mut self, sentence: &str) -> Self {
        if self.details.is_empty() && self.line.chars().count() + 1 + sentence.chars().count() <= LONGEST {
            self.line.push(' ');
            self.line.push_str(sentence);
        } else {
            self.details.push(sentence.to_owned());
        }
        self
    }

    fn below(mut self, sentence: impl Into<String>) -> Self {
        self.details.push(sentence.into());
        self
    }
}

/// Names after `start`, as many as there is room for before `end`.
fn listing(start: &str, names: &[String], end: &str) -> String {
    let room = LONGEST.saturating_sub(start.chars().count() + end.chars().count());
    format!("{start}{}{end}", few_within(names, room))
}

pub(super) fn headline(judge: &Judge<'_>, verdict: Verdict) -> Headline {
    let headline = match verdict {
        Verdict::Free => free(judge),
        Verdict::Held => held(judge),
        Verdict::Stuck => stuck(judge),
        Verdict::NoHandle => no_handle(judge),
        Verdict::Unknown => unknown(judge),
    };
    // Whoever is held for certain may still not be held alone.
    match (verdict, &judge.doubts[..]) {
        (Verdict::Held | Verdict::Stuck, [_, ..]) => {
            headline.below("There may be more: not everything could be seen.")
        }
        _ => headline,
    }
}

fn used(judge: &Judge<'_>) -> Option<u64> {
    gpu_report(judge.input, judge.gpu?)?.memory_used_mib
}

/// What a GPU without holders shows, in words.
fn small(judge: &Judge<'_>, used: u64) -> String {
    idle_words(used, judge.gpu.and_then(|gpu| judge.input.baselines.get(&gpu)).copied())
}

fn free(judge: &Judge<'_>) -> Headline {
    let memory = match (used(judge), &judge.input.nvml) {
        (Some(used), _) => format!("; {}", small(judge, used)),
        (None, NvmlStatus::Absent(_)) => " (there is no NVML to ask about memory)".to_owned(),
        (None, _) => " (its memory is not known)".to_owned(),
    };
    format!("{} is free: nobody holds a handle of it{memory}.", subject(judge.gpu)).into()
}

fn no_handle(judge: &Judge<'_>) -> Headline {
    let used = used(judge).unwrap_or(0);
    let line = format!(
        "{} has {used} MiB in use and nobody holds a handle of it: no process can be killed to free them.",
        subject(judge.gpu)
    );
    Headline::from(line).below("The driver has kept them.")
}

fn unknown(judge: &Judge<'_>) -> Headline {
    let subject = subject(judge.gpu);
    let opened_by = judge.orphans.iter().map(|file| file.task.filter(|_| file.state == "opening"));
    if let Some(tasks) = opened_by.collect::<Option<Vec<_>>>()
        && let Some(task) = tasks.first()
    {
        let others = if tasks.len() > 1 { " and others" } else { "" };
        let line = format!("{subject} is being opened by task {} of PID {}{others}.", task.tid, task.pid);
        return Headline::from(line).below("The driver's open has not returned: there is no descriptor yet.");
    }
    if !judge.orphans.is_empty() {
        let files = counted(judge.orphans.len(), "open file of it belongs", "open files of it belong");
        return format!(
            "{subject} is held, but nobody can be named: {files} to no process that could be seen."
        )
        .into();
    }
    let memory = used(judge).map_or_else(String::new, |used| format!(" ({used} MiB are used)"));
    let object = judge.gpu.map_or_else(|| "the device".to_owned(), |_| subject);
    let start = format!("Unknown: nobody was seen to hold {object}{memory}, but ");
    let reason = judge.doubts.first().map(|doubt| brief(doubt)).unwrap_or_default();
    let fits = !reason.is_empty() && start.chars().count() + reason.chars().count() < LONGEST;
    format!("{start}{}.", if fits { reason } else { "not everything could be seen" }).into()
}

/// A doubt without what explains it and what would help: all of it stands below.
fn brief(doubt: &str) -> &str {
    let end = [": ", "; "].iter().filter_map(|mark| doubt.find(mark)).min();
    end.map_or(doubt, |end| &doubt[..end])
}

fn stuck(judge: &Judge<'_>) -> Headline {
    let subject = subject(judge.gpu);
    let stuck: Vec<&Finding> = judge.findings.iter().filter(|finding| !finding.killable).collect();
    let Some(first) = stuck.first() else {
        let files = counted(judge.releasing().lasting, "handle", "handles");
        return format!(
            "{subject} is still being released by the driver ({files}): nobody is left to kill, SIGKILL will not help."
        )
        .into();
    };
    let line = format!("{subject} is held by {}{}, which SIGKILL does not end.", who(first), memory(first));
    let mut headline = Headline::from(line);
    if let Some(place) = first.waits_in.as_deref().and_then(Place::of_word) {
        headline = headline.then(if first.runs { place.running_brief() } else { place.brief() });
    }
    match stuck.len() - 1 {
        0 => {}
        1 => headline = headline.below("One more is stuck."),
        more => headline = headline.below(format!("{more} more are stuck.")),
    }
    match judge.findings.len() - stuck.len() {
        0 => headline,
        others => {
            headline.below(format!("{} can be killed.", counted(others, "other holder", "other holders")))
        }
    }
}

fn memory(finding: &Finding) -> String {
    match finding.memory_mib {
        Some(mib) => format!(", {mib} MiB"),
        None => String::new(),
    }
}

fn held(judge: &Judge<'_>) -> Headline {
    let subject = subject(judge.gpu);
    if judge.findings.is_empty() {
        let files = counted(judge.releasing().fresh, "handle", "handles");
        return format!(
            "{subject} is being released by the driver just now ({files}): ask again in a second."
        )
        .into();
    }
    let serious: Vec<&Finding> =
        judge.findings.iter().filter(|finding| !is_infrastructure(&finding.role)).collect();
    if serious.is_empty() {
        let names: Vec<String> = judge.findings.iter().map(process).collect();
        let start = format!("{subject} is held only by infrastructure and monitors, on purpose: ");
        return listing(&start, &names, ".").into();
    }
    if serious.iter().all(|finding| finding.ending) {
        return ending(&subject, &serious);
    }
    if are_idle_contexts(judge) {
        return idle_contexts(judge, &subject, &serious);
    }
    match &serious[..] {
        [one] => one_holder(&subject, one),
        many => many_holders(judge, &subject, many).into(),
    }
}

/// Nothing more is to be done than to wait.
fn ending(subject: &str, serious: &[&Finding]) -> Headline {
    let line = match serious {
        [one] => {
            format!("{subject} is held by {}{}, which is on its way out.", who(one), memory(one))
        }
        many => {
            let names: Vec<String> = many.iter().map(|finding| process(finding)).collect();
            listing(&format!("{subject} is held by "), &names, ", which are on their way out.")
        }
    };
    Headline::from(line).then("Ask again in a second.")
}

/// Is it held by nothing but contexts in which nothing is allocated?
pub(super) fn are_idle_contexts(judge: &Judge<'_>) -> bool {
    let mut serious = judge.findings.iter().filter(|finding| !is_infrastructure(&finding.role)).peekable();
    let small = used(judge).is_some_and(|used| used <= INITIALISED_MIB);
    serious.peek().is_some() && (small || serious.all(|finding| finding.role == "initialised"))
}

/// Only contexts in which nothing is allocated.
fn idle_contexts(judge: &Judge<'_>, subject: &str, serious: &[&Finding]) -> Headline {
    let names: Vec<String> = serious.iter().map(|finding| process(finding)).collect();
    let much = used(judge).map_or_else(String::new, |used| format!(" ({used} MiB)"));
    let verb = if names.len() == 1 { "holds an idle context" } else { "hold idle contexts" };
    let line = listing(&format!("{subject} is initialised, not used: "), &names, &format!(" {verb}{much}."));
    Headline::from(line).then(if names.len() == 1 { "It can be killed." } else { "They can be killed." })
}

fn said(finding: &Finding, word: &str) -> bool {
    finding.why.iter().any(|why| why == word)
}

fn one_holder(subject: &str, one: &Finding) -> Headline {
    let (who, memory) = (who(one), memory(one));
    let held = |rest: &str| Headline::from(format!("{subject} is held by {who}{memory}{rest}"));
    match () {
        () if (one.fds, one.maps, one.io_uring) == (0, 0, 0) && one.in_flight > 0 => Headline::from(format!(
            "{subject} is held by a handle in flight{memory}: sent to {who} and not received."
        ))
        .then("It can be killed."),
        () if (one.fds, one.maps, one.in_flight) == (0, 0, 0) && one.io_uring > 0 => {
            held(" through an io_uring only.").then("It lives and can be killed.")
        }
        () if said(one, "thread-of-defunct") => {
            held(": its leader is a zombie, it lives.").then("It can be killed.")
        }
        () if said(one, "stopped") => held(", which is stopped.").then("It can be killed, or continued."),
        () if said(one, "frozen") => held(", which is frozen.").then("It can be killed all the same."),
        () if said(one, "dumping-core") => {
            held(", which is writing a core dump.").then("It ends with that, or is killed.")
        }
        () if one.created_by.is_some() => inherited(held, one),
        () if said(one, "inherited") => {
            held(", which inherited the handles.").then("It lives and can be killed.")
        }
        () if one.role == "mps-server" => {
            held(", the MPS server, on behalf of its clients.").then("It can be killed, and they with it.")
        }
        () => held(", which lives and can be killed."),
    }
}

/// One that keeps what another has left. Only where its descent is shown is it said to have inherited that.
fn inherited(held: impl Fn(&str) -> Headline, one: &Finding) -> Headline {
    let how = if said(one, "inherited") { "inherited from" } else { "created by" };
    let what = if one.memory_mib.is_some() { "" } else { " with memory" };
    let dead = one.created_by.unwrap_or_default();
    held(&format!("{what}, {how} PID {dead}, which is dead.")).then("It lives and can be killed.")
}

fn many_holders(judge: &Judge<'_>, subject: &str, many: &[&Finding]) -> String {
    let pids: BTreeSet<u32> = many.iter().map(|finding| finding.pid).collect();
    let processes = counted(pids.len(), "process", "processes");
    let memory = used(judge).map_or_else(String::new, |used| format!(", {used} MiB"));
    let heirs = many.iter().all(|finding| said(finding, "inherited"));
    let creator = many[0].created_by.filter(|pid| many.iter().all(|one| one.created_by == Some(*pid)));
    let from = match (creator, heirs) {
        (Some(dead), true) => format!(", inherited from dead PID {dead}"),
        (Some(dead), false) => format!(", created by dead PID {dead}"),
        (None, true) => ", inherited".to_owned(),
        (None, false) => String::new(),
    };
    let whole = format!("{subject} is held by {processes} that can be killed{memory}{from}");
    let names: BTreeSet<&[u8]> = many.iter().map(|finding| &finding.comm.0[..]).collect();
    let named = if names.len() > 1 {
        let each: BTreeMap<u32, String> = many.iter().map(|one| (one.pid, process(one))).collect();
        listing(&format!("{whole}: "), &each.into_values().collect::<Vec<_>>(), ".")
    } else {
        // One name stands for all.
        let name = name(&many[0].comm);
        let name = if name.is_empty() { name } else { format!(" ({name})") };
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        listing(&format!("{whole}: PID "), &pids, &format!("{name}."))
    };
    if named.chars().count() <= LONGEST { named } else { format!("{whole}.") }
}

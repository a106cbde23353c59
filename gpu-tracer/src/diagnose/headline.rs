//! The one sentence that somebody reads who reads nothing else.

use std::collections::BTreeSet;

use super::memory::{INITIALISED_MIB, gpu_report, small_words};
use super::role::is_infrastructure;
use super::verdict::Judge;
use super::words::{few, subject, who};
use crate::gpu::NvmlStatus;
use crate::model::counted;
use crate::model::diagnosis::{Finding, Verdict};

pub(super) fn headline(judge: &Judge<'_>, verdict: Verdict) -> String {
    let text = match verdict {
        Verdict::Free => free(judge),
        Verdict::Held => held(judge),
        Verdict::Stuck => stuck(judge),
        Verdict::NoHandle => no_handle(judge),
        Verdict::Unknown => unknown(judge),
    };
    // Whoever is held for certain may still not be held alone.
    let more = match (verdict, &judge.doubts[..]) {
        (Verdict::Held | Verdict::Stuck, [_, ..]) => " There may be more: not everything could be seen.",
        _ => "",
    };
    format!("{text}{more}")
}

fn used(judge: &Judge<'_>) -> Option<u64> {
    gpu_report(judge.input, judge.gpu?)?.memory_used_mib
}

fn free(judge: &Judge<'_>) -> String {
    let memory = match (used(judge), &judge.input.nvml) {
        (Some(used), _) => format!("; {}", small_words(used)),
        (None, NvmlStatus::Absent(_)) => " (there is no NVML to ask about memory)".to_owned(),
        (None, _) => " (its memory is not known)".to_owned(),
    };
    format!("{} is free: nobody holds a handle of it{memory}.", subject(judge.gpu))
}

fn no_handle(judge: &Judge<'_>) -> String {
    let used = used(judge).unwrap_or(0);
    format!(
        "{} has {used} MiB in use and nobody holds a handle of it: the driver has kept them, and no process can be killed to free them.",
        subject(judge.gpu)
    )
}

fn unknown(judge: &Judge<'_>) -> String {
    let subject = subject(judge.gpu);
    if !judge.orphans.is_empty() {
        let files = counted(judge.orphans.len(), "open file", "open files");
        return format!(
            "{subject} is held, but nobody can be named: {files} of it belong to no process that could be seen."
        );
    }
    let reason = judge.doubts.first().map_or("not everything could be seen", String::as_str);
    let memory = used(judge).map_or_else(String::new, |used| {
        if used <= INITIALISED_MIB {
            format!(" ({})", small_words(used))
        } else {
            format!(" ({used} MiB are in use)")
        }
    });
    let more = match judge.doubts.len() {
        0 | 1 => String::new(),
        all => format!(", and {} more", counted(all - 1, "reason", "reasons")),
    };
    format!("Unknown: nobody was seen to hold {subject}{memory}, but {reason}{more}.")
}

fn stuck(judge: &Judge<'_>) -> String {
    let subject = subject(judge.gpu);
    let stuck: Vec<&Finding> = judge.findings.iter().filter(|finding| !finding.killable).collect();
    let Some(first) = stuck.first() else {
        let files = counted(judge.leaving(), "handle", "handles");
        return format!(
            "{subject} is still being released by the driver ({files}): SIGKILL will not help, nobody is left to kill."
        );
    };
    let where_ = first.waits.as_deref().map(str::to_owned).unwrap_or_else(|| first.killable_because.clone());
    let pinned = memory(first);
    let mut text =
        format!("{subject} is held by {}{pinned}, which SIGKILL does not end. {where_}", who(first));
    if stuck.len() > 1 {
        text.push_str(&format!(" So are {} more.", stuck.len() - 1));
    }
    let others = judge.findings.len() - stuck.len();
    if others > 0 {
        text.push_str(&format!(" {} can be killed.", counted(others, "other holder", "other holders")));
    }
    text
}

fn memory(finding: &Finding) -> String {
    match finding.memory_mib {
        Some(mib) => format!(", {mib} MiB"),
        None => String::new(),
    }
}

fn held(judge: &Judge<'_>) -> String {
    let subject = subject(judge.gpu);
    let serious: Vec<&Finding> =
        judge.findings.iter().filter(|finding| !is_infrastructure(&finding.role)).collect();
    if serious.is_empty() {
        let names: Vec<String> = judge.findings.iter().map(who).collect();
        return format!(
            "{subject} is held only by infrastructure and monitors, which hold it on purpose: {}.",
            few(&names)
        );
    }
    if let Some(text) = idle_contexts(judge, &subject, &serious) {
        return text;
    }
    match &serious[..] {
        [one] => one_holder(&subject, one),
        many => many_holders(judge, &subject, many),
    }
}

/// Only contexts in which nothing is allocated.
fn idle_contexts(judge: &Judge<'_>, subject: &str, serious: &[&Finding]) -> Option<String> {
    let initialised = serious.iter().all(|finding| finding.role == "initialised");
    let small = used(judge).is_some_and(|used| used <= INITIALISED_MIB);
    if !initialised && !small {
        return None;
    }
    let names: Vec<String> = serious.iter().map(|finding| who(finding)).collect();
    let much = used(judge).map_or_else(String::new, |used| format!(" ({used} MiB)"));
    let verb = if names.len() == 1 { "holds an idle context" } else { "hold idle contexts" };
    Some(format!("{subject} is initialised, not used: {} {verb}{much} and can be killed.", few(&names)))
}

fn said(finding: &Finding, word: &str) -> bool {
    finding.why.iter().any(|why| why == word)
}

fn one_holder(subject: &str, one: &Finding) -> String {
    let (who, memory) = (who(one), memory(one));
    match () {
        () if (one.fds, one.maps, one.io_uring) == (0, 0, 0) && one.in_flight > 0 => format!(
            "{subject} is held by a handle in flight{memory}: it was sent to {who} and not received. That process lives and can be killed."
        ),
        () if (one.fds, one.maps, one.in_flight) == (0, 0, 0) && one.io_uring > 0 => {
            format!(
                "{subject} is held by {who}{memory} through an io_uring only. It lives and can be killed."
            )
        }
        () if said(one, "thread-of-defunct") => {
            format!(
                "{subject} is held by {who}{memory}: its leader is a zombie, but that thread lives. It can be killed."
            )
        }
        () if said(one, "stopped") => {
            format!("{subject} is held by {who}{memory}, which is stopped. It can be killed, or continued.")
        }
        () if said(one, "frozen") => {
            format!("{subject} is held by {who}{memory}, which is frozen. It can be killed all the same.")
        }
        () if said(one, "dumping-core") => format!(
            "{subject} is held by {who}{memory}, which is writing a core dump. It ends with that, or is killed."
        ),
        () if said(one, "exiting") => {
            format!("{subject} is held by {who}{memory}, which is on its way out: ask again in a second.")
        }
        () if said(one, "inherited") => {
            format!(
                "{subject} is held by {who}{memory}, which did not open it: it inherited the handles. It lives and can be killed."
            )
        }
        () if one.role == "mps-server" => format!(
            "{subject} is held by {who}{memory}, the MPS server, on behalf of its clients. It can be killed, and they with it."
        ),
        () => format!("{subject} is held by {who}{memory}, which lives and can be killed."),
    }
}

fn many_holders(judge: &Judge<'_>, subject: &str, many: &[&Finding]) -> String {
    let pids: BTreeSet<u32> = many.iter().map(|finding| finding.pid).collect();
    let names: Vec<String> = many.iter().map(|finding| who(finding)).collect();
    let memory = used(judge).map_or_else(String::new, |used| format!(", {used} MiB"));
    let heirs = many.iter().all(|finding| said(finding, "inherited"));
    let how = if heirs { "that inherited its handles, live and can be killed" } else { "that can be killed" };
    format!(
        "{subject} is held by {} {how}{memory}: {}.",
        counted(pids.len(), "process", "processes"),
        few(&names)
    )
}

//! Why a holder still holds.

use super::Evidence;
use crate::ledger::Origin;
use crate::model::{Task, TaskState};

/// The reasons, in the order in which to read them; never empty.
///
/// `thread-of-defunct`, `dumping-core`, `frozen`, `exiting`, `stuck-in-kernel`, `stopped`, `live`, `live-orphan`, `inherited`, `passed`:
/// see the glossary in `docs/architecture.md`.
#[must_use]
pub fn why(evidence: &Evidence<'_>) -> Vec<&'static str> {
    let carrier = evidence.carrier;
    let mut reasons = Vec::new();
    if evidence.leader.is_some_and(Task::is_dead) && !carrier.is_leader() {
        reasons.push("thread-of-defunct");
    }
    if carrier.dumping_core {
        reasons.push("dumping-core");
    }
    if carrier.frozen {
        reasons.push("frozen");
    }
    if carrier.exiting {
        reasons.push("exiting");
    }
    if is_stuck(carrier) {
        reasons.push("stuck-in-kernel");
    }
    if matches!(carrier.state, TaskState::Stopped | TaskState::Traced) {
        reasons.push("stopped");
    }
    if reasons.is_empty() {
        reasons.push(if is_orphan(evidence) { "live-orphan" } else { "live" });
    }
    if inherits(evidence) {
        reasons.push("inherited");
    }
    if came_by(evidence, |origin| matches!(origin, Origin::Passed { .. })) {
        reasons.push("passed");
    }
    reasons
}

/// The process that started it is gone: it has another parent by now, and which had it is on record.
fn is_orphan(evidence: &Evidence<'_>) -> bool {
    let carrier = evidence.carrier;
    let holder = evidence.view.holders.iter().find(|holder| holder.carrier.tid == carrier.tid);
    holder.is_some_and(|holder| {
        let history = &holder.history;
        let launcher = history.parent.filter(|_| history.forked_ns.is_some());
        launcher.is_some_and(|launcher| launcher.tgid != carrier.ppid)
            || !history.reparented.entries().is_empty()
    })
}

/// Did it come by something that it holds in this way?
fn came_by(evidence: &Evidence<'_>, way: impl Fn(&Origin) -> bool) -> bool {
    let holder = evidence.view.holders.iter().find(|holder| holder.carrier.tid == evidence.carrier.tid);
    holder.is_some_and(|holder| holder.held.iter().any(|held| way(&held.origin)))
}

/// SIGKILL has been sent and it neither sleeps nor stops in a way that lets it act on it. One that exits has acted on it.
///
/// A frozen task, or one that writes a core dump, has a reason of its own.
fn is_stuck(carrier: &Task) -> bool {
    carrier.sigkill_pending
        && !carrier.exiting
        && !carrier.frozen
        && !carrier.dumping_core
        && matches!(carrier.state, TaskState::Uninterruptible | TaskState::Running)
}

/// It shares an open file with a process it descends from: it did not open that file, it got it by fork.
///
/// Without a record of the fork this can be shown only while an ancestor lives and holds it.
fn inherits(evidence: &Evidence<'_>) -> bool {
    if came_by(evidence, |origin| matches!(origin, Origin::Inherited { .. })) {
        return true;
    }
    let carrier = evidence.carrier;
    let Some(mine) = evidence.view.holders.iter().find(|holder| holder.carrier.tid == carrier.tid) else {
        return false;
    };
    // Only by fork does anybody come into a session that another has begun.
    let session = evidence.facts.map_or(0, |facts| facts.session);
    evidence.view.holders.iter().any(|other| {
        [carrier.ppid, session].contains(&other.process.tgid)
            && other.process.tgid != carrier.tgid
            && other.process.start_ns <= mine.process.start_ns
            && mine.held.iter().any(|file| {
                file.fds + file.maps > 0
                    && other.held.iter().any(|theirs| theirs.id == file.id && theirs.fds + theirs.maps > 0)
            })
    })
}

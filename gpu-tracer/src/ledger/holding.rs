//! Who refers to a file now, compared with who did before: how each came to it, and how each left.

use smallvec::SmallVec;

use super::Looked;
use super::files::{Certainty, FileRecord, HeldBy, Origin};
use super::lineage::Processes;
use super::release::of_file;
use super::resolve::{Resolved, Ways};
use super::world::World;
use crate::model::ProcessId;
use crate::model::change::{Change, ChangeKind, CloseCause};

/// Earlier holders named when a file changes hands.
const GIVERS_NAMED: usize = 8;

/// What is known while a snapshot is taken over.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) taken_ns: u64,
    pub(super) complete: bool,
    pub(super) before: Option<Looked>,
    pub(super) world: &'a World<'a>,
}

/// Who refers to each file of a snapshot, as processes: (process, how), ordered by process.
pub(super) struct Holding {
    entries: Vec<(ProcessId, Ways)>,
    /// Where each file's entries begin; one more than there are files.
    starts: Vec<usize>,
}

impl Holding {
    pub(super) fn new(resolved: &Resolved<'_>) -> Self {
        let all =
            || resolved.holders.iter().flat_map(|holder| holder.held.iter().map(move |held| (holder, held)));
        let mut starts = vec![0; resolved.files.len() + 1];
        all().for_each(|(_, (index, _))| starts[index + 1] += 1);
        (1..starts.len()).for_each(|index| starts[index] += starts[index - 1]);
        let nobody = (ProcessId { tgid: 0, start_ns: 0 }, Ways::default());
        let mut entries = vec![nobody; starts.last().copied().unwrap_or(0)];
        let mut next = starts.clone();
        // Holders are ordered by process, so the entries of a file are, too.
        for (holder, (index, ways)) in all() {
            entries[next[*index]] = (holder.process, *ways);
            next[*index] += 1;
        }
        Self { entries, starts }.merged()
    }

    /// Makes one entry of those of a process that holds a file through several fd tables.
    fn merged(mut self) -> Self {
        let mut kept = 0;
        let mut from = 0;
        for index in 0..self.starts.len() - 1 {
            let end = self.starts[index + 1];
            let first = kept;
            for at in from..end {
                let (process, ways) = self.entries[at];
                if kept > first && self.entries[kept - 1].0 == process {
                    self.entries[kept - 1].1.add(ways);
                } else {
                    self.entries[kept] = (process, ways);
                    kept += 1;
                }
            }
            from = end;
            self.starts[index + 1] = kept;
        }
        self.entries.truncate(kept);
        self
    }

    pub(super) fn of(&self, index: usize) -> &[(ProcessId, Ways)] {
        &self.entries[self.starts[index]..self.starts[index + 1]]
    }
}

/// Is it held by just these, in these ways?
pub(super) fn is_held_by(file: &FileRecord, now: &[(ProcessId, Ways)]) -> bool {
    let as_before = |(held, now): (&HeldBy, &(ProcessId, Ways))| (held.process, held.ways) == *now;
    now.len() == file.held_by.len() && file.held_by.iter().zip(now).all(as_before)
}

/// Takes over who holds a file now. `now` is ordered by process, each once.
pub(super) fn take_holders(
    id: u64,
    file: &mut FileRecord,
    now: &[(ProcessId, Ways)],
    scene: &Scene<'_>,
    processes: &Processes,
    changes: &mut Vec<Change>,
) {
    if is_held_by(file, now) {
        return;
    }
    let mut held_by = SmallVec::with_capacity(now.len());
    for (process, ways) in now {
        let before = file.holder(*process).copied();
        let mut held = before.map(|held| HeldBy { ways: *ways, ..held }).unwrap_or(HeldBy {
            process: *process,
            origin: Origin::Unknown,
            since_ns: scene.taken_ns,
            ways: *ways,
        });
        let had = before.map(|held| held.ways);
        // What sits in a queue is not the process's own yet: how it came to the file is decided when it takes it.
        let takes =
            ways.direct() > 0 && had.is_none_or(|had| had.direct() == 0) && held.origin == Origin::Unknown;
        if takes {
            let kind = origin(file, now, *process, scene, processes, &mut held);
            changes.push(of_file(id, file, held.since_ns, Some(*process), kind));
        } else if before.is_none() && ways.pins > 0 {
            changes.push(of_file(id, file, scene.taken_ns, Some(*process), ChangeKind::Pinned));
        }
        let mut say = |kind| changes.push(of_file(id, file, scene.taken_ns, Some(*process), kind));
        let had = had.unwrap_or_default();
        ways_changed(&had, ways, &mut say);
        held_by.push(held);
    }
    for gone in file.held_by.iter().filter(|held| !held_by_has(&held_by, held.process)) {
        let cause = close_cause(gone.process, scene, processes);
        changes.push(of_file(id, file, scene.taken_ns, Some(gone.process), ChangeKind::Closed { cause }));
    }
    file.held_by = held_by;
}

fn held_by_has(held_by: &[HeldBy], process: ProcessId) -> bool {
    held_by.binary_search_by_key(&process, |held| held.process).is_ok()
}

fn ways_changed(had: &Ways, has: &Ways, say: &mut impl FnMut(ChangeKind)) {
    if had.maps == 0 && has.maps > 0 {
        say(ChangeKind::Mapped { exact: false });
    }
    if had.maps > 0 && has.maps == 0 {
        say(ChangeKind::Unmapped);
    }
    if had.fds > 0 && has.fds == 0 {
        say(ChangeKind::DescriptorsClosed);
    }
    if had.in_flight == 0 && has.in_flight > 0 {
        say(ChangeKind::Queued);
    }
    if had.io_uring == 0 && has.io_uring > 0 {
        say(ChangeKind::Registered);
    }
}

/// How a process that did not refer to a file itself came to do so: sets `held`'s origin and time, gives the change.
fn origin(
    file: &FileRecord,
    now: &[(ProcessId, Ways)],
    process: ProcessId,
    scene: &Scene<'_>,
    processes: &Processes,
    held: &mut HeldBy,
) -> ChangeKind {
    let opener = file.opened.as_ref().map(|opened| opened.task.process);
    let fork_seen = processes.get(process).is_some_and(|record| record.history.forked_ns.is_some());
    let after_look = scene.before.is_some_and(|before| processes.is_younger(process, before.taken_ns));
    let complete_look = scene.before.is_some_and(|before| before.complete);
    let born_ns = file
        .opened
        .as_ref()
        .filter(|opened| opened.certainty != Certainty::Likely)
        .map_or(0, |opened| opened.at_ns);
    // A process that was there, without the file, when everything was looked at has not got it by fork.
    if after_look || (fork_seen && !complete_look) {
        let holds = |ancestor: ProcessId| {
            file.holder(ancestor).is_some()
                || opener == Some(ancestor)
                || now.binary_search_by_key(&ancestor, |(process, _)| *process).is_ok()
        };
        let from = processes
            .ancestors(process)
            .take_while(|(_, child)| child.start_ns >= born_ns)
            .find(|(ancestor, _)| *ancestor != process && holds(*ancestor));
        if let Some((from, _)) = from {
            held.origin = Origin::Inherited { from };
            held.since_ns = process.start_ns.min(scene.taken_ns);
            return ChangeKind::Inherited { from };
        }
    }
    let not_by_fork = fork_seen || (complete_look && !after_look) || process.start_ns < born_ns;
    let holders = file.held_by.iter().map(|held| held.process);
    let mut from: Vec<ProcessId> = holders.chain(opener).chain(file.last_holder).collect();
    from.sort_unstable();
    from.dedup();
    from.retain(|other| *other != process);
    if not_by_fork && !from.is_empty() {
        let only = if let [only] = from[..] { Some(only) } else { None };
        held.origin = Origin::Passed { from: only };
        from.truncate(GIVERS_NAMED);
        return ChangeKind::HandedOver { from };
    }
    ChangeKind::Found
}

/// Why a process does not hold any more.
fn close_cause(process: ProcessId, scene: &Scene<'_>, processes: &Processes) -> CloseCause {
    let history = processes.get(process).map(|record| &record.history);
    let looked_ns = scene.before.map_or(0, |before| before.taken_ns);
    if scene.world.is_ending(process) || history.is_some_and(|history| history.exit.is_some()) {
        CloseCause::Exit
    } else if history.and_then(|history| history.execed_ns).is_some_and(|at_ns| at_ns >= looked_ns) {
        CloseCause::Exec
    } else {
        CloseCause::Close
    }
}

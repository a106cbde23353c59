//! Processes that matter to some file: what they were, whose children they are, what was done to them.
//!
//! Kept as long as a living file names the process (as holder, opener, dropper or last holder), one of its descendants
//! matters, or it is young enough that the next snapshot may show it to matter. All histories are bounded.

use super::bounded::Bounded;
use crate::model::change::{Killer, SharedDescription};
use crate::model::event::{Exit, MayWait};
use crate::model::hash::{Map, Set};
use crate::model::{ProcessId, RawText, TableKey};

/// Names remembered per process.
pub const NAMES_KEPT: usize = 16;
/// Signals remembered per process; its first SIGKILL is remembered besides.
pub const SIGNALS_KEPT: usize = 8;
/// Changes of parent remembered per process.
pub const PARENTS_KEPT: usize = 8;
/// Fd tables remembered per process that is going through exit.
const DYING_TABLES_KEPT: usize = 64;
/// Processes remembered that no living file names. When there are more, those unheard of longest are forgotten.
const STRANGERS_KEPT: usize = 16_384;
/// Generations followed upwards.
const GENERATIONS: usize = 64;

/// One change of name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// When, ns of boot time.
    pub at_ns: u64,
    /// Which task.
    pub tid: u32,
    /// Before.
    pub old: RawText,
    /// After.
    pub new: RawText,
}

/// One change of parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reparenting {
    /// When it was noticed, ns of boot time.
    pub at_ns: u64,
    /// Thread-group id of the parent before.
    pub from: u32,
    /// And after.
    pub to: u32,
}

/// One signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSeen {
    /// When it was sent, ns of boot time.
    pub at_ns: u64,
    /// Its number.
    pub signal: i32,
    /// Who sent it.
    pub by: Killer,
}

/// A process entering exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitSeen {
    /// When its first task did, ns of boot time.
    pub at_ns: u64,
    /// How it ends.
    pub exit: Exit,
}

/// What is remembered of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessHistory {
    /// The parent that forked it or, where the fork was not seen, the one it had when first seen.
    pub parent: Option<ProcessId>,
    /// When the fork was told, ns of boot time, if it was: it began when the process did, and had ended by then.
    pub forked_ns: Option<u64>,
    /// The name of its leader now.
    pub comm: RawText,
    /// Changes of name, of any of its tasks.
    pub names: Bounded<NameChange, NAMES_KEPT>,
    /// Changes of parent.
    pub reparented: Bounded<Reparenting, PARENTS_KEPT>,
    /// When it last executed a program, ns of boot time.
    pub execed_ns: Option<u64>,
    /// What `/proc` said of it when it became interesting.
    pub description: Option<SharedDescription>,
    /// Signals sent to it.
    pub signals: Bounded<SignalSeen, SIGNALS_KEPT>,
    /// The first SIGKILL sent to it.
    pub killed: Option<SignalSeen>,
    /// Its end, once it has begun.
    pub exit: Option<ExitSeen>,
    /// When it was reaped, ns of boot time.
    pub freed_ns: Option<u64>,
}

impl ProcessHistory {
    /// The signal that ends it, if one does and its sending was seen.
    #[must_use]
    pub fn ended_by(&self) -> Option<&SignalSeen> {
        let signal = self.exit?.exit.signal()?;
        let killed = self.killed.as_ref().filter(|killed| killed.signal == signal);
        killed.or_else(|| self.signals.entries().iter().rev().find(|seen| seen.signal == signal))
    }
}

/// An fd table as it was when a task that used it entered exit.
#[derive(Clone, Debug)]
pub(super) struct DyingTable {
    pub(super) table: Option<TableKey>,
    pub(super) tid: u32,
    pub(super) at_ns: u64,
    /// (file id, descriptors).
    pub(super) files: Vec<(u64, u64)>,
    /// Descriptors whose close may wait, ascending.
    pub(super) may_wait: Vec<MayWait>,
    /// (descriptor, file id) of the device files, ascending; only where any close may wait.
    pub(super) devices: Vec<(u32, u64)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) history: ProcessHistory,
    /// Thread-group id of the parent in the last snapshot.
    pub(super) ppid: Option<u32>,
    /// When it was last heard of.
    pub(super) heard_ns: u64,
    /// When the name of its leader was last heard, ns of boot time.
    pub(super) named_ns: u64,
    /// Named by a living file as one of its holders.
    pub(super) holding: bool,
    pub(super) dying: Vec<DyingTable>,
    /// That it ends was said; that it is reaped was not.
    pub(super) leaving: bool,
    /// Files it opened while nobody had described it.
    pub(super) undescribed: Vec<u64>,
}

impl Process {
    /// Remembers a table as it is when a task enters exit; later tasks with the same table see it as it is then.
    pub(super) fn remember_table(&mut self, table: DyingTable) {
        let same = |known: &DyingTable| match table.table {
            Some(_) => known.table == table.table,
            None => known.tid == table.tid,
        };
        if let Some(known) = self.dying.iter_mut().find(|known| same(known)) {
            if known.at_ns <= table.at_ns {
                *known = table;
            }
        } else if self.dying.len() < DYING_TABLES_KEPT {
            self.dying.push(table);
        }
    }
}

/// All processes that matter.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes {
    known: Map<ProcessId, Process>,
    /// Number of processes at which strangers are looked for between snapshots.
    ceiling: usize,
}

impl Processes {
    pub(super) fn get(&self, process: ProcessId) -> Option<&Process> {
        self.known.get(&process)
    }

    pub(super) fn get_mut(&mut self, process: ProcessId) -> Option<&mut Process> {
        self.known.get_mut(&process)
    }

    /// The record of a process, new or not.
    pub(super) fn meet(&mut self, process: ProcessId, at_ns: u64) -> &mut Process {
        let record = self.known.entry(process).or_default();
        record.heard_ns = record.heard_ns.max(at_ns);
        record
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.known.iter().map(|(process, record)| (*process, record))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ProcessId, &mut Process)> {
        self.known.iter_mut().map(|(process, record)| (*process, record))
    }

    /// Parent, grandparent, ..., as far as known: (ancestor, its child on the way).
    pub(super) fn ancestors(&self, process: ProcessId) -> impl Iterator<Item = (ProcessId, ProcessId)> {
        let mut child = process;
        std::iter::from_fn(move || {
            let parent = self.known.get(&child)?.history.parent?;
            let step = (parent, child);
            child = parent;
            Some(step)
        })
        .take(GENERATIONS)
    }

    /// Does it hold something, or descend from a process that does without having been looked at since?
    pub(super) fn relevant(&self, process: ProcessId, looked_ns: u64) -> bool {
        let holding = |process: ProcessId| self.known.get(&process).is_some_and(|record| record.holding);
        holding(process)
            || self
                .ancestors(process)
                .take_while(|(_, child)| self.is_younger(*child, looked_ns))
                .any(|(ancestor, _)| holding(ancestor))
    }

    /// May a look that began at `looked_ns` have missed it? It is not to be seen before its fork is nearly over.
    pub(super) fn is_younger(&self, process: ProcessId, looked_ns: u64) -> bool {
        let forked_ns = self.get(process).and_then(|record| record.history.forked_ns);
        forked_ns.unwrap_or(process.start_ns) > looked_ns
    }

    /// Forgets processes that are not `named`, nor ancestors of those, nor heard of since `young_ns`.
    pub(super) fn prune(&mut self, named: &Set<ProcessId>, young_ns: u64) {
        let mut keep = named.clone();
        for process in named {
            for (ancestor, _) in self.ancestors(*process) {
                if !keep.insert(ancestor) {
                    break;
                }
            }
        }
        self.known.retain(|process, record| {
            keep.contains(process) || (record.heard_ns >= young_ns && record.history.freed_ns.is_none())
        });
        self.crowd_out(&keep);
    }

    /// Between snapshots: keeps a storm of forks from filling the memory.
    pub(super) fn limit(&mut self) {
        if self.known.len() > self.ceiling.max(2 * STRANGERS_KEPT) {
            let holding =
                self.iter().filter(|(_, record)| record.holding).map(|(process, _)| process).collect();
            self.crowd_out(&holding);
            // Where all of them matter, looking again at every further one would be slow.
            self.ceiling = 2 * self.known.len();
        }
    }

    fn crowd_out(&mut self, keep: &Set<ProcessId>) {
        let mut strangers: Vec<u64> = self
            .iter()
            .filter(|(process, _)| !keep.contains(process))
            .map(|(_, record)| record.heard_ns)
            .collect();
        if strangers.len() > STRANGERS_KEPT {
            let excess = strangers.len() - STRANGERS_KEPT / 2;
            let (_, last_forgotten, _) = strangers.select_nth_unstable(excess);
            let last_forgotten = *last_forgotten;
            self.known.retain(|process, record| keep.contains(process) || record.heard_ns > last_forgotten);
        }
    }
}

//! Whom the kernel is to tell of, and what is known of them.

use std::collections::HashSet;

use super::core::Core;
use super::describer::Described;
use crate::model::event::{Event, EventKind};
use crate::model::{ProcessId, Snapshot};

impl Core {
    /// Brings the kernel's set of tracked processes into line with what the ledger is interested in.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        let wanted: HashSet<ProcessId> = self.ledger.tracked().into_iter().collect();
        let Some(source) = &mut self.source else { return Ok(()) };
        for process in &wanted {
            if let Err(error) = source.track(*process) {
                super::log::warning(&format!("not every process can be followed: {error}"));
                break;
            }
        }
        source.untrack_dead(snapshot)?;
        // The kernel puts in who touches a device; that may not have been read yet. Only those who were of no interest
        // the last time either are taken out.
        let dull: HashSet<ProcessId> =
            source.tracked().into_iter().filter(|process| !wanted.contains(process)).collect();
        for process in dull.intersection(&self.dull) {
            source.untrack(*process)?;
        }
        self.counters.tracked = (wanted.len() + dull.len()) as u64;
        self.dull = dull;
        Ok(())
    }

    /// Has those looked up in `/proc` whom these events brought in, before they are gone. Going through all processes after
    /// every drain would cost more than the events of a storm themselves.
    pub(super) fn describe_those_of(&mut self, events: &[Event]) {
        for event in events {
            let process = match &event.kind {
                EventKind::DeviceTouched { task, .. }
                | EventKind::Opened { task, .. }
                | EventKind::Execed { task, .. } => task.process,
                EventKind::Forked { child, .. } => child.process,
                _ => continue,
            };
            if self.ledger.is_undescribed(process) {
                self.describer.ask_for(process);
            }
        }
    }

    /// Has all those looked up in `/proc` of whom nothing is known yet.
    pub(super) fn describe_newcomers(&mut self) {
        let undescribed = self.ledger.undescribed();
        self.describer.ask(&undescribed);
    }

    /// A process was looked up.
    pub(super) fn described(&mut self, process: ProcessId, described: Option<Described>) {
        let Some(Described { read_ns, description }) = described else { return };
        self.describer.done(process);
        if self.ledger.describe(process, read_ns, description) {
            self.write_down_description(process);
        } else if self.ledger.is_undescribed(process) {
            self.describer.ask_for(process);
        }
    }
}

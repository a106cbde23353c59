//! Reads what `/proc` says of a process, on a thread of its own: a process can make a reader of its command line wait.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::inbox::{Order, Outbox};
use crate::model::ProcessId;
use crate::model::change::ProcessDescription;
use crate::process::{FactOptions, MmReadable, ProcFs};

/// The core's side of it.
pub(super) struct Describer {
    processes: Sender<ProcessId>,
    /// Asked for; those of whom nothing could be read stay here, so that they are not asked for again.
    asked: HashSet<ProcessId>,
}

impl Describer {
    /// Starts the thread; what it finds goes to the core.
    pub(super) fn start(core: Outbox) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name("describer".to_owned()).spawn(move || describe_all(&receiver, &core))?;
        Ok(Self { processes: sender, asked: HashSet::new() })
    }

    /// These are all that are not described yet, in order.
    pub(super) fn ask(&mut self, processes: &[ProcessId]) {
        self.asked.retain(|process| processes.binary_search(process).is_ok());
        processes.iter().for_each(|process| self.ask_for(*process));
    }

    /// This one is not described yet.
    pub(super) fn ask_for(&mut self, process: ProcessId) {
        if self.asked.insert(process) {
            // The thread ends only with the core.
            let _ = self.processes.send(process);
        }
    }

    /// This one is; it may be asked for again after it has executed another program.
    pub(super) fn done(&mut self, process: ProcessId) {
        self.asked.remove(&process);
    }
}

fn describe_all(processes: &Receiver<ProcessId>, core: &Outbox) {
    for process in processes {
        if !core.send(Order::Described(process, describe(process))) {
            return;
        }
    }
}

/// `None`: it has gone, or another has its PID.
fn describe(process: ProcessId) -> Option<ProcessDescription> {
    let options = FactOptions { mm: MmReadable::Yes, stack: false };
    let facts = ProcFs::host().facts(process.tgid, process.tgid, options).ok()?;
    process.started_in_tick_of(facts.start_ns).then(|| ProcessDescription {
        cmdline: facts.cmdline.unwrap_or_default(),
        exe: facts.exe,
        cgroup: facts.cgroup,
    })
}

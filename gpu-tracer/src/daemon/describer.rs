//! Reads what `/proc` says of a process, on a thread of its own: a process can make a reader of its command line wait.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::inbox::{Order, Outbox};
use crate::kernel::boot_now;
use crate::model::ProcessId;
use crate::model::change::ProcessDescription;
use crate::process::{FactOptions, MmReadable, ProcFs, Reason};

/// Between attempts to read what could not be read just now.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(5)];

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
        thread::Builder::new().name("describer".to_owned()).spawn(move || {
            describe_all(&receiver, &PAUSES, read, |process, described| {
                core.send(Order::Described(process, described))
            });
        })?;
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

    /// An answer about this one has been used; it may be asked for again after it has executed another program.
    pub(super) fn done(&mut self, process: ProcessId) {
        self.asked.remove(&process);
    }
}

/// What `/proc` said of a process.
pub(super) struct Described {
    /// When reading it began, ns of boot time: what the process executes after that is not described here.
    pub(super) read_ns: u64,
    pub(super) description: ProcessDescription,
}

/// One reading of a process.
struct Reading {
    /// `None`: it has gone, or another has its PID.
    described: Option<Described>,
    /// Something of it could not be read just now.
    incomplete: bool,
}

/// A process that is to be read again.
struct Postponed {
    due: Instant,
    attempts: usize,
    process: ProcessId,
    known: Option<Described>,
}

/// Tells of each process once: when all of it could be read, or when that has been tried often enough. Nobody waits for a
/// process that is read again.
fn describe_all(
    processes: &Receiver<ProcessId>,
    pauses: &[Duration],
    read: impl Fn(ProcessId) -> Reading,
    tell: impl Fn(ProcessId, Option<Described>) -> bool,
) {
    let mut later: Vec<Postponed> = Vec::new();
    loop {
        let received = match later.iter().map(|one| one.due).min() {
            None => processes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => processes.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let now = Instant::now();
        let (mut turn, rest): (Vec<Postponed>, Vec<Postponed>) =
            later.into_iter().partition(|one| one.due <= now);
        later = rest;
        match received {
            Ok(process) => turn.push(Postponed { due: now, attempts: 0, process, known: None }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for one in turn {
            let reading = read(one.process);
            // One that has gone meanwhile was what it was.
            let known = reading.described.or(one.known);
            match pauses.get(one.attempts).filter(|_| reading.incomplete) {
                Some(pause) => {
                    later.push(Postponed { due: now + *pause, attempts: one.attempts + 1, known, ..one });
                }
                None if tell(one.process, known) => {}
                None => return,
            }
        }
    }
}

fn read(process: ProcessId) -> Reading {
    let read_ns = boot_now();
    let options = FactOptions { mm: MmReadable::Yes, stack: false };
    let facts = ProcFs::host().facts(process.tgid, process.tgid, options).ok();
    let Some(facts) = facts.filter(|facts| process.started_in_tick_of(facts.start_ns)) else {
        return Reading { described: None, incomplete: false };
    };
    // Inside a driver's open it looks as if reading might wait; a moment later it does not.
    let passing = |reason| matches!(reason, Reason::MightBlock | Reason::TimedOut | Reason::Executing);
    Reading {
        incomplete: facts.withheld.iter().any(|withheld| passing(withheld.reason)),
        described: Some(Described {
            read_ns,
            description: ProcessDescription {
                cmdline: facts.cmdline.unwrap_or_default(),
                exe: facts.exe,
                cgroup: facts.cgroup,
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tgid: u32) -> ProcessId {
        ProcessId { tgid, start_ns: 1 }
    }

    /// What is told of processes whose readings are `readings`: (PID, executable, incomplete), in the order in which they come.
    fn told(asked: &[u32], readings: Vec<(u32, Option<&str>, bool)>) -> Vec<(u32, Option<String>)> {
        let (sender, receiver) = channel();
        asked.iter().for_each(|pid| sender.send(id(*pid)).unwrap());
        let sender = std::cell::RefCell::new(Some(sender));
        let (readings, told) = (std::cell::RefCell::new(readings), std::cell::RefCell::new(Vec::new()));
        describe_all(
            &receiver,
            &[Duration::from_millis(5); 2],
            |process| {
                let mut left = readings.borrow_mut();
                let at = left.iter().position(|reading| reading.0 == process.tgid).expect("no reading more");
                let (_, exe, incomplete) = left.remove(at);
                let description = |exe: &str| ProcessDescription {
                    exe: Some(exe.into()).filter(|_| !exe.is_empty()),
                    ..ProcessDescription::default()
                };
                let described = exe.map(|exe| Described { read_ns: 1, description: description(exe) });
                Reading { described, incomplete }
            },
            |process, described| {
                let exe = described.and_then(|known| known.description.exe).map(|exe| exe.to_text());
                told.borrow_mut().push((process.tgid, exe));
                if told.borrow().len() == asked.len() {
                    sender.take();
                }
                true
            },
        );
        told.into_inner()
    }

    #[test]
    fn what_cannot_be_read_for_a_moment_is_read_again_and_keeps_nobody_waiting() {
        let readings = vec![(7, Some(""), true), (8, Some("/bin/b"), false), (7, Some("/bin/a"), false)];
        let both = [(8, Some("/bin/b".to_owned())), (7, Some("/bin/a".to_owned()))];
        assert_eq!(told(&[7, 8], readings), both);
    }

    #[test]
    fn what_cannot_be_read_at_all_is_told_as_far_as_it_is_known() {
        let never = vec![(7, Some(""), true), (7, Some(""), true), (7, Some(""), true)];
        assert_eq!(told(&[7], never), [(7, None)]);
        let gone = vec![(7, Some("/bin/a"), true), (7, None, false)];
        assert_eq!(told(&[7], gone), [(7, Some("/bin/a".to_owned()))]);
    }
}

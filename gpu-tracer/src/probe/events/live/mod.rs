//! Tests with the running kernel. They need root and say so where it is missing.
//!
//! The device is `/dev/full` (1:7), which hardly anybody else opens; what others do on this host is told apart by process.

mod called;
mod hooks;
mod parts;
mod pins;
mod recheck;
mod touching;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use super::{EventSource, Options};
use crate::{
    kernel::Btf,
    model::{
        DeviceNumber, DeviceRange, DeviceTable, TableKey,
        device::Naming,
        event::{Event, EventKind, HeldAtExit, TaskId},
    },
    probe::{Iterators, OBJECT},
};

const FULL: DeviceNumber = DeviceNumber { major: 1, minor: 7 };
const PATIENCE: Duration = Duration::from_secs(20);

/// Can anything be tested? Says so where not.
pub(in crate::probe::events) fn is_root() -> bool {
    let able = rustix::process::geteuid().is_root() && !OBJECT.is_empty() && Path::new(Btf::VMLINUX).exists();
    if !able {
        eprintln!("needs root, BTF and the BPF object: skipped");
    }
    able
}

fn devices() -> DeviceTable {
    let range = DeviceRange { major: 1, first: 7, last: 7, naming: Naming::Fixed("nvidia0".into()) };
    DeviceTable { ranges: vec![range], gpu_nodes: vec![(FULL, 0)] }
}

fn iterators() -> Iterators {
    Iterators::load(&Btf::read(Btf::VMLINUX).expect("BTF")).expect("iterators")
}

fn attach(options: &Options) -> EventSource {
    let btf = Btf::read(Btf::VMLINUX).expect("BTF");
    EventSource::attach(&btf, &devices(), options).expect("attach")
}

/// A shell that does one line after the other, each when it is told to.
struct Shell {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn new() -> Self {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, answers }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it run one line; what it prints comes back, up to a line of its own.
    fn run(&mut self, line: &str) -> String {
        self.tell(&format!("{line}; echo done"));
        let mut text = String::new();
        loop {
            let mut answer = String::new();
            self.answers.read_line(&mut answer).expect("readable");
            if answer.is_empty() || answer == "done\n" {
                return text.trim().to_owned();
            }
            text.push_str(&answer);
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{line}").expect("writable");
    }

    fn wait(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("waited for");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until something like `wanted` has come; everything that came is given.
fn until(source: &mut EventSource, mut wanted: impl FnMut(&EventKind) -> bool) -> Vec<Event> {
    let deadline = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    while Instant::now() < deadline {
        let events = source.poll(deadline).expect("poll");
        let found = events.iter().any(|event| wanted(&event.kind));
        all.extend(events);
        if found {
            return all;
        }
    }
    panic!("it did not happen within {PATIENCE:?}; what did: {all:#?}");
}

fn is_exit_of(kind: &EventKind, pid: u32) -> bool {
    matches!(kind, EventKind::Exiting { task, .. } if task.process.tgid == pid)
}

/// Are fd tables of exiting tasks looked at here (5.17)? Says so where not.
fn walks_tables(source: &EventSource) -> bool {
    walks(source, |detail| !detail.contains("not what they hold"))
}

/// The same of tables of any length.
fn walks_long_tables(source: &EventSource) -> bool {
    walks(source, |_| false)
}

fn walks(source: &EventSource, although: impl Fn(&str) -> bool) -> bool {
    let exit = source.hooks().iter().find(|report| report.hook == "sched_process_exit").expect("a hook");
    let walks = exit.detail.as_deref().is_none_or(although);
    if !walks {
        eprintln!("skipped in part: {exit:?}");
    }
    walks
}

/// The exits of a process's tasks: their fd tables, and what was in those.
fn exits(events: &[Event], pid: u32) -> Vec<(Option<TableKey>, Vec<HeldAtExit>)> {
    let exit = |event: &Event| match &event.kind {
        EventKind::Exiting { task, table, held, .. } if task.process.tgid == pid => {
            Some((*table, held.clone()))
        }
        _ => None,
    };
    events.iter().filter_map(exit).collect()
}

fn touches_by(events: &[Event], pid: u32) -> Vec<TaskId> {
    let task = |event: &Event| match &event.kind {
        EventKind::DeviceTouched { task, device: FULL, .. } if task.process.tgid == pid => Some(*task),
        _ => None,
    };
    events.iter().filter_map(task).collect()
}

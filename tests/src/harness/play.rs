//! A running scenario.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{Device, Tracer, compare, eventually, program};
use crate::proc;
use crate::truth::Truth;

/// How long staging a step may take.
const STAGING: Duration = Duration::from_secs(100);
/// How long cleaning up may take.
const CLEANING: Duration = Duration::from_secs(40);

/// A scenario that is being played. Dropping it ends it and waits until it has cleaned up.
#[derive(Debug)]
pub struct Play {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    /// How things are now.
    pub truth: Truth,
    /// What is held.
    pub device: Device,
}

impl Play {
    /// Stages a scenario on one device.
    #[must_use]
    pub fn stage(name: &str, arguments: &[&str]) -> Self {
        Self::stage_on(Device::one(), name, arguments)
    }

    /// Stages a scenario on this device.
    ///
    /// # Panics
    ///
    /// If it cannot be staged.
    #[must_use]
    pub fn stage_on(device: Device, name: &str, arguments: &[&str]) -> Self {
        Self::stage_by(&Self::program(), device, name, arguments)
    }

    /// The same by a copy of the scenario program, under whose name its processes are seen.
    ///
    /// # Panics
    ///
    /// If it cannot be staged.
    #[must_use]
    pub fn stage_by(program: &Path, device: Device, name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
        // What it makes it makes here, so that a test can see whether anything was left.
        command.env("TMPDIR", device.dir());
        for (path, name) in device.nodes() {
            command.arg("--device").arg(format!("{}={name}", path.display()));
        }
        let mut child =
            command.args(arguments).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let orders = child.stdin.take();
        let out = child.stdout.take().expect("its output is a pipe");
        let (sender, lines) = mpsc::channel();
        // Ends with the pipe, that is with the scenario.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut play = Self { child, orders, lines, truth: Truth::default(), device };
        play.truth = play.read(name);
        play
    }

    /// The scenario program.
    #[must_use]
    pub fn program() -> PathBuf {
        program("GPU_TRACER_SCENARIO_BIN", "scenario")
    }

    /// PID of the process that was started: ending it cleans up.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Goes on to the next step; `words` are the step's arguments. Returns the new truth.
    ///
    /// # Panics
    ///
    /// If there is no such step.
    pub fn next(&mut self, words: &str) -> &Truth {
        let orders = self.orders.as_mut().expect("a scenario that was ended has no next step");
        writeln!(orders, "next {words}").expect("the scenario listens");
        let name = self.truth.scenario.clone();
        self.truth = self.read(&name);
        &self.truth
    }

    fn read(&mut self, name: &str) -> Truth {
        match self.lines.recv_timeout(STAGING) {
            Ok(line) => serde_json::from_str(&line).unwrap_or_else(|_| panic!("scenario {name}: {line}")),
            Err(RecvTimeoutError::Timeout) => panic!("scenario {name} did not answer within {STAGING:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("scenario {name} ended early: {status:?}")
            }
        }
    }

    /// Every process of the scenario, whatever it does.
    ///
    /// # Panics
    ///
    /// If `/proc` cannot be read.
    #[must_use]
    pub fn family(&self) -> BTreeSet<u32> {
        let parents: Vec<(u32, Option<u32>)> = proc::processes()
            .expect("/proc can be read")
            .into_iter()
            .map(|pid| (pid, proc::parent(pid).ok().flatten()))
            .collect();
        let mut family = BTreeSet::from([self.pid()]);
        loop {
            let before = family.len();
            for (pid, parent) in &parents {
                if parent.is_some_and(|parent| family.contains(&parent)) {
                    family.insert(*pid);
                }
            }
            if family.len() == before {
                return family;
            }
        }
    }

    /// Asks the tracer about the device and compares its answer with the truth; panics with both when they differ.
    ///
    /// Asks a second time when the first answer differs: between a scenario's word and the tracer's look nothing
    /// changes, but others on the host may have an open of the same number half-way done.
    #[track_caller]
    pub fn check(&self) -> super::Answer {
        let tracer = Tracer::new(&self.device);
        let family = self.family();
        let mut answer = tracer.holders();
        let mut differences = compare::differences(&answer, &self.truth, &family);
        if !differences.is_empty() {
            eprintln!("note: asked again, because at first: {}", differences.join("; "));
            answer = tracer.holders();
            differences = compare::differences(&answer, &self.truth, &family);
        }
        compare::demand_none(&differences, &answer, &self.truth);
        answer
    }

    /// Ends the scenario as a lost parent would, and waits until it has cleaned up; returns its exit status.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn end(&mut self) -> Option<i32> {
        drop(self.orders.take());
        self.await_end()
    }

    /// Waits until the scenario has cleaned up and ended.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn await_end(&mut self) -> Option<i32> {
        let child = &mut self.child;
        eventually("the end of the scenario", CLEANING, || child.try_wait().expect("it is our child")).code()
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        drop(self.orders.take());
        let ended = crate::poll::until("the end of the scenario", CLEANING, || Ok(self.child.try_wait()?));
        match ended {
            // 3: something could not be undone.
            Ok(status) if status.code() == Some(3) && !std::thread::panicking() => {
                panic!("scenario {} left something behind", self.truth.scenario)
            }
            Ok(_) => {}
            Err(error) => {
                // It undoes everything on SIGTERM too, if it still can; SIGKILL would leave things behind.
                let _ = crate::sys::process::kill(self.child.id(), libc::SIGTERM);
                let message = format!("scenario {}: {error:#}", self.truth.scenario);
                if std::thread::panicking() { eprintln!("{message}") } else { panic!("{message}") }
            }
        }
    }
}

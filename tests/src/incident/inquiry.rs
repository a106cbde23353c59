//! What the tests ask of the tracer, which finds the stand-in driver by itself.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{Device, Play, Tracer};

/// An incident, staged by a copy of the scenario program that is called as its processes are.
#[derive(Debug)]
pub struct Incident {
    /// The processes.
    pub play: Play,
    /// The executable that all of them run.
    pub exe: PathBuf,
}

/// What one command answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Its exit status.
    pub status: i32,
    /// What it printed.
    pub out: String,
    /// What it told meanwhile.
    pub err: String,
}

impl Incident {
    /// Stages it.
    ///
    /// # Panics
    ///
    /// If it cannot be staged: without the stand-in driver, above all.
    #[must_use]
    pub fn stage(name: &str, arguments: &[&str]) -> Self {
        let device = Device::standin();
        let exe = device.dir().join("python3.12");
        std::fs::copy(Play::program(), &exe).expect("a copy of the scenario program");
        Self { play: Play::stage_by(&exe, device, name, arguments), exe }
    }

    /// PIDs of those that hold something, in order.
    #[must_use]
    pub fn holders(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.play.truth.holders.iter().map(|holds| holds.pid).collect();
        pids.sort_unstable();
        pids
    }

    /// The only process that holds something.
    ///
    /// # Panics
    ///
    /// If it is not the only one.
    #[must_use]
    pub fn holder(&self) -> u32 {
        match self.holders()[..] {
            [pid] => pid,
            ref pids => panic!("one process is to hold something, not {pids:?}"),
        }
    }
}

/// A command of the tracer's, without a daemon.
#[must_use]
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(Tracer::program());
    command.arg(words[0]).arg("--standalone").args(&words[1..]).stdin(Stdio::null());
    command
}

/// Runs it to its end and shows what it printed, for whoever reads the test's output.
///
/// # Panics
///
/// If it cannot be run or is killed.
#[track_caller]
pub fn answer(words: &[&str]) -> Answered {
    let done = command(words).output().expect("the tracer runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let answered = Answered {
        status: done.status.code().unwrap_or_else(|| panic!("{words:?}: {}", done.status)),
        out: text(&done.stdout),
        err: text(&done.stderr),
    };
    println!("$ gpu-tracer {}\n{}{}exit {}\n", words.join(" "), answered.err, answered.out, answered.status);
    answered
}

/// Starts it and leaves it running.
///
/// # Panics
///
/// If it cannot be run.
#[track_caller]
pub fn start(words: &[&str]) -> Child {
    command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the tracer runs")
}

/// Set, the answers are printed as people see them too, for documents: twice the work for a slow guest.
const TRANSCRIPT: &str = "INCIDENT_TRANSCRIPT";

/// What `why` says of these GPUs.
#[derive(Clone, Debug)]
pub struct Why {
    /// Its exit status.
    pub status: i32,
    /// The document.
    pub document: Value,
}

impl Why {
    /// Asks; again when NVML, which has two seconds, did not answer in time: guests are slow.
    ///
    /// # Panics
    ///
    /// If what is printed is no JSON, or the answer for people has another exit status.
    #[must_use]
    #[track_caller]
    pub fn ask(gpus: &str) -> Self {
        const ATTEMPTS: usize = 4;
        let mut attempt = 1;
        loop {
            let done = command(&["why", gpus, "--format", "json"]).output().expect("the tracer runs");
            let document: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                panic!("{error}\n{}{}", text(&done.stdout), text(&done.stderr))
            });
            if document["nvml"]["state"] == "complete" || attempt == ATTEMPTS {
                let status = done.status.code().unwrap_or_else(|| panic!("why: {}", done.status));
                if std::env::var_os(TRANSCRIPT).is_some() {
                    assert_eq!(answer(&["why", gpus]).status, status, "{document:#}");
                }
                return Self { status, document };
            }
            attempt += 1;
            eprintln!("note: asked again, because NVML said: {}", document["nvml"]["text"]);
        }
    }

    /// All of it, for messages and for what may not be said anywhere.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{:#}", self.document)
    }

    /// What it says of one GPU.
    ///
    /// # Panics
    ///
    /// If it says nothing of it.
    #[must_use]
    #[track_caller]
    pub fn gpu(&self, index: u32) -> &Value {
        let gpus = self.document["gpus"].as_array().expect("a list");
        gpus.iter()
            .find(|gpu| gpu["gpu"] == index)
            .unwrap_or_else(|| panic!("no GPU {index} in\n{:#}", self.document))
    }

    /// Its headline on one GPU.
    #[must_use]
    #[track_caller]
    pub fn headline(&self, index: u32) -> &str {
        self.gpu(index)["headline"].as_str().expect("a sentence")
    }

    /// PIDs of those it names as holders of one GPU, in order.
    #[must_use]
    #[track_caller]
    pub fn pids(&self, index: u32) -> Vec<u32> {
        let findings = self.gpu(index)["holders"].as_array().expect("a list");
        let mut pids: Vec<u32> =
            findings.iter().filter_map(|finding| u32::try_from(finding["pid"].as_u64()?).ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// All it says of one GPU's memory, and of who is innocent.
    #[must_use]
    #[track_caller]
    pub fn memory(&self, index: u32) -> String {
        let gpu = self.gpu(index);
        let story = gpu["memory"]["story"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let innocents =
            gpu["innocents"].as_array().into_iter().flatten().filter_map(|one| one["text"].as_str());
        story.chain(innocents).collect::<Vec<_>>().join("\n")
    }

    /// Its advice on one GPU, with the commands.
    #[must_use]
    #[track_caller]
    pub fn advice(&self, index: u32) -> String {
        let steps = self.gpu(index)["advice"].as_array().into_iter().flatten();
        let words = |step: &Value| {
            let word = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", word("text"), word("command"))
        };
        steps.map(words).collect::<Vec<_>>().join("\n")
    }
}

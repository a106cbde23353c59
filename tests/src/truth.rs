//! Ground truth: what a scenario did, as its script knows it.
//!
//! A scenario prints it as one JSON line per step, or `{"error": "..."}` where there is no such step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How things are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// Name of the scenario.
    pub scenario: String,
    /// The process that gives the orders.
    pub conductor: u32,
    /// 0 after staging, one more with every `next`.
    pub step: u32,
    /// Who holds what. Complete: nobody else of the scenario's processes holds anything.
    pub holders: Vec<Holds>,
    /// The open files, each once.
    pub files: Vec<OpenFile>,
    /// Processes that look like holders and are none.
    pub innocents: Vec<Innocent>,
    /// PIDs that no longer exist.
    pub dead: Vec<u32>,
    /// Tasks that are half-way through exit: what they still hold cannot be seen by any scan.
    pub half_exited: Vec<u32>,
    /// For a person.
    pub notes: Vec<String>,
    /// Processes to look at: holders, and those half-way through exit.
    pub pids: Vec<u32>,
}

/// What one process holds. An fd table or address space that several processes share is written under each of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holds {
    /// Thread-group id on the host.
    pub pid: u32,
    /// The live tasks that carry it, host ids.
    pub tids: Vec<u32>,
    /// State letter of the first of `tids`, where the scenario fixes it.
    #[serde(default)]
    pub state: Option<char>,
    /// State letter of the leader, where the scenario fixes it.
    #[serde(default)]
    pub leader_state: Option<char>,
    /// A SIGKILL is pending, where the scenario fixes it.
    #[serde(default)]
    pub sigkill_pending: Option<bool>,
    /// Parent, where the scenario fixes it.
    #[serde(default)]
    pub ppid: Option<u32>,
    /// Real user, where the scenario fixes it.
    #[serde(default)]
    pub uid: Option<u32>,
    /// PID inside its own namespace, where that differs.
    #[serde(default)]
    pub pid_in_ns: Option<u32>,
    /// Name the process wears now, bytes in hexadecimal.
    #[serde(default)]
    pub comm_hex: Option<String>,
    /// Command line it shows now, bytes in hexadecimal.
    #[serde(default)]
    pub cmdline_hex: Option<String>,
    /// Words that must be given as the reason.
    pub why: Vec<String>,
    /// By device name.
    pub devices: BTreeMap<String, Counts>,
}

/// How often, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Descriptors, once per fd table.
    pub fds: u64,
    /// Mappings, once per address space.
    pub maps: u64,
    /// Queued in a socket whose receiving end the process has open.
    pub in_flight: u64,
    /// Registered with an io_uring that the process has open or mapped.
    pub io_uring: u64,
    /// Distinct open files behind all of these.
    pub files: u64,
}

/// One open file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpenFile {
    /// Device name.
    pub device: String,
    /// What the kernel counts.
    pub references: u64,
}

/// A process that looks like a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Innocent {
    /// Its PID on the host.
    pub pid: u32,
    /// Why it is none.
    pub because: String,
}

impl Truth {
    /// Adds a holder.
    #[must_use]
    pub fn holder(mut self, holds: Holds) -> Self {
        self.holders.push(holds);
        self
    }

    /// Adds `count` open files with `references` each.
    #[must_use]
    pub fn files(mut self, device: &str, count: u64, references: u64) -> Self {
        let file = OpenFile { device: device.to_owned(), references };
        self.files.extend(std::iter::repeat_n(file, count as usize));
        self
    }

    /// Adds a process that looks like a holder.
    #[must_use]
    pub fn innocent(mut self, pid: u32, because: &str) -> Self {
        self.innocents.push(Innocent { pid, because: because.to_owned() });
        self
    }

    /// Adds a PID that no longer exists.
    #[must_use]
    pub fn dead(mut self, pid: u32) -> Self {
        self.dead.push(pid);
        self
    }

    /// Adds a task that is half-way through exit.
    #[must_use]
    pub fn half_exited(mut self, pid: u32) -> Self {
        self.half_exited.push(pid);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

impl Holds {
    /// A process whose leader is its only task that matters, alive and well.
    #[must_use]
    pub fn live(pid: u32) -> Self {
        Self { pid, tids: vec![pid], why: vec!["live".to_owned()], ..Self::default() }
    }

    /// Replaces the tasks that carry it.
    #[must_use]
    pub fn tids(mut self, tids: &[u32]) -> Self {
        self.tids = tids.to_vec();
        self
    }

    /// Replaces the reasons.
    #[must_use]
    pub fn why(mut self, words: &[&str]) -> Self {
        self.why = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A living ancestor holds the same open files: that they were inherited can be shown.
    #[must_use]
    pub fn inherited(mut self) -> Self {
        self.why.push("inherited".to_owned());
        self
    }

    /// Fixes the state letters of the carrying task and of the leader.
    #[must_use]
    pub fn states(mut self, task: char, leader: char) -> Self {
        self.state = Some(task);
        self.leader_state = Some(leader);
        self
    }

    /// Says what it holds of one device.
    #[must_use]
    pub fn device(mut self, name: &str, counts: Counts) -> Self {
        self.devices.insert(name.to_owned(), counts);
        self
    }
}

impl Counts {
    /// So many descriptors, each of its own open file.
    #[must_use]
    pub fn fds(count: u64) -> Self {
        Self { fds: count, files: count, ..Self::default() }
    }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hexadecimal digits as bytes; `None` if they are none.
#[must_use]
pub fn from_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.is_ascii() {
        return None;
    }
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2))
        .collect()
}

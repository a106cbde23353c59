//! What the helper tells, one JSON line per fact, and how the lines become an answer again. Pure.
//!
//! The lines come from a process that runs a closed library, so nothing in them is trusted: a line that is not a
//! fact is counted and skipped, texts are cut and lose their control characters, impossible figures become unknown.
//! The helper announces every question before it asks, so that when it falls silent [`Reading`] knows in which
//! question it did.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claims::{NvmlAnswer, NvmlGpu, NvmlStatus, ProcessUse, Refusal};
use super::identity::BusId;
use crate::model::{Gpu, GpuMemory, ProcessMemory, counted};

/// Most GPUs that are believed. The driver has 248 minors.
const MOST_GPUS: usize = 256;

/// Most reasons that a status spells out.
const MOST_REASONS: usize = 8;

/// Most characters of a text that are kept.
const LONGEST_TEXT: usize = 256;

/// One thing that NVML is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Load the library and initialise it.
    Load,
    /// How many GPUs there are.
    Count,
    /// Who a GPU is.
    Identity,
    /// Memory used and installed.
    Memory,
    /// Processes with a compute context.
    Compute,
    /// Processes with a graphics context.
    Graphics,
    /// Clients of an MPS server.
    Mps,
    /// MIG mode.
    Mig,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "initialisation",
            Self::Count => "number of GPUs",
            Self::Identity => "identity",
            Self::Memory => "memory figures",
            Self::Compute => "compute process list",
            Self::Graphics => "graphics process list",
            Self::Mps => "MPS client list",
            Self::Mig => "MIG mode",
        })
    }
}

/// One line of the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// About to ask; what follows decides whether it was answered.
    Asking {
        /// What.
        question: Question,
        /// Of which GPU.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<u32>,
    },
    /// Answers [`Question::Load`].
    Library {
        /// As named to the loader.
        name: String,
        /// Driver version.
        driver: Option<String>,
    },
    /// Answers [`Question::Count`].
    Count {
        /// GPUs.
        gpus: u32,
    },
    /// Answers [`Question::Identity`].
    Gpu {
        /// NVML's index.
        gpu: u32,
        /// Minor of its node.
        minor: Option<u32>,
        /// UUID.
        uuid: Option<String>,
        /// Bus id in NVML's form, `00000000:0F:00.0`.
        bus_id: Option<String>,
        /// Marketing name.
        name: Option<String>,
    },
    /// Answers [`Question::Memory`].
    Memory {
        /// Index.
        gpu: u32,
        /// Bytes.
        used: u64,
        /// Bytes.
        total: u64,
    },
    /// Answers [`Question::Compute`], [`Question::Graphics`] or [`Question::Mps`].
    Processes {
        /// Index.
        gpu: u32,
        /// Which list.
        question: Question,
        /// The whole list.
        list: Vec<ListedProcess>,
    },
    /// Answers [`Question::Mig`].
    Mig {
        /// Index.
        gpu: u32,
        /// Enabled now.
        enabled: bool,
    },
    /// NVML gave an error instead of an answer.
    Refused {
        /// What was asked.
        question: Question,
        /// Of which GPU.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<u32>,
        /// The error in words.
        reason: String,
        /// The feature does not exist on this GPU or driver.
        unsupported: bool,
    },
    /// No library could be loaded, or it found no driver. Nothing follows.
    Absent {
        /// What was tried.
        reason: String,
    },
    /// Everything was asked. Nothing follows.
    Done,
}

/// A line of one of NVML's process lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedProcess {
    /// NVML's PID.
    pub pid: u32,
    /// Bytes; `None` when NVML does not say.
    pub bytes: Option<u64>,
    /// MIG GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// MIG compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

/// Why the reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The helper closed its end; the text says how it ended, such as `died of signal 11`.
    Closed(String),
    /// The deadline passed.
    Deadline(Duration),
    /// The helper said more than this many bytes.
    TooMuch(usize),
}

/// Facts as they arrive.
#[derive(Debug, Default)]
pub struct Reading {
    partial_line: Vec<u8>,
    library: Option<String>,
    driver: Option<String>,
    absent: Option<String>,
    done: bool,
    count: Option<u32>,
    gpus: BTreeMap<u32, GpuFacts>,
    unanswered: BTreeSet<(Option<u32>, Question)>,
    refusals: Vec<Refusal>,
    strange_lines: usize,
}

impl Reading {
    /// Takes in bytes as they come from the pipe; lines may be split anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial_line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial_line);
                self.line(&line);
            }
        }
    }

    /// Whether the last fact has been told, so that nothing more is worth waiting for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.done || self.absent.is_some()
    }

    /// The answer, given why the reading stopped. A line without its end is not believed.
    #[must_use]
    pub fn into_answer(self, ending: Ending) -> NvmlAnswer {
        let status = self.status(ending);
        let gpus = self.gpus.into_iter().map(|(index, facts)| facts.into_gpu(index)).collect();
        NvmlAnswer {
            gpus,
            driver: self.driver,
            library: self.library,
            refusals: self.refusals,
            ..NvmlAnswer::without_figures(status)
        }
    }

    fn line(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Fact>(line) {
            Ok(fact) if !self.is_over() => self.fact(fact),
            _ => self.strange_lines += 1,
        }
    }

    fn fact(&mut self, fact: Fact) {
        match fact {
            Fact::Asking { question, gpu } => {
                // Bounded by the same limit as the GPUs, with one entry per question.
                if gpu.is_none_or(|gpu| (gpu as usize) < MOST_GPUS) {
                    self.unanswered.insert((gpu, question));
                }
            }
            Fact::Library { name, driver } => {
                self.answered(None, Question::Load);
                self.library = Some(tame(&name));
                self.driver = driver.as_deref().map(tame);
            }
            Fact::Count { gpus } => {
                self.answered(None, Question::Count);
                self.count = Some(gpus);
            }
            Fact::Refused { question, gpu, reason, unsupported } => {
                self.answered(gpu, question);
                if unsupported && let Some(facts) = gpu.and_then(|gpu| self.facts_of(gpu)) {
                    facts.inapplicable.insert(question);
                }
                self.refusals.push(Refusal { gpu, question, reason: tame(&reason), unsupported });
            }
            Fact::Absent { reason } => self.absent = Some(tame(&reason)),
            Fact::Done => self.done = true,
            Fact::Gpu { gpu, minor, uuid, bus_id, name } => {
                self.answered(Some(gpu), Question::Identity);
                if let Some(facts) = self.facts_of(gpu) {
                    facts.identity = Gpu {
                        index: gpu,
                        minor,
                        uuid: uuid.as_deref().map(tame),
                        bus_id: bus_id.and_then(|text| text.parse().ok()).map(|id: BusId| id.to_string()),
                        name: name.as_deref().map(tame),
                    };
                }
            }
            Fact::Memory { gpu, used, total } => self.memory(gpu, used, total),
            Fact::Processes { gpu, question, list } => {
                self.answered(Some(gpu), question);
                if let Some(facts) = self.facts_of(gpu) {
                    facts.list(question, &list);
                }
            }
            Fact::Mig { gpu, enabled } => {
                self.answered(Some(gpu), Question::Mig);
                if let Some(facts) = self.facts_of(gpu) {
                    facts.mig = Some(enabled);
                }
            }
        }
    }

    fn memory(&mut self, gpu: u32, used: u64, total: u64) {
        self.answered(Some(gpu), Question::Memory);
        if used > total {
            let reason = format!("claims {} MiB used of {} MiB", mib(used), mib(total));
            let question = Question::Memory;
            self.refusals.push(Refusal { gpu: Some(gpu), question, reason, unsupported: false });
        } else if let Some(facts) = self.facts_of(gpu) {
            facts.memory = Some((mib(used), mib(total)));
        }
    }

    fn answered(&mut self, gpu: Option<u32>, question: Question) {
        self.unanswered.remove(&(gpu, question));
    }

    /// The entry of a GPU; `None` (and a strange line) for an index that no driver has.
    fn facts_of(&mut self, gpu: u32) -> Option<&mut GpuFacts> {
        if gpu as usize >= MOST_GPUS {
            self.strange_lines += 1;
            return None;
        }
        Some(self.gpus.entry(gpu).or_default())
    }

    fn status(&self, ending: Ending) -> NvmlStatus {
        if let Some(reason) = &self.absent {
            return NvmlStatus::Absent(reason.clone());
        }
        let mut missing = self.what_is_missing();
        if self.done {
            return match (missing.is_empty(), self.library.is_some()) {
                (true, true) => NvmlStatus::Complete,
                (_, false) => NvmlStatus::Failed(said(&missing, "it did not say which library answers")),
                (false, true) => NvmlStatus::Partial(said(&missing, "it did not finish")),
            };
        }
        match ending {
            Ending::Deadline(after) => {
                return NvmlStatus::Hung {
                    after,
                    during: said(&self.still_asked(), "before the first question"),
                };
            }
            Ending::Closed(how) => missing.insert(0, format!("the helper {how} during {}", self.moment())),
            Ending::TooMuch(bytes) => missing.insert(0, format!("it said more than {bytes} bytes")),
        }
        if self.gpus.values().any(|facts| facts.memory.is_some()) {
            NvmlStatus::Partial(said(&missing, "it did not finish"))
        } else {
            NvmlStatus::Failed(said(&missing, "it did not finish"))
        }
    }

    /// What a complete answer would have and this one has not, in words.
    fn what_is_missing(&self) -> Vec<String> {
        let refused = self.refusals.iter().filter(|refusal| !refusal.unsupported);
        let mut missing: Vec<String> = refused
            .map(|refusal| format!("{}: {}", about(refusal.gpu, refusal.question), refusal.reason))
            .collect();
        if self.done && self.count.is_none_or(|count| count as usize > self.gpus.len()) && missing.is_empty()
        {
            missing.push("some GPUs were not described".to_owned());
        }
        if self.strange_lines > 0 {
            missing.push(format!(
                "{} of the helper made no sense",
                counted(self.strange_lines, "line", "lines")
            ));
        }
        missing
    }

    fn still_asked(&self) -> Vec<String> {
        self.unanswered.iter().map(|(gpu, question)| about(*gpu, *question)).collect()
    }

    fn moment(&self) -> String {
        said(&self.still_asked(), "no question")
    }
}

/// The first few, joined, or what to say when there is nothing to join.
fn said(parts: &[String], otherwise: &str) -> String {
    let (shown, more) = parts.split_at(parts.len().min(MOST_REASONS));
    match (shown, more) {
        ([], _) => otherwise.to_owned(),
        (_, []) => shown.join("; "),
        _ => format!("{}; and {} more", shown.join("; "), more.len()),
    }
}

fn about(gpu: Option<u32>, question: Question) -> String {
    gpu.map_or_else(|| question.to_string(), |gpu| format!("{question} of GPU {gpu}"))
}

/// GPU instance and compute instance.
type MigInstance = (Option<u32>, Option<u32>);

/// What was said of one GPU so far.
#[derive(Debug, Default)]
struct GpuFacts {
    identity: Gpu,
    memory: Option<(u64, u64)>,
    /// Bytes by PID and MIG instance: the lists overlap, and one PID may stand in one list twice.
    bytes: BTreeMap<u32, BTreeMap<MigInstance, Option<u64>>>,
    uses: BTreeMap<u32, ProcessUse>,
    listed: BTreeSet<Question>,
    inapplicable: BTreeSet<Question>,
    mig: Option<bool>,
}

impl GpuFacts {
    fn list(&mut self, question: Question, list: &[ListedProcess]) {
        self.listed.insert(question);
        for process in list {
            let instance = (process.gpu_instance, process.compute_instance);
            let bytes = self.bytes.entry(process.pid).or_default().entry(instance).or_default();
            *bytes = (*bytes).max(process.bytes);
            let uses = self
                .uses
                .entry(process.pid)
                .or_insert(ProcessUse { pid: process.pid, ..ProcessUse::default() });
            match question {
                Question::Graphics => uses.graphics = true,
                Question::Mps => uses.mps_client = true,
                _ => uses.compute = true,
            }
        }
    }

    fn into_gpu(self, index: u32) -> NvmlGpu {
        let processes = self
            .bytes
            .iter()
            .map(|(pid, instances)| {
                let sum =
                    instances.values().copied().try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)));
                ProcessMemory { pid: *pid, mib: sum.map(mib) }
            })
            .collect();
        let lists = [Question::Compute, Question::Graphics, Question::Mps];
        // A GPU or driver without graphics or MPS has no such processes; one without a compute list tells nothing.
        let known = |list: &Question| {
            self.listed.contains(list) || (*list != Question::Compute && self.inapplicable.contains(list))
        };
        NvmlGpu {
            identity: Gpu { index, ..self.identity },
            memory: GpuMemory {
                gpu: index,
                used_mib: self.memory.map(|(used, _)| used),
                total_mib: self.memory.map(|(_, total)| total),
                processes,
            },
            uses: self.uses.into_values().collect(),
            processes_complete: lists.iter().all(known),
            mig: self.mig,
        }
    }
}

/// MiB, rounded down as `nvidia-smi` does.
fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Cut, and with every control character replaced.
fn tame(text: &str) -> String {
    text.chars()
        .take(LONGEST_TEXT)
        .map(|character| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character })
        .collect()
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;

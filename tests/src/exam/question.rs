//! Asking: the tracer alone, and through a daemon.

use std::collections::BTreeSet;

use super::compare::{self, Numbers};
use super::model::Expected;
use crate::harness::{Answer, Daemon, Device, Tracer};

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// `holders --standalone`.
    Alone,
    /// `holders --socket`.
    Daemon,
}

/// Those who can be asked.
#[derive(Debug)]
pub struct Questioner {
    tracer: Tracer,
    daemon: Option<Daemon>,
    numbers: Numbers,
}

/// A wrong answer.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Whose.
    pub whom: Whom,
    /// In what, each in a sentence.
    pub differences: Vec<String>,
    /// What the same one answered right afterwards, with nothing done in between: the differences that were left.
    pub again: Vec<String>,
    /// The whole answer.
    pub text: String,
}

impl Questioner {
    /// With a daemon or without.
    #[must_use]
    pub fn new(device: &Device, daemon: bool) -> Self {
        Self {
            tracer: Tracer::new(device),
            daemon: daemon.then(|| Daemon::start(device)),
            numbers: Numbers::new(),
        }
    }

    /// How the daemon says it is doing.
    #[must_use]
    pub fn status(&self) -> Option<serde_json::Value> {
        self.daemon.as_ref().map(Daemon::status)
    }

    /// Asks and compares; nothing if the answer is right.
    pub fn ask(&mut self, whom: Whom, expected: &Expected, family: &BTreeSet<u32>) -> Option<Wrong> {
        let (answer, differences) = self.ask_once(whom, expected, family);
        if differences.is_empty() {
            return None;
        }
        let (_, again) = self.ask_once(whom, expected, family);
        Some(Wrong { whom, differences, again, text: answer.text })
    }

    fn ask_once(&mut self, whom: Whom, expected: &Expected, family: &BTreeSet<u32>) -> (Answer, Vec<String>) {
        let (answer, numbers) = match (whom, &self.daemon) {
            (Whom::Daemon, Some(daemon)) => (daemon.holders(), Some(&mut self.numbers)),
            _ => (self.tracer.holders(), None),
        };
        let mut differences = compare::differences(expected, &answer, family, numbers);
        let wanted = if whom == Whom::Daemon { "lean" } else { "snapshot" };
        if answer.report.plan != wanted {
            differences.push(format!("the answer is of plan {}, not {wanted}", answer.report.plan));
        }
        (answer, differences)
    }

    /// Forgets which file goes by which number: the next questions are about other files.
    pub fn forget(&mut self) {
        self.numbers.clear();
    }
}

//! Asking: the tracer alone, and through a daemon.

use std::time::{Duration, Instant};

use super::compare::{self, Differences, Family};
use super::expected::Expected;
use super::numbers::Numbers;
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
    /// Answers that still showed files which were released, and the longest time until one did not.
    pub late: (u64, Duration),
    /// How often the daemon did not answer in time.
    pub in_vain: u64,
}

/// How long a daemon may take to know that a file is released.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a daemon may fail to answer in time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

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
            numbers: Numbers::default(),
            late: (0, Duration::ZERO),
            in_vain: 0,
        }
    }

    /// How often the daemon named an opener as exact, named one as likely, and named none.
    #[must_use]
    pub fn openers(&self) -> (u64, u64, u64) {
        self.numbers.openers
    }

    /// How the daemon says it is doing.
    #[must_use]
    pub fn status(&self) -> Option<serde_json::Value> {
        self.daemon.as_ref().map(Daemon::status)
    }

    /// Asks and compares; nothing if the answer is right.
    ///
    /// A daemon that has seen a file and sees nobody hold it any more need not know at once that it is released: this waits
    /// until it says so, notes how long that took, and calls it wrong only after [`PATIENCE`].
    pub fn ask(&mut self, whom: Whom, expected: &Expected, family: &Family) -> Option<Wrong> {
        let begun = Instant::now();
        self.numbers.next_question();
        let (answer, mut differences) = self.ask_once(whom, expected, family);
        if differences.wrong.is_empty() && !differences.lingering.is_empty() {
            while differences.wrong.is_empty()
                && !differences.lingering.is_empty()
                && begun.elapsed() < PATIENCE
            {
                std::thread::sleep(Duration::from_millis(1));
                (_, differences) = self.ask_once(whom, expected, family);
            }
            self.late.0 += 1;
            self.late.1 = self.late.1.max(begun.elapsed());
        }
        if differences.wrong.is_empty() && differences.lingering.is_empty() {
            return None;
        }
        let again = self.ask_once(whom, expected, family).1.all();
        Some(Wrong { whom, differences: differences.all(), again, text: answer.text })
    }

    fn ask_once(&mut self, whom: Whom, expected: &Expected, family: &Family) -> (Answer, Differences) {
        let wanted = if whom == Whom::Daemon { "lean" } else { "snapshot" };
        let begun = Instant::now();
        let mut answer = self.answer(whom);
        // On a busy machine the daemon does not answer in time, and whoever asked looks for himself.
        while answer.report.plan != wanted && begun.elapsed() < ANSWER_PATIENCE {
            self.in_vain += 1;
            std::thread::sleep(Duration::from_millis(100));
            answer = self.answer(whom);
        }
        if answer.report.plan != wanted {
            // Of somebody else: its numbers mean nothing here.
            let mut differences = compare::differences(expected, &answer, family, None);
            let (plan, err) = (&answer.report.plan, answer.err.trim());
            differences.wrong.push(format!("the answer is of plan {plan}, not {wanted}: {err:?}"));
            return (answer, differences);
        }
        if whom == Whom::Daemon {
            let losses = self.status().map(|status| status["losses"].clone()).unwrap_or_default();
            let counts = losses.as_object().into_iter().flat_map(|by_cause| by_cause.values());
            self.numbers.note_untold(counts.filter_map(serde_json::Value::as_u64).sum());
        }
        let numbers = (whom == Whom::Daemon).then_some(&mut self.numbers);
        let differences = compare::differences(expected, &answer, family, numbers);
        (answer, differences)
    }

    fn answer(&self, whom: Whom) -> Answer {
        match (whom, &self.daemon) {
            (Whom::Daemon, Some(daemon)) => daemon.holders(),
            _ => self.tracer.holders(),
        }
    }

    /// Forgets which file goes by which number: the next questions are about other files.
    pub fn forget(&mut self) {
        self.numbers.clear();
    }
}

impl Differences {
    fn all(self) -> Vec<String> {
        self.wrong.into_iter().chain(self.lingering).collect()
    }
}

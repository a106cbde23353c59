//! One sitting: bursts of steps, a question after each, and the shortest sequence that shows a difference.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cast::Cast;
use super::question::{Questioner, Whom, Wrong};
use super::random::Random;
use super::step::{Kind, Step};
use crate::harness::Device;
use crate::sys::process;

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// How many steps, those left out for want of anything to do it to not counted.
    pub operations: u64,
    /// No longer than this.
    pub limit: Option<Duration>,
    /// Ask a daemon, too.
    pub daemon: bool,
    /// Processes at the same time, at most.
    pub processes: usize,
    /// Processes to begin with.
    pub start_with: usize,
    /// Steps between two questions, at least and at most.
    pub burst: (u64, u64),
    /// Between a question and the next burst: a daemon is told of so many opens of one process within 100 ms, and only counts the
    /// rest.
    pub rest: Duration,
    /// With a daemon: ask the tracer alone after one burst in so many, because that takes far longer.
    pub alone_every: u64,
    /// How long to look for the shortest sequence.
    pub shorten: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Steps done.
    pub operations: u64,
    /// Questions asked to the tracer alone and to the daemon.
    pub questions: (u64, u64),
    /// Most open files, and most references to them, that were there at a question.
    pub most: (usize, u64),
    /// How long the steps took, and how long the questions.
    pub took: (Duration, Duration),
    /// Answers of the daemon that still showed files which were released, and the longest time until one did not.
    pub late: (u64, Duration),
    /// How often the daemon did not answer in time.
    pub in_vain: u64,
    /// How often the daemon named an opener as exact, named one as likely, and named none.
    pub openers: (u64, u64, u64),
    /// What the daemon said of itself at the end.
    pub status: Option<serde_json::Value>,
    /// The first difference.
    pub failure: Option<Failure>,
}

/// A difference, and how to come to it.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong.
    pub wrong: Wrong,
    /// What the model says of the files and holders.
    pub expected: String,
    /// The shortest sequence found that shows it, in words; what was done all in all where it could not be shown again.
    pub sequence: Vec<String>,
    /// Did the sequence show it again when replayed?
    pub again: bool,
}

/// How often the whole sequence is replayed in the hope of seeing the difference again.
const ATTEMPTS: u32 = 10;

/// Somebody wants it to end: the daemon must not stay.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: std::ffi::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn catch_signals() {
    let handler: extern "C" fn(std::ffi::c_int) = on_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Runs the exam. Makes this process the one to which orphans come.
pub fn examine(settings: &Settings) -> Result<Outcome> {
    process::become_subreaper()?;
    catch_signals();
    let device = Device::two();
    // Before anything here starts a thread: workers are forked.
    let mut cast = Cast::start(&device, settings.processes)?;
    let mut questioner = Questioner::new(&device, settings.daemon);
    let mut random = Random::new(settings.seed);
    let (mut outcome, mut done) = (Outcome::default(), Vec::new());
    while cast.model.processes.len() < settings.start_with.min(settings.processes) {
        let step = Step { kind: Kind::Fork, ..Step::random(&mut random) };
        done.push(Some(step));
        outcome.operations += u64::from(cast.act(&step)?);
    }
    let begun = Instant::now();
    let mut burst = 0;
    while !INTERRUPTED.load(Ordering::Relaxed)
        && outcome.operations < settings.operations
        && settings.limit.is_none_or(|limit| begun.elapsed() < limit)
    {
        burst += 1;
        let started = Instant::now();
        for _ in 0..random.between(settings.burst.0, settings.burst.1) {
            let step = Step::random(&mut random);
            done.push(Some(step));
            outcome.operations += u64::from(cast.act(&step)?);
        }
        outcome.took.0 += started.elapsed();
        let started = Instant::now();
        let wrong = question(&mut cast, &mut questioner, settings, burst, &mut outcome);
        outcome.took.1 += started.elapsed();
        (outcome.late, outcome.openers) = (questioner.late, questioner.openers());
        outcome.in_vain = questioner.in_vain;
        if let Some(wrong) = wrong {
            outcome.failure = Some(explain(settings, &device, &mut questioner, cast, wrong, &done)?);
            outcome.status = questioner.status();
            return Ok(outcome);
        }
        cast.asked();
        std::thread::sleep(settings.rest);
        done.push(None);
        // Long ago does not matter: what lives is in the model.
        cast.log.clear();
    }
    outcome.status = questioner.status();
    cast.end()?;
    Ok(outcome)
}

fn question(
    cast: &mut Cast,
    questioner: &mut Questioner,
    settings: &Settings,
    burst: u64,
    outcome: &mut Outcome,
) -> Option<Wrong> {
    let expected = cast.model.expected();
    let references = expected.files.values().map(|file| file.references).sum();
    outcome.most = (outcome.most.0.max(expected.files.len()), outcome.most.1.max(references));
    if settings.daemon {
        outcome.questions.1 += 1;
        if let Some(wrong) = questioner.ask(Whom::Daemon, &expected, &cast.family) {
            return Some(wrong);
        }
    }
    if settings.daemon && !burst.is_multiple_of(settings.alone_every) {
        return None;
    }
    outcome.questions.0 += 1;
    questioner.ask(Whom::Alone, &expected, &cast.family)
}

fn explain(
    settings: &Settings,
    device: &Device,
    questioner: &mut Questioner,
    mut cast: Cast,
    wrong: Wrong,
    done: &[Option<Step>],
) -> Result<Failure> {
    let expected = format!("{:#?}", cast.model.expected());
    let sequence = std::mem::take(&mut cast.log);
    cast.end()?;
    let mut failure = Failure { wrong, expected, sequence, again: false };
    let deadline = Instant::now() + settings.shorten;
    let mut attempt =
        |steps: &[Option<Step>]| replay(device, questioner, settings, failure.wrong.whom, steps);
    // What depends on the moment shows now and then only.
    let mut first = None;
    for _ in 0..ATTEMPTS {
        first = attempt(done)?;
        if first.is_some() || !may_go_on(deadline) {
            break;
        }
    }
    let Some((mut wrong, mut expected, mut log)) = first else { return Ok(failure) };
    let mut steps = done.to_vec();
    let mut part = steps.len().div_ceil(2);
    // Halves first, then ever smaller parts, until no single step can be left out.
    while part > 0 && may_go_on(deadline) {
        let (mut from, mut shorter) = (0, false);
        while from < steps.len() && may_go_on(deadline) {
            let mut without = steps.clone();
            without.drain(from..(from + part).min(steps.len()));
            match attempt(&without)? {
                Some(found) => {
                    (wrong, expected, log) = found;
                    (steps, shorter) = (without, true);
                }
                None => from += part,
            }
        }
        part = if part == 1 && shorter { 1 } else { part / 2 };
    }
    (failure.wrong, failure.expected, failure.sequence, failure.again) = (wrong, expected, log, true);
    Ok(failure)
}

fn may_go_on(deadline: Instant) -> bool {
    Instant::now() < deadline && !INTERRUPTED.load(Ordering::Relaxed)
}

/// Does this sequence show a difference, from the beginning? Where there is no step there is a question, and one at the end.
fn replay(
    device: &Device,
    questioner: &mut Questioner,
    settings: &Settings,
    whom: Whom,
    steps: &[Option<Step>],
) -> Result<Option<(Wrong, String, Vec<String>)>> {
    let mut cast = Cast::start(device, settings.processes)?;
    questioner.forget();
    let mut found = None;
    for step in steps.iter().copied().chain([None]) {
        if let Some(step) = step {
            cast.act(&step)?;
            continue;
        }
        let expected = cast.model.expected();
        if let Some(wrong) = questioner.ask(whom, &expected, &cast.family) {
            found = Some((wrong, format!("{expected:#?}"), std::mem::take(&mut cast.log)));
            break;
        }
        cast.asked();
        cast.log.push("(asked, and the answer was right)".to_owned());
    }
    cast.end()?;
    Ok(found)
}

//! A daemon that is SIGKILLed and started again, over and over, while the device is opened and closed as fast as can be.
//!
//! After each restart its record must say what a fresh look says. A handle opened while no daemon was there must have an
//! opener: only the event in the ring, which the hooks wrote to in the meantime, tells who that was.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Subject;
use super::agree::agree;
use super::daemon::Daemon;
use super::measure::{Samples, ms, table};
use super::storm::Stormers;
use crate::interrupt;
use crate::stage::Stage;

/// No longer than this, whatever the machine.
const LONGEST: Duration = Duration::from_secs(300);
/// How long a daemon may take to know of an open that is in its ring.
const SETTLE: Duration = Duration::from_secs(10);
/// For the stormers alone the machine may be too small: an answer has to come now and then.
const RATE: u64 = 300_000;

/// Runs the benchmark.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let mut daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    let start = Instant::now();
    let stormers = Stormers::start(stage.node(), start + LONGEST, Some(RATE))?;
    let (mut until_answer, mut gaps) = (Vec::new(), 0);
    let wanted = subject.arguments.restarts;
    while until_answer.len() < wanted as usize && start.elapsed() < LONGEST {
        interrupt::check()?;
        daemon.kill()?;
        let file = File::open(stage.node()).context("cannot open the device")?;
        let killed = Instant::now();
        daemon.start_again()?;
        until_answer.push(killed.elapsed());
        let status = daemon.status()?;
        if status["start"] != "resumed" {
            bail!("after {} restarts the hooks were lost: {status:#}", until_answer.len());
        }
        let ring_full = status["losses"]["ring-full"].as_u64().unwrap_or(0);
        if ring_full > 0 {
            bail!("the ring was full {ring_full} times");
        }
        let causes = status["gaps"].as_array().into_iter().flatten().map(|gap| &gap["cause"]);
        gaps += usize::from(causes.into_iter().any(|cause| cause == "not-running"));
        opener_is_known(&daemon)?;
        agree(subject, &daemon)?;
        drop(file);
    }
    let restarts = until_answer.len();
    drop(stormers);
    agree(subject, &daemon)?;
    println!("restarts: SIGKILL of the daemon under {RATE} opens/s, {:.0} s", start.elapsed().as_secs_f64());
    let part = |count: usize| format!("{:.2}", count as f64 / f64::from(wanted));
    let row = |what: &str, count: usize| vec![what.to_owned(), count.to_string(), part(count)];
    let rows = [
        row("restarts, of those wanted", restarts),
        row("hooks and ring still there, nothing lost in the ring", restarts),
        row("absence recorded as a gap", gaps),
        row("opener known of what was opened meanwhile", restarts),
        row("ledger equals a fresh snapshot", restarts),
    ];
    println!("{}", table(&["", "", "ratio"], &rows));
    if let Some(samples) = Samples::new(until_answer) {
        let [median, max] = [samples.median(), samples.max()].map(ms);
        println!("  from SIGKILL to the next answer: median {median} ms, at most {max} ms");
    }
    if restarts < wanted as usize {
        println!("  {wanted} were wanted; the time was up");
    }
    Ok(())
}

/// Waits until this process is the opener of a file.
fn opener_is_known(daemon: &Daemon) -> Result<()> {
    let (own, start) = (u64::from(std::process::id()), Instant::now());
    loop {
        let answer = daemon.get("/v1/files")?;
        let mut files = answer["files"].as_array().into_iter().flatten();
        if files.any(|file| file["opener"]["pid"].as_u64() == Some(own)) {
            return Ok(());
        }
        if start.elapsed() > SETTLE {
            bail!("the opener of the file opened while no daemon ran is not known: {answer:#}");
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

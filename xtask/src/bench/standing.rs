//! What a daemon takes while nothing happens, and how long its answers take when ten thousand handles are held.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Subject;
use super::agree::agree;
use super::daemon::Daemon;
use super::measure::{Samples, ms, table};
use crate::interrupt;
use crate::stage::Stage;

/// Handles held while answers are timed.
const HANDLES: usize = 10_000;
/// Answers that are timed.
const ANSWERS: usize = 200;
/// What it may take: KiB resident with all handles held, share of a core when idle, and for the slowest of a hundred
/// answers.
const WANTED: (u64, f64, Duration) = (32 << 10, 0.001, Duration::from_millis(10));

/// Runs the benchmark.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    let (memory, core, answer) = WANTED;
    // What it does after the start is not idling.
    interrupt::sleep(Duration::from_secs(2))?;
    let events = || -> Result<u64> { Ok(daemon.status()?["counts"]["events"].as_u64().unwrap_or(0)) };
    let told = events()?;
    let (before, start) = (daemon.cpu_time()?, Instant::now());
    interrupt::sleep(Duration::from_secs(u64::from(subject.arguments.seconds)))?;
    let used = daemon.cpu_time()?.saturating_sub(before);
    let idle = used.as_secs_f64() / start.elapsed().as_secs_f64();
    println!("standing: a daemon with nothing to do for {:.0} s", start.elapsed().as_secs_f64());
    let kib =
        |kib: u64| vec![kib.to_string(), memory.to_string(), format!("{:.2}", kib as f64 / memory as f64)];
    let row = |what: &str, rest: Vec<String>| [vec![what.to_owned()], rest].concat();
    let share = [idle, core].map(|share| format!("{:.3}", share * 100.0));
    let rows = [
        row("KiB resident", kib(daemon.resident_kib()?)),
        row("% of a core", [&share[..], &[format!("{:.2}", idle / core)]].concat()),
    ];
    println!("{}", table(&["", "is", "at most", "ratio"], &rows));
    let told = events()? - told;
    if told > 0 {
        println!(
            "it was not idle: others use the device that stands in for a GPU, of which it heard {told} times\n"
        );
    }

    lift_limit()?;
    let held: Vec<File> = (0..HANDLES).map(|_| File::open(stage.node())).collect::<Result<_, _>>()?;
    // The first one after the opens finds them; those after it are the ones that a person waits for.
    let answered = daemon.get("/v1/holders")?;
    let listed = answered["files"].as_array().map_or(0, Vec::len);
    if listed < held.len() {
        bail!("the daemon lists {listed} files, fewer than the {HANDLES} that are held");
    }
    println!(
        "standing: {HANDLES} handles held, {ANSWERS} answers through the socket, to the last byte; milliseconds"
    );
    let targets = ["/v1/holders", "/v1/files", "/v1/status"];
    let rows = targets.map(|target| timed_answers(&daemon, target, answer)).into_iter();
    let heading = ["", "KiB", "p50", "p99", "max", "p99 at most", "ratio"];
    println!("{}", table(&heading, &rows.collect::<Result<Vec<_>>>()?));
    println!(
        "{}",
        table(&["", "is", "at most", "ratio"], &[row("KiB resident", kib(daemon.resident_kib()?))])
    );
    agree(subject, &daemon)?;
    drop(held);
    agree(subject, &daemon)?;
    println!("ledger and fresh snapshot agree, with the handles and after they are closed");
    Ok(())
}

fn timed_answers(daemon: &Daemon, target: &str, wanted: Duration) -> Result<Vec<String>> {
    let (mut timings, mut bytes) = (Vec::new(), 0);
    for _ in 0..ANSWERS {
        interrupt::check()?;
        let start = Instant::now();
        bytes = daemon.ask(target)?.len();
        timings.push(start.elapsed());
    }
    timings.sort();
    let p99 = timings[ANSWERS * 99 / 100 - 1];
    let samples = Samples::new(timings).context("no answers")?;
    let ratio = format!("{:.2}", p99.as_secs_f64() / wanted.as_secs_f64());
    let timings = [samples.median(), p99, samples.max(), wanted].map(ms);
    Ok([vec![target.to_owned(), (bytes / 1024).to_string()], timings.to_vec(), vec![ratio]].concat())
}

fn lift_limit() -> Result<()> {
    let wanted = HANDLES as u64 + 1_000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_cur.max(wanted);
    limit.rlim_max = limit.rlim_max.max(wanted);
    // SAFETY: the struct is valid for reading.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).context("cannot raise the limit of open files"),
    }
}

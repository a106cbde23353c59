//! What a daemon takes while nothing happens, and how long its answers take when many handles are held.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Subject;
use super::agree::agree;
use super::daemon::{Daemon, Memory};
use super::measure::{Samples, load, ms, table, verdict};
use crate::interrupt;
use crate::stage::Stage;

/// What it may take: KiB resident with all handles held, what is mapped of BPF maps not counted; share of a core when idle;
/// and for the slowest of a hundred answers.
const WANTED: (u64, f64, Duration) = (32 << 10, 0.001, Duration::from_millis(10));

/// Runs the benchmark.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    measure_idle(subject, &daemon)?;

    let (handles, answers) = (subject.arguments.handles, subject.arguments.answers);
    lift_limit(handles)?;
    let held: Vec<File> = (0..handles).map(|_| File::open(stage.node())).collect::<Result<_, _>>()?;
    // The first one after the opens finds them; those after it are the ones that a person waits for.
    let answered = daemon.get("/v1/holders")?;
    let listed = answered["files"].as_array().map_or(0, Vec::len);
    drop(answered);
    if listed < held.len() {
        bail!("the daemon lists {listed} files, fewer than the {handles} that are held");
    }
    println!(
        "standing: {handles} handles held, {answers} answers through the socket, to the last byte; milliseconds; {}",
        load()
    );
    let targets = ["/v1/holders", "/v1/files", "/v1/status"];
    let rows = targets.map(|target| timed_answers(&daemon, target, answers)).into_iter();
    let heading = ["", "KiB", "min", "p50", "p99", "max", "p99 at most", "ratio", ""];
    println!("{}", table(&heading, &rows.collect::<Result<Vec<_>>>()?));
    println!("{}", memory_table(daemon.memory()?));
    agree(subject, &daemon)?;
    drop(held);
    agree(subject, &daemon)?;
    println!("ledger and fresh snapshot agree, with the handles and after they are closed");
    Ok(())
}

fn measure_idle(subject: &Subject, daemon: &Daemon) -> Result<()> {
    // What it does after the start is not idling.
    interrupt::sleep(Duration::from_secs(2))?;
    let events = || -> Result<u64> { Ok(daemon.status()?["counts"]["events"].as_u64().unwrap_or(0)) };
    let told = events()?;
    let (before, start) = (daemon.cpu_time()?, Instant::now());
    interrupt::sleep(Duration::from_secs(u64::from(subject.arguments.seconds)))?;
    let used = daemon.cpu_time()?.saturating_sub(before);
    let idle = used.as_secs_f64() / start.elapsed().as_secs_f64();
    println!("standing: a daemon with nothing to do for {:.0} s; {}", start.elapsed().as_secs_f64(), load());
    let [is, at_most] = [idle, WANTED.1].map(|share| format!("{:.3}", share * 100.0));
    let ratio = format!("{:.2}", idle / WANTED.1);
    let row = ["% of a core".to_owned(), is, at_most, ratio, verdict(idle <= WANTED.1).to_owned()];
    println!("{}", table(&["", "is", "at most", "ratio", ""], &[row.to_vec()]));
    println!("{}", memory_table(daemon.memory()?));
    let told = events()? - told;
    if told > 0 {
        println!(
            "it was not idle: others use the device that stands in for a GPU, of which it heard {told} times\n"
        );
    }
    Ok(())
}

/// Resident memory against what is promised.
pub(super) fn memory_table(memory: Memory) -> String {
    let Memory { all, maps, own } = memory;
    let plain = |what: &str, kib: u64| vec![what.to_owned(), kib.to_string()];
    let limit = |what: &str, kib: u64| {
        let most = WANTED.0;
        let ratio = format!("{:.2}", kib as f64 / most as f64);
        vec![what.to_owned(), kib.to_string(), most.to_string(), ratio, verdict(kib <= most).to_owned()]
    };
    let rows = [
        limit("KiB resident but for rings", all - maps),
        plain("KiB of rings and other BPF maps, the data of a ring twice", maps),
        plain("KiB resident", all),
        plain("KiB of that its own, not of files", own),
    ];
    table(&["", "is", "at most", "ratio", ""], &rows)
}

fn timed_answers(daemon: &Daemon, target: &str, answers: u32) -> Result<Vec<String>> {
    let (mut timings, mut bytes) = (Vec::new(), 0);
    for _ in 0..answers {
        interrupt::check()?;
        let start = Instant::now();
        bytes = daemon.ask(target)?.len();
        timings.push(start.elapsed());
    }
    timings.sort();
    let p99 = timings[(timings.len() * 99 / 100).max(1) - 1];
    let samples = Samples::new(timings).context("no answers")?;
    let wanted = WANTED.2;
    let ratio = format!("{:.2}", p99.as_secs_f64() / wanted.as_secs_f64());
    let timings = [samples.min(), samples.median(), p99, samples.max(), wanted].map(ms);
    let words = [ratio, verdict(p99 <= wanted).to_owned()];
    Ok([vec![target.to_owned(), (bytes / 1024).to_string()], timings.to_vec(), words.to_vec()].concat())
}

fn lift_limit(handles: usize) -> Result<()> {
    let wanted = handles as u64 + 1_000;
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

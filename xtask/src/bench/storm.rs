//! Two processes that open and close the device as fast as they can while a daemon watches: what it loses, and whether it
//! says so. And how long an answer takes when ten thousand handles are held.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::daemon::Daemon;
use super::measure::{Samples, ms};
use super::{Subject, timed};
use crate::interrupt;
use crate::stage::{STANDIN_ARGUMENT, Stage};

/// Handles held while answers are timed.
const HANDLES: usize = 10_000;
/// Answers that are timed.
const ANSWERS: usize = 200;
/// How long the daemon may take to know what happened last.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs the benchmark.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    storm(subject, &stage, &daemon)?;
    agree(subject, &daemon)?;
    lift_limit()?;
    let held: Vec<File> = (0..HANDLES).map(|_| File::open(stage.node())).collect::<Result<_, _>>()?;
    answers(&daemon, held.len())?;
    println!("storm: daemon with {HANDLES} handles held: {} KiB resident", daemon.resident_kib()?);
    agree(subject, &daemon)?;
    drop(held);
    agree(subject, &daemon)
}

fn storm(subject: &Subject, stage: &Stage, daemon: &Daemon) -> Result<()> {
    let seconds = subject.arguments.seconds;
    let before = daemon.status()?;
    let (cpu, start) = (daemon.cpu_time()?, Instant::now());
    let until = start + Duration::from_secs(u64::from(seconds));
    let mut stormers = (0..2).map(|_| Stormer::start(stage.node(), until)).collect::<Result<Vec<_>>>()?;
    let mut opens = 0;
    for stormer in &mut stormers {
        opens += stormer.count()?;
    }
    let took = start.elapsed().as_secs_f64();
    let used = daemon.cpu_time()?.saturating_sub(cpu);
    let after = daemon.status()?;
    let events = [&before, &after].map(|status| status["counts"]["events"].as_u64().unwrap_or(0));
    println!("storm: 2 processes, {seconds} s: {opens} opens, {:.0} opens/s", opens as f64 / took);
    println!("  events: {} kept", events[1].saturating_sub(events[0]));
    println!("  losses: {}", grown(&before["losses"], &after["losses"]));
    println!("  gaps: {}", after["gaps"]);
    println!(
        "  daemon: {:.1} % of a core, {} KiB resident",
        used.as_secs_f64() / took * 100.0,
        daemon.resident_kib()?
    );
    Ok(())
}

/// By how much each counter of losses has grown, those that have.
fn grown(before: &Value, after: &Value) -> String {
    let counters = after.as_object().into_iter().flatten();
    let grown = counters.filter_map(|(name, count)| {
        let more = count.as_u64()?.saturating_sub(before[name].as_u64().unwrap_or(0));
        (more > 0).then(|| format!("{name} {more}"))
    });
    let grown: Vec<String> = grown.collect();
    if grown.is_empty() { "none".to_owned() } else { grown.join(", ") }
}

/// The daemon's answer must come to equal what a fresh look without it sees. Of other processes on this machine that open
/// the device meanwhile either may see more; so it is asked again until both agree.
fn agree(subject: &Subject, daemon: &Daemon) -> Result<()> {
    let start = Instant::now();
    loop {
        let socket = daemon.socket().into_os_string();
        let asked =
            [answer(subject, &["--socket".into(), socket])?, answer(subject, &["--standalone".into()])?];
        if asked[0]["plan"] == asked[1]["plan"] {
            bail!("the daemon did not answer: its answer is of plan {}", asked[0]["plan"]);
        }
        let [ledger, snapshot] = asked.each_ref().map(held);
        if ledger == snapshot {
            let handles: u64 = ledger.0.values().map(|counts| counts.iter().sum::<u64>()).sum();
            println!("  ledger and fresh snapshot agree: {} holders, {handles} references", ledger.0.len());
            return Ok(());
        }
        if start.elapsed() > SETTLE {
            bail!("the ledger says {ledger:?}, a fresh snapshot {snapshot:?}");
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn answer(subject: &Subject, whom: &[std::ffi::OsString]) -> Result<Value> {
    let mut command = Command::new(&subject.gpu_tracer);
    command.args(["holders", "--format", "json", "--device", STANDIN_ARGUMENT]).args(whom);
    serde_json::from_str(&timed(&mut command)?.stdout).context("`gpu-tracer holders` printed no JSON")
}

/// Per process its descriptors, mappings and messages; and the files' reference counts, how often each.
fn held(answer: &Value) -> (BTreeMap<u64, [u64; 3]>, BTreeMap<u64, u64>) {
    let (mut holders, mut files) = (BTreeMap::new(), BTreeMap::new());
    for holder in answer["holders"].as_array().into_iter().flatten() {
        let counts: &mut [u64; 3] = holders.entry(holder["pid"].as_u64().unwrap_or(0)).or_default();
        for device in holder["devices"].as_array().into_iter().flatten() {
            for (count, name) in counts.iter_mut().zip(["fds", "maps", "in_flight"]) {
                *count += device[name].as_u64().unwrap_or(0);
            }
        }
    }
    for file in answer["files"].as_array().into_iter().flatten() {
        *files.entry(file["references"].as_u64().unwrap_or(0)).or_default() += 1;
    }
    (holders, files)
}

fn answers(daemon: &Daemon, handles: usize) -> Result<()> {
    // The first one after the opens finds them; those after it are the ones that a person waits for.
    daemon.get("/v1/holders")?;
    let mut timings = Vec::new();
    for _ in 0..ANSWERS {
        interrupt::check()?;
        let start = Instant::now();
        let answer = daemon.get("/v1/holders")?;
        timings.push(start.elapsed());
        if answer["files"].as_array().map_or(0, Vec::len) < handles {
            bail!("the daemon lists fewer than the {handles} files that are held");
        }
    }
    timings.sort();
    let p99 = timings[ANSWERS * 99 / 100 - 1];
    if let Some(samples) = Samples::new(timings) {
        println!(
            "storm: answer through the socket with {handles} handles held, {ANSWERS} times: p50 {} ms, p99 {} ms, max {} ms",
            ms(samples.median()),
            ms(p99),
            ms(samples.max())
        );
    }
    Ok(())
}

fn lift_limit() -> Result<()> {
    let wanted = HANDLES as u64 + 1_000;
    let limit = libc::rlimit { rlim_cur: wanted, rlim_max: wanted.max(1 << 19) };
    // SAFETY: the struct is valid for reading.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).context("cannot raise the limit of open files"),
    }
}

/// A process that opens and closes the device until a moment, and then says how often.
struct Stormer {
    child: Child,
}

impl Stormer {
    fn start(node: &Path, until: Instant) -> Result<Self> {
        let milliseconds = until.saturating_duration_since(Instant::now()).as_millis().to_string();
        let this = std::env::current_exe().context("this program has no path")?;
        let mut command = Command::new(this);
        command.arg("stormer").arg("--milliseconds").arg(milliseconds).arg("--device").arg(node);
        Ok(Self {
            child: command.stdout(std::process::Stdio::piped()).spawn().context("cannot start a stormer")?,
        })
    }

    fn count(&mut self) -> Result<u64> {
        let mut said = String::new();
        let out = self.child.stdout.as_mut().context("its output is a pipe")?;
        std::io::Read::read_to_string(out, &mut said)?;
        self.child.wait()?;
        interrupt::check()?;
        said.trim().parse().with_context(|| format!("a stormer said {said:?}"))
    }
}

/// Arguments of the `stormer` mode of this program.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long.
    #[arg(long)]
    milliseconds: u64,
    /// What to open.
    #[arg(long)]
    device: std::path::PathBuf,
}

/// The stormer itself.
pub(crate) fn task(arguments: &Arguments) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(arguments.milliseconds);
    let mut opens = 0u64;
    while Instant::now() < until {
        for _ in 0..64 {
            drop(File::open(&arguments.device)?);
            opens += 1;
        }
    }
    println!("{opens}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_counters_that_have_grown_are_losses() {
        assert_eq!(grown(&json!({"a": 1, "b": 2}), &json!({"a": 1, "b": 5, "c": 1})), "b 3, c 1");
        assert_eq!(grown(&json!({"a": 1}), &json!({"a": 1})), "none");
    }

    #[test]
    fn one_reference_more_is_a_difference() {
        let answer = |fds: u64, references: u64| {
            json!({"holders": [{"pid": 7, "devices": [{"fds": fds, "maps": 0, "in_flight": 0}]}],
                   "files": [{"references": references}]})
        };
        assert_eq!(held(&answer(1, 1)), held(&answer(1, 1)));
        assert_ne!(held(&answer(1, 1)), held(&answer(2, 1)));
        assert_ne!(held(&answer(1, 1)), held(&answer(1, 2)));
    }
}

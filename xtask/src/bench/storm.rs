//! Processes that open and close the device as fast as they can, or at a rate, while a daemon watches: what it loses, and
//! whether it says so.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Subject;
use super::agree::{Agreed, agree};
use super::daemon::Daemon;
use super::measure::{load, table, verdict};
use super::standing::memory_table;
use crate::interrupt;
use crate::stage::Stage;

/// Opens per second that the daemon has to cope with.
const WANTED: u64 = 300_000;
/// Processes that storm together.
const STORMERS: u64 = 2;

/// How long the daemon may take to close the last gap: until its next look.
const UNTIL_CLOSED: Duration = Duration::from_secs(30);

/// Runs the benchmark.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    let (seconds, rate) = (subject.arguments.seconds, subject.arguments.rate);
    let before = daemon.status()?;
    let (cpu, start) = (daemon.cpu_time()?, Instant::now());
    let until = start + Duration::from_secs(u64::from(seconds));
    let mut stormers = Stormers::start(stage.node(), until, rate)?;
    let opens = stormers.count()?;
    let took = start.elapsed().as_secs_f64();
    let used = daemon.cpu_time()?.saturating_sub(cpu);
    let memory = daemon.memory()?;
    let agreed = agree(subject, &daemon)?;
    let after = without_open_gaps(&daemon)?;
    let events = [&before, &after].map(|status| status["counts"]["events"].as_u64().unwrap_or(0));
    let kept = events[1].saturating_sub(events[0]);

    let per_second = opens as f64 / took;
    println!("storm: {STORMERS} processes open and close the device for {took:.0} s; {}", load());
    let row = |what: &str, figure: String, ratio: String| vec![what.to_owned(), figure, ratio];
    let rows = [
        row("opens", opens.to_string(), String::new()),
        row("opens/s", format!("{per_second:.0}"), format!("{:.2} of {WANTED}", per_second / WANTED as f64)),
        row(
            "events kept",
            kept.to_string(),
            format!("{:.4} of the opens", kept as f64 / opens.max(1) as f64),
        ),
        row("daemon, % of a core", format!("{:.1}", used.as_secs_f64() / took * 100.0), String::new()),
    ];
    println!("{}", table(&["", "", "ratio"], &rows));
    let losses = grown(&before["losses"], &after["losses"]);
    let (gaps, in_gaps) = gaps_of(&before, &after);
    println!("  losses: {}", shown(&losses));
    println!("  gaps in the record: {gaps}, of {in_gaps} events");
    let Agreed { holders, references } = agreed;
    println!("  afterwards ledger and fresh snapshot agree: {holders} holders, {references} references\n");
    let lost: u64 = losses.iter().map(|(_, count)| count).sum();
    let told = if lost == 0 { gaps == 0 } else { gaps > 0 && in_gaps == lost };
    let promises = [
        ("the state is exact afterwards", true),
        ("nothing is lost, or it is counted and in a gap", told),
        ("32 MiB resident but for rings", memory.all - memory.maps <= 32 << 10),
    ];
    let rows = promises.map(|(what, kept)| vec![what.to_owned(), verdict(kept).to_owned()]);
    println!("{}", table(&["", ""], &rows));
    println!("{}", memory_table(memory));
    if per_second < WANTED as f64 && rate.is_none() {
        println!("  this machine, with what else runs on it, cannot do {WANTED} opens/s");
    }
    Ok(())
}

/// How it is doing after a look that has closed all gaps: one that is open is not in the record yet.
fn without_open_gaps(daemon: &Daemon) -> Result<Value> {
    let deadline = Instant::now() + UNTIL_CLOSED;
    loop {
        let status = daemon.status()?;
        let open = status["open_gaps"].as_array().context("the daemon does not tell of open gaps")?;
        if open.is_empty() {
            return Ok(status);
        }
        if Instant::now() > deadline {
            bail!("a gap is still open {} s after the storm: {open:?}", UNTIL_CLOSED.as_secs());
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
}

/// Gaps since then, and events that were lost in them. The list is bounded, their number is not.
fn gaps_of(before: &Value, after: &Value) -> (u64, u64) {
    let closed = |status: &Value| status["counts"]["gaps"].as_u64().unwrap_or(0);
    let events = |status: &Value| -> u64 {
        let gaps = status["gaps"].as_array().into_iter().flatten();
        gaps.filter_map(|gap| gap["events"].as_u64()).sum()
    };
    (closed(after).saturating_sub(closed(before)), events(after).saturating_sub(events(before)))
}

/// By how much each counter of losses has grown, those that have.
fn grown(before: &Value, after: &Value) -> Vec<(String, u64)> {
    let counters = after.as_object().into_iter().flatten();
    let grown = counters.filter_map(|(name, count)| {
        let more = count.as_u64()?.saturating_sub(before[name].as_u64().unwrap_or(0));
        (more > 0).then(|| (name.clone(), more))
    });
    grown.collect()
}

fn shown(losses: &[(String, u64)]) -> String {
    let losses: Vec<String> = losses.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if losses.is_empty() { "none".to_owned() } else { losses.join(", ") }
}

/// Processes that open and close the device until a moment, and then say how often. Dropping them ends them.
pub(super) struct Stormers(Vec<Child>);

impl Stormers {
    /// `rate`: opens per second of all together; `None`: as fast as can be.
    pub(super) fn start(node: &Path, until: Instant, rate: Option<u64>) -> Result<Self> {
        let milliseconds = until.saturating_duration_since(Instant::now()).as_millis().to_string();
        let this = std::env::current_exe().context("this program has no path")?;
        let mut stormers = Self(Vec::new());
        for _ in 0..STORMERS {
            let mut command = Command::new(&this);
            command.arg("stormer").args(["--milliseconds", &milliseconds]).arg("--device").arg(node);
            if let Some(rate) = rate {
                command.arg("--rate").arg((rate / STORMERS).to_string());
            }
            let child = command.stdout(Stdio::piped()).spawn().context("cannot start a stormer")?;
            stormers.0.push(child);
        }
        Ok(stormers)
    }

    /// Waits for their end; opens of all together.
    pub(super) fn count(&mut self) -> Result<u64> {
        let mut opens = 0;
        for child in &mut self.0 {
            let mut said = String::new();
            child.stdout.as_mut().context("its output is a pipe")?.read_to_string(&mut said)?;
            child.wait()?;
            interrupt::check()?;
            opens += said.trim().parse::<u64>().with_context(|| format!("a stormer said {said:?}"))?;
        }
        Ok(opens)
    }
}

impl Drop for Stormers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Those that have been waited for are left alone.
            let _ = child.kill();
            let _ = child.wait();
        }
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
    device: PathBuf,
    /// Opens per second; as many as can be when not given.
    #[arg(long)]
    rate: Option<u64>,
}

/// Opens between two looks at the clock.
const BATCH: u64 = 64;

/// The stormer itself.
pub(crate) fn task(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let until = start + Duration::from_millis(arguments.milliseconds);
    let mut opens = 0;
    while Instant::now() < until {
        for _ in 0..BATCH {
            drop(File::open(&arguments.device)?);
        }
        opens += BATCH;
        if let Some(rate) = arguments.rate {
            let due = start + Duration::from_secs_f64(opens as f64 / rate.max(1) as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
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
        assert_eq!(shown(&grown(&json!({"a": 1, "b": 2}), &json!({"a": 1, "b": 5, "c": 1}))), "b 3, c 1");
        assert_eq!(shown(&grown(&json!({"a": 1}), &json!({"a": 1}))), "none");
    }

    #[test]
    fn gaps_since_the_storm_began_are_counted_and_not_those_before() {
        let before = json!({"counts": {"gaps": 1}, "gaps": [{"events": 5}]});
        let after = json!({"counts": {"gaps": 3}, "gaps": [{"events": 5}, {"events": 7}, {"events": null}]});
        assert_eq!(gaps_of(&before, &after), (2, 7));
    }
}

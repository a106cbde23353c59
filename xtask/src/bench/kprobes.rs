//! What the kprobes of plan `full` cost whoever opens and closes a device of the driver, and everybody else.
//!
//! Kprobes are in a guest, with the stand-in driver. An emulated processor tells no times that mean anything, so the guest counts
//! instructions. What they are worth on hardware is estimated from things that are done in the guest and on this machine
//! alike: each is so many instructions there and takes so many ns here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::Subject;
use super::daemon::Daemon;
use super::measure::table;
use crate::child;
use crate::stage::Stage;
use crate::vm;
use crate::workspace::Workspace;

/// What an open and release of a device may cost more with plan `full` than without any hook at the driver.
const MOST_NS: f64 = 2000.0;
/// How often what is done in the guest is done here, without hooks and with them.
const TURNS: u32 = 5;
/// Fewer than a process has a budget of touches for.
const PAIRS: &str = "60";
const CALLS: &str = "2000";
const DEVICE: &str = "/dev/nvidia3";
/// Something that nobody watches.
const OTHER: &str = "/dev/zero";
/// Names of what is measured.
const PAIR: &str = "open+close of the driver's device";
const OTHER_PAIR: &str = "open+close of another device";
const CALL: &str = "getppid";
/// The same code in every kernel, and no device: nobody's hooks are in its way.
const FILE: &str = "eventfd+close";
const TOUCH: &str = "the hook of plan lean at an open";

/// What the guest runs: lines of plan, what, ns (which are instructions there).
fn script() -> String {
    let measure = format!(
        "measure() {{ for what in 'pairs {PAIRS} {DEVICE}' 'pairs {PAIRS} {OTHER}' 'calls {CALLS}' 'events {CALLS}'; do \
         echo cost $1 $what = $(driver-client $what); done; }}"
    );
    let daemon = "gpu-tracer run --plan $plan --config /dev/null --socket /tmp/b/s --state-dir /tmp/b/$plan \
                  --pin-dir /sys/fs/bpf/b 2>/tmp/b/said & daemon=$!; \
                  until grep -q ready /tmp/b/said; do sleep 0.1; done; sleep 3";
    let end = "kill $daemon; wait $daemon; gpu-tracer run --unpin --config /dev/null --pin-dir /sys/fs/bpf/b";
    format!(
        "mkdir -p /tmp/b; {measure}; measure none; \
         for plan in lean full; do {daemon}; measure $plan; cat /tmp/b/said; {end}; done"
    )
}

/// By plan and what is done: what one of them takes.
type Costs = BTreeMap<(String, &'static str), f64>;

/// Runs the benchmark.
pub(super) fn measure(workspace: &Workspace, subject: &Subject) -> Result<()> {
    if let Some(why) = vm::refusal() {
        println!("kprobes: not measured: {why}");
        return Ok(());
    }
    let inside = in_guest(subject.arguments.dev)?;
    let outside = natively(workspace, subject)?;
    let of = |costs: &Costs, plan: &str, what| {
        let cost = costs.get(&(plan.to_owned(), what)).copied();
        cost.with_context(|| format!("nothing was measured of {what} with plan {plan}"))
    };
    let mut rows = Vec::new();
    for what in [PAIR, OTHER_PAIR, FILE, CALL] {
        let [none, lean, full] = ["none", "lean", "full"].map(|plan| of(&inside, plan, what));
        let (none, lean, full) = (none?, lean?, full?);
        let shown = [none, lean, full, full - lean].map(|cost| format!("{cost:.0}"));
        rows.push([vec![what.to_owned()], shown.to_vec(), vec![format!("{:.2}", full / lean)]].concat());
    }
    println!("kprobes: instructions for each, in a guest with Linux 6.12 and the stand-in driver");
    println!("{}", table(&["", "no hook", "lean", "full", "full-lean", "full/lean"], &rows));

    let touched =
        |costs: &Costs, what| Ok::<f64, anyhow::Error>(of(costs, "lean", what)? - of(costs, "none", what)?);
    let yardsticks = [
        (CALL, of(&inside, "none", CALL)?, of(&outside, "none", CALL)?),
        (FILE, of(&inside, "none", FILE)?, of(&outside, "none", FILE)?),
        (TOUCH, touched(&inside, PAIR)?, touched(&outside, OTHER_PAIR)?),
    ];
    let rows: Vec<Vec<String>> = yardsticks
        .iter()
        .map(|(what, instructions, ns)| {
            let figures =
                [format!("{instructions:.0}"), format!("{ns:.0}"), format!("{:.3}", ns / instructions)];
            [vec![(*what).to_owned()], figures.to_vec()].concat()
        })
        .collect();
    println!("{}", table(&["yardstick", "instructions there", "ns here", "ns each"], &rows));
    let more = of(&inside, "full", PAIR)? - of(&inside, "lean", PAIR)?;
    let estimates = yardsticks.iter().map(|(_, instructions, ns)| more * ns / instructions);
    let (least, most) =
        estimates.fold((f64::MAX, 0.0_f64), |(least, most), ns| (least.min(ns), most.max(ns)));
    let verdict = match () {
        () if most <= MOST_NS => "kept",
        () if least > MOST_NS => "missed",
        () => "not proved",
    };
    println!(
        "estimate, by the yardsticks: {least:.0} to {most:.0} ns more for an open and release on hardware like this; at most \
         {MOST_NS:.0}: {verdict}"
    );
    let others = of(&inside, "full", OTHER_PAIR)? - of(&inside, "lean", OTHER_PAIR)?;
    let verdict = if others.abs() <= 20.0 { "kept" } else { "missed" };
    println!(
        "others: {others:+.0} instructions for an open and close of something else; at most 0: {verdict}"
    );
    Ok(())
}

/// The figures of a guest. It is run as anybody would run it, and what it prints is read.
fn in_guest(dev: bool) -> Result<Costs> {
    let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
    command.args(["vm", "--kernel", "6.12", "--driver", "--count"]).args(dev.then_some("--dev"));
    command.args(["--", "sh", "-c"]).arg(script());
    let output = command.stderr(Stdio::inherit()).output().context("cannot run `cargo xtask vm`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("the guest failed ({}): {text}", output.status);
    }
    let mut costs = Costs::new();
    for line in text.lines() {
        let Some((what, cost)) = line.strip_prefix("cost ").and_then(|line| line.split_once(" = ")) else {
            continue;
        };
        let words: Vec<&str> = what.split_whitespace().collect();
        let what = match words[..] {
            [_, "pairs", _, DEVICE] => PAIR,
            [_, "pairs", ..] => OTHER_PAIR,
            [_, "events", ..] => FILE,
            _ => CALL,
        };
        let cost = cost.trim().parse().with_context(|| format!("no figure: {line}"))?;
        costs.insert((words[0].to_owned(), what), cost);
    }
    Ok(costs)
}

/// The same things on this machine, which has no such driver: the stand-in of other benchmarks is opened. By turns, and the least of
/// each: whatever else goes on here adds to it.
fn natively(workspace: &Workspace, subject: &Subject) -> Result<Costs> {
    let client = client(workspace, subject.arguments.dev)?;
    let stage = Stage::set_up()?;
    let node = stage.node().to_string_lossy().into_owned();
    let mut costs = Costs::new();
    for _ in 0..TURNS {
        for plan in ["none", "lean"] {
            let _daemon =
                if plan == "lean" { Some(Daemon::start(&subject.gpu_tracer, &stage)?) } else { None };
            let done: [(&str, &[&str]); 3] = [
                (OTHER_PAIR, &["pairs", PAIRS, &node]),
                (FILE, &["events", CALLS]),
                (CALL, &["calls", CALLS]),
            ];
            for (what, arguments) in done {
                let cost = figure(&client, arguments)?;
                let least = costs.entry((plan.to_owned(), what)).or_insert(cost);
                *least = least.min(cost);
            }
        }
    }
    Ok(costs)
}

/// The program that the guest runs, for this machine.
fn client(workspace: &Workspace, dev: bool) -> Result<PathBuf> {
    let (profile, folder) = if dev { ("dev", "debug") } else { ("release", "release") };
    let arguments =
        ["build", "--profile", profile, "--package", "gpu-tracer-tests", "--bin", "driver-client"];
    child::run(child::cargo().current_dir(workspace.root()).args(arguments))?;
    Ok(workspace.root().join("target").join(folder).join("driver-client"))
}

fn figure(client: &Path, arguments: &[&str]) -> Result<f64> {
    let output = Command::new(client).args(arguments).output().context("cannot run driver-client")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .with_context(|| format!("no figure: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

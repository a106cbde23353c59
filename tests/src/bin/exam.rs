//! Random steps by real processes, and gpu-tracer's answer about every reference after each burst of them.
//!
//! `exam [--seed N] [--ops N] [--seconds S] [--daemon] [--processes N] [--start-with N] [--burst N] [--rest MS] [--alone-every N] [--shorten S]`; exit status 0 without a difference, 1 with one.
//! As `exam obey FD` it is a worker that replaced its program.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use gpu_tracer_tests::exam::{Outcome, Settings, examine};
use gpu_tracer_tests::{sys, worker};

/// Threads that have ended leave a descriptor in their table.
const DESCRIPTORS: u64 = 100_000;

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("exam: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    if arguments.first().is_some_and(|first| first == worker::OBEY) {
        worker::obey_after_exec(arguments.get(1).context("no socket to obey")?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(&arguments)?;
    sys::fd::lift_limit(DESCRIPTORS)?;
    println!("exam: seed {}{}", settings.seed, if settings.daemon { ", with a daemon" } else { "" });
    let outcome = examine(&settings).with_context(|| format!("seed {}", settings.seed))?;
    report(&settings, &outcome);
    Ok(if outcome.failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn settings(arguments: &[String]) -> Result<Settings> {
    let fresh = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64 % 1_000_000_000;
    let mut settings = Settings {
        seed: fresh,
        operations: u64::MAX,
        limit: None,
        daemon: false,
        processes: 48,
        start_with: 1,
        burst: (20, 100),
        rest: Duration::ZERO,
        alone_every: 20,
        shorten: Duration::from_secs(60),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--daemon" {
            settings.daemon = true;
            continue;
        }
        let value = words.next().with_context(|| format!("{word} needs a number"))?;
        let number: u64 = value.parse().with_context(|| format!("{word}: {value:?} is no number"))?;
        match word.as_str() {
            "--seed" => settings.seed = number,
            "--ops" => settings.operations = number,
            "--seconds" => settings.limit = Some(Duration::from_secs(number)),
            "--processes" => settings.processes = usize::try_from(number)?.max(1),
            "--start-with" => settings.start_with = usize::try_from(number)?,
            "--rest" => settings.rest = Duration::from_millis(number),
            "--burst" => settings.burst = (number.div_ceil(5), number.max(1)),
            "--alone-every" => settings.alone_every = number.max(1),
            "--shorten" => settings.shorten = Duration::from_secs(number),
            other => bail!(
                "what is {other}? There are --seed, --ops, --seconds, --daemon, --processes, --start-with, --burst, --rest, --alone-every and --shorten"
            ),
        }
    }
    if settings.operations == u64::MAX && settings.limit.is_none() {
        settings.operations = 50_000;
    }
    Ok(settings)
}

fn report(settings: &Settings, outcome: &Outcome) {
    let (acting, asking) = outcome.took;
    println!(
        "exam: {} operations in {:.1} s, {} questions alone and {} to the daemon in {:.1} s; at most {} open files with {} references",
        outcome.operations,
        acting.as_secs_f64(),
        outcome.questions.0,
        outcome.questions.1,
        asking.as_secs_f64(),
        outcome.most.0,
        outcome.most.1
    );
    if let Some(status) = &outcome.status {
        println!(
            "exam: {} answers of the daemon still showed files that were released; it knew after at most {} ms; {} were not in time",
            outcome.late.0,
            outcome.late.1.as_millis(),
            outcome.in_vain
        );
        let (exactly, likely, not) = outcome.openers;
        println!(
            "exam: openers were named {exactly} times exactly, {likely} times as likely, {not} times not at all"
        );
        println!("exam: the daemon counts {}, losses {}", status["counts"], status["losses"]);
    }
    let Some(failure) = &outcome.failure else {
        println!("exam: no difference (seed {})", settings.seed);
        return;
    };
    let wrong = &failure.wrong;
    println!(
        "\nexam: DIFFERENCE, asked {:?}, seed {}, after {} operations",
        wrong.whom, settings.seed, outcome.operations
    );
    wrong.differences.iter().for_each(|one| println!("  {one}"));
    match wrong.again.len() {
        0 => println!("asked again at once: no difference"),
        _ => println!("asked again at once, the differences were:\n  {}", wrong.again.join("\n  ")),
    }
    match failure.again {
        true => {
            println!("\nthe shortest sequence found that shows it ({} operations):", failure.sequence.len())
        }
        false => println!("\nthe same steps did not show it again; since the last right answer there were:"),
    }
    failure.sequence.iter().for_each(|one| println!("  {one}"));
    println!("\nwhat must be so:\n{}\n\nthe answer:\n{}", failure.expected, wrong.text);
}

//! Stages one predicament with real processes and says on standard output what is true of it.
//!
//! `scenario NAME --device NODE[=NAME]... [ARGUMENT...]` prints one JSON line when everything is in place. Then every
//! line `next` on standard input brings the next step and another JSON line. When standard input closes, or on SIGTERM,
//! everything it made is undone.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use gpu_tracer_tests::stage::{self, Node};
use gpu_tracer_tests::{incident, scenario, sys, worker};

/// Enough descriptors for the largest scenario.
const DESCRIPTORS: u64 = 100_000;

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("scenario: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match arguments.first().map(String::as_str) {
        Some(worker::OBEY) => {
            let channel = arguments.get(1).context("no socket to obey")?;
            worker::obey_after_exec(channel)?;
            Ok(ExitCode::SUCCESS)
        }
        Some("--list") => {
            for scenario in scenario::ALL.iter().chain(incident::ALL) {
                println!("{:22} {}", scenario.name, scenario.summary);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(name) if !name.starts_with('-') => play(name, &arguments[1..]),
        _ => bail!("usage: scenario NAME --device NODE[=NAME]... [ARGUMENT...], or scenario --list"),
    }
}

fn play(name: &str, rest: &[String]) -> Result<ExitCode> {
    let scenario = scenario::find(name)
        .or_else(|| incident::find(name))
        .with_context(|| format!("no scenario is called {name}: see scenario --list"))?;
    let mut nodes = Vec::new();
    let mut arguments = Vec::new();
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        if word == "--device" {
            nodes.push(node(rest.next().context("--device needs a node")?)?);
        } else {
            arguments.push(word.clone());
        }
    }
    if nodes.is_empty() {
        bail!("which device? Give --device NODE");
    }
    // As far as allowed: only the largest scenarios need it, and they say so when it is not enough.
    let _ = sys::fd::lift_limit(DESCRIPTORS);
    stage::supervise(name, nodes, arguments, scenario.play)
}

fn node(text: &str) -> Result<Node> {
    let (path, name) = match text.split_once('=') {
        Some((path, name)) => (PathBuf::from(path), name.to_owned()),
        None => {
            let path = PathBuf::from(text);
            let name = path.file_name().context("a device needs a name")?;
            let name = name.to_string_lossy().into_owned();
            (path, name)
        }
    };
    Ok(Node { path, name })
}

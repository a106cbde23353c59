//! How long one `gpu-tracer holders` takes from start to end on this machine as it is, with no daemon to ask: what a
//! person at a prompt waits for.

use std::process::Command;

use anyhow::Result;

use super::measure::{Samples, ms, table};
use super::{Subject, check_answer, timed};
use crate::stage::STANDIN_ARGUMENT;

const RUNS: usize = 20;

/// Runs the benchmark. The first run, which reads the program from disk, is shown apart.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let mut timings = Vec::new();
    for _ in 0..=RUNS {
        let mut command = Command::new(&subject.gpu_tracer);
        let run = timed(command.args(["holders", "--standalone", "--device", STANDIN_ARGUMENT]))?;
        check_answer(&run)?;
        timings.push(run.took);
    }
    let first = timings.remove(0);
    println!("idle: gpu-tracer holders, standalone, {RUNS} runs after the first; milliseconds");
    if let Some(samples) = Samples::new(timings) {
        let row = [first, samples.median(), samples.min(), samples.max()].map(ms);
        let row: Vec<String> = ["gpu-tracer holders".to_owned()].into_iter().chain(row).collect();
        println!("{}", table(&["", "first", "median", "min", "max"], &[row]));
    }
    Ok(())
}

//! How long `gpu-tracer why` takes, whatever becomes of NVML: each way of asking against the time that is promised.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::daemon::Daemon;
use super::measure::{Samples, ms, table, verdict};
use super::{Subject, timed};
use crate::child;
use crate::stage::{STANDIN_ARGUMENT, Stage};
use crate::workspace::Workspace;

/// One way of asking.
struct Case<'a> {
    label: &'static str,
    /// What is promised.
    limit: Duration,
    /// Word of the answer for how NVML fared.
    nvml: &'static str,
    world: Option<&'a Path>,
    socket: Option<PathBuf>,
}

/// Runs the benchmark: every case once to warm up, then in turn, so that whatever else happens on the machine meets all of
/// them alike.
pub(super) fn measure(workspace: &Workspace, subject: &Subject) -> Result<()> {
    let library = nvml(workspace)?;
    let stage = Stage::set_up()?;
    let (answering, hanging) = (stage.folder().join("answering.json"), stage.folder().join("hanging.json"));
    let gpus =
        r#""gpus": [{"uuid": "GPU-0000", "bus_id": "00000000:00:06.0", "used_mib": 3, "total_mib": 143771}]"#;
    fs::write(&answering, format!("{{{gpus}}}"))?;
    fs::write(&hanging, format!(r#"{{{gpus}, "faults": [{{"call": "memory", "do": "deadlock"}}]}}"#))?;
    let daemon = Daemon::start(&subject.gpu_tracer, &stage)?;
    let limit = Duration::from_millis;
    let (none, socket) = (None, Some(daemon.socket()));
    let cases = [
        Case { label: "without NVML", limit: limit(300), nvml: "absent", world: None, socket: none.clone() },
        Case {
            label: "NVML answers",
            limit: limit(300),
            nvml: "complete",
            world: Some(&answering),
            socket: none.clone(),
        },
        Case { label: "NVML hangs", limit: limit(2500), nvml: "hung", world: Some(&hanging), socket: none },
        Case {
            label: "daemon, without NVML",
            limit: limit(50),
            nvml: "absent",
            world: None,
            socket: socket.clone(),
        },
        Case { label: "daemon, NVML hangs", limit: limit(2500), nvml: "hung", world: Some(&hanging), socket },
    ];
    let mut timings = vec![Vec::new(); cases.len()];
    for round in 0..=subject.arguments.rounds {
        for (case, timings) in cases.iter().zip(&mut timings) {
            let took = ask(subject, case, &library)?;
            if round > 0 {
                timings.push(took);
            }
        }
    }
    println!("why: {} rounds, alternating; milliseconds", subject.arguments.rounds);
    let rows: Vec<Vec<String>> =
        cases.iter().zip(timings).filter_map(|(case, timings)| row(case, timings)).collect();
    println!("{}", table(&["gpu-tracer why", "median", "min", "max", "promised", ""], &rows));
    Ok(())
}

fn row(case: &Case<'_>, timings: Vec<Duration>) -> Option<Vec<String>> {
    let samples = Samples::new(timings)?;
    let figures = [samples.median(), samples.min(), samples.max(), case.limit].map(ms);
    let kept = verdict(samples.median() <= case.limit).to_owned();
    Some([case.label.to_owned()].into_iter().chain(figures).chain([kept]).collect())
}

/// Asks once, and checks that it was asked what the case says.
fn ask(subject: &Subject, case: &Case<'_>, library: &Path) -> Result<Duration> {
    let mut command = Command::new(&subject.gpu_tracer);
    command.args(["why", "0", "--format", "json", "--device", STANDIN_ARGUMENT]);
    match &case.socket {
        Some(socket) => command.arg("--socket").arg(socket),
        None => command.arg("--standalone"),
    };
    let nowhere = Path::new("/nonexistent/libnvidia-ml.so");
    command.env("GPU_TRACER_NVML_LIBRARY", if case.world.is_some() { library } else { nowhere });
    command.envs(case.world.map(|world| ("STANDIN_NVML", world)));
    let run = timed(&mut command)?;
    let answer: serde_json::Value = serde_json::from_str(&run.stdout).with_context(|| {
        format!("{}: `gpu-tracer why` printed no JSON: {}", case.label, run.stderr.trim())
    })?;
    let plan = if case.socket.is_some() { "lean" } else { "snapshot" };
    if (&answer["nvml"]["state"], &answer["plan"]) != (&case.nvml.into(), &plan.into()) {
        bail!("{}: NVML is {} and the plan {}", case.label, answer["nvml"], answer["plan"]);
    }
    Ok(run.took)
}

/// Builds the stand-in for NVML's library.
fn nvml(workspace: &Workspace) -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "--quiet", "--package", "standin-nvml"];
    child::run(child::cargo().current_dir(workspace.root()).args(build))?;
    Ok(workspace.release_program("libnvidia_ml.so"))
}

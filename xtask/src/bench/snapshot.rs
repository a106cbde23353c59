//! How long it takes to find the one holder of a device among many processes with many open files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::crowd::Crowd;
use super::measure::{Samples, ms, table};
use super::{Subject, Timed, check_answer, timed};
use crate::child;
use crate::stage::{STANDIN_ARGUMENT, Stage};

struct Contender {
    label: &'static str,
    command: Command,
    timings: Vec<Duration>,
    named_the_holder: bool,
}

/// Runs the benchmark: every tool once to warm up, then in turn, so that whatever else happens on the machine meets all
/// of them alike.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let stage = Stage::set_up()?;
    let file = stage.folder().join("plain-file");
    fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
    let wanted = subject.arguments;
    // Declared after the stage, so ended before its folder goes.
    let crowd = Crowd::gather(wanted.processes, wanted.files, &file, stage.node())?;
    let mut contenders = contenders(subject, stage.node());
    for contender in &mut contenders {
        let run = timed(&mut contender.command)?;
        contender.named_the_holder = names(&run, crowd.holder);
        if contender.label == OURS {
            check_ours(&run, &crowd.members, crowd.holder)?;
        }
    }
    let mut snapshots = Vec::new();
    for _ in 0..wanted.rounds {
        for contender in &mut contenders {
            let run = timed(&mut contender.command)?;
            if contender.label == OURS {
                check_ours(&run, &crowd.members, crowd.holder)?;
                snapshots.push(snapshot_time(&run)?);
            }
            contender.timings.push(run.took);
        }
    }
    drop(crowd);
    report(subject, contenders, snapshots)
}

const OURS: &str = "gpu-tracer holders --format json";

fn contenders(subject: &Subject, node: &Path) -> Vec<Contender> {
    let mut ours = Command::new(&subject.gpu_tracer);
    ours.args(["holders", "--format", "json", "--device", STANDIN_ARGUMENT]);
    let mut fuser = Command::new("fuser");
    fuser.arg("-v").arg(node);
    let mut lsof = Command::new("lsof");
    lsof.arg(node);
    let mut lsfd = Command::new("lsfd");
    lsfd.args(["-Q", "MAJ:MIN == \"1:5\""]);
    [("fuser -v NODE", fuser), ("lsof NODE", lsof), ("lsfd -Q 'MAJ:MIN == \"1:5\"'", lsfd), (OURS, ours)]
        .into_iter()
        .filter(|(_, command)| child::find_program(&command.get_program().to_string_lossy()).is_some())
        .map(|(label, command)| Contender { label, command, timings: Vec::new(), named_the_holder: false })
        .collect()
}

/// Whether the output holds the PID as a word of its own; fuser prints names and PIDs on different streams.
fn names(run: &Timed, holder: u64) -> bool {
    let holder = holder.to_string();
    [&run.stdout, &run.stderr]
        .iter()
        .any(|stream| stream.split(|c: char| !c.is_ascii_digit()).any(|word| word == holder))
}

/// A fast wrong answer is worth nothing: of the crowd, exactly the one holder must be in ours. Others on this machine may
/// have the same device open.
fn check_ours(run: &Timed, members: &[u64], holder: u64) -> Result<()> {
    check_answer(run)?;
    let answer: serde_json::Value =
        serde_json::from_str(&run.stdout).context("`gpu-tracer holders --format json` printed no JSON")?;
    let pids = answer["holders"].as_array().into_iter().flatten().filter_map(|holder| holder["pid"].as_u64());
    let named: Vec<u64> = pids.filter(|pid| members.contains(pid)).collect();
    if named != [holder] {
        bail!("the holder is {holder}, and of these processes `gpu-tracer holders` names {named:?}");
    }
    Ok(())
}

/// What the looking alone took (descriptors, mappings and sockets), as the answer itself says: what a daemon, `wait` or
/// `watch` pays, whose programs are loaded already.
fn snapshot_time(run: &Timed) -> Result<Duration> {
    let answer: serde_json::Value = serde_json::from_str(&run.stdout).context("no JSON")?;
    let milliseconds = answer["cost"]["look_ms"].as_f64().context("the answer does not say what it cost")?;
    Ok(Duration::from_secs_f64(milliseconds / 1000.0))
}

fn report(subject: &Subject, contenders: Vec<Contender>, snapshots: Vec<Duration>) -> Result<()> {
    let wanted = subject.arguments;
    println!(
        "snapshot: {} processes x {} open files, one of them the device; {} rounds, alternating; milliseconds",
        wanted.processes, wanted.files, wanted.rounds
    );
    let mut measured: Vec<(String, Samples)> = contenders
        .into_iter()
        .filter_map(|contender| {
            let remark = if contender.named_the_holder { "" } else { " (did not name the holder)" };
            Some((format!("{}{remark}", contender.label), Samples::new(contender.timings)?))
        })
        .collect();
    let Some(snapshot) = Samples::new(snapshots) else { bail!("nothing was measured") };
    let Some((_, ours)) = measured.last().cloned() else { bail!("nothing was measured") };
    measured.push(("  of which the snapshot".to_owned(), snapshot.clone()));
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|(label, samples)| {
            let figures = [samples.median(), samples.min(), samples.max()].map(ms);
            [label.clone()]
                .into_iter()
                .chain(figures)
                .chain([&ours, &snapshot].map(|base| format!("{:.1}", samples.ratio_to(base))))
                .collect()
        })
        .collect();
    println!("{}", table(&["", "median", "min", "max", "x our answer", "x our snapshot"], &rows));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stdout: &str, stderr: &str) -> Timed {
        let (took, status) = (Duration::ZERO, Some(1));
        Timed { took, status, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    #[test]
    fn a_pid_is_found_as_a_whole_word_on_either_stream() {
        assert!(names(&run(" 4711", ""), 4711));
        assert!(names(&run("", "root 4711 f....\n"), 4711));
        assert!(!names(&run("47110 14711", ""), 4711));
    }

    #[test]
    fn our_answer_counts_only_when_it_is_exactly_the_holder() {
        let check = |answer: &str| check_ours(&run(answer, ""), &[6, 7, 8], 7);
        check(r#"{"holders":[{"pid":7}]}"#).unwrap();
        check(r#"{"holders":[{"pid":1},{"pid":7}]}"#).unwrap();
        for wrong in
            [r#"{"holders":[]}"#, r#"{"holders":[{"pid":8}]}"#, r#"{"holders":[{"pid":7},{"pid":8}]}"#, "x"]
        {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        let failed = Timed { status: Some(2), ..run(r#"{"holders":[{"pid":7}]}"#, "") };
        assert!(check_ours(&failed, &[6, 7, 8], 7).is_err());
    }
}

//! `cargo xtask run`: builds gpu-tracer and asks it who holds this machine's GPUs. Where there is none it stages real
//! holders on a stand-in device and shows what other tools make of them beside ours.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::build_ebpf;
use crate::child;
use crate::debian::{self, Need};
use crate::host_build::{self, Programs};
use crate::interrupt;
use crate::setup;
use crate::stage::{STANDIN_ARGUMENT, Scenario, Stage};
use crate::workspace::Workspace;

/// Arguments of `run`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Show the staged holders even where there are NVIDIA devices.
    #[arg(long)]
    staged: bool,
    /// Passed on to `gpu-tracer holders`.
    #[arg(last = true)]
    holders: Vec<String>,
}

/// The staged scenarios, and what each one is.
const SCENARIOS: [(&str, &str); 3] = [
    ("renamed-worker", "a worker that wears another name and command line than it was started with"),
    ("zombie-leader", "a process whose main thread is gone (a zombie) while another thread lives"),
    ("in-flight", "a handle sent through a socket and not yet received; its sender is dead"),
];

/// Runs `run`.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let toolchain = setup::for_build()?;
    build_ebpf::build(workspace, &toolchain, false)?;
    let programs = host_build::release(workspace)?;
    if has_nvidia_devices() && !arguments.staged {
        return holders(&programs, &arguments.holders);
    }
    staged(&programs, &arguments.holders)
}

fn has_nvidia_devices() -> bool {
    fs::read_dir("/dev").is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("nvidia")).unwrap_or_default();
            !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
                && entry.file_type().is_ok_and(|kind| kind.is_char_device())
        })
    })
}

/// Runs `gpu-tracer holders`. Its statuses 0 (nobody), 1 (held) and 3 (not everything seen, which it explains) are
/// answers; anything else is a failure.
fn holders(programs: &Programs, arguments: &[String]) -> Result<()> {
    let mut command = Command::new(&programs.gpu_tracer);
    command.arg("holders").args(arguments);
    heading(&command);
    let status = command.status().with_context(|| format!("cannot start `{}`", child::shown(&command)))?;
    match status.code() {
        Some(0 | 1 | 3) => println!("({status})"),
        _ => bail!("`{}` failed ({status})", child::shown(&command)),
    }
    Ok(())
}

fn staged(programs: &Programs, arguments: &[String]) -> Result<()> {
    if child::is_root() {
        // Shown as absent below where this cannot be helped.
        let _ = debian::provide([Need::program("fuser", "psmisc"), Need::program("lsof", "lsof")]);
    }
    interrupt::catch();
    interrupt::adopt_orphans()?;
    let outcome = compare(programs, arguments);
    // Everything that `compare` made is gone by now, unless a scenario failed to clean up after itself.
    let left = interrupt::end_children(Duration::from_secs(3));
    if !left.is_empty() {
        eprintln!("these processes could not be ended: {left:?}");
    }
    outcome
}

fn compare(programs: &Programs, arguments: &[String]) -> Result<()> {
    let stage = if child::is_root() { Some(Stage::set_up()?) } else { None };
    let node = stage.as_ref().map_or(Path::new("/dev/zero"), Stage::node);
    println!("No NVIDIA device here: {} (character device 1:5) stands in for one.", node.display());
    if stage.is_none() {
        println!(
            "Not root: the kernel answers no BPF program, so that ours must say what it cannot see, too."
        );
    }
    println!("\nStaged, as real processes that hold it:");
    // Declared after the stage, so ended before its folder is removed.
    let mut scenarios = Vec::new();
    for (name, description) in SCENARIOS {
        let scenario = Scenario::start(&programs.scenario, name, node)?;
        println!("  {name:<14}  {:<22}  {description}", pids(&scenario.staged));
        scenarios.push(scenario);
    }
    show_other(Command::new("fuser").arg("-v").arg(node))?;
    show_other(Command::new("lsof").arg(node))?;
    let mut arguments = arguments.to_vec();
    arguments.extend(["--device".to_owned(), STANDIN_ARGUMENT.to_owned()]);
    holders(programs, &arguments)?;
    interrupt::check()?;
    drop(scenarios);
    drop(stage);
    println!("\nThe staged processes are ended and their device node is removed.");
    Ok(())
}

/// The PIDs that a scenario named, as a person reads them.
fn pids(staged: &serde_json::Value) -> String {
    fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Number(pid) => into.push(pid.to_string()),
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
            serde_json::Value::Object(fields) => fields.values().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    collect(&staged["pids"], &mut all);
    match all.as_slice() {
        [] => "pid unknown".to_owned(),
        [one] => format!("pid {one}"),
        several => format!("pids {}", several.join(", ")),
    }
}

/// Runs another tool under a heading and prints what it says on either stream.
fn show_other(command: &mut Command) -> Result<()> {
    heading(command);
    if child::find_program(&command.get_program().to_string_lossy()).is_none() {
        println!("(not installed)");
        return Ok(());
    }
    let (said, status) = child::merged(command)?;
    interrupt::check()?;
    print!("{}", without_complaints(&said));
    println!("({status})");
    Ok(())
}

fn heading(command: &Command) {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    println!("\n── {} ──", child::shown(Command::new(program).args(command.get_args())));
}

/// Folds runs of fuser's complaints about files that even root may not look at; there is one for each descriptor of
/// such a process.
fn without_complaints(said: &str) -> String {
    let mut kept = String::new();
    let mut complaints = 0;
    for line in said.lines().map(Some).chain([None]) {
        if line.is_some_and(|line| line.starts_with("Cannot stat file /proc/")) {
            complaints += 1;
            continue;
        }
        if complaints > 0 {
            let _ = writeln!(kept, "({complaints} x `Cannot stat file /proc/...` left out)");
            complaints = 0;
        }
        if let Some(line) = line {
            let _ = writeln!(kept, "{line}");
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_read_from_any_shape() {
        let shown = |text: &str| pids(&serde_json::from_str(text).unwrap());
        assert_eq!(shown(r#"{"pids":[7]}"#), "pid 7");
        assert_eq!(shown(r#"{"pids":[7,9]}"#), "pids 7, 9");
        assert_eq!(shown(r#"{"pids":{"worker":7,"others":[8,9]}}"#), "pids 8, 9, 7");
        assert_eq!(shown(r#"{"scenario":"x"}"#), "pid unknown");
    }

    #[test]
    fn complaints_are_folded_and_answers_kept() {
        let said = "Cannot stat file /proc/1/fd/0: x\nCannot stat file /proc/1/fd/1: x\nUSER PID\n/dev/zero: 7\n\
                    Cannot stat file /proc/9/fd/1: x\n";
        let expected = "(2 x `Cannot stat file /proc/...` left out)\nUSER PID\n/dev/zero: 7\n\
                        (1 x `Cannot stat file /proc/...` left out)\n";
        assert_eq!(without_complaints(said), expected);
    }
}

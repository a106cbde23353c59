//! A crowd of real processes with open files, to measure among.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;

use crate::stage::Scenario;

/// Arguments of the `crowd` mode of this program, which `bench` starts.
#[derive(Args)]
pub(crate) struct Arguments {
    /// How many processes.
    #[arg(long)]
    processes: u32,
    /// How many open files each has, standard streams not counted.
    #[arg(long)]
    files: u32,
    /// The file that they open again and again.
    #[arg(long)]
    file: PathBuf,
    /// The device that the process in the middle holds as one of them.
    #[arg(long)]
    device: PathBuf,
}

/// A running crowd; dropping it ends it.
pub(crate) struct Crowd {
    _program: Scenario,
    /// All its processes.
    pub(crate) members: Vec<u64>,
    /// The one of them that holds the device.
    pub(crate) holder: u64,
}

impl Crowd {
    /// Starts a crowd and waits until every process has opened its files.
    pub(crate) fn gather(processes: u32, files: u32, file: &Path, device: &Path) -> Result<Self> {
        let this = std::env::current_exe().context("this program has no path")?;
        let mut command = Command::new(this);
        command.arg0("crowd").arg("crowd").args(["--processes", &processes.to_string()]);
        command.args(["--files", &files.to_string()]).arg("--file").arg(file).arg("--device").arg(device);
        let program = Scenario::start_command(&mut command, "crowd")?;
        let holder = program.staged["holder"].as_u64().context("the crowd did not name its holder")?;
        let members = program.staged["pids"].as_array().into_iter().flatten();
        let members = members.filter_map(serde_json::Value::as_u64).collect();
        Ok(Self { _program: program, members, holder })
    }
}

/// The crowd itself: forks, says so in one line when all are ready, and ends them at the end of its input.
pub(crate) fn task(arguments: &Arguments) -> Result<()> {
    let (mut ready, tell) = io::pipe().context("pipe failed")?;
    let mut pids = Vec::new();
    let mut failure = None;
    for number in 0..arguments.processes {
        // SAFETY: this program has a single thread here, so the child may do whatever it likes.
        match unsafe { libc::fork() } {
            -1 => {
                failure = Some(io::Error::last_os_error());
                break;
            }
            0 => {
                let with_device = number == arguments.processes / 2;
                let files = sit_down(arguments, with_device);
                let _ = (&tell).write_all(if files.is_ok() { b"y" } else { b"n" });
                // Else a process that ends without a word would leave its parent waiting for the others.
                drop(tell);
                loop {
                    // SAFETY: pause takes nothing and only returns at a signal.
                    unsafe { libc::pause() };
                }
            }
            pid => pids.push(pid),
        }
    }
    drop(tell);
    let mut answers = vec![0; pids.len()];
    let told = ready.read_exact(&mut answers);
    let outcome = match (failure, told) {
        (Some(error), _) => Err(error).context("fork failed"),
        (None, Err(error)) => Err(error).context("a process of the crowd ended"),
        (None, Ok(())) if answers.contains(&b'n') => bail_open(arguments),
        (None, Ok(())) => serve(&pids, arguments),
    };
    for pid in pids {
        // SAFETY: numbers and a null pointer; these are this process's own children, not reaped before.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    outcome
}

fn bail_open(arguments: &Arguments) -> Result<()> {
    bail!("a process of the crowd could not open {} files (`ulimit -n`?)", arguments.files)
}

/// In a child: opens its files and keeps them open.
fn sit_down(arguments: &Arguments, with_device: bool) -> io::Result<()> {
    // SAFETY: takes numbers only. Should the crowd's first process be killed, none of the others may stay.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    for number in 0..arguments.files {
        let path = if with_device && number == 0 { &arguments.device } else { &arguments.file };
        std::mem::forget(File::open(path)?);
    }
    Ok(())
}

fn serve(pids: &[i32], arguments: &Arguments) -> Result<()> {
    let holder = pids.get(arguments.processes as usize / 2).copied().unwrap_or_default();
    println!("{}", json!({ "holder": holder, "pids": pids }));
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new()).context("cannot wait for the end of the input")?;
    Ok(())
}

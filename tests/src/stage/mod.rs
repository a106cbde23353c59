//! Where a scenario is played: one process sees to the end, another conducts.
//!
//! [`supervise`] splits the program in two. The *janitor* (the process that was started) only waits: for the conductor
//! to end, for signals, for children to reap. The *conductor* plays the script. Before the script makes anything that
//! outlives processes (a mount, a frozen file system, a cgroup, a directory), it tells the janitor how to undo it.
//! So it makes no difference whether the script comes to its end, fails, is killed, or loses the test that started it
//! (which closes its standard input): the janitor always cleans up the same way, and only then ends itself.

mod janitor;

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

pub use janitor::Undo;

use crate::proc;
use crate::sys::{fd, loopfs, mounts, process, process::Side};
use crate::truth::Truth;
use crate::worker::Worker;

/// A device node to be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it is.
    pub path: PathBuf,
    /// What the tracer calls it: without `/dev/`.
    pub name: String,
}

/// What a script plays on.
#[derive(Debug)]
pub struct Stage {
    scenario: String,
    step: u32,
    nodes: Vec<Node>,
    /// Words after the scenario's name.
    pub arguments: Vec<String>,
    dir: PathBuf,
    janitor: File,
    private: bool,
}

/// Nobody wants another step: the scenario is over. Not a failure.
#[derive(Debug)]
pub struct Over;

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the scenario is over")
    }
}

impl std::error::Error for Over {}

/// Plays a script on a stage of its own, cleans up, and only then returns; in the conductor, it does not return.
pub fn supervise(
    scenario: &str,
    nodes: Vec<Node>,
    arguments: Vec<String>,
    play: fn(&mut Stage) -> Result<()>,
) -> Result<ExitCode> {
    // Not everybody may; scripts that need it ask for it (`Stage::need_private_mounts`).
    let private = mounts::go_private().is_ok();
    process::become_subreaper()?;
    let signals = process::take_signals(janitor::SIGNALS)?;
    let (reading, writing) = std::io::pipe()?;
    match process::fork()? {
        Side::Parent(conductor) => {
            drop(writing);
            Ok(janitor::keep(conductor, reading, signals))
        }
        Side::Child => {
            drop(reading);
            fd::close(signals)?;
            process::release_signals(janitor::SIGNALS)?;
            process::die_with_parent(libc::SIGTERM)?;
            // SAFETY: a fresh duplicate that nothing else owns.
            let janitor = unsafe { File::from_raw_fd(fd::dup(writing.as_raw_fd())?) };
            drop(writing);
            fd::set_cloexec(janitor.as_raw_fd(), true)?;
            process::exit_group(conduct(scenario, nodes, arguments, private, janitor, play))
        }
    }
}

fn conduct(
    scenario: &str,
    nodes: Vec<Node>,
    arguments: Vec<String>,
    private: bool,
    janitor: File,
    play: fn(&mut Stage) -> Result<()>,
) -> i32 {
    let played =
        Stage::set(scenario, nodes, arguments, private, janitor).and_then(|mut stage| play(&mut stage));
    match played {
        Ok(()) => 0,
        Err(error) if error.is::<Over>() => 0,
        Err(error) => {
            let _ = refuse(&format!("{error:#}"));
            1
        }
    }
}

fn say(line: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn refuse(why: &str) -> Result<()> {
    say(&serde_json::json!({ "error": why }))
}

impl Stage {
    fn set(
        scenario: &str,
        nodes: Vec<Node>,
        arguments: Vec<String>,
        private: bool,
        janitor: File,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("gpu-tracer-scenario-").tempdir()?.keep();
        let stage = Self { scenario: scenario.to_owned(), step: 0, nodes, arguments, dir, janitor, private };
        stage.undo_later(&Undo::RemoveDirectory(stage.dir.clone()))?;
        Ok(stage)
    }

    /// The first device.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// All devices; at least one.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A directory of the scenario's own, removed in the end.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The argument at this position as a number, or the default.
    pub fn number(&self, position: usize, default: u32) -> Result<u32> {
        match self.arguments.get(position) {
            Some(text) => text.parse().with_context(|| format!("{text:?} is no number")),
            None => Ok(default),
        }
    }

    /// A new worker that holds nothing.
    pub fn worker(&self) -> Result<Worker> {
        Worker::start()
    }

    /// Tells the janitor how to undo what the script is about to do. Last told is first undone.
    pub fn undo_later(&self, undo: &Undo) -> Result<()> {
        let mut line = serde_json::to_vec(undo)?;
        line.push(b'\n');
        (&self.janitor).write_all(&line).context("the janitor is gone")
    }

    /// Fails with advice where this process may not mount.
    pub fn need_private_mounts(&self) -> Result<()> {
        if !self.private {
            bail!("{} needs a mount namespace of its own: run it as root", self.scenario);
        }
        Ok(())
    }

    /// A fresh tmpfs where device nodes work, mounted where only this scenario sees it.
    pub fn tmpfs(&self) -> Result<PathBuf> {
        self.need_private_mounts()?;
        let target = self.dir.join("tmpfs");
        std::fs::create_dir(&target)?;
        self.undo_later(&Undo::Unmount(target.clone()))?;
        mounts::mount("none", &target, "tmpfs", "mode=755")?;
        Ok(target)
    }

    /// A fresh ext4 file system, mounted where only this scenario sees it.
    pub fn ext4(&self) -> Result<PathBuf> {
        // In memory, so that no busy disk decides how long this takes.
        let image = self.tmpfs()?.join("ext4.image");
        let target = self.dir.join("ext4");
        std::fs::create_dir(&target)?;
        self.undo_later(&Undo::Unmount(target.clone()))?;
        loopfs::mount_new_ext4(&image, &target)?;
        Ok(target)
    }

    /// Freezes a file system; whatever becomes of the script, it thaws in the end.
    pub fn freeze(&self, target: &Path) -> Result<()> {
        self.undo_later(&Undo::Thaw(target.to_owned()))?;
        loopfs::freeze(target)
    }

    /// Says how things are and waits for `next`; returns the words after it. [`Over`] when nobody asks any more.
    pub fn show(&mut self, truth: Truth) -> Result<Vec<String>> {
        // A worker answers before it goes back to sleep.
        for holds in &truth.holders {
            for (tid, state) in [(holds.tids[0], holds.state), (holds.pid, holds.leader_state)] {
                if let Some(state) = state {
                    proc::await_state(holds.pid, tid, state.encode_utf8(&mut [0; 4]))?;
                }
            }
        }
        let mut pids: Vec<u32> = truth.holders.iter().map(|holder| holder.pid).collect();
        pids.extend(&truth.half_exited);
        let (scenario, conductor) = (self.scenario.clone(), std::process::id());
        say(&Truth { scenario, conductor, step: self.step, pids, ..truth })?;
        loop {
            let mut line = String::new();
            if std::io::stdin().lock().read_line(&mut line)? == 0 {
                return Err(Over.into());
            }
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("next") => {
                    self.step += 1;
                    return Ok(words.collect());
                }
                Some(other) => refuse(&format!("{other:?} is no command: say `next`"))?,
                None => {}
            }
        }
    }

    /// As [`Stage::show`], for the last step: refuses every `next`.
    pub fn show_last(&mut self, truth: Truth) -> Result<()> {
        self.show(truth)?;
        loop {
            refuse("that was the last step")?;
            let mut line = String::new();
            if std::io::stdin().lock().read_line(&mut line)? == 0 {
                return Err(Over.into());
            }
        }
    }
}

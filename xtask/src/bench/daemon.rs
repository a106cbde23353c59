//! A daemon of a benchmark's own: socket, state and hooks in a folder that goes with it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::interrupt;
use crate::stage::{STANDIN_ARGUMENT, Stage};

/// How long it may take to begin, to end and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running `gpu-tracer run`. Dropping it ends it and takes its hooks away.
pub(super) struct Daemon {
    child: Child,
    program: PathBuf,
    folder: PathBuf,
    plan: String,
}

impl Daemon {
    /// Starts one for the stand-in and waits until it answers.
    pub(super) fn start(program: &Path, stage: &Stage) -> Result<Self> {
        Self::start_planned(program, stage, "lean")
    }

    /// The same with this plan.
    pub(super) fn start_planned(program: &Path, stage: &Stage, plan: &str) -> Result<Self> {
        let folder = stage.folder().to_owned();
        let child = spawn(program, &folder, plan)?;
        let mut daemon = Self { child, program: program.to_owned(), folder, plan: plan.to_owned() };
        daemon.await_answer()?;
        Ok(daemon)
    }

    /// SIGKILL, as the kernel would when memory runs out.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("the daemon has ended by itself")?;
        self.child.wait().context("the daemon cannot be waited for")?;
        Ok(())
    }

    /// Starts it again with all that it left, and waits until it answers.
    pub(super) fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.folder, &self.plan)?;
        self.await_answer()
    }

    fn await_answer(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.status().is_err() {
            interrupt::check()?;
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(self.folder.join("said")).unwrap_or_default();
                bail!("the daemon does not answer ({ended:?}): {said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A document of it.
    pub(super) fn get(&self, target: &str) -> Result<Value> {
        let answer = self.ask(target)?;
        let end_of_head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let body = end_of_head.map(|at| &answer[at + 4..]).context("no HTTP answer")?;
        let answer: Value = serde_json::from_slice(body)?;
        match answer["error"].as_str() {
            Some(error) => bail!("the daemon refuses {target}: {error}"),
            None => Ok(answer),
        }
    }

    /// The bytes of an answer, head and all.
    pub(super) fn ask(&self, target: &str) -> Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.folder.join("d.sock"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {target} HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// How it says it is doing.
    pub(super) fn status(&self) -> Result<Value> {
        self.get("/v1/status")
    }

    /// Its socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("d.sock")
    }

    /// CPU time that it has used.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        let after = stat.rsplit_once(')').context("no stat")?.1;
        // utime and stime are the 14th and 15th fields of all, the 12th and 13th behind the name.
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        // SAFETY: takes a number only.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Duration::from_secs_f64(ticks as f64 / per_second.max(1) as f64))
    }

    /// Memory that it has resident now.
    pub(super) fn memory(&self) -> Result<Memory> {
        let path = format!("/proc/{}/smaps", self.child.id());
        Ok(Memory::parse(&fs::read_to_string(&path).with_context(|| path.clone())?))
    }
}

/// Resident memory, KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// All of it: of its own, of files, and of what it shares with the kernel.
    pub(super) all: u64,
    /// Rings and other BPF maps as far as they are mapped. The data of a ring is mapped twice, one behind the other, and counts
    /// twice here as in what `ps` shows.
    pub(super) maps: u64,
    /// Its own, which nothing else could give back.
    pub(super) own: u64,
}

impl Memory {
    /// From `/proc/PID/smaps`.
    fn parse(smaps: &str) -> Self {
        let mut memory = Self::default();
        let mut is_map = false;
        for line in smaps.lines() {
            let kib = |name: &str| -> Option<u64> {
                line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse().ok()
            };
            if let Some(kib) = kib("Rss:") {
                memory.all += kib;
                memory.maps += if is_map { kib } else { 0 };
            } else if let Some(kib) = kib("Anonymous:") {
                memory.own += kib;
            } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
                is_map = line.ends_with("anon_inode:bpf-map");
            }
        }
        memory
    }
}

fn spawn(program: &Path, folder: &Path, plan: &str) -> Result<Child> {
    let said = fs::OpenOptions::new().create(true).append(true).open(folder.join("said"));
    let said = said.context("no file for what the daemon says")?;
    let mut command = Command::new(program);
    command.args(["run", "--device", STANDIN_ARGUMENT, "--plan", plan, "--config", "/dev/null"]);
    for (option, name) in [("--socket", "d.sock"), ("--state-dir", "state"), ("--pin-dir", "pins")] {
        command.arg(option).arg(folder.join(name));
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn();
    child.with_context(|| format!("cannot start {}", program.display()))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SAFETY: takes numbers only; it is our own child, not reaped before.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        if !matches!(interrupt::wait_until(&mut self.child, Instant::now() + PATIENCE), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let pins = self.folder.join("pins");
        let unpin = ["run", "--unpin", "--config", "/dev/null", "--pin-dir"];
        let _ = Command::new(&self.program).args(unpin).arg(&pins).stdout(Stdio::null()).status();
        if let Ok(pins) = std::ffi::CString::new(pins.as_os_str().as_encoded_bytes()) {
            // SAFETY: a NUL-terminated string that outlives the call.
            unsafe { libc::umount2(pins.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_up_by_what_it_is() {
        let smaps = "55d0c0000000-55d0c0100000 r-xp 00000000 fe:00 7 /usr/bin/gpu-tracer\nSize: 1024 kB\nRss: 700 kB\n\
                     Pss: 700 kB\nAnonymous: 0 kB\nVmFlags: rd ex\n\
                     55d0d0000000-55d0d0100000 rw-p 00000000 00:00 0 [heap]\nRss: 300 kB\nAnonymous: 300 kB\n\
                     7f0000000000-7f0000201000 r--s 00001000 00:0e 1 anon_inode:bpf-map\nRss: 2052 kB\nAnonymous: 0 kB\n";
        assert_eq!(Memory::parse(smaps), Memory { all: 3052, maps: 2052, own: 300 });
    }
}

//! Running a guest: QEMU's own processor emulation, two serial lines, and a deadline for everything.
//!
//! Hardware virtualisation is not used unless asked for: it may be there and boot nothing, and the emulated machine is
//! the same everywhere.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::cpio;
use super::emulator::Fault;
use super::protocol::{self, Ending, Report, Verdict};
use super::suite::Part;

/// A panic ends the machine, and so does what the kernel would otherwise try to survive. The check of the timer fails, and
/// with it the boot, when this machine is too busy to emulate it in time. The processors' counters are one, whatever an older
/// kernel finds, and to read another clock takes a lock of the emulator's. What an emulator has translated it uses again only where
/// it is at the same address, so every program is loaded at the same one.
const BOOT_OPTIONS: &str = "console=ttyS0 panic=-1 oops=panic no_timer_check tsc=reliable quiet loglevel=4 mitigations=off norandmaps";

/// How long the guest may take until it reports for the first time. An idle machine needs 15 s, one with much other work
/// three minutes.
const BOOT: Duration = Duration::from_secs(300);

/// How long it may take to power off after its last word.
const POWER_OFF: Duration = Duration::from_secs(15);

/// So many boots of a guest may be spoilt by the emulator.
const MOST_SPOILT: u32 = 2;

/// How much of the console is shown when something went wrong.
const CONSOLE_LINES: usize = 40;

/// A guest that can be started.
#[derive(Clone, Copy)]
pub(crate) struct Guest<'a> {
    /// The kernel's image.
    pub(crate) image: &'a Path,
    /// The files of the guest.
    pub(crate) initramfs: &'a Path,
    /// Where the kernel's console goes; stays there afterwards.
    pub(crate) console: &'a Path,
    /// What its reports begin with.
    pub(crate) nonce: &'a str,
    /// Whether this terminal is the guest's console; there is no deadline then.
    pub(crate) shell: bool,
    /// Whether to use hardware virtualisation.
    pub(crate) kvm: bool,
    /// Whether its clock counts instructions, on its only processor.
    pub(crate) count: bool,
    /// How long it may take from its first report to its last.
    pub(crate) deadline: Duration,
    /// How long it says something at least once, if it is not stuck.
    pub(crate) silence: Duration,
    /// A disk that outlives it.
    pub(crate) disk: Option<&'a Path>,
    /// Which boot with that disk it is, from 1.
    pub(crate) stage: u8,
    /// The program that is its first process.
    pub(crate) init: &'a str,
    /// Which tests it runs, if that is what it is for.
    pub(crate) part: Option<Part>,
}

/// How a guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Its last word.
    pub(crate) verdict: Verdict,
    /// The stage of the boot that is to follow.
    pub(crate) again: Option<u8>,
}

impl Guest<'_> {
    /// Runs the guest to its end. Prints what its programs print and how its tests end. Where the emulator spoils a boot, what has not
    /// been run is run in another.
    ///
    /// Fails, with the end of the console, when the guest panics, hangs, or does not give exactly one verdict.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let mut ended = Vec::new();
        let mut spoilt = 0;
        let mut initramfs = None;
        loop {
            let guest = Guest { initramfs: initramfs.as_deref().unwrap_or(self.initramfs), ..*self };
            let mut progress = Progress::new();
            match guest.boot(&mut progress) {
                Ok(outcome) => {
                    let verdict = Verdict::of(ended.iter().map(|(_, ending)| *ending)).and(outcome.verdict);
                    return Ok(Outcome { verdict, ..outcome });
                }
                // The person at the console may end the machine as they like.
                Err(_) if self.shell => return Ok(Outcome { verdict: Verdict::of([]), again: None }),
                Err(error) => {
                    let fault = self.fault().filter(|_| spoilt < MOST_SPOILT && self.stage == 1);
                    let Some(fault) = fault else { bail!("{error:#}\n{}", self.end_of_console()) };
                    spoilt += 1;
                    eprintln!("vm: {}{error:#}: {fault}; another boot goes on", self.which());
                    // What is to be found by a later boot is on the disk, which is made anew.
                    ended.extend(
                        progress.ended.into_iter().filter(|(name, _)| !name.starts_with("vm_reboot::")),
                    );
                    let done = ended.iter().map(|(name, _)| format!("{name}\n")).collect::<String>();
                    let copy = self.console.with_extension("cpio");
                    with_file(self.initramfs, &copy, "vm/done", &done)?;
                    initramfs = Some(copy);
                }
            }
        }
    }

    fn boot(&self, progress: &mut Progress) -> Result<Outcome> {
        let line = SecondLine::new(self.nonce, self.part)?;
        let mut machine = Machine::start(self, &line.path)?;
        let outcome = self.follow(&line.lines, &mut machine, progress);
        progress.tell();
        outcome
    }

    /// For a line to a person: which of two guests it is about.
    fn which(&self) -> String {
        self.part.map_or_else(String::new, |part| format!("{}: ", part.name()))
    }

    fn follow(
        &self,
        lines: &Receiver<String>,
        machine: &mut Machine,
        progress: &mut Progress,
    ) -> Result<Outcome> {
        loop {
            let left = progress.end.saturating_duration_since(Instant::now());
            if left.is_zero() && !self.shell {
                return Err(progress.too_late());
            }
            if progress.heard.elapsed() > self.silence && self.fault() == Some(Fault::Standstill) {
                bail!("nothing was heard of the guest for {} s", self.silence.as_secs());
            }
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    progress.heard = Instant::now();
                    self.hear(&line, progress)?;
                    if progress.cut {
                        return progress.outcome().context("the power was to be cut before a verdict");
                    }
                }
                Err(RecvTimeoutError::Timeout) if !machine.has_ended()? => {}
                // Nothing more can come.
                Err(_) => return progress.outcome().context("the guest ended without a verdict"),
            }
        }
    }

    /// Takes note of one line from the guest and shows it.
    fn hear(&self, line: &str, progress: &mut Progress) -> Result<()> {
        let (printed, report) = protocol::split(line, self.nonce);
        if !printed.is_empty() || report.is_none() {
            progress.said += printed;
            progress.said.push('\n');
        }
        if self.part.is_none() {
            progress.tell();
        }
        match report.transpose()? {
            None => {}
            Some(Report::Up { release }) => {
                progress.is_up = true;
                progress.end = Instant::now() + self.deadline;
                let seconds = progress.start.elapsed().as_secs_f64();
                eprintln!("vm: {}{release} is up after {seconds:.1} s", self.which());
            }
            Some(Report::Test { name, ending, took_ms }) => {
                progress.said += &test_line(&name, ending, took_ms);
                progress.tell();
                progress.ended.push((name, ending));
            }
            Some(Report::Hung { name }) => {
                eprintln!("vm: {name} has not ended: what it waits for is on the console")
            }
            Some(Report::Again { stage }) if stage <= self.stage => {
                bail!("the guest asks for stage {stage} after stage {}", self.stage)
            }
            Some(Report::Again { stage }) => progress.again = Some(stage),
            Some(Report::Cut) => progress.cut = true,
            Some(Report::Verdict(_)) if progress.verdict.is_some() => {
                bail!("the guest gave a second verdict")
            }
            Some(Report::Verdict(given)) => {
                progress.verdict = Some(given);
                progress.end = Instant::now() + POWER_OFF;
            }
        }
        Ok(())
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.console).unwrap_or_default()).into_owned()
    }

    /// What the console tells of; a shell's is the terminal, and in the file is what an earlier guest has left there.
    fn fault(&self) -> Option<Fault> {
        if self.kvm || self.shell { None } else { Fault::of(&self.console()) }
    }

    fn end_of_console(&self) -> String {
        let text = self.console();
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        format!("The guest's console ends with ({}):\n{end}", self.console.display())
    }
}

/// Copies an archive of a guest's files, with one more of them: the kernel unpacks one archive after the other.
fn with_file(archive: &Path, copy: &Path, path: &str, content: &str) -> Result<()> {
    let write = || {
        fs::copy(archive, copy)?;
        let mut more = cpio::Writer::new(fs::File::options().append(true).open(copy)?);
        more.add(path, 0o644, &cpio::Kind::File(content.as_bytes()))?;
        more.finish().map(drop)
    };
    write().with_context(|| format!("cannot write {}", copy.display()))
}

/// How far the guest is.
struct Progress {
    start: Instant,
    /// When the guest said anything last.
    heard: Instant,
    end: Instant,
    is_up: bool,
    verdict: Option<Verdict>,
    again: Option<u8>,
    /// The machine is to end as if somebody had pulled the plug.
    cut: bool,
    /// Tests that have ended, and how.
    ended: Vec<(String, Ending)>,
    /// What is to be shown together: what a test has printed, and how it ended.
    said: String,
}

impl Progress {
    /// That of a guest that is started now.
    fn new() -> Self {
        let start = Instant::now();
        Self {
            start,
            heard: start,
            end: start + BOOT,
            is_up: false,
            verdict: None,
            again: None,
            cut: false,
            ended: Vec::new(),
            said: String::new(),
        }
    }

    /// Shows what there is to show, at once: other guests have something to say as well.
    fn tell(&mut self) {
        print!("{}", std::mem::take(&mut self.said));
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(Outcome { verdict: self.verdict?, again: self.again })
    }

    fn too_late(&self) -> anyhow::Error {
        let seconds = self.start.elapsed().as_secs();
        if self.verdict.is_some() {
            anyhow::anyhow!("the guest did not power off within {} s", POWER_OFF.as_secs())
        } else if self.is_up {
            anyhow::anyhow!("the guest was not done after {seconds} s")
        } else {
            anyhow::anyhow!("the guest was not up after {seconds} s")
        }
    }
}

fn test_line(name: &str, ending: Ending, took_ms: u64) -> String {
    let word = match ending {
        Ending::Ok => "ok",
        Ending::Failed => "FAILED",
        Ending::Ignored => "ignored",
    };
    format!("test {name} ... {word} ({}.{:02} s)\n", took_ms / 1000, took_ms % 1000 / 10)
}

/// The second serial line: a socket, because QEMU then writes at once and this side can wait for it.
struct SecondLine {
    path: PathBuf,
    lines: Receiver<String>,
}

impl SecondLine {
    fn new(nonce: &str, part: Option<Part>) -> Result<Self> {
        let name = format!("gpu-tracer-vm-{nonce}{}", part.map_or("", Part::name));
        let path = std::env::temp_dir().join(name);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let (send, lines) = mpsc::channel();
        // Ends with the connection; without one, with this program.
        std::thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                if send.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Ok(Self { path, lines })
    }
}

impl Drop for SecondLine {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The running QEMU. Dropping it ends it.
struct Machine(Child);

impl Machine {
    fn start(guest: &Guest<'_>, second_line: &Path) -> Result<Self> {
        let mut command = Command::new("qemu-system-x86_64");
        let how: &[&str] = match (guest.kvm, guest.count) {
            (true, _) => &["-accel", "kvm", "-smp", "2"],
            (_, true) => &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"],
            _ => &["-accel", "tcg,thread=multi", "-smp", "2"],
        };
        // With "enhanced rep movsb" the kernel clears and copies pages by the byte, which is what an emulated processor does.
        let processor = if guest.kvm { "max" } else { "max,-erms" };
        command.args(how).args(["-cpu", processor, "-m", "2G"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none"]);
        command.arg("-kernel").arg(guest.image).arg("-initrd").arg(guest.initramfs);
        let part = guest.part.map_or_else(String::new, |part| format!(" gpu_tracer.part={}", part.name()));
        let (init, stage) = (guest.init, guest.stage);
        command.arg("-append").arg(format!("{BOOT_OPTIONS} rdinit={init} gpu_tracer.stage={stage}{part}"));
        if let Some(disk) = guest.disk {
            // What the guest has written is with this machine's kernel when QEMU ends, however it ends.
            command
                .arg("-drive")
                .arg(format!("file={},format=raw,if=none,id=disk,cache=unsafe", escaped(disk)));
            command.args(["-device", "nvme,drive=disk,serial=disk"]);
        }
        if guest.shell {
            command.args(["-serial", "mon:stdio"]);
        } else {
            command.arg("-chardev").arg(format!("file,id=console,path={}", escaped(guest.console)));
            command.args(["-serial", "chardev:console"]).stdin(Stdio::null());
        }
        command.arg("-chardev").arg(format!("socket,id=report,path={}", escaped(second_line)));
        command.args(["-serial", "chardev:report"]);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe and takes numbers only.
        unsafe {
            command.pre_exec(|| {
                // The guest does not outlive this program, however it ends.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().context("cannot start qemu-system-x86_64: run `cargo xtask setup`")?;
        Ok(Self(child))
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.0.try_wait().context("cannot wait for QEMU")?.is_some())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path in a QEMU option, where a comma begins the next one.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(console: &Path) -> Guest<'_> {
        Guest {
            image: Path::new(""),
            initramfs: Path::new(""),
            console,
            nonce: "n",
            shell: false,
            kvm: false,
            count: false,
            deadline: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            disk: None,
            stage: 1,
            init: "/init",
            part: None,
        }
    }

    fn follow(lines: &[&str]) -> Result<Outcome> {
        let guest = guest(Path::new("/dev/null"));
        let (send, receive) = mpsc::channel();
        for line in lines {
            send.send((*line).to_owned()).unwrap();
        }
        drop(send);
        let mut machine = Machine(Command::new("true").spawn().unwrap());
        guest.follow(&receive, &mut machine, &mut Progress::new())
    }

    const GOOD: &str = r#"@vm-n verdict {"status":0,"passed":1,"failed":0,"ignored":0}"#;

    #[test]
    fn one_verdict_is_the_outcome() {
        let outcome = follow(&["@vm-n up 6.1", "@vm-n test ok 1 a::b", GOOD]).unwrap();
        let verdict = Verdict { status: 0, passed: 1, failed: 0, ignored: 0 };
        assert_eq!(outcome, Outcome { verdict, again: None });
    }

    #[test]
    fn another_boot_can_be_asked_for_and_the_power_be_cut_but_only_forwards_and_after_a_verdict() {
        let outcome = follow(&["@vm-n up 6.1", "@vm-n again 2", GOOD, "@vm-n cut", "@vm-n up"]).unwrap();
        assert_eq!(outcome.again, Some(2));
        assert!(follow(&["@vm-n up 6.1", "@vm-n again 1", GOOD]).is_err());
        assert!(follow(&["@vm-n up 6.1", "@vm-n cut"]).is_err());
    }

    #[test]
    fn no_verdict_is_a_failure() {
        let error = follow(&["@vm-n up 6.1", "@vm-n test ok 1 a::b"]).unwrap_err();
        assert!(error.to_string().contains("without a verdict"), "{error}");
    }

    #[test]
    fn what_an_earlier_guest_left_on_the_console_ends_no_shell() {
        let console = std::env::temp_dir().join(format!("xtask-console-{}", std::process::id()));
        fs::write(&console, "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n").unwrap();
        let guest = guest(&console);
        let faults = [false, true].map(|shell| Guest { shell, ..guest }.fault());
        fs::remove_file(&console).unwrap();
        assert_eq!(faults, [Some(Fault::Standstill), None]);
    }

    #[test]
    fn two_verdicts_are_a_failure() {
        assert!(follow(&["@vm-n up 6.1", GOOD, GOOD]).is_err());
    }

    #[test]
    fn a_damaged_report_is_a_failure() {
        assert!(follow(&["@vm-n verdict {\"status\":", GOOD]).is_err());
    }
}

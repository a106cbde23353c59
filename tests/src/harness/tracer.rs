//! The tracer, from outside: its command line, its exit status, its JSON.
//!
//! The types here are the contract as a script would read it, written down a second time on purpose: a field that the
//! tracer renames breaks these tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{Device, program};
use crate::sys::process;

/// How long one answer may take before it counts as hung, on a busy machine and in a debug build.
const PATIENCE: Duration = Duration::from_secs(120);

/// The tracer, told of some devices.
#[derive(Clone, Debug)]
pub struct Tracer {
    options: Vec<String>,
}

/// A run of the tracer.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: i32,
    /// What it printed.
    pub out: Vec<u8>,
    /// What it complained of.
    pub err: String,
    /// How long it took.
    pub took: Duration,
}

/// What `holders --format json` answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit status.
    pub status: i32,
    /// The whole document, for messages.
    pub text: String,
    /// What it complained of.
    pub err: String,
    /// The document.
    pub report: Report,
}

/// The document, as far as these tests read it.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// Wall clock.
    pub taken_at: String,
    /// This boot.
    pub boot_id: String,
    /// Where the answer comes from.
    pub plan: String,
    /// What it is worth.
    pub coverage: Coverage,
    /// Open files.
    pub files: Vec<HeldFile>,
    /// Holders.
    pub holders: Vec<Holder>,
}

/// What an answer is worth.
#[derive(Clone, Debug, Deserialize)]
pub struct Coverage {
    /// Everything was seen.
    pub complete: bool,
    /// What was not.
    pub missing: Vec<Missing>,
}

/// Something not seen.
#[derive(Clone, Debug, Deserialize)]
pub struct Missing {
    /// A stable word.
    pub what: String,
    /// For a person.
    pub why: String,
}

/// An open file.
#[derive(Clone, Debug, Deserialize)]
pub struct HeldFile {
    /// Its number.
    pub id: u64,
    /// Its device.
    pub device: String,
    /// `open` and so on.
    pub state: String,
    /// The kernel's count.
    pub references: Option<u64>,
    /// Those that nobody accounts for.
    pub unexplained: u64,
    /// Since when it is in that state, if not open.
    pub since: Option<String>,
    /// When it was opened, where that was seen.
    pub opened_at: Option<String>,
    /// Is that certain, and by whom?
    pub opened_exact: bool,
    /// By whom, where that was seen.
    pub opener: Option<Opener>,
}

/// Who opened a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Opener {
    /// Host PID.
    pub pid: u32,
    /// Name at that moment.
    pub comm: String,
    /// Command line at that moment.
    pub cmdline: String,
    /// Does it still live?
    pub alive: bool,
}

/// A holder.
#[derive(Clone, Debug, Deserialize)]
pub struct Holder {
    /// Host PID.
    pub pid: u32,
    /// The task that carries it.
    pub tid: u32,
    /// All of them.
    pub tids: Vec<u32>,
    /// Start, ns of boot time.
    pub start_ns: u64,
    /// Parent.
    pub ppid: u32,
    /// Real user.
    pub uid: u32,
    /// Name.
    pub comm: String,
    /// Command line.
    pub cmdline: String,
    /// Executable.
    pub exe: Option<String>,
    /// State letter of `tid`.
    pub state: String,
    /// State letter of the leader.
    pub leader_state: String,
    /// Where `tid` waits.
    pub wchan: Option<String>,
    /// What it closes and cannot finish closing.
    pub closing: Option<String>,
    /// Kernel stack of `tid`, innermost first.
    pub stack: Vec<String>,
    /// On its way through exit.
    pub exiting: bool,
    /// SIGKILL sent and not acted on.
    pub sigkill_pending: bool,
    /// PID in its own namespace.
    pub pid_in_ns: u32,
    /// Why it still holds.
    pub why: Vec<String>,
    /// What it holds.
    pub devices: Vec<HeldDevice>,
}

/// What it holds of one device.
#[derive(Clone, Debug, Deserialize)]
pub struct HeldDevice {
    /// Which.
    pub device: String,
    /// Index of the GPU.
    pub gpu: Option<u32>,
    /// Descriptors.
    pub fds: u64,
    /// Mappings.
    pub maps: u64,
    /// Queued in sockets.
    pub in_flight: u64,
    /// Registered with rings.
    pub io_uring: u64,
    /// References being dropped.
    #[serde(default)]
    pub dropping: u64,
    /// Ids of the files.
    pub files: Vec<u64>,
}

impl Tracer {
    /// Told of these devices.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { options: device.options() }
    }

    /// The program.
    #[must_use]
    pub fn program() -> PathBuf {
        program("GPU_TRACER_BIN", "gpu-tracer")
    }

    /// `holders --standalone` with the devices, `--format` and further arguments.
    #[must_use]
    pub fn command(&self, format: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(Self::program());
        command.arg("holders").args(&self.options).args(["--standalone", "--format", format]).args(arguments);
        command
    }

    /// Another subcommand, `--standalone`, with the devices and further arguments.
    #[must_use]
    pub fn subcommand(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(Self::program());
        command.arg(name).args(&self.options).arg("--standalone").args(arguments);
        command
    }

    /// The same, asking the daemon at this socket.
    #[must_use]
    pub fn asking(&self, socket: &Path, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(Self::program());
        command.arg(name).args(&self.options).arg("--socket").arg(socket).args(arguments);
        command
    }

    /// Runs another subcommand to its end.
    #[must_use]
    #[track_caller]
    pub fn run(&self, name: &str, arguments: &[&str]) -> Finished {
        self.run_with(name, arguments, &[])
    }

    /// Runs another subcommand to its end, with these variables in its environment.
    #[must_use]
    #[track_caller]
    pub fn run_with(
        &self,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, &std::ffi::OsStr)],
    ) -> Finished {
        let mut command = self.subcommand(name, arguments);
        command.envs(environment.iter().copied());
        run(command)
    }

    /// Asks as root and in the host's namespaces.
    #[must_use]
    #[track_caller]
    pub fn holders(&self) -> Answer {
        Answer::from(run(self.command("json", &[])))
    }

    /// Asks about these GPUs only.
    #[must_use]
    #[track_caller]
    pub fn holders_of(&self, gpus: &[&str]) -> Answer {
        Answer::from(run(self.command("json", gpus)))
    }

    /// Asks in another format; what was printed is not looked at.
    #[must_use]
    #[track_caller]
    pub fn printed(&self, format: &str, arguments: &[&str]) -> Finished {
        run(self.command(format, arguments))
    }

    /// Asks through another program that starts the tracer in some other place: `wrapper ARGUMENT... gpu-tracer ...`.
    #[must_use]
    #[track_caller]
    pub fn holders_through(&self, wrapper: &[&str]) -> Answer {
        let inner = self.command("json", &[]);
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(inner.get_program()).args(inner.get_args());
        Answer::from(run(command))
    }

    /// Does [`Tracer::holders_as_nobody`] ask as another user than the test's own?
    #[must_use]
    pub fn runs_as_another_user() -> bool {
        super::is_root()
    }

    /// Asks without any privilege: as the test's own user, or as `nobody` where that is root, with a copy of the program
    /// that this user may run.
    #[must_use]
    #[track_caller]
    pub fn holders_as_nobody(&self) -> Answer {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        if !Self::runs_as_another_user() {
            return self.holders();
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let copy = dir.path().join("gpu-tracer");
        std::fs::copy(Self::program(), &copy).expect("a copy of the tracer");
        for path in [dir.path(), &copy] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        let inner = self.command("json", &[]);
        let mut command = Command::new(&copy);
        command.args(inner.get_args()).current_dir("/");
        // SAFETY: system calls only.
        unsafe { command.pre_exec(|| process::become_user(NOBODY)) };
        Answer::from(run(command))
    }
}

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// Runs it to its end; panics when it takes too long.
#[track_caller]
pub(super) fn run(mut command: Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    let begun = Instant::now();
    // A program that was copied just now may be open for writing in a child that another test forks at this moment.
    let child = super::eventually("a program that is not busy", PATIENCE, || match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
        spawned => Some(spawned.unwrap_or_else(|error| panic!("{shown}: {error}"))),
    });
    let pid = child.id();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        let _ = process::kill(pid, libc::SIGKILL);
        panic!("{shown} gave no answer within {PATIENCE:?}");
    };
    let Output { status, stdout, stderr } = output.unwrap_or_else(|error| panic!("{shown}: {error}"));
    let err = String::from_utf8_lossy(&stderr).into_owned();
    let code = status.code().unwrap_or_else(|| panic!("{shown} was killed: {status}\n{err}"));
    Finished { status: code, out: stdout, err, took: begun.elapsed() }
}

impl From<Finished> for Answer {
    #[track_caller]
    fn from(run: Finished) -> Self {
        let text = String::from_utf8(run.out).expect("JSON is UTF-8");
        let report = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("exit status {}, and no JSON of the contract: {error}\n{text}\n{}", run.status, run.err)
        });
        Self { status: run.status, text, err: run.err, report }
    }
}

impl Answer {
    /// What it says of one process: as many entries as it has fd tables that hold something.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = &Holder> {
        self.report.holders.iter().filter(move |holder| holder.pid == pid)
    }

    /// The one thing it says of a process.
    ///
    /// # Panics
    ///
    /// If there is none, or more than one.
    #[must_use]
    #[track_caller]
    pub fn only(&self, pid: u32) -> &Holder {
        let mut found = self.of(pid);
        match (found.next(), found.next()) {
            (Some(holder), None) => holder,
            (None, _) => panic!("process {pid} is not named in\n{}", self.text),
            (Some(_), Some(_)) => panic!("process {pid} is named more than once in\n{}", self.text),
        }
    }

    /// Does it say that this could not be seen?
    #[must_use]
    pub fn misses(&self, what: &str) -> bool {
        self.report.coverage.missing.iter().any(|missing| missing.what == what)
    }
}

//! A daemon of the test's own: socket, state and hooks in a directory that goes with it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::tracer::run;
use super::{Answer, Device, Finished, Play, Tracer, compare, eventually};
use crate::sys::{mounts, process};

/// How long it may take to begin, to end, and to tell something.
const PATIENCE: Duration = Duration::from_secs(150);

/// Name of its configuration file.
const CONFIGURATION: &str = "config.toml";

/// A running daemon. Dropping it ends it and takes its hooks away.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    options: Vec<String>,
    plan: &'static str,
    dir: TempDir,
    said: PathBuf,
}

impl Daemon {
    /// Starts one for these devices and waits until it answers.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[must_use]
    #[track_caller]
    pub fn start(device: &Device) -> Self {
        Self::start_with(device, &[])
    }

    /// The same with these environment variables.
    #[must_use]
    #[track_caller]
    pub fn start_with(device: &Device, environment: &[(&str, &str)]) -> Self {
        Self::start_in(device.options(), "", &device.options(), "lean", environment, |_| {})
    }

    /// Starts one for these devices with this plan.
    #[must_use]
    #[track_caller]
    pub fn start_planned(device: &Device, plan: &'static str) -> Self {
        Self::start_in(device.options(), "", &device.options(), plan, &[], |_| {})
    }

    /// Starts one that has its devices from a configuration file; see [`Daemon::configure`].
    #[must_use]
    #[track_caller]
    pub fn start_configured(device: &Device, configuration: &str) -> Self {
        Self::start_in(device.options(), configuration, &[], "lean", &[], |_| {})
    }

    /// Starts one for these devices with a configuration, and with its state directory as `prepare` leaves it.
    #[must_use]
    #[track_caller]
    pub fn start_prepared(device: &Device, configuration: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_in(device.options(), configuration, &device.options(), "lean", &[], |dir| {
            let state = dir.join("state");
            std::fs::create_dir(&state).expect("it is ours");
            prepare(&state);
        })
    }

    /// Starts one for the devices of the driver that is loaded, with this plan.
    #[must_use]
    #[track_caller]
    pub fn of_driver(plan: &'static str) -> Self {
        Self::start_in(Vec::new(), "", &[], plan, &[], |_| {})
    }

    /// The same with its state in a directory that stays: what it writes there is for others to find.
    #[must_use]
    #[track_caller]
    pub fn of_driver_leaving(plan: &'static str, state: &Path) -> Self {
        Self::start_in(Vec::new(), "", &[], plan, &[], |dir| lead_to(dir, state))
    }

    /// Starts one for these devices with its state in a directory that stays.
    #[must_use]
    #[track_caller]
    pub fn start_leaving(device: &Device, state: &Path) -> Self {
        Self::start_in(device.options(), "", &device.options(), "lean", &[], |dir| lead_to(dir, state))
    }

    /// `devices`: what tells other commands of the same devices.
    #[track_caller]
    fn start_in(
        devices: Vec<String>,
        configuration: &str,
        options: &[String],
        plan: &'static str,
        environment: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        super::require_root();
        let dir = tempfile::Builder::new().prefix("gpu-tracer-daemon-").tempdir().expect("a directory");
        // Other users are to reach the socket.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        std::fs::write(dir.path().join(CONFIGURATION), configuration).expect("it is ours");
        prepare(dir.path());
        let said = dir.path().join("said");
        let child = spawn(dir.path(), options, plan, &said, environment);
        let mut daemon = Self { child, options: devices, plan, dir, said };
        daemon.await_answer();
        daemon
    }

    /// Writes its configuration anew and has it read that; it says what it makes of it.
    ///
    /// # Panics
    ///
    /// If it says nothing.
    #[track_caller]
    pub fn configure(&self, configuration: &str) -> String {
        std::fs::write(self.dir.path().join(CONFIGURATION), configuration).expect("it is ours");
        let before = self.said().len();
        self.signal(libc::SIGHUP);
        eventually("a word about the configuration", PATIENCE, || {
            let said = self.said()[before..].to_owned();
            ["read again", "stays as it is"].iter().any(|word| said.contains(word)).then_some(said)
        })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("d.sock")
    }

    /// Where it keeps what outlives it.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// `gpu-tracer history` of what it has written.
    #[must_use]
    #[track_caller]
    pub fn history(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(Tracer::program());
        command.arg("history").arg("--state-dir").arg(self.state_dir()).args(arguments);
        run(command)
    }

    /// Its PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said on standard error.
    #[must_use]
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// SIGKILL, as the kernel would when memory runs out.
    ///
    /// # Panics
    ///
    /// If it was not running.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Starts it again with all that it left, and waits until it answers.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = spawn(self.dir.path(), &self.options, self.plan, &self.said, &[]);
        self.await_answer();
    }

    /// A signal.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn signal(&self, signal: i32) {
        process::kill(self.pid(), signal).expect("it is running");
    }

    /// Waits for its end; its exit status.
    pub fn await_end(&mut self) -> Option<i32> {
        let child = &mut self.child;
        eventually("the end of the daemon", PATIENCE, || child.try_wait().expect("it is ours")).code()
    }

    #[track_caller]
    fn await_answer(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.get("/v1/status").is_none() {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                panic!("the daemon ended: {status}\n{}", self.said());
            }
            assert!(Instant::now() < end, "the daemon does not answer\n{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A document of it; nothing if it does not answer.
    #[must_use]
    pub fn get(&self, target: &str) -> Option<Value> {
        serde_json::from_str(&self.text_of(target)?).ok()
    }

    /// The body of an answer, as it is.
    #[must_use]
    pub fn text_of(&self, target: &str) -> Option<String> {
        text_from(&self.socket(), target)
    }

    /// How it is doing.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Value {
        self.get("/v1/status").unwrap_or_else(|| panic!("no status\n{}", self.said()))
    }

    /// `gpu-tracer holders`, asking this daemon.
    #[must_use]
    #[track_caller]
    pub fn holders(&self) -> Answer {
        Answer::from(self.printed("json"))
    }

    /// The answer, once it is as wanted.
    ///
    /// # Panics
    ///
    /// If it is not in a minute, with the last one.
    #[track_caller]
    pub fn answer_when(&self, what: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let mut last = String::new();
        let found = crate::poll::until(what, Duration::from_secs(60), || {
            let answer = self.holders();
            last.clone_from(&answer.text);
            Ok(Some(answer).filter(|answer| wanted(answer)))
        });
        found.unwrap_or_else(|error| panic!("{error:#}, but\n{last}\n{}", self.said()))
    }

    /// The same in another format.
    #[must_use]
    #[track_caller]
    pub fn printed(&self, format: &str) -> Finished {
        self.run_with("holders", &["--format", format], &[])
    }

    /// Runs another subcommand that asks this daemon to its end, with these variables in its environment.
    #[must_use]
    #[track_caller]
    pub fn run_with(
        &self,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, &std::ffi::OsStr)],
    ) -> Finished {
        let mut command = Command::new(Tracer::program());
        command.arg(name).args(&self.options).arg("--socket").arg(self.socket()).args(arguments);
        command.envs(environment.iter().copied());
        run(command)
    }

    /// Asks and compares with the truth, as [`Play::check`] does without a daemon.
    #[track_caller]
    pub fn check(&self, play: &Play) -> Answer {
        let mut answer = self.own_answer();
        let mut differences = compare::differences(&answer, &play.truth, &play.family());
        if !differences.is_empty() {
            eprintln!("note: asked again, because at first: {}", differences.join("; "));
            answer = self.own_answer();
            differences = compare::differences(&answer, &play.truth, &play.family());
        }
        compare::demand_none(&differences, &answer, &play.truth);
        answer
    }

    /// An answer that the daemon gave: who asks on a busy host may not get it in time, and looks for himself.
    #[track_caller]
    fn own_answer(&self) -> Answer {
        super::eventually("an answer of the daemon", Duration::from_secs(60), || {
            Some(self.holders()).filter(|answer| answer.report.plan == self.plan)
        })
    }

    /// `gpu-tracer watch`, listening to this daemon; it listens when this returns.
    #[must_use]
    #[track_caller]
    pub fn watch(&self) -> Watch {
        let mut command = Command::new(Tracer::program());
        command.arg("watch").arg("--socket").arg(self.socket()).args(["--format", "json"]);
        let mut watch = Watch::spawn(command);
        watch.await_line("the greeting", |line| line["what"] == "listening");
        watch
    }
}

/// Has what is to be the state directory be another.
fn lead_to(dir: &Path, state: &Path) {
    std::fs::create_dir_all(state).expect("it can be made");
    std::os::unix::fs::symlink(state, dir.join("state")).expect("it is ours");
}

/// The body of the answer of a daemon at this socket, as it is; nothing if none answers.
#[must_use]
pub fn text_from(socket: &Path, target: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {target} HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn spawn(dir: &Path, options: &[String], plan: &str, said: &Path, environment: &[(&str, &str)]) -> Child {
    let errors = std::fs::OpenOptions::new().create(true).append(true).open(said).expect("a file");
    let mut command = Command::new(Tracer::program());
    command.arg("run").args(options);
    for (option, name) in [("--socket", "d.sock"), ("--state-dir", "state"), ("--pin-dir", "pins")] {
        command.arg(option).arg(dir.join(name));
    }
    command.arg("--config").arg(dir.join(CONFIGURATION));
    command.args(["--plan", plan]).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = process::kill(self.pid(), libc::SIGTERM);
            let ended =
                crate::poll::until("the end of the daemon", PATIENCE, || Ok(self.child.try_wait()?));
            if ended.is_err() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        let pins = self.dir.path().join("pins");
        let _ = Command::new(Tracer::program())
            .args(["run", "--unpin", "--config", "/dev/null", "--pin-dir"])
            .arg(&pins)
            .stdout(Stdio::null())
            .status();
        let _ = mounts::unmount(&pins);
        // A test may have put a small file system there.
        let _ = mounts::unmount(&self.dir.path().join("state"));
    }
}

/// A running `gpu-tracer watch --format json`.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    lines: Receiver<String>,
    /// All that has been told so far.
    pub told: Vec<Value>,
}

impl Watch {
    /// Without a daemon, with hooks of its own.
    #[must_use]
    pub fn standalone(device: &Device) -> Self {
        let mut command = Command::new(Tracer::program());
        command.arg("watch").args(device.options()).args(["--standalone", "--format", "json"]);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let out = child.stdout.take().expect("its output is a pipe");
        let (sender, lines) = channel();
        // Ends with the pipe, that is with the program.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, told: Vec::new() }
    }

    /// The first line for which `wanted` holds, of all that were told or will be.
    ///
    /// # Panics
    ///
    /// If there is none in time; with all lines.
    #[track_caller]
    pub fn await_line(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(line) = self.told.iter().find(|line| wanted(line)) {
            return line.clone();
        }
        let end = Instant::now() + PATIENCE;
        while let Some(line) = self.next_line(end) {
            if wanted(&line) {
                return line;
            }
        }
        let told: Vec<String> = self.told.iter().map(Value::to_string).collect();
        panic!("not told: {what}; told were\n{}", told.join("\n"));
    }

    /// The next line, whatever it tells.
    ///
    /// # Panics
    ///
    /// If there is none in time.
    #[track_caller]
    pub fn await_next(&mut self) -> Value {
        self.next_line(Instant::now() + PATIENCE).expect("something more is told")
    }

    fn next_line(&mut self, end: Instant) -> Option<Value> {
        let text = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
        let line: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        self.told.push(line.clone());
        Some(line)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

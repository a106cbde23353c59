//! Asking NVML without ever waiting for it longer than one wants to.
//!
//! [`start`] a question, look at the kernel meanwhile, [`Asking::finish`] it. The helper is killed at the deadline and
//! reaped by a thread of its own if it does not go at once: a task inside the driver may not react to SIGKILL for as
//! long as the driver is stuck. Such a helper is itself a holder of GPU devices, so the answer carries its PID.
//!
//! The helper dies with the thread that called [`start`] (`PR_SET_PDEATHSIG` is per thread): that thread must live
//! until `finish` has returned.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::claims::{NvmlAnswer, NvmlStatus};
use super::facts::{Ending, Reading};
use super::helper::HELPER_ARGUMENT;
use super::library;

/// How long NVML is waited for unless the caller says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(2);

/// Most that a helper may say. Eight GPUs with the driver's limit of 950 processes each say about a third of it.
const MOST_BYTES: usize = 1 << 20;

/// How long a helper that has answered, or was killed, is waited for. Leaving takes milliseconds, unless the helper
/// was the last user of a GPU without persistence, which then shuts down.
const LEAVE: Duration = Duration::from_millis(100);

/// A helper that takes longer than this to leave is stuck in the driver, and asking again would get stuck as well.
const STUCK: Duration = Duration::from_secs(10);

/// Never more unreaped helpers than this, stuck or not.
const MOST_LEAVING: usize = 4;

/// Helpers that were told to go and are not gone: PID, and since when.
static LEAVING: Mutex<Vec<(u32, Instant)>> = Mutex::new(Vec::new());

/// Asks with the defaults, and waits for at most `deadline`.
#[must_use]
pub fn query(deadline: Duration) -> NvmlAnswer {
    start().finish(deadline)
}

/// Starts asking with the defaults; see [`Helper::start`].
#[must_use]
pub fn start() -> Asking {
    Helper::default().start()
}

/// How to ask.
#[derive(Clone, Debug, Default)]
pub struct Helper {
    library: Option<PathBuf>,
    program: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
}

impl Helper {
    /// Loads this library instead of the one in [`library::LIBRARY_VARIABLE`] or the usual places.
    #[must_use]
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// Runs this program instead of the one that is running. It must hand
    /// [`HELPER_ARGUMENT`] on to [`helper_main`](super::helper::helper_main).
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Adds a variable to the helper's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts the helper and returns at once.
    ///
    /// Starts none when there is no NVML to ask, or when earlier helpers are stuck in the driver; then
    /// [`Asking::finish`] returns immediately and says so.
    #[must_use]
    pub fn start(&self) -> Asking {
        let started = Instant::now();
        let state = self.try_start().unwrap_or_else(Asked::Settled);
        Asking { started, state }
    }

    fn try_start(&self) -> Result<Asked, NvmlStatus> {
        let library = self.library.clone().or_else(library::named_in_environment);
        if let Some(reason) = library::reason_not_to_ask(library.as_deref()) {
            return Err(NvmlStatus::Absent(reason));
        }
        if let Some(during) = earlier_helpers_in_the_way(&leaving(), Instant::now()) {
            return Err(NvmlStatus::Hung { after: Duration::ZERO, during });
        }
        let program = self.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
        let mut command = Command::new(program);
        command.arg0("gpu-tracer").arg(HELPER_ARGUMENT).arg(std::process::id().to_string()).args(library);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            NvmlStatus::Failed(format!("cannot {what} the NVML helper ({}): {error}", program.display()))
        };
        let mut running = Running(Some(command.spawn().map_err(|error| failed("start", &error))?));
        let said = running.0.as_mut().and_then(|child| child.stdout.take());
        let said = said.ok_or_else(|| failed("listen to", &"it has no output"))?;
        rustix::io::ioctl_fionbio(&said, true).map_err(|error| failed("listen to", &error))?;
        // Best effort: room for everything it may say, so that it need not wait for a caller busy elsewhere.
        let _ = rustix::pipe::fcntl_setpipe_size(&said, MOST_BYTES);
        Ok(Asked::Running(running, said))
    }
}

/// A question that is being asked. Dropping it kills the helper.
#[derive(Debug)]
pub struct Asking {
    started: Instant,
    state: Asked,
}

#[derive(Debug)]
enum Asked {
    Settled(NvmlStatus),
    Running(Running, ChildStdout),
}

impl Asking {
    /// PID of the helper, which is not a holder; `None` when none was started.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.state {
            Asked::Running(running, _) => running.0.as_ref().map(Child::id),
            Asked::Settled(_) => None,
        }
    }

    /// Waits until everything is answered, or until `deadline` after the start, and ends the helper.
    ///
    /// What the helper has already said is read even if the deadline has long passed.
    #[must_use]
    pub fn finish(self, deadline: Duration) -> NvmlAnswer {
        let helper_pid = self.pid();
        let (mut running, mut said) = match self.state {
            Asked::Settled(status) => return NvmlAnswer::without_figures(status),
            Asked::Running(running, said) => (running, said),
        };
        let mut reading = Reading::default();
        let stopped = listen(&mut said, &mut reading, self.started, deadline);
        drop(said);
        let closed = stopped == Stopped::Closed;
        let left = running.end(closed);
        let ending = match stopped {
            Stopped::Closed => Ending::Closed(how_it_ended(left)),
            Stopped::Deadline => Ending::Deadline(self.started.elapsed()),
            Stopped::TooMuch => Ending::TooMuch(MOST_BYTES),
        };
        let answer = reading.into_answer(ending);
        NvmlAnswer { helper_pid, helper_gone: left.is_some(), ..answer }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Closed,
    Deadline,
    TooMuch,
}

/// Reads until the last fact, the end, the deadline or the limit.
fn listen(said: &mut ChildStdout, reading: &mut Reading, started: Instant, deadline: Duration) -> Stopped {
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    while !reading.is_over() {
        match said.read(&mut buffer) {
            Ok(0) => return Stopped::Closed,
            Ok(count) => {
                total += count;
                if total > MOST_BYTES {
                    return Stopped::TooMuch;
                }
                reading.feed(&buffer[..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Stopped::Deadline;
                }
                wait_readable(said.as_fd(), left);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Stopped::Closed,
        }
    }
    Stopped::Closed
}

/// Waits until there is something to read, or `limit` has passed; whichever, the caller looks.
fn wait_readable(fd: std::os::fd::BorrowedFd<'_>, limit: Duration) {
    let Ok(limit) = limit.try_into() else { return };
    // An interrupted wait is a short one.
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit));
}

fn how_it_ended(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("died of signal {signal}"),
        Some((_, Some(0))) => "ended".to_owned(),
        Some((_, Some(code))) => format!("ended with status {code}"),
        _ => "stopped answering".to_owned(),
    }
}

/// A helper that has not been reaped.
#[derive(Debug)]
struct Running(Option<Child>);

impl Running {
    /// Ends the helper and reaps it if it goes within [`LEAVE`]; leaves it to a thread if not.
    ///
    /// `by_itself` gives it that time before it is killed, so that its own end can be told from ours.
    fn end(&mut self, by_itself: bool) -> Option<ExitStatus> {
        let mut child = self.0.take()?;
        if by_itself && let Some(status) = wait_for(&mut child, LEAVE) {
            return Some(status);
        }
        // An error means that it is gone already.
        let _ = child.kill();
        let status = wait_for(&mut child, if by_itself { Duration::ZERO } else { LEAVE });
        if status.is_none() {
            leave_to_a_thread(child);
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn wait_for(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Ok(Some(status)) = child.try_wait() {
        return Some(status);
    }
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    wait_readable(pidfd.as_fd(), limit);
    child.try_wait().ok().flatten()
}

fn leave_to_a_thread(mut child: Child) {
    let pid = child.id();
    leaving().push((pid, Instant::now()));
    let reap = move || {
        let _ = child.wait();
        leaving().retain(|(leaving, _)| *leaving != pid);
    };
    // Without a thread it stays a zombie until this process ends, and counts as leaving.
    let _ = std::thread::Builder::new().name("nvml-reaper".to_owned()).stack_size(64 << 10).spawn(reap);
}

fn leaving() -> std::sync::MutexGuard<'static, Vec<(u32, Instant)>> {
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why no further helper may be started, if so.
fn earlier_helpers_in_the_way(leaving: &[(u32, Instant)], now: Instant) -> Option<String> {
    let stuck = leaving.iter().find(|(_, since)| now.saturating_duration_since(*since) > STUCK);
    if let Some((pid, since)) = stuck {
        let seconds = now.saturating_duration_since(*since).as_secs();
        return Some(format!(
            "an earlier question; its helper (PID {pid}) was killed {seconds} s ago and is still in the driver"
        ));
    }
    (leaving.len() >= MOST_LEAVING)
        .then(|| format!("earlier questions; {} helpers are still on their way out", leaving.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_absent_at_once_and_starts_nothing() {
        let asking =
            Helper::default().library("/nonexistent/libnvidia-ml.so.1").program("/nonexistent").start();
        assert_eq!(asking.pid(), None);
        let answer = asking.finish(DEFAULT_DEADLINE);
        assert!(
            matches!(&answer.status, NvmlStatus::Absent(why) if why.contains("/nonexistent")),
            "{answer:?}"
        );
        assert!(answer.helper_gone);
    }

    #[test]
    fn a_program_that_cannot_start_is_a_failure_with_its_path() {
        let answer = Helper::default().library("libsomething.so").program("/nonexistent/tool").start();
        let status = answer.finish(DEFAULT_DEADLINE).status;
        assert!(
            matches!(&status, NvmlStatus::Failed(why) if why.contains("/nonexistent/tool")),
            "{status:?}"
        );
    }

    #[test]
    fn a_program_that_is_no_helper_is_a_failure() {
        let answer = Helper::default().library("libsomething.so").program("/bin/echo").start();
        let status = answer.finish(DEFAULT_DEADLINE).status;
        assert!(matches!(&status, NvmlStatus::Failed(why) if why.contains("made no sense")), "{status:?}");
    }

    #[test]
    fn a_stuck_helper_stops_further_questions_and_a_slow_one_does_not() {
        let now = Instant::now();
        let ago =
            |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the machine runs for a minute");
        assert_eq!(earlier_helpers_in_the_way(&[(1, ago(3)), (2, ago(1)), (3, now)], now), None);
        let why = earlier_helpers_in_the_way(&[(1, ago(3)), (77, ago(11))], now).expect("one is stuck");
        assert!(why.contains("PID 77"), "{why}");
        assert!(earlier_helpers_in_the_way(&[(1, now), (2, now), (3, now), (4, now)], now).is_some());
    }
}

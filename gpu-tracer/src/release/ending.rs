//! Ends processes through pidfds: a PID that was reused in between cannot be hit.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::plan::Target;
use crate::model::ProcessId;
use crate::process::ProcFs;
use crate::process::facts::read_stat;

/// A process that is the one in the plan, and stays it.
#[derive(Debug)]
pub struct Held {
    /// Which.
    pub target: Target,
    pidfd: OwnedFd,
    ended: bool,
}

/// Why a process of the plan cannot be ended.
#[derive(Debug, thiserror::Error)]
pub enum EndingError {
    /// It has ended, or its PID is another process's by now.
    #[error("PID {pid} has ended by itself")]
    Gone {
        /// Its PID.
        pid: u32,
    },
    /// The kernel has it do the kernel's work.
    #[error("PID {pid} is a kernel thread and cannot be killed")]
    KernelThread {
        /// Its PID.
        pid: u32,
    },
    /// `pidfd_open` or `pidfd_send_signal` failed.
    #[error("`{call}` for PID {pid} failed: {source}{}", advice(.source))]
    Call {
        /// The call.
        call: &'static str,
        /// Its PID.
        pid: u32,
        /// What the kernel said.
        source: Errno,
    },
}

fn advice(errno: &Errno) -> &'static str {
    if *errno == Errno::PERM { "; run this as root" } else { "" }
}

impl Held {
    /// Takes hold of a process. The pidfd comes first and the check of who it is second, so that nothing can slip in between.
    ///
    /// # Errors
    /// [`EndingError::Gone`] if it is not there any more.
    pub fn of(target: Target) -> Result<Self, EndingError> {
        let pid = target.pid;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(EndingError::Gone { pid })?;
        let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Err(EndingError::Gone { pid }),
            Err(source) => return Err(EndingError::Call { call: "pidfd_open", pid, source }),
        };
        let stat = ProcFs::host().process(pid).and_then(|directory| read_stat(&directory));
        let stat = stat.map_err(|_| EndingError::Gone { pid })?;
        if !(ProcessId { tgid: pid, start_ns: target.start_ns }).started_in_tick_of(stat.start_ns) {
            return Err(EndingError::Gone { pid });
        }
        if stat.kernel_thread {
            return Err(EndingError::KernelThread { pid });
        }
        Ok(Self { target, pidfd, ended: false })
    }

    /// Sends a signal to the whole process. One that has ended needs none.
    ///
    /// # Errors
    /// [`EndingError::Call`], mostly for want of privilege.
    pub fn signal(&self, signal: Signal) -> Result<(), EndingError> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(source) => Err(EndingError::Call { call: "pidfd_send_signal", pid: self.target.pid, source }),
        }
    }

    /// Has every thread of it ended?
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Waits until all of them have ended, or the time is up; returns how many have not.
pub fn await_end(held: &mut [Held], patience: Duration) -> usize {
    let until = Instant::now() + patience;
    loop {
        let left: Vec<usize> = (0..held.len()).filter(|at| !held[*at].ended).collect();
        if left.is_empty() {
            return 0;
        }
        let rest = until.saturating_duration_since(Instant::now());
        let mut polled: Vec<PollFd<'_>> =
            left.iter().map(|at| PollFd::new(&held[*at].pidfd, PollFlags::IN)).collect();
        let timeout = rustix::event::Timespec::try_from(rest).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return left.len(),
        }
        let ended: Vec<usize> = left
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|(at, _)| *at)
            .collect();
        drop(polled);
        let none = ended.is_empty();
        for at in ended {
            held[at].ended = true;
        }
        if none && rest.is_zero() {
            return left.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().expect("sleep runs")
    }

    fn target(pid: u32, start_ns: u64) -> Target {
        Target {
            pid,
            start_ns,
            comm: "sleep".into(),
            role: "compute".to_owned(),
            gpus: BTreeSet::new(),
            beyond: BTreeSet::new(),
            stopped: false,
            ending: false,
            stuck: None,
        }
    }

    fn start_of(pid: u32) -> u64 {
        let directory = ProcFs::host().process(pid).expect("it lives");
        read_stat(&directory).expect("it lives").start_ns
    }

    #[test]
    fn the_right_process_is_ended_and_its_end_is_seen() {
        let mut child = sleeper();
        let target = target(child.id(), start_of(child.id()));
        let mut held = [Held::of(target).expect("it is the one")];
        assert_eq!(await_end(&mut held, Duration::ZERO), 1, "it lives");
        held[0].signal(Signal::TERM).expect("it is ours");
        assert_eq!(await_end(&mut held, Duration::from_secs(20)), 0);
        assert!(held[0].has_ended());
        held[0].signal(Signal::KILL).expect("nothing to do is no failure");
        assert_eq!(child.wait().expect("ours").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_later_process_with_the_same_pid_is_not_touched() {
        let mut child = sleeper();
        let earlier = target(child.id(), start_of(child.id()).saturating_sub(20_000_000));
        let refused = Held::of(earlier).expect_err("another process");
        assert!(matches!(refused, EndingError::Gone { .. }), "{refused}");
        child.kill().expect("ours");
        child.wait().expect("ours");
        let gone = Held::of(target(child.id(), 0)).expect_err("nobody");
        assert!(matches!(gone, EndingError::Gone { .. }), "{gone}");
    }

    #[test]
    fn a_kernel_thread_is_not_touched() {
        let kthreadd = ProcFs::host().process(2).and_then(|directory| read_stat(&directory));
        let Some(stat) = kthreadd.ok().filter(|stat| stat.kernel_thread) else {
            eprintln!("skipped: PID 2 is no kernel thread in this PID namespace");
            return;
        };
        let refused = Held::of(target(2, stat.start_ns)).expect_err("a kernel thread");
        assert!(matches!(refused, EndingError::KernelThread { .. }), "{refused}");
    }
}

//! Ctrl-C and its like, as a fact to look at, so that what was started can be ended in order.

use std::io;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP end nothing by themselves; [`check`] reports them.
pub(crate) fn catch() {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}

/// Fails when one of those signals came.
pub(crate) fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, unless one of those signals comes.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        check()?;
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
    }
    check()
}

/// Waits for a child, at most until the deadline; `None` when it is still there then.
pub(crate) fn wait_until(
    child: &mut Child,
    deadline: Instant,
) -> io::Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// This process adopts every descendant whose parent ends, so that [`end_children`] reaches them all.
pub(crate) fn adopt_orphans() -> Result<()> {
    // SAFETY: prctl with these arguments takes numbers only.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("prctl(PR_SET_CHILD_SUBREAPER) failed"),
    }
}

/// Kills and reaps all children of this process, with those that it adopts meanwhile, for at most `patience`. Returns
/// the PIDs that remain: a task in an uninterruptible sleep does not go.
pub(crate) fn end_children(patience: Duration) -> Vec<i32> {
    let deadline = Instant::now() + patience;
    loop {
        let children = children();
        if children.is_empty() || Instant::now() >= deadline {
            return children;
        }
        for pid in children {
            // SAFETY: both calls take numbers and a pointer that may be null; the PIDs are this process's own children,
            // which keep their numbers until reaped here.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Every process whose parent is this one, zombies too.
fn children() -> Vec<i32> {
    let this = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_in(&stat) == Some(this))
    })
    .collect()
}

/// The parent's PID in a `/proc/PID/stat`: the second field behind the *last* closing parenthesis.
fn parent_in(stat: &[u8]) -> Option<u32> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    std::str::from_utf8(&stat[after..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_behind_any_name() {
        assert_eq!(parent_in(b"7 (a) Z 1 9 (x) S 42 7 7 0"), Some(42));
        assert_eq!(parent_in(b"7 (\xff\xfe) S 43 7"), Some(43));
        assert_eq!(parent_in(b"7 sh S 43 7"), None);
        assert_eq!(parent_in(b""), None);
    }
}

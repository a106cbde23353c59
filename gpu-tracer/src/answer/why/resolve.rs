//! Who a PID is: a process, a thread of one, a zombie, or nobody.

use crate::diagnose::input::Resolved;
use crate::process::facts::read_stat;
use crate::process::namespaces::is_initial_pid;
use crate::process::{ProcDir, ProcFs, Status, status};

/// Threads of one process that are looked at for one that lives.
const MOST_THREADS: usize = 4096;

/// Looks `pid` up in the host's `/proc`.
pub(super) fn resolve(pid: u32) -> Resolved {
    // There this `/proc` speaks of other processes, or of none.
    if !is_initial_pid() {
        return Resolved::Unchecked;
    }
    let directory = match ProcFs::host().process(pid) {
        Ok(directory) => directory,
        Err(error) if error.is_gone() => return Resolved::Dead,
        Err(_) => return Resolved::Unchecked,
    };
    let stat = match read_stat(&directory) {
        Ok(stat) => stat,
        Err(error) if error.is_gone() => return Resolved::Dead,
        Err(_) => return Resolved::Unchecked,
    };
    // A thread has a directory of its own, which no listing shows.
    let status = directory.read("status", status::LIMIT).map(|text| Status::parse(&text)).unwrap_or_default();
    match status.ns_tgids.first() {
        Some(process) if *process != pid => {
            let comm = ProcFs::host().process(*process).and_then(|directory| read_stat(&directory));
            return Resolved::ThreadOf { pid: *process, comm: comm.map_or(stat.comm, |stat| stat.comm) };
        }
        _ => {}
    }
    if !stat.is_dead() {
        return if stat.exiting {
            Resolved::Exiting { comm: stat.comm }
        } else {
            Resolved::Process { comm: stat.comm, start_ns: stat.start_ns, leader_dead: false }
        };
    }
    if lives(&directory, pid) {
        return Resolved::Process { comm: stat.comm, start_ns: stat.start_ns, leader_dead: true };
    }
    Resolved::Zombie { comm: stat.comm, ppid: stat.ppid }
}

/// Does a thread besides the leader live?
fn lives(process: &ProcDir, leader: u32) -> bool {
    let Ok(tasks) = process.below("task") else { return false };
    let mut found = false;
    let mut left = MOST_THREADS;
    let _ = tasks.for_each_number(|tid| {
        left = left.saturating_sub(1);
        if tid != leader {
            let stat = tasks.below(tid.to_string()).and_then(|task| read_stat(&task));
            found = stat.is_ok_and(|stat| !stat.is_dead());
        }
        !found && left > 0
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_threads_zombies_and_nobody_are_told_apart() {
        if !is_initial_pid() {
            eprintln!("skipped: this is not the host's PID namespace");
            return;
        }
        let ours = std::process::id();
        assert!(matches!(resolve(ours), Resolved::Process { leader_dead: false, .. }), "{:?}", resolve(ours));
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            let _ = receive.recv();
        });
        let tid = u32::try_from(told.recv().expect("the thread runs")).expect("ids are positive");
        let found = resolve(tid);
        assert!(matches!(found, Resolved::ThreadOf { pid, .. } if pid == ours), "{found:?}");
        drop(send);
        thread.join().expect("it ends");

        let mut child = std::process::Command::new("true").spawn().expect("true runs");
        let pid = child.id();
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )
        .expect("it is our child");
        let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ended, None).expect("a pidfd can be polled");
        let found = resolve(pid);
        assert!(matches!(found, Resolved::Zombie { ppid, .. } if ppid == ours), "{found:?}");
        child.wait().expect("it is our child");
        assert_eq!(resolve(pid), Resolved::Dead);
    }
}

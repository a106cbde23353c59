//! Making, stopping, renaming and ending processes.

use std::ffi::c_int;
use std::io;

use super::{check, check_long};

/// Which process a fork-like call returned in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In the caller; the child's PID as the caller's namespace sees it.
    Parent(u32),
    /// In the child.
    Child,
}

fn side(pid: libc::c_long) -> io::Result<Side> {
    match check_long(pid)? {
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid as u32)),
    }
}

/// `fork(2)`.
pub fn fork() -> io::Result<Side> {
    // SAFETY: every caller is either single-threaded or has only threads that sit in `recvmsg`; the C library makes its
    // own allocator safe across fork.
    side(unsafe { libc::c_long::from(libc::fork()) })
}

/// Does something as another user, on a thread of its own, and gives what comes of it.
///
/// In the kernel each thread has credentials of its own: one that makes the system calls itself changes nobody else's.
///
/// # Errors
///
/// What the kernel says of the change.
///
/// # Panics
///
/// If what is done panics.
pub fn as_user<T: Send + 'static>(user: u32, what: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let thread = std::thread::spawn(move || {
        let id = i64::from(user);
        for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
            // SAFETY: the calls take three numbers.
            check_long(unsafe { libc::syscall(call, id, id, id) })?;
        }
        Ok(what())
    });
    thread.join().expect("what is done does not panic")
}

/// A fork whose child shares the fd table (`CLONE_FILES`) and nothing else.
pub fn fork_sharing_table() -> io::Result<Side> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is a fork; as for `fork`.
    side(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })
}

/// A fork whose child gets exactly this PID (`clone3(2)` with `set_tid`, Linux 5.5, needs privilege).
pub fn fork_as(pid: u32) -> io::Result<Side> {
    let wanted = pid as libc::pid_t;
    // SAFETY: all-zero is a valid `clone_args`.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = (&raw const wanted) as u64;
    args.set_tid_size = 1;
    // SAFETY: the arguments and the id array outlive the call; a null stack makes it a fork.
    side(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })
}

/// Starts a process that shares the caller's memory, and its fd table too if `table`; it runs `body(argument)`.
///
/// It shares the caller's thread-local storage as well, so `body` may use nothing that allocates, locks or keeps
/// thread-local state: bare system calls only.
pub fn spawn_sharing_memory(
    table: bool,
    body: extern "C" fn(*mut libc::c_void) -> c_int,
    argument: c_int,
) -> io::Result<u32> {
    const STACK: usize = 64 * 1024;
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let stack = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
            -1,
            0,
        )
    };
    if stack == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::CLONE_VM | libc::SIGCHLD | if table { libc::CLONE_FILES } else { 0 };
    // SAFETY: the stack is its own, grows down from its end and is never unmapped; `body` keeps to bare system calls.
    let pid =
        unsafe { libc::clone(body, stack.byte_add(STACK), flags, argument as usize as *mut libc::c_void) };
    Ok(check(pid)? as u32)
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(pid as libc::pid_t, signal) }).map(drop)
}

/// Reaps one child if it has ended: `pid`, or any if `None`. Returns its PID and wait status; `None` if none has ended.
///
/// Fails with `ECHILD` when there is no such child at all.
pub fn reap(pid: Option<u32>) -> io::Result<Option<(u32, c_int)>> {
    let mut status = 0;
    let wanted = pid.map_or(-1, |pid| pid as libc::pid_t);
    // SAFETY: the status is valid for writing.
    let reaped = unsafe { libc::waitpid(wanted, &raw mut status, libc::WNOHANG | libc::__WALL) };
    Ok(match check(reaped)? {
        0 => None,
        reaped => Some((reaped as u32, status)),
    })
}

/// `waitpid(2)` for one child, as long as it takes.
pub fn wait(pid: u32) -> io::Result<()> {
    // SAFETY: no status is asked for.
    check(unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::__WALL) }).map(drop)
}

/// Ends the whole process at once, without running exit handlers.
pub fn exit_group(status: c_int) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}

/// Ends the calling thread alone: the leader becomes a zombie while its other threads live on.
pub fn exit_thread() -> ! {
    // SAFETY: ends this thread; nothing of it is used afterwards.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread that has exited")
}

/// Thread id in the caller's own PID namespace.
#[must_use]
pub fn gettid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Starts a session of its own.
pub fn setsid() -> io::Result<()> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Orphans below this process become its children.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// This process gets `signal` when its parent dies.
pub fn die_with_parent(signal: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).map(drop)
}

/// Becomes this user and group, for good, as if it had never been another: its own tools may look at it.
pub fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: an empty list; takes numbers only otherwise.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setresuid(id, id, id) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }).map(drop)
}

/// `unshare(2)`.
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Lets the kernel write a core file of any size.
pub fn allow_core() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct is valid for reading.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }).map(drop)
}

/// Dies of SIGSEGV as a crashing program does, with a core file if [`allow_core`] was called.
pub fn crash() -> io::Result<()> {
    // SAFETY: restores the default action, which nothing else here relies on.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    kill(std::process::id(), libc::SIGSEGV)
}

/// Blocks signals for this thread and returns a descriptor that reports them (`signalfd(2)`).
pub fn take_signals(signals: &[c_int]) -> io::Result<c_int> {
    let set = signal_set(signals);
    // SAFETY: the set is initialised; no old set is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) })?;
    // SAFETY: the set is initialised.
    check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })
}

/// Unblocks signals that [`take_signals`] blocked, in a child.
pub fn release_signals(signals: &[c_int]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: as above.
    check(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) }).map(drop)
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all-zero is a valid set; `sigemptyset` and `sigaddset` write to it only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

//! Real processes to look at: this test binary, started again to play a part.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::{ptr, thread};

/// The part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// Two opens, a duplicate, an `O_PATH` descriptor and a mapping; a thread that shares all that, and one with a table
    /// of its own and one open in it.
    Threads,
    /// A mapping whose descriptor is closed.
    Mapping,
    /// The leader is a zombie, a thread holds a descriptor and a mapping.
    DeadLeader,
    /// A descriptor that was sent and not received.
    Queued,
    /// A registered file of an io_uring, in slot 2.
    Ring,
}

const PART: &str = "GPU_TRACER_TEST_PART";
const PARTS: [Program; 5] =
    [Program::Threads, Program::Mapping, Program::DeadLeader, Program::Queued, Program::Ring];

/// A process that ends when this is dropped.
pub(super) struct Running {
    child: Child,
    /// Its PID, or that of the child that it forked to play the part.
    pub(super) pid: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.pid != self.child.id() {
            // SAFETY: kill touches no memory; the PID is of a process whose parent waits for it only after this.
            unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `program` and waits until it has done what it is to be seen doing; `None` if this kernel does not let it.
pub(super) fn start(program: Program) -> Option<Running> {
    let name = module_path!().split_once("::").expect("in a crate").1;
    let mut child = Command::new(std::env::current_exe().expect("own executable"))
        .args(["--exact", &format!("{name}::plays_its_part"), "--nocapture", "--test-threads=1"])
        .env(PART, format!("{program:?}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start of the program");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let answer =
        output.lines().map_while(Result::ok).find_map(|line| Some(line.split_once("PART ")?.1.to_owned()));
    match answer.as_deref().map(str::parse) {
        Some(Ok(pid)) => Some(Running { child, pid }),
        answer => {
            let _ = child.kill();
            let _ = child.wait();
            assert!(answer.is_some(), "the program ended before it was ready");
            None
        }
    }
}

/// A `sleep` whose descriptor 0 is `file`.
pub(super) fn spawn_sleep(file: &File) -> Running {
    let stdin = file.try_clone().expect("dup");
    let child = Command::new("sleep").arg("600").stdin(stdin).spawn().expect("start of sleep");
    let pid = child.id();
    Running { child, pid }
}

/// Not a test: the other side of [`start`].
#[test]
fn plays_its_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let program = PARTS.into_iter().find(|program| format!("{program:?}") == part).expect("a part");
    // SAFETY: this process has no other purpose than to hold what `play` makes it hold.
    unsafe { play(program) }
    loop {
        thread::park();
    }
}

fn zero() -> OwnedFd {
    File::open("/dev/zero").expect("open").into()
}

fn ready(pid: u32) {
    println!("\nPART {pid}");
}

/// Does what is to be seen and reports ready.
///
/// # Safety
/// Forks, ends threads and leaks descriptors: only for a process that does nothing else.
unsafe fn play(program: Program) {
    let own = std::process::id();
    match program {
        Program::Threads => {
            let barrier: &'static Barrier = Box::leak(Box::new(Barrier::new(3)));
            thread::spawn(|| {
                // SAFETY: unshare gives this thread a copy of the table, which has no device in it yet.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                std::mem::forget(zero());
                barrier.wait();
                loop {
                    thread::park();
                }
            });
            // The other thread has its own table only after it says so, so the opens below come after that.
            thread::spawn(|| {
                barrier.wait();
                loop {
                    thread::park();
                }
            });
            barrier.wait();
            let one = zero();
            // SAFETY: maps a fresh range.
            unsafe { map(&one) };
            std::mem::forget((one.try_clone().expect("dup"), one, zero()));
            let path = rustix::fs::OFlags::PATH;
            std::mem::forget(rustix::fs::open("/dev/zero", path, rustix::fs::Mode::empty()).expect("open"));
            ready(own);
        }
        Program::Mapping => {
            // SAFETY: maps a fresh range.
            unsafe { map(&zero()) };
            ready(own);
        }
        // SAFETY: as the caller promises.
        Program::DeadLeader => unsafe { play_dead_leader() },
        // SAFETY: as the caller promises.
        Program::Queued => unsafe {
            let mut pair = [0; 2];
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()), 0);
            let sender = OwnedFd::from_raw_fd(pair[0]);
            let device = zero();
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let fds = [std::os::fd::AsFd::as_fd(&device)];
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
            let data = [std::io::IoSlice::new(b"x")];
            rustix::net::sendmsg(&sender, &data, &mut control, rustix::net::SendFlags::empty())
                .expect("sendmsg");
            drop((device, sender));
            ready(own);
        },
        Program::Ring => {
            // SAFETY: as the caller promises.
            let registered = unsafe { register_in_ring(&zero()) };
            match registered {
                Some(()) => ready(own),
                None => println!("\nPART unsupported"),
            }
        }
    }
}

/// Maps a page of `file`, for good.
///
/// # Safety
/// None beyond the caller's will to leak: the kernel picks a range that is free.
unsafe fn map(file: &OwnedFd) {
    // SAFETY: with a null hint an existing mapping is never replaced.
    let at =
        unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
}

/// Forks a child whose first thread ends while its second lives.
///
/// # Safety
/// The child runs code of a process that had more threads; it only makes system calls and a thread.
unsafe fn play_dead_leader() {
    extern "C" fn sleep_for_ever(_: *mut libc::c_void) -> *mut libc::c_void {
        loop {
            // SAFETY: pause touches no memory.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: see above; the parent only goes on.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child has the device to itself, and ends only its own first thread.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let device = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
            libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, device, 0);
            let mut thread = std::mem::zeroed();
            libc::pthread_create(&raw mut thread, ptr::null(), sleep_for_ever, ptr::null_mut());
            libc::syscall(libc::SYS_exit, 0);
        }
        unreachable!("the first thread has ended");
    }
    let child = u32::try_from(child).expect("fork");
    // The kernel shows the zombie when it is one, and the second thread asleep when it is.
    let settled = || {
        let state = |path: String| {
            let stat = crate::process::Stat::parse(&std::fs::read(path).unwrap_or_default());
            stat.map(|stat| (stat.state.letter(), stat.threads))
        };
        let tasks = std::fs::read_dir(format!("/proc/{child}/task")).expect("its tasks").flatten();
        let states: Vec<_> =
            tasks.filter_map(|task| state(format!("{}/stat", task.path().display()))).collect();
        states.contains(&('Z', 2)) && states.contains(&('S', 2))
    };
    while !settled() {
        thread::yield_now();
    }
    ready(child);
}

/// Sets up an io_uring and registers `file` in slot 2; `None` if that is not allowed here.
///
/// # Safety
/// Leaks the ring.
unsafe fn register_in_ring(file: &OwnedFd) -> Option<()> {
    const IORING_REGISTER_FILES: libc::c_long = 2;
    // struct io_uring_params of include/uapi/linux/io_uring.h is 120 bytes, all zero for the defaults.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel fills the 120 bytes that `parameters` has.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 {
        return None;
    }
    let files: [libc::c_int; 3] = [-1, -1, file.as_raw_fd()];
    // SAFETY: the kernel reads the three numbers of `files`.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring, IORING_REGISTER_FILES, files.as_ptr(), 3) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    Some(())
}

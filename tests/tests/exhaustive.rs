//! Plan `exhaustive`: what no hook of plan `lean` tells of is told at once.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpu_tracer_tests::harness::{Daemon, Device, Watch, check_verified_quickly};
use serde_json::Value;

/// By then the looks are over that what went before asked for; those in their turn come seldom.
const SETTLED: Duration = Duration::from_millis(1700);
/// A look that something asked for comes sooner, one in its turn hardly ever.
const AT_ONCE: Duration = Duration::from_millis(250);
/// And so many times as long as a look takes: more than a tenth of the time is not spent in looks.
const LOOKS: u32 = 20;

fn daemon(device: &Device) -> (Daemon, Watch) {
    let daemon = Daemon::start_planned(device, "exhaustive");
    assert_eq!(daemon.status()["plan"], "exhaustive", "{}", daemon.said());
    assert!(daemon.said().contains("every system call of every process"), "its cost: {}", daemon.said());
    check_verified_quickly(&["on_call", "on_return"]);
    let watch = daemon.watch();
    (daemon, watch)
}

fn own(line: &Value, what: &str) -> bool {
    line["what"] == what && line["process"]["pid"] == std::process::id()
}

#[track_caller]
fn await_own(watch: &mut Watch, what: &str) -> Value {
    watch.await_line(what, |line| own(line, what))
}

/// Does something five times and waits each time until it is told. Three times at least that must be at once: this machine may
/// be busy with something else.
#[track_caller]
fn check_told_at_once<T>(
    daemon: &Daemon,
    watch: &mut Watch,
    what: &str,
    mut prepare: impl FnMut(&mut Watch) -> T,
    mut act: impl FnMut(T),
) {
    let mut took = Vec::new();
    for _ in 0..5 {
        watch.told.clear();
        let prepared = prepare(watch);
        std::thread::sleep(SETTLED);
        let begun = Instant::now();
        act(prepared);
        await_own(watch, what);
        took.push(begun.elapsed());
    }
    took.sort();
    let look = daemon.status()["last_look"]["took_us"].as_u64().expect("a number");
    let at_once = AT_ONCE + Duration::from_micros(look) * LOOKS;
    println!("{what}: told after {took:?}, {at_once:?} is allowed");
    assert!(took[2] < at_once, "{what}: told after {took:?}, {at_once:?} is allowed");
}

#[test]
fn a_close_of_one_of_two_handles_is_told_at_once() {
    let device = Device::nobodys();
    let (daemon, mut watch) = daemon(&device);
    let open = || File::open(device.path()).expect("anybody may open it");
    let _kept = open();
    await_own(&mut watch, "opened");
    let prepare = |watch: &mut Watch| {
        let file = open();
        await_own(watch, "opened");
        file
    };
    check_told_at_once(&daemon, &mut watch, "closed", prepare, drop);
}

#[test]
fn a_mapping_is_told_at_once() {
    let device = Device::one();
    let (daemon, mut watch) = daemon(&device);
    let prepare = |watch: &mut Watch| {
        let file = File::options().read(true).write(true).open(device.path()).expect("anybody may open it");
        await_own(watch, "opened");
        file
    };
    let mut files = Vec::new();
    check_told_at_once(&daemon, &mut watch, "mapped", prepare, |file| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // A shared mapping of this device would be one of another file.
        // SAFETY: a new mapping, wherever there is room; it stays until the process ends.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(page, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        files.push(file);
    });
}

/// A process that has the device open at descriptor 9 until its input ends.
struct Holding(Child);

impl Holding {
    fn open(device: &Device) -> Self {
        let line = format!("exec 9<{}; echo open; read x; exec 9<&-; read x", device.path().display());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut said).expect("readable");
        assert_eq!(said, "open\n");
        Self(child)
    }

    /// It closes the device at the first line and ends at the second.
    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{line}").expect("it reads");
    }

    /// Takes its descriptor, as a debugger does.
    fn take(&self) -> OwnedFd {
        // SAFETY: numbers only; each call gives a new descriptor.
        unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, self.0.id(), 0);
            let process = i32::try_from(process).expect("a descriptor");
            assert!(process >= 0, "{}", std::io::Error::last_os_error());
            let process = OwnedFd::from_raw_fd(process);
            let taken = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), 9, 0);
            let taken = i32::try_from(taken).expect("a descriptor");
            assert!(taken >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(taken)
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_descriptor_taken_by_somebody_of_no_interest_so_far_is_told_at_once() {
    let device = Device::nobodys();
    let (daemon, mut watch) = daemon(&device);
    let prepare = |watch: &mut Watch| {
        let holding = Holding::open(&device);
        watch.await_line("the open", |line| {
            line["what"] == "opened" && line["process"]["pid"] == holding.0.id()
        });
        holding
    };
    let mut taken = Vec::new();
    check_told_at_once(&daemon, &mut watch, "handed-over", prepare, |holding: Holding| {
        taken.push((holding.take(), holding));
    });
}

#[test]
fn the_end_of_a_wait_needs_no_question_once_a_second() {
    let device = Device::nobodys();
    let (daemon, mut watch) = daemon(&device);
    let mut holding = Holding::open(&device);
    watch.await_line("the open", |line| line["what"] == "opened");
    let asked = |daemon: &Daemon| daemon.status()["counts"]["answers"].as_u64().expect("a number");
    let before = asked(&daemon);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.run_with("wait", &["0", "--timeout", "60s"], &[]));
        std::thread::sleep(Duration::from_millis(3500));
        assert!(!waiting.is_finished(), "it is held");
        let answers = asked(&daemon) - before;
        assert!(answers <= 2, "asked {answers} times although nothing happened");
        // Closed and not ended: no other hook tells of that.
        holding.say("close");
        waiting.join().expect("it ends")
    });
    assert_eq!(waiting.status, 0, "{}", waiting.err);
    assert!(holding.0.try_wait().expect("ours").is_none(), "it lives");
}

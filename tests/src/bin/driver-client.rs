//! A process that uses the stand-in driver, and nothing else.
//!
//! ```text
//! driver-client hold DEVICE...      opens them, one after another, says "open", and waits for the end of its input; maps a page
//!                                   of the first at each line that says "map"
//! driver-client pairs N FILE        opens and closes a file N times; prints how many ns one pair took
//! driver-client events N            makes and closes a file that is nobody's device (eventfd) N times; the same
//! driver-client calls N             makes N system calls that do nothing; prints how many ns one took
//! ```
//!
//! Times are those of the processor, hooks in this process's way and all: the median of some rounds. Between them it sleeps, as
//! a process has a budget of events for every 100 ms, and what is beyond that costs less.
//!
//! A file of nvidia-uvm is made a VA space, as every process that computes has one.

use std::env;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gpu_tracer_tests::incident::driver;
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: u32 = 15;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(130);

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("driver-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", ref devices @ ..] => hold(devices),
        ["pairs", times, file] => {
            let open = || File::open(file).map(drop).with_context(|| file.to_owned());
            println!("{}", median_ns(times.parse().context("N")?, open)?);
            Ok(())
        }
        ["events", times] => {
            let make = || {
                rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map(drop).context("eventfd")
            };
            println!("{}", median_ns(times.parse().context("N")?, make)?);
            Ok(())
        }
        ["calls", times] => {
            let call = || {
                // SAFETY: takes nothing and cannot fail. By number, lest a library keeps the answer.
                unsafe { libc::syscall(libc::SYS_getppid) };
                Ok(())
            };
            println!("{}", median_ns(times.parse().context("N")?, call)?);
            Ok(())
        }
        _ => bail!("usage: driver-client hold DEVICE... | pairs N FILE | events N | calls N"),
    }
}

fn hold(devices: &[&str]) -> Result<()> {
    let files: Vec<File> = devices.iter().map(|device| open(device)).collect::<Result<_>>()?;
    println!("open");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if let ("map", Some(file)) = (line.as_str(), files.first()) {
            map(file).context("mmap")?;
        }
    }
    drop(files);
    Ok(())
}

/// It stays as long as this process.
fn map(file: &File) -> std::io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if page == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn open(device: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(device).with_context(|| device.to_owned())?;
    if device.ends_with("nvidia-uvm") {
        let request = driver::number("UVM_INITIALIZE")?;
        // SAFETY: takes no argument.
        if unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) } != 0 {
            return Err(std::io::Error::last_os_error()).context("UVM_INITIALIZE");
        }
    }
    Ok(file)
}

fn median_ns(times: u32, mut work: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begun = cpu_time();
        for _ in 0..times {
            work()?;
        }
        let took = cpu_time().saturating_sub(begun) / times.max(1);
        rounds.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        thread::sleep(BETWEEN_ROUNDS);
    }
    rounds.sort_unstable();
    Ok(rounds[rounds.len() / 2])
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

//! A process that uses the stand-in driver, and nothing else.
//!
//! ```text
//! driver-client hold DEVICE...      opens them, one after another, says "open", and waits for the end of its input
//! driver-client pairs N FILE        opens and closes a file N times; prints how many ns one pair took, the least of 5 rounds
//! ```
//!
//! A file of nvidia-uvm is made a VA space, as every process that computes has one.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use gpu_tracer_tests::incident::driver;

const ROUNDS: u32 = 5;

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
            println!("{}", pair_ns(times.parse().context("N")?, file)?);
            Ok(())
        }
        _ => bail!("usage: driver-client hold DEVICE... | pairs N FILE"),
    }
}

fn hold(devices: &[&str]) -> Result<()> {
    let files: Vec<File> = devices.iter().map(|device| open(device)).collect::<Result<_>>()?;
    println!("open");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(files);
    Ok(())
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

/// The least of several rounds: whatever else the machine does only ever adds to it.
fn pair_ns(times: u32, file: &str) -> Result<u64> {
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..times {
            drop(File::open(file).with_context(|| file.to_owned())?);
        }
        let took = begun.elapsed() / times.max(1);
        least = least.min(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(least)
}

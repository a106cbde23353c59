//! What the integration tests use: a device to be held, a running scenario, the tracer beside it, and the comparison.
//!
//! Tests look only at processes that the scenario made, so that others on the host which use the same device number do
//! not matter; only the tests of "nobody holds it" need a number to themselves ([`Device::nobodys`]).

mod compare;
mod daemon;
mod device;
mod play;
mod tracer;
mod verifier;

pub use daemon::{Daemon, Watch, text_from};
pub use device::Device;
pub use play::Play;
pub use tracer::{Answer, Finished, HeldDevice, HeldFile, Holder, Missing, Opener, Tracer};
pub use verifier::check_verified_quickly;

use std::time::Duration;

use crate::poll;

/// Panics unless this is root: staging the predicaments and seeing other processes both need it.
pub fn require_root() {
    assert!(is_root(), "this test stages real processes in namespaces and on loop devices: run it as root");
}

/// Is this root?
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Does this kernel let tasks interrupt programs at tracepoints, so that what happens on that processor meanwhile is not told, but
/// counted as missed (Linux 7.0)?
#[must_use]
pub fn programs_are_interrupted() -> bool {
    kernel_line() >= (7, 0)
}

/// The line of the running kernel: (6, 1) of `6.1.0-57-amd64`.
#[must_use]
pub fn kernel_line() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().expect("a number"));
    let mut next = || numbers.next().expect("a release has two numbers at least");
    (next(), next())
}

/// Asks until the answer is there; panics with `what` when `deadline` has passed.
pub fn eventually<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    poll::until(what, deadline, || Ok(ask())).unwrap_or_else(|error| panic!("{error:#}"))
}

/// A program of this workspace: named by `variable`, or else the newest build beside the running test.
fn program(variable: &str, name: &str) -> std::path::PathBuf {
    if let Some(given) = std::env::var_os(variable) {
        return given.into();
    }
    let here = std::env::current_exe().expect("a running program has a path");
    let target = here
        .ancestors()
        .find(|dir| dir.join("debug").is_dir() || dir.join("release").is_dir())
        .expect("tests run from a target directory");
    ["debug", "release"]
        .iter()
        .map(|profile| target.join(profile).join(name))
        .filter_map(|path| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .unwrap_or_else(|| panic!("no {name} in {}: build it, or set {variable}", target.display()))
        .1
}

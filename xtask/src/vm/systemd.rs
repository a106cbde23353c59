//! What lets systemd be the first process of a guest, to run the unit as it is shipped: its programs, the few units that
//! every service is ordered after, and one that runs the tests.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::contents::PROGRAMS;
use super::guest::Guest;
use super::protocol::Verdict;
use super::suite::{self, Part};
use super::tree::Tree;
use crate::child;
use crate::debian::Need;
use crate::workspace::Workspace;

/// The test program that wants it.
const TESTS: &str = "vm_systemd";
/// The first process.
const FIRST: &str = "/lib/systemd/systemd";
/// Started by it from series 255 on.
const EXECUTOR: &str = "/lib/systemd/systemd-executor";
const UNITS: &str = "/etc/systemd/system";
/// Beside those that systemd makes itself.
const TARGETS: [&str; 6] = ["basic", "sysinit", "sockets", "paths", "timers", "shutdown"];

/// What is taken from this machine.
pub(crate) fn needs() -> [Need; 2] {
    [Need::file(FIRST, "systemd"), Need::program("systemctl", "systemd")]
}

/// Adds it to the files of a guest.
pub(super) fn add(tree: &mut Tree, workspace: &Workspace) -> Result<()> {
    for program in [Path::new(FIRST), Path::new(EXECUTOR)] {
        if program.exists() {
            tree.program(&program.to_string_lossy(), program)?;
        }
    }
    let control =
        child::find_program("systemctl").context("systemctl is not installed: run `cargo xtask setup`")?;
    tree.program("usr/bin/systemctl", &control)?;
    for target in TARGETS {
        tree.content(
            &format!("{UNITS}/{target}.target"),
            0o644,
            format!("[Unit]\nDescription={target}\nDefaultDependencies=no\n"),
        );
    }
    tree.content(
        &format!("{UNITS}/default.target"),
        0o644,
        "[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=gpu-tracer.service tests.service\n",
    );
    tree.content(
        &format!("{UNITS}/tests.service"),
        0o644,
        "[Unit]\nAfter=gpu-tracer.service\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n\
         ExecStart=/bin/busybox sh /init\nStandardOutput=null\nStandardError=null\n",
    );
    // The unit itself is as it is shipped; what it says can be read afterwards.
    tree.copy(
        &format!("{UNITS}/gpu-tracer.service"),
        0o644,
        &workspace.root().join("deploy/gpu-tracer.service"),
    );
    tree.content(
        &format!("{UNITS}/gpu-tracer.service.d/said.conf"),
        0o644,
        "[Service]\nStandardError=append:/run/said\n",
    );
    // Where later series look for their own programs.
    tree.link("usr/lib/systemd", "/lib/systemd");
    tree.link("usr/bin/gpu-tracer", &format!("{PROGRAMS}/gpu-tracer"));
    Ok(())
}

/// Boots the guest once more with systemd, if the filter allows any of the tests for that.
pub(super) fn run(guest: &Guest<'_>, filter: &str) -> Result<Verdict> {
    if !is_wanted(filter) {
        return Ok(Verdict::of([]));
    }
    let console = guest.console.with_file_name("console-systemd.log");
    let guest = Guest { console: &console, init: FIRST, part: Some(Part::Unit), disk: None, ..*guest };
    Ok(guest.run()?.verdict)
}

fn is_wanted(filter: &str) -> bool {
    let name = format!("{TESTS}::");
    filter.is_empty() || suite::parts(filter).any(|part| name.contains(part) || part.starts_with(TESTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_booted_where_a_test_of_its_program_is_asked_for() {
        for filter in ["", "vm_", "vm_systemd", "vm_systemd::the_unit", "threads::b1,vm_systemd"] {
            assert!(is_wanted(filter), "{filter}");
        }
        for filter in ["threads", "vm_driver", "threads,vm_driver"] {
            assert!(!is_wanted(filter), "{filter}");
        }
    }
}

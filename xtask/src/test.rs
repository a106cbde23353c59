//! `cargo xtask test`: everything, from a bare checkout: set-up, builds, unit and property tests, then the tests that
//! put real processes into real predicaments and ask the release binary about them, here and in guests with the kernels of
//! distributions.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::build_ebpf;
use crate::child;
use crate::host_build::{self, Programs};
use crate::setup;
use crate::vm;
use crate::workspace::Workspace;

/// Kernel lines on which every run tests. `cargo xtask vm --kernel all` has them all.
const GUESTS: [&str; 2] = ["6.1", "6.12"];

/// Arguments of `test`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only tests whose name contains this.
    filter: Option<String>,
    /// Not in guests, for a quick run.
    #[arg(long)]
    no_vm: bool,
    /// Passed on to the test programs, as after `cargo test --`.
    #[arg(last = true)]
    harness: Vec<String>,
}

/// Runs `test`. Fails when a test failed; every group is run all the same.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let toolchain = setup::for_build()?;
    let privileged = child::is_root();
    let no_guests = no_guests(arguments);
    if privileged {
        setup::for_tests(no_guests.is_none())?;
    }
    build_ebpf::build(workspace, &toolchain, false)?;
    let programs = host_build::release(workspace)?;
    let mut failed = Vec::new();
    let mut group = |name: &'static str, command: Command| {
        println!("\n== {name}");
        if let Err(error) = child::run(&mut with_filter(command, arguments)) {
            eprintln!("{error}");
            failed.push(name);
        }
    };
    group("unit and property tests", unit_tests(workspace));
    group("real processes", process_tests(workspace, &programs, privileged));
    if !privileged {
        println!(
            "\nSKIPPED: most tests with real processes (crate gpu-tracer-tests). They make device nodes, freeze a file \
             system and load BPF programs, and this is not root. To run them too, as root: cargo xtask test"
        );
    }
    match no_guests {
        None => {
            println!("\n== guests with Linux {}", GUESTS.join(" and "));
            if let Err(error) = vm::suite(workspace, &GUESTS) {
                eprintln!("{error:#}");
                failed.push("guests");
            }
        }
        Some(why) => println!("\nSKIPPED: all tests again on kernels of distributions: {why}"),
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Why the tests are not run in guests, if they are not.
fn no_guests(arguments: &Arguments) -> Option<&'static str> {
    if arguments.no_vm {
        return Some("--no-vm was given");
    }
    if arguments.filter.is_some() || !arguments.harness.is_empty() {
        return Some("only some tests were asked for; `cargo xtask vm --test FILTER` runs some in a guest");
    }
    vm::refusal()
}

fn cargo_test(workspace: &Workspace) -> Command {
    let mut cargo = child::cargo();
    cargo.current_dir(workspace.root()).args(["test", "--quiet", "--locked", "--no-fail-fast"]);
    cargo
}

fn unit_tests(workspace: &Workspace) -> Command {
    let mut cargo = cargo_test(workspace);
    cargo.args(["--workspace", "--exclude", "gpu-tracer-ebpf", "--exclude", "gpu-tracer-tests"]);
    cargo
}

fn process_tests(workspace: &Workspace, programs: &Programs, privileged: bool) -> Command {
    let mut cargo = cargo_test(workspace);
    cargo.args(["--package", "gpu-tracer-tests"]);
    // Not the examples in its documentation: there are none, and a run that ends in "0 passed" looks like no run.
    match privileged {
        true => cargo.arg("--tests"),
        false => cargo.args(["--lib", "--bins", "--test", "unprivileged"]),
    };
    cargo.envs(programs.environment());
    cargo
}

fn with_filter(mut command: Command, arguments: &Arguments) -> Command {
    command.args(&arguments.filter);
    if !arguments.harness.is_empty() {
        command.arg("--").args(&arguments.harness);
    }
    command
}

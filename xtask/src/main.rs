//! Developer commands of gpu-tracer: set-up, builds, runs, tests and measurements, one file each.

mod bpf_toolchain;
mod build_ebpf;
mod child;
mod debian;
mod fingerprint;
mod host_build;
mod interrupt;
mod run;
mod rustc;
mod setup;
mod stage;
mod vm;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Developer commands of gpu-tracer.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install or verify the compiler, the linker and the programs that builds and tests need.
    Setup(setup::Arguments),
    /// Compile the BPF object that gpu-tracer carries inside it.
    BuildEbpf(build_ebpf::Arguments),
    /// Build everything and ask who holds the GPUs of this machine, or of a staged stand-in where there are none.
    Run(run::Arguments),
    /// Run the tests on the kernels of real distributions, in guests that QEMU emulates.
    Vm(vm::Arguments),
}

fn main() -> Result<()> {
    let workspace = Workspace::locate();
    match Arguments::parse().task {
        Task::Setup(arguments) => setup::task(&workspace, &arguments),
        Task::BuildEbpf(arguments) => build_ebpf::task(&workspace, &arguments),
        Task::Run(arguments) => run::task(&workspace, &arguments),
        Task::Vm(arguments) => vm::task(&workspace, &arguments),
    }
}

//! Developer commands of gpu-tracer: set-up, builds, runs, tests and measurements, one file each.

mod bench;
mod bpf_toolchain;
mod build_ebpf;
mod child;
mod debian;
mod exam;
mod fingerprint;
mod gpu;
mod host_build;
mod interrupt;
mod lint;
mod run;
mod rustc;
mod setup;
mod stage;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

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
    /// Build everything and run all tests; those that need root only as root.
    Test(test::Arguments),
    /// Check formatting and run clippy, warnings being errors.
    Lint,
    /// Measure, in the same run, gpu-tracer and what it is compared with.
    Bench(bench::Arguments),
    /// Have real processes do random things, and compare what gpu-tracer answers with what they did.
    Exam(exam::Arguments),
    /// Prepare a folder to run on another machine, one with an NVIDIA GPU, and say what to run there.
    ///
    /// The programs in it are linked dynamically, because a statically linked glibc program crashes when it calls into
    /// a library loaded at run time, as NVML is. They run on any distribution whose glibc is as new as the version that
    /// this task prints.
    Gpu(gpu::Arguments),
    /// The processes that `bench` measures among.
    #[command(hide = true)]
    Crowd(bench::CrowdArguments),
    /// One of the processes by which `bench storm` opens the device.
    #[command(hide = true)]
    Stormer(bench::StormerArguments),
    /// Run the tests on the kernels of real distributions, in guests that QEMU emulates.
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    let workspace = Workspace::locate();
    let outcome = match Arguments::parse().task {
        Task::Setup(arguments) => setup::task(&workspace, &arguments),
        Task::BuildEbpf(arguments) => build_ebpf::task(&workspace, &arguments),
        Task::Run(arguments) => run::task(&workspace, &arguments),
        Task::Test(arguments) => test::task(&workspace, &arguments),
        Task::Lint => lint::task(&workspace),
        Task::Bench(arguments) => bench::task(&workspace, &arguments),
        Task::Gpu(arguments) => gpu::task(&workspace, &arguments),
        Task::Vm(arguments) => vm::task(&workspace, &arguments),
        Task::Exam(arguments) => exam::task(&workspace, &arguments),
        Task::Stormer(arguments) => bench::stormer_task(&arguments),
        Task::Crowd(arguments) => bench::crowd_task(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  {}", cause.to_string().replace('\n', "\n  "));
            }
            ExitCode::FAILURE
        }
    }
}

//! `cargo xtask setup`: installs or verifies what builds and tests need. Each step looks before it acts, so that
//! running it again costs next to nothing; `run`, `test` and the others call it themselves.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::bpf_toolchain::{self, Compiler, LINKER_LLVMS, Toolchain};
use crate::child;
use crate::debian::{self, Need};
use crate::rustc::{self, Release};
use crate::vm;
use crate::workspace::Workspace;

/// Arguments of `setup`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only verify: install nothing, and fail where something is missing.
    #[arg(long)]
    check: bool,
}

/// Runs `setup` for everything that builds and tests need.
pub(crate) fn task(_: &Workspace, arguments: &Arguments) -> Result<()> {
    let toolchain = if arguments.check {
        rustc::check_cargo()?;
        let missing = debian::unmet(needs_of_tests(vm::refusal().is_none()));
        if !missing.is_empty() {
            let list: Vec<_> =
                missing.iter().map(|need| format!("{} ({})", need.what, need.package)).collect();
            bail!("missing: {}: run `cargo xtask setup`", list.join(", "));
        }
        Toolchain::find()?
    } else {
        let toolchain = for_build()?;
        for_tests(vm::refusal().is_none())?;
        toolchain
    };
    println!(
        "setup: {} ({}) and {} for the BPF object; programs for the tests are there",
        toolchain.compiler.rustc.display(),
        toolchain.compiler.version.release,
        toolchain.linker.program.display()
    );
    Ok(())
}

/// Provides what building the BPF object and the host programs takes.
pub(crate) fn for_build() -> Result<Toolchain> {
    if let Ok(toolchain) = Toolchain::find() {
        return Ok(toolchain);
    }
    rustc::check_cargo()?;
    provide_compiler()?;
    // Another linker may already fit one of the compilers.
    if let Ok(toolchain) = Toolchain::find() {
        return Ok(toolchain);
    }
    let compilers = bpf_toolchain::compilers();
    let compiler = compilers
        .iter()
        .find(|compiler| LINKER_LLVMS.contains(&compiler.version.llvm_major))
        .or(compilers.first())
        .with_context(bpf_toolchain::no_compiler)?;
    provide_linker(compiler)?;
    Toolchain::find()
}

/// Provides the programs that the tests start, beside those of this workspace, and what their guests are made of.
pub(crate) fn for_tests(guests: bool) -> Result<()> {
    debian::provide(needs_of_tests(guests))
}

fn needs_of_tests(guests: bool) -> Vec<Need> {
    let mut needs = test_programs();
    if guests {
        needs.extend(vm::packages());
    }
    needs
}

fn test_programs() -> Vec<Need> {
    vec![
        Need::program("bpftool", "bpftool"),
        Need::program("fuser", "psmisc"),
        Need::program("lsof", "lsof"),
        Need::program("lsfd", "util-linux-extra"),
        Need::program("unshare", "util-linux"),
        Need::program("nsenter", "util-linux"),
        Need::program("fsfreeze", "util-linux"),
        Need::program("losetup", "mount"),
        Need::program("mount", "mount"),
        Need::program("mkfs.ext4", "e2fsprogs"),
        Need::program("ps", "procps"),
        Need::program("systemd-analyze", "systemd"),
    ]
}

fn provide_compiler() -> Result<()> {
    if !bpf_toolchain::compilers().is_empty() {
        return Ok(());
    }
    let oldest = Release::oldest_allowed();
    let can_install = child::is_root() && child::find_program("apt-get").is_some();
    if can_install {
        println!("setup: looking for a compiler with the sources of the standard library");
        debian::update()?;
        if debian::offers("rustc-web", |version| Release::parse(version) >= Some(oldest)) {
            // Not by looking for their files: those of an older release may be there.
            debian::install(&["rustc-web", "rust-web-src"])?;
        }
    }
    if bpf_toolchain::compilers().is_empty() && child::find_program("rustup").is_some() {
        println!("setup: installing rustup's nightly toolchain with the rust-src component");
        let mut rustup = Command::new("rustup");
        rustup.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"]);
        child::run_quietly(&mut rustup).with_context(bpf_toolchain::no_compiler)?;
    }
    if bpf_toolchain::compilers().is_empty() {
        bail!("{}", bpf_toolchain::no_compiler());
    }
    Ok(())
}

fn provide_linker(compiler: &Compiler) -> Result<()> {
    let major = compiler.version.llvm_major;
    if !LINKER_LLVMS.contains(&major) {
        bail!(
            "{} uses LLVM {major}, which bpf-linker {} cannot be built with ({} to {}): put a bpf-linker that was \
             built with LLVM {major} or newer on PATH, or set GPU_TRACER_BPF_RUSTC to another compiler",
            compiler.rustc.display(),
            bpf_toolchain::LINKER_RELEASE,
            LINKER_LLVMS.start(),
            LINKER_LLVMS.end()
        );
    }
    let llvm = bpf_toolchain::llvm_prefix(major);
    let in_llvm = |file: &str, package: String| Need::file(&llvm.join(file).to_string_lossy(), &package);
    debian::provide([
        Need::program("c++", "g++"),
        Need::file("/usr/include/zstd.h", "libzstd-dev"),
        in_llvm("bin/llvm-config", format!("llvm-{major}-dev")),
        in_llvm("include/llvm-c/Core.h", format!("llvm-{major}-dev")),
        in_llvm("lib/libPolly.a", format!("libpolly-{major}-dev")),
    ])
    .with_context(|| {
        format!(
            "bpf-linker is built from source and needs LLVM {major}. A prebuilt bpf-linker {} or newer on PATH does \
             as well: `cargo binstall bpf-linker`",
            bpf_toolchain::LINKER_RELEASE
        )
    })?;
    println!("setup: building bpf-linker {} with LLVM {major} (minutes)", bpf_toolchain::LINKER_RELEASE);
    bpf_toolchain::install_linker(compiler)
}

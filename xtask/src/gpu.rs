//! `cargo xtask gpu`: prepares a folder to run on another machine, one with a real NVIDIA GPU, and says what to run.
//!
//! The programs are linked dynamically on purpose. NVML is found at run time (`dlopen`), and a statically linked glibc
//! program cannot do that reliably: a call into a library so loaded ended in SIGSEGV with the same glibc and in SIGFPE
//! with a newer one, while a dynamically linked program ran unchanged on a newer glibc. What limits it is the oldest
//! glibc that has every symbol the program was linked against; that is looked up and printed. `--static` adds a
//! statically linked gpu-tracer for machines with an older glibc or another C library: it answers without NVML.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::build_ebpf;
use crate::child;
use crate::host_build;
use crate::setup;
use crate::workspace::Workspace;

/// Arguments of `gpu`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Add `gpu-tracer-static`, for machines whose glibc is older. It cannot load NVML (a static program cannot load the
    /// driver's library), so it answers without GPU memory.
    #[arg(long = "static")]
    fixed: bool,
}

const FOLDER: &str = ".gpu";

/// Runs `gpu`.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let toolchain = setup::for_build()?;
    build_ebpf::build(workspace, &toolchain, false)?;
    let programs = host_build::release(workspace)?;
    let folder = workspace.root().join(FOLDER);
    // What an earlier run left there would otherwise be taken for current.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;

    println!("gpu: in {FOLDER}/:");
    for program in [&programs.gpu_tracer, &programs.scenario] {
        let copy = copy_into(program, &folder)?;
        println!("  {}: {}", name(&copy), linkage(&copy)?);
    }
    if arguments.fixed {
        let program = build_static(workspace)?;
        let copy = folder.join("gpu-tracer-static");
        fs::copy(&program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
        println!("  {}: {}", name(&copy), linkage(&copy)?);
    }
    let tests = copy_tests(&workspace.root().join("tests/gpu"), &folder)?;
    for test in &tests {
        println!("  {}", name(test));
    }
    describe(&tests)
}

fn describe(tests: &[PathBuf]) -> Result<()> {
    println!(
        "\nCopy {FOLDER}/ to a machine with an NVIDIA GPU (its driver, python3, and for the comparison fuser and lsof), \
         and run there as root:\n\n  cd {FOLDER}\n  ./gpu-tracer doctor\n  ./gpu-tracer holders"
    );
    for test in tests {
        // The others are modules of these.
        if fs::read_to_string(test).is_ok_and(|text| text.contains("__main__")) {
            println!("  python3 {} --tracer ./gpu-tracer", name(test));
        }
    }
    Ok(())
}

fn name(file: &Path) -> std::borrow::Cow<'_, str> {
    file.file_name().unwrap_or_default().to_string_lossy()
}

fn copy_into(file: &Path, folder: &Path) -> Result<PathBuf> {
    let copy = folder.join(file.file_name().unwrap_or_default());
    fs::copy(file, &copy).with_context(|| format!("cannot copy {} to {}", file.display(), copy.display()))?;
    Ok(copy)
}

/// Copies the Python programs that use a GPU, in the order of their names.
fn copy_tests(from: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(from)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot read {}", from.display()))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "py"));
    files.sort();
    files.iter().map(|file| copy_into(file, folder)).collect()
}

fn build_static(workspace: &Workspace) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = workspace.static_target();
    child::run(
        child::cargo()
            .current_dir(workspace.root())
            .args([
                "build",
                "--release",
                "--locked",
                "--quiet",
                "--package",
                "gpu-tracer",
                "--bin",
                "gpu-tracer",
            ])
            .args(["--target", &target, "--target-dir"])
            .arg(&folder)
            .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static"),
    )?;
    let program = folder.join(&target).join("release/gpu-tracer");
    if !is_static(&program)? {
        bail!("{} is not statically linked", program.display());
    }
    Ok(program)
}

fn is_static(program: &Path) -> Result<bool> {
    // Of a program without a dynamic loader ldd says so, on either stream and with either status.
    let (said, _) = child::merged(Command::new("ldd").arg(program))?;
    Ok(said.contains("statically linked") || said.contains("not a dynamic executable"))
}

/// What a program needs of the machine that it runs on, and its size.
fn linkage(program: &Path) -> Result<String> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mib = bytes.len() as f64 / f64::from(1 << 20);
    let needs = if is_static(program)? {
        "statically linked, answers without NVML".to_owned()
    } else {
        match newest_glibc(&bytes) {
            Some((major, minor)) => format!("dynamically linked, runs with glibc {major}.{minor} or newer"),
            None => "dynamically linked".to_owned(),
        }
    };
    Ok(format!("{mib:.1} MiB, {needs}"))
}

/// The newest glibc symbol version named in a program: the linker records one for every symbol taken from glibc.
fn newest_glibc(program: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let named = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let versions = named.filter_map(|(at, _)| {
        let rest = &program[at + MARK.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        // The recorded names are whole strings; anything else is text that happens to mention one.
        (rest[end] == 0).then_some(())?;
        let mut fields = std::str::from_utf8(&rest[..end]).ok()?.split('.').map(str::parse);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_compared_as_numbers() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0"), Some((2, 34)));
    }

    #[test]
    fn private_and_mentioned_versions_do_not_count() {
        assert_eq!(
            newest_glibc(b"\0GLIBC_PRIVATE\0GLIBC_2.99 is text\0GLIBC_2.\0GLIBC_2.17\0GLIBC_"),
            Some((2, 17))
        );
        assert_eq!(newest_glibc(b"no glibc"), None);
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn this_program_is_dynamically_linked() {
        let this = std::env::current_exe().unwrap();
        assert!(!is_static(&this).unwrap());
        assert!(newest_glibc(&fs::read(this).unwrap()).is_some());
    }
}

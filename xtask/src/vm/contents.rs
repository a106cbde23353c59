//! What the guest consists of: its first process, the programs under test, the tools that tests call, the modules of
//! its kernel and the stand-in driver, and the plan of what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::kernel::Kernel;
use super::toolchain;
use super::tree::Tree;
use super::{modules, needs, systemd};
use crate::child;
use crate::workspace::Workspace;

/// Folder of the programs under test, in the guest.
pub(super) const PROGRAMS: &str = "/opt/gpu-tracer/bin";

/// Folder of the test programs, in the guest.
const TESTS: &str = "/opt/gpu-tracer/tests";

/// Where the stand-in NVML lies, in the guest: on no path that the loader searches by itself. `tests/vm/init.sh` points
/// programs at it when the stand-in driver is loaded.
const NVML: &str = "/opt/gpu-tracer/lib/libnvidia-ml.so.1";

/// Where tests that bring what NVML is to say look for the stand-in: beside themselves, as Cargo builds it.
const NVML_OF_TESTS: &str = "/opt/gpu-tracer/tests/libnvidia_ml.so";

/// What the stand-in NVML answers from: the stand-in driver.
const NVML_WORLD: (&str, &str) = (
    "/opt/gpu-tracer/lib/nvml.json",
    "{\"driver\": \"/proc/driver/standin-nvidia/memory\", \"information\": \"/proc/driver/nvidia/gpus\"}\n",
);

/// Programs of this machine, built or chosen, that go into every guest.
#[derive(Default)]
pub(crate) struct Programs {
    /// By the name under which they are found in the guest.
    pub(crate) programs: Vec<(String, PathBuf)>,
    /// Test programs.
    pub(crate) tests: Vec<(String, PathBuf)>,
    /// A stand-in `libnvidia-ml.so.1`.
    pub(crate) nvml: Option<PathBuf>,
}

/// What the guest does once it is up.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Which of its three kinds of work.
    pub(crate) mode: Mode,
    /// What its reports begin with.
    pub(crate) nonce: String,
    /// Only tests whose name contains this are run.
    pub(crate) filter: String,
    /// Seconds after which a test is killed.
    pub(crate) test_seconds: u64,
    /// Whether the stand-in driver is loaded before the work begins. A suite decides itself.
    pub(crate) driver: bool,
    /// Set for everything that runs in the guest.
    pub(crate) environment: Vec<(String, String)>,
}

/// What a guest is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Run all tests.
    Suite,
    /// Run one command.
    Command(Vec<String>),
    /// Give the person at the terminal a shell.
    Shell,
}

/// Writes the guest's files, for a kernel, into an initramfs. `work` is a folder for what is built on the way.
pub(crate) fn write_initramfs(
    workspace: &Workspace,
    kernel: &Kernel,
    programs: &Programs,
    plan: &Plan,
    work: &Path,
) -> Result<PathBuf> {
    let mut tree = Tree::default();
    add_system(&mut tree, workspace)?;
    systemd::add(&mut tree, workspace)?;
    add_modules(&mut tree, kernel)?;
    for module in toolchain::build_driver(workspace, kernel, &work.join("driver"))? {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tree.copy(&format!("vm/driver/{name}"), 0o644, &module);
    }
    for need in needs::guest_tools() {
        let file = child::find_program(&need.what)
            .with_context(|| format!("{} is not installed: run `cargo xtask setup`", need.what))?;
        tree.program(&file.to_string_lossy(), &file)?;
    }
    add_programs(&mut tree, programs, work)?;
    add_plan(&mut tree, plan);
    let initramfs = work.join("initramfs.cpio");
    tree.write(&initramfs)?;
    Ok(initramfs)
}

/// Compiles a C program of the stand-in driver for this machine; it runs in every guest.
pub(crate) fn compile(source: &Path, to: &Path) -> Result<()> {
    child::run_quietly(
        Command::new("cc").args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o"]).arg(to).arg(source),
    )
}

fn add_system(tree: &mut Tree, workspace: &Workspace) -> Result<()> {
    let busybox =
        child::find_program("busybox").context("busybox is not installed: run `cargo xtask setup`")?;
    tree.copy("bin/busybox", 0o755, &busybox);
    let sources = workspace.root().join("tests/vm");
    tree.copy("init", 0o755, &sources.join("init.sh"));
    tree.copy(&format!("{PROGRAMS}/standin-driver"), 0o755, &sources.join("standin-driver.sh"));
    // The kernel opens it before the first process can make any.
    tree.device("dev/console", 0o600, 5, 1);
    tree.device("dev/null", 0o666, 1, 3);
    for folder in ["proc", "sys", "tmp", "run", "mnt", "var", "root"] {
        tree.folder(folder);
    }
    tree.content(
        "etc/passwd",
        0o644,
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n",
    );
    tree.content("etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n");
    tree.content(NVML_WORLD.0, 0o644, NVML_WORLD.1);
    tree.copy("vm/cannot", 0o644, &sources.join("cannot.txt"));
    tree.content("etc/fstab", 0o644, "");
    tree.link("etc/mtab", "/proc/self/mounts");
    Ok(())
}

fn add_modules(tree: &mut Tree, kernel: &Kernel) -> Result<()> {
    let mut order = String::new();
    for module in modules::wanted(&kernel.modules())? {
        let file = format!("{}.ko", module.name);
        order += &format!("{file}\n");
        tree.content(&format!("vm/modules/{file}"), 0o644, module.content);
    }
    tree.content("vm/modules/order", 0o644, order);
    Ok(())
}

fn add_programs(tree: &mut Tree, programs: &Programs, work: &Path) -> Result<()> {
    let stripped = work.join("stripped");
    fs::create_dir_all(&stripped).with_context(|| format!("cannot create {}", stripped.display()))?;
    let placed = |folder: &'static str| {
        move |(name, file): &(String, PathBuf)| (format!("{folder}/{name}"), file.clone())
    };
    let all = programs.programs.iter().map(placed(PROGRAMS)).chain(programs.tests.iter().map(placed(TESTS)));
    for (path, file) in all.chain(programs.nvml.iter().map(|file| (NVML.to_owned(), file.clone()))) {
        if !is_elf(&file)? {
            tree.copy(&path, 0o755, &file);
            continue;
        }
        // Debugging information is most of a program, and the guest has little memory.
        let small = stripped.join(path.trim_start_matches('/').replace('/', "-"));
        child::run_quietly(Command::new("strip").args(["--strip-debug", "-o"]).arg(&small).arg(&file))?;
        tree.program(&path, &small)?;
    }
    tree.folder(TESTS);
    if programs.nvml.is_some() {
        tree.link(NVML_OF_TESTS, NVML);
    }
    Ok(())
}

fn is_elf(file: &Path) -> Result<bool> {
    use std::io::Read as _;
    let mut magic = [0; 4];
    let mut opened = fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    Ok(opened.read_exact(&mut magic).is_ok() && &magic == b"\x7fELF")
}

fn add_plan(tree: &mut Tree, plan: &Plan) {
    let mode = match &plan.mode {
        Mode::Suite => "suite",
        Mode::Command(_) => "command",
        Mode::Shell => "shell",
    };
    let driver = if plan.driver { "yes" } else { "no" };
    tree.content(
        "vm/plan",
        0o644,
        format!(
            "MODE={mode}\nNONCE={}\nFILTER={}\nTEST_SECONDS={}\nDRIVER={driver}\n",
            quoted(&plan.nonce),
            quoted(&plan.filter),
            plan.test_seconds
        ),
    );
    let variables = plan.environment.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    tree.content("vm/environment", 0o644, variables.collect::<String>());
    if let Mode::Command(words) = &plan.mode {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        tree.content("vm/command", 0o644, format!("exec {}\n", words.join(" ")));
    }
}

/// The variables by which tests find the programs.
pub(crate) fn environment() -> Vec<(String, String)> {
    [
        ("GPU_TRACER_VM", "1".to_owned()),
        ("GPU_TRACER_BIN", format!("{PROGRAMS}/gpu-tracer")),
        ("GPU_TRACER_SCENARIO_BIN", format!("{PROGRAMS}/scenario")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Reads `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String)> {
    let Some((name, value)) = text.split_once('=') else { bail!("`{text}` is not NAME=VALUE") };
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if name.is_empty() || !is_name {
        bail!("`{name}` is not the name of a variable");
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guests_shell_as_they_are() {
        for word in ["plain", "two words", "it's", "$(reboot)", "", "a\"b"] {
            let said =
                Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }

    #[test]
    fn variables_are_read_and_nothing_else_is() {
        assert_eq!(variable("A_1=b=c").unwrap(), ("A_1".into(), "b=c".into()));
        for wrong in ["A", "=b", "1A=b", "A B=c", "A;reboot=c"] {
            assert!(variable(wrong).is_err(), "{wrong}");
        }
    }
}

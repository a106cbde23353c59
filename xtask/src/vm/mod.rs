//! `cargo xtask vm`: the tests on the kernels of real distributions, in guests that QEMU emulates.
//!
//! A guest is a stock kernel ([`kernel`], fetched by [`archive`] from its distribution's [`sources`]) and one initramfs
//! ([`contents`], [`tree`], [`cpio`]): busybox, this machine's own tools and libraries, the programs under test, the kernel's modules
//! ([`modules`]) and the stand-in driver, which is built with that kernel's own compiler ([`toolchain`]). Nothing of
//! this machine is shared with a running guest. [`guest`] runs it and holds it to its deadlines; `tests/vm/init.sh` is
//! what runs inside.
//!
//! Test programs are the integration tests of `gpu-tracer-tests`. Those whose name begins with `vm_` run with the
//! stand-in driver loaded, in a guest beside that of all others ([`suite`]); those of `vm_reboot` in several boots with one disk
//! ([`disk`]), those of `vm_systemd` in one with systemd as first process ([`systemd`]).

mod archive;
mod build;
mod contents;
mod cpio;
mod disk;
mod emulator;
mod guest;
mod kernel;
mod modules;
mod needs;
mod protocol;
mod sources;
mod suite;
mod systemd;
mod toolchain;
mod tree;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::child;
use crate::workspace::Workspace;
use contents::{Mode, Plan, Programs};
use guest::Guest;
use kernel::{Kernel, LINES, Line};
pub(crate) use needs::{ensure_packages, packages};
use protocol::Verdict;

/// Where fetched kernels are kept instead of `target/vm/cache`.
const CACHE_VARIABLE: &str = "GPU_TRACER_VM_CACHE";

/// What one guest may take for all tests: an idle machine of two processors needs less than half of it.
const GUEST_SECONDS: u64 = 900;

/// What one test may take.
const TEST_SECONDS: u64 = 120;

/// Arguments of `vm`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kernel lines, or `all`.
    #[arg(
        long,
        value_name = "LINE,...",
        value_delimiter = ',',
        default_value = "6.1",
        value_parser = ["5.10", "5.15", "6.1", "6.8", "6.12", "7.2", "all"]
    )]
    kernel: Vec<String>,
    /// Run only tests whose name (`program::test`) contains this, or one of these with commas between them.
    #[arg(long, value_name = "FILTER,...", default_value = "", conflicts_with_all = ["shell", "command"])]
    test: String,
    /// Open a shell in the guest instead; it powers off when the shell ends, and Ctrl-A X ends it at once.
    #[arg(long, conflicts_with = "command")]
    shell: bool,
    /// Load the stand-in driver before the shell or the command.
    #[arg(long)]
    driver: bool,
    /// Test development builds, which are built faster and run slower.
    #[arg(long)]
    dev: bool,
    /// Build and run only what tests the stand-in driver by itself.
    #[arg(long)]
    driver_only: bool,
    /// Use this machine's hardware virtualisation: much faster where it works.
    #[arg(long)]
    kvm: bool,
    /// Have the guest's clock count instructions, one for each ns, on one processor: what is measured in it is then the same
    /// however busy this machine is. Everything takes longer.
    #[arg(long, conflicts_with = "kvm")]
    count: bool,
    /// Put this program or script into the guest as well, with its libraries; it is found by its name.
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// Set a variable for everything that runs in the guest.
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Seconds that one guest may take once it is up.
    #[arg(long, value_name = "SECONDS", default_value_t = GUEST_SECONDS)]
    deadline: u64,
    /// Seconds after which a test is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = TEST_SECONDS)]
    test_deadline: u64,
    /// Fetch the newest packages although the cache has a kernel of this line.
    #[arg(long)]
    refresh: bool,
    /// Only fetch the kernels and their compilers.
    #[arg(long)]
    fetch_only: bool,
    /// Run this command in the guest instead, and exit with its status.
    #[arg(last = true)]
    command: Vec<String>,
}

impl Arguments {
    /// All tests on these kernel lines.
    fn suite(kernels: &[&str]) -> Self {
        Self {
            kernel: kernels.iter().map(|kernel| (*kernel).to_owned()).collect(),
            test: String::new(),
            shell: false,
            driver: false,
            dev: false,
            driver_only: false,
            kvm: false,
            count: false,
            add: Vec::new(),
            env: Vec::new(),
            deadline: GUEST_SECONDS,
            test_deadline: TEST_SECONDS,
            refresh: false,
            fetch_only: false,
            command: Vec::new(),
        }
    }

    /// Is this line asked for?
    fn asks_for(&self, line: Line) -> bool {
        self.kernel.iter().any(|kernel| kernel == "all" || kernel == line.label)
    }

    fn mode(&self) -> Mode {
        match (self.shell, self.command.is_empty()) {
            (true, _) => Mode::Shell,
            (false, false) => Mode::Command(self.command.clone()),
            (false, true) => Mode::Suite,
        }
    }
}

/// Runs `vm`. A command's own exit status becomes that of this program.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let status = run_all(workspace, arguments)?;
    if status != 0 {
        std::process::exit(i32::from(status));
    }
    Ok(())
}

/// Runs all tests in guests of these kernel lines, one guest after the other.
pub(crate) fn suite(workspace: &Workspace, kernels: &[&str]) -> Result<()> {
    match run_all(workspace, &Arguments::suite(kernels))? {
        0 => Ok(()),
        _ => bail!("tests failed in guests"),
    }
}

/// Why no guest can be made here, if none can.
pub(crate) fn refusal() -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        Some("guests run kernels and compilers for x86-64, which this machine does not execute")
    } else if !child::is_root() {
        Some("putting a guest together takes root")
    } else if child::find_program("apt-get").is_none() {
        Some("kernels are fetched with apt, which is not on this machine")
    } else {
        None
    }
}

/// The greatest exit status of the guests.
fn run_all(workspace: &Workspace, arguments: &Arguments) -> Result<u8> {
    if !cfg!(target_arch = "x86_64") {
        bail!("guests run kernels and compilers for x86-64, which this machine does not execute");
    }
    ensure_packages()?;
    let folder = workspace.root().join("target/vm");
    let cache = std::env::var_os(CACHE_VARIABLE).map_or_else(|| folder.join("cache"), PathBuf::from);
    let cache = std::path::absolute(&cache).context("cannot find the current folder")?;
    let lines: Vec<Line> = LINES.into_iter().filter(|line| arguments.asks_for(*line)).collect();
    if lines.len() > 1 && arguments.mode() == Mode::Shell {
        bail!("a shell is in one guest: give --kernel");
    }
    if arguments.fetch_only {
        for line in lines {
            Kernel::fetch(line, &cache, arguments.refresh)?;
        }
        return Ok(0);
    }
    let programs = programs(workspace, arguments, &folder)?;
    let mut status = 0;
    let mut failures = Vec::new();
    for line in lines {
        match run(workspace, arguments, line, &cache, &programs, &folder.join(line.label)) {
            Ok(verdict) => status = status.max(verdict.status),
            Err(error) => {
                eprintln!("vm: {}: {error:#}", line.label);
                failures.push(line.label);
            }
        }
    }
    if !failures.is_empty() {
        bail!("no verdict from {}", failures.join(", "));
    }
    Ok(status)
}

fn programs(workspace: &Workspace, arguments: &Arguments, work: &Path) -> Result<Programs> {
    let mut programs = if arguments.driver_only {
        build::driver_programs(workspace, work)?
    } else {
        build::all(workspace, work, arguments.dev)?
    };
    for file in &arguments.add {
        let name = file.file_name().with_context(|| format!("{} is not a file", file.display()))?;
        programs.programs.push((name.to_string_lossy().into_owned(), file.clone()));
    }
    Ok(programs)
}

/// Runs one guest and says how it went.
fn run(
    workspace: &Workspace,
    arguments: &Arguments,
    line: Line,
    cache: &Path,
    programs: &Programs,
    work: &Path,
) -> Result<Verdict> {
    fs::create_dir_all(work).with_context(|| format!("cannot create {}", work.display()))?;
    let kernel = Kernel::fetch(line, cache, arguments.refresh)?;
    let plan = plan(arguments)?;
    let initramfs = contents::write_initramfs(workspace, &kernel, programs, &plan, work)?;
    let start = Instant::now();
    let console = work.join("console.log");
    let disk = disk::blank(&work.join("disk.img"))?;
    let guest = Guest {
        image: &kernel.image()?,
        initramfs: &initramfs,
        console: &console,
        nonce: &plan.nonce,
        shell: plan.mode == Mode::Shell,
        kvm: arguments.kvm,
        count: arguments.count,
        deadline: Duration::from_secs(arguments.deadline),
        silence: Duration::from_secs(arguments.test_deadline),
        disk: Some(&disk),
        stage: 1,
        init: "/init",
        part: None,
    };
    let verdict = match plan.mode {
        Mode::Suite => suite::run(&guest, &plan.filter)?,
        Mode::Command(_) | Mode::Shell => disk::run_all_boots(guest)?,
    };
    let seconds = start.elapsed().as_secs();
    match plan.mode {
        Mode::Suite if verdict.passed + verdict.failed == 0 => bail!("no test's name contains this filter"),
        Mode::Suite => println!(
            "vm {} ({}): {} passed, {} failed, {} ignored; {seconds} s",
            line.label, kernel.release, verdict.passed, verdict.failed, verdict.ignored
        ),
        Mode::Command(_) | Mode::Shell => eprintln!("vm: {} s, status {}", seconds, verdict.status),
    }
    Ok(verdict)
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let mut environment = contents::environment();
    for text in &arguments.env {
        environment.push(contents::variable(text)?);
    }
    Ok(Plan {
        mode: arguments.mode(),
        nonce: nonce()?,
        filter: arguments.test.clone(),
        test_seconds: arguments.test_deadline,
        driver: arguments.driver,
        environment,
    })
}

/// A word that nothing in the guest can know but its first process.
fn nonce() -> Result<String> {
    let mut bytes = [0; 8];
    let mut random = fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    random.read_exact(&mut bytes).context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

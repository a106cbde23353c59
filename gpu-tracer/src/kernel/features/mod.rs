//! What this kernel and this process can do, as far as can be told without loading a BPF program.
//!
//! Three answers, as they call for different remedies: *yes*; *no*, which takes another kernel; and *denied*, which takes
//! privilege, a mount or a setting. Everything is read from files under a root, so that tests can pretend any host.

mod capability;
mod module;
mod mounts;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use self::capability::{Capabilities, Capability};
pub use self::module::Module;
pub use self::mounts::Mount;

/// `PROC_CGROUP_INIT_INO`, `PROC_PID_INIT_INO`, `PROC_USER_INIT_INO`: inode numbers that only the initial namespaces have.
const INITIAL_CGROUP: u64 = 0xefff_fffb;
const INITIAL_PID: u64 = 0xefff_fffc;
const INITIAL_USER: u64 = 0xefff_fffd;

/// Does something work here?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It does.
    Yes,
    /// This kernel does not have it.
    No,
    /// It may be there and was refused. The text says why and what to do.
    Denied(String),
}

impl Answer {
    /// Is it [`Answer::Yes`]?
    #[must_use]
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }

    /// Whether the file or directory at `path` can be opened for reading; `remedy` ends the text of a refusal.
    fn readable(path: &Path, remedy: &str) -> Self {
        match std::fs::File::open(path) {
            Ok(_) => Self::Yes,
            Err(error) if error.kind() == ErrorKind::NotFound => Self::No,
            Err(error) => Self::Denied(format!("cannot read {}: {error}; {remedy}", path.display())),
        }
    }
}

/// The kernel's version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelVersion {
    /// As `uname -r` prints it.
    pub release: String,
    /// (major, minor, patch); zeros where the text has none.
    pub number: (u32, u32, u32),
}

impl KernelVersion {
    /// From `uname -r`'s text.
    #[must_use]
    pub fn parse(release: &str) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { release: release.to_owned(), number: (next(), next(), next()) }
    }

    /// That of the running kernel.
    #[must_use]
    pub fn running() -> Self {
        Self::parse(&rustix::system::uname().release().to_string_lossy())
    }

    /// Is it `major.minor` or later?
    #[must_use]
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.number.0, self.number.1) >= (major, minor)
    }
}

/// How far the kernel is locked against root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Not at all, or not built.
    None,
    /// Against modification. BPF programs that only read still work.
    Integrity,
    /// Against reading: no BPF program may read kernel memory, no kprobe may be placed.
    Confidentiality,
    /// securityfs is not mounted, or not readable: it shows when a program is refused.
    Unknown,
}

/// Which processes `/proc` shows to the unprivileged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HidePid {
    /// All.
    Off,
    /// All, but not what they do (`hidepid=1`).
    NoAccess,
    /// Only one's own (`hidepid=2`).
    Invisible,
    /// Only those that one may trace (`hidepid=4`).
    Ptraceable,
}

/// What this kernel and this process can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Version of the kernel.
    pub kernel: KernelVersion,
    /// The kernel's own type information (`CONFIG_DEBUG_INFO_BTF`, Linux 5.4). Without it no BPF program can be loaded.
    pub btf: Answer,
    /// Modules whose type information is there too (Linux 5.11), `nvidia` among them or not. Sorted.
    pub module_btf: Vec<String>,
    /// kprobes (`CONFIG_KPROBE_EVENTS`). Whether one can be placed is seen when it is tried.
    pub kprobes: Answer,
    /// Lockdown.
    pub lockdown: Lockdown,
    /// `kernel.unprivileged_bpf_disabled`: 0 allowed, 1 never until reboot, 2 not allowed. `None` without BPF.
    pub unprivileged_bpf_disabled: Option<u32>,
    /// Where a bpffs is mounted.
    pub bpffs: Option<PathBuf>,
    /// Where the whole cgroup v2 hierarchy is mounted, as far as this process's cgroup namespace goes.
    pub cgroup2: Option<PathBuf>,
    /// Effective capabilities. They count for the kernel only in the initial user namespace: ask [`Features::may`].
    pub capabilities: Capabilities,
    /// Are PIDs those of the host? `None` if it cannot be told.
    pub initial_pid_namespace: Option<bool>,
    /// Is root here root on the host?
    pub initial_user_namespace: Option<bool>,
    /// Is the root of [`Features::cgroup2`] the host's?
    pub initial_cgroup_namespace: Option<bool>,
    /// What `/proc` hides.
    pub hidepid: HidePid,
    /// io_uring, in whose tables descriptors can hide. Yes where it cannot be told (Linux 5.1 to 6.5).
    pub io_uring: Answer,
    /// Loaded modules; `None` without modules or where the list is not readable.
    pub modules: Option<Vec<Module>>,
}

impl Features {
    /// Looks at the host whose root is `root`: `/` but for tests.
    #[must_use]
    pub fn probe(root: &Path) -> Self {
        let mounts = Mount::read(root);
        let kernel =
            KernelVersion::parse(line(root, "proc/sys/kernel/osrelease").as_deref().unwrap_or_default());
        let status = std::fs::read(root.join("proc/self/status")).unwrap_or_default();
        Self {
            btf: Answer::readable(&root.join("sys/kernel/btf/vmlinux"), "run as root"),
            module_btf: module_btf(root),
            kprobes: kprobes(root),
            lockdown: lockdown(root),
            unprivileged_bpf_disabled: number(root, "proc/sys/kernel/unprivileged_bpf_disabled"),
            bpffs: mounts.iter().find(|mount| mount.kind == "bpf").map(|mount| mount.point.clone()),
            cgroup2: mounts
                .iter()
                .find(|mount| mount.kind == "cgroup2" && mount.root == Path::new("/"))
                .map(|mount| mount.point.clone()),
            capabilities: Capabilities::from_status(&String::from_utf8_lossy(&status)),
            initial_pid_namespace: is_namespace(root, "pid", INITIAL_PID),
            initial_user_namespace: is_namespace(root, "user", INITIAL_USER),
            initial_cgroup_namespace: is_namespace(root, "cgroup", INITIAL_CGROUP),
            hidepid: hidepid(&mounts),
            io_uring: io_uring(root, &kernel),
            modules: Module::read_all(root),
            kernel,
        }
    }

    /// May this process do what `capability` allows, on the host and not only in a user namespace of its own?
    #[must_use]
    pub fn may(&self, capability: Capability) -> Answer {
        let name = capability.name();
        if !self.capabilities.has(capability) {
            return Answer::Denied(format!("{name} is missing; run as root, or in a privileged container"));
        }
        match self.initial_user_namespace {
            Some(false) => Answer::Denied(format!(
                "{name} counts only inside this user namespace; run outside of it, or in a privileged container"
            )),
            // Where the namespace cannot be told the kernel will say so itself.
            Some(true) | None => Answer::Yes,
        }
    }

    /// The capability that loading tracing programs takes on this kernel, beside [`Capability::Perfmon`].
    #[must_use]
    pub fn bpf_capability(&self) -> Capability {
        if self.kernel.at_least(5, 8) { Capability::Bpf } else { Capability::SysAdmin }
    }

    /// The loaded module of this name.
    #[must_use]
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.as_ref()?.iter().find(|module| module.name == name)
    }
}

/// The file's text without surrounding space.
fn line(root: &Path, path: &str) -> Option<String> {
    let contents = std::fs::read(root.join(path)).ok()?;
    Some(String::from_utf8_lossy(&contents).trim().to_owned())
}

fn number(root: &Path, path: &str) -> Option<u32> {
    line(root, path)?.parse().ok()
}

fn module_btf(root: &Path) -> Vec<String> {
    let Ok(entries) = root.join("sys/kernel/btf").read_dir() else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "vmlinux")
        .collect();
    names.sort_unstable();
    names
}

/// tracefs says it where it is mounted and open to us; the list of event sources, which everybody may read, has a
/// `kprobe` from Linux 4.17.
fn kprobes(root: &Path) -> Answer {
    let sources = root.join("sys/bus/event_source/devices");
    let tracefs = ["sys/kernel/tracing/kprobe_events", "sys/kernel/debug/tracing/kprobe_events"];
    if sources.join("kprobe").exists() || tracefs.iter().any(|path| root.join(path).exists()) {
        return Answer::Yes;
    }
    match sources.read_dir() {
        Ok(_) => Answer::No,
        Err(error) => Answer::Denied(format!(
            "cannot tell: {} is not readable ({error}); mount tracefs at /sys/kernel/tracing and run as root",
            sources.display()
        )),
    }
}

fn lockdown(root: &Path) -> Lockdown {
    let security = root.join("sys/kernel/security");
    match line(root, "sys/kernel/security/lockdown") {
        Some(text) if text.contains("[none]") => Lockdown::None,
        Some(text) if text.contains("[integrity]") => Lockdown::Integrity,
        Some(text) if text.contains("[confidentiality]") => Lockdown::Confidentiality,
        Some(_) => Lockdown::Unknown,
        // An empty directory is a securityfs that is not mounted; one with entries and without this one, a kernel
        // without lockdown.
        None if security.join("lockdown").exists() => Lockdown::Unknown,
        None => match security.read_dir().map(|mut entries| entries.next().is_some()) {
            Ok(true) => Lockdown::None,
            Ok(false) | Err(_) => Lockdown::Unknown,
        },
    }
}

fn is_namespace(root: &Path, name: &str, initial: u64) -> Option<bool> {
    let target = std::fs::read_link(root.join("proc/self/ns").join(name)).ok()?;
    let inode = target.to_str()?.strip_prefix(name)?.strip_prefix(":[")?.strip_suffix(']')?;
    Some(inode.parse::<u64>().ok()? == initial)
}

fn hidepid(mounts: &[Mount]) -> HidePid {
    // What was mounted last covers what was there before.
    let proc = mounts.iter().rev().find(|mount| mount.kind == "proc" && mount.point == Path::new("/proc"));
    match proc.and_then(|mount| mount.option("hidepid")) {
        Some("1" | "noaccess") => HidePid::NoAccess,
        Some("2" | "invisible") => HidePid::Invisible,
        Some("4" | "ptraceable") => HidePid::Ptraceable,
        _ => HidePid::Off,
    }
}

fn io_uring(root: &Path, kernel: &KernelVersion) -> Answer {
    match number(root, "proc/sys/kernel/io_uring_disabled") {
        Some(0) => Answer::Yes,
        // Rings made before the switch was turned live on, and with 1 the privileged may make new ones.
        Some(_) => {
            Answer::Denied("kernel.io_uring_disabled is set; rings made earlier may still exist".to_owned())
        }
        None if !kernel.at_least(5, 1) || kernel.at_least(6, 6) => Answer::No,
        None => Answer::Yes,
    }
}

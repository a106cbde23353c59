//! The compiler and the linker that make the BPF object.
//!
//! The compiler must bring the sources of `core`, since no compiled `core` exists for the BPF target. Two kinds do: a
//! rustup toolchain with its `rust-src` component, and a distribution's compiler with its source package. Unstable
//! options are needed either way, so `RUSTC_BOOTSTRAP=1` makes a stable compiler serve as well as a nightly one.
//!
//! The linker, bpf-linker, must have been built with an LLVM at least as new as the compiler's: bitcode can be read by
//! a newer LLVM, not by an older one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::child;
use crate::rustc::{Release, RustcVersion};

/// The release of bpf-linker that is installed where none serves.
pub(crate) const LINKER_RELEASE: Release = Release(0, 13, 0);

/// The LLVM versions that this bpf-linker can be built with.
pub(crate) const LINKER_LLVMS: std::ops::RangeInclusive<u32> = 21..=23;

/// A compiler that can build `core` for the BPF target.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    /// The `rustc` itself, not a rustup proxy.
    pub(crate) rustc: PathBuf,
    /// The cargo of the same toolchain; `None` where it has none and the caller's serves.
    pub(crate) cargo: Option<PathBuf>,
    /// What it says of itself.
    pub(crate) version: RustcVersion,
}

/// A bpf-linker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Linker {
    /// The program.
    pub(crate) program: PathBuf,
    /// The LLVM that it was built with, where cargo's record says so. A downloaded program has no such record.
    pub(crate) llvm_major: Option<u32>,
}

impl Linker {
    /// Whether it reads what this compiler writes. One of unknown LLVM is given the benefit of the doubt: the link
    /// itself then tells.
    pub(crate) fn reads(&self, compiler: &Compiler) -> bool {
        self.llvm_major.is_none_or(|major| major >= compiler.version.llvm_major)
    }
}

/// A compiler and a linker that fit each other.
#[derive(Debug, Clone)]
pub(crate) struct Toolchain {
    /// Builds `core` and our programs to bitcode.
    pub(crate) compiler: Compiler,
    /// Makes the object of it.
    pub(crate) linker: Linker,
}

impl Toolchain {
    /// The first compiler for which a linker is at hand; an error that names what is missing otherwise.
    pub(crate) fn find() -> Result<Self> {
        let compilers = compilers();
        if compilers.is_empty() {
            bail!("{}", no_compiler());
        }
        let linkers = linkers();
        Self::pair(&compilers, &linkers).with_context(|| match linkers.first() {
            None => format!("bpf-linker {LINKER_RELEASE} is not installed: run `cargo xtask setup`"),
            Some(linker) => format!(
                "{} was built with LLVM {}, and {} writes bitcode of LLVM {}: run `cargo xtask setup`",
                linker.program.display(),
                linker.llvm_major.unwrap_or_default(),
                compilers[0].rustc.display(),
                compilers[0].version.llvm_major
            ),
        })
    }

    fn pair(compilers: &[Compiler], linkers: &[Linker]) -> Option<Self> {
        compilers.iter().find_map(|compiler| {
            let linker = linkers.iter().find(|linker| linker.reads(compiler))?;
            Some(Self { compiler: compiler.clone(), linker: linker.clone() })
        })
    }
}

/// Every compiler here that can build for the BPF target, the preferred one first: `GPU_TRACER_BPF_RUSTC`, rustup's
/// nightly, rustup's others, the distribution's.
pub(crate) fn compilers() -> Vec<Compiler> {
    let mut found = Vec::new();
    if let Some(chosen) = env::var_os("GPU_TRACER_BPF_RUSTC").map(PathBuf::from) {
        found.extend(sysroot_of(&chosen).and_then(|sysroot| compiler(&chosen, &sysroot)));
    }
    for toolchain in rustup_toolchains() {
        found.extend(compiler(&toolchain.join("bin/rustc"), &toolchain));
    }
    let distribution = Path::new("/usr/bin/rustc");
    // rustup may have put its proxy there.
    if !is_rustup_proxy(distribution) {
        found.extend(sysroot_of(distribution).and_then(|sysroot| compiler(distribution, &sysroot)));
    }
    found
}

/// What to do where [`compilers`] is empty.
pub(crate) fn no_compiler() -> String {
    let oldest = Release::oldest_allowed();
    format!(
        "no compiler here can build for the BPF target: one of release {oldest} or newer with the sources of the \
         standard library is needed. Either of these provides it:\n\
         \x20   rustup toolchain install nightly --profile minimal --component rust-src\n\
         \x20   apt-get install rustc-web rust-web-src      (Debian, as root)\n\
         or set GPU_TRACER_BPF_RUSTC to such a compiler's path."
    )
}

fn compiler(rustc: &Path, sysroot: &Path) -> Option<Compiler> {
    if !has_core_sources(sysroot) || !child::is_executable(rustc) {
        return None;
    }
    let version = RustcVersion::of(rustc).ok()?;
    let cargo = sysroot.join("bin/cargo");
    (version.release >= Release::oldest_allowed()).then(|| Compiler {
        rustc: rustc.to_owned(),
        cargo: (child::is_executable(&cargo) && !is_rustup_proxy(&cargo)).then_some(cargo),
        version,
    })
}

fn has_core_sources(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
}

fn sysroot_of(rustc: &Path) -> Option<PathBuf> {
    let printed = child::stdout(Command::new(rustc).args(["--print", "sysroot"])).ok()?;
    Some(PathBuf::from(printed.trim()))
}

fn is_rustup_proxy(program: &Path) -> bool {
    fs::canonicalize(program).is_ok_and(|real| real.file_name().is_some_and(|name| name == "rustup"))
}

/// The folders of rustup's toolchains, nightly first. Read from the file system: rustup itself may want the network.
fn rustup_toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    let Some(folder) = home.map(|home| home.join("toolchains")) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut toolchains: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // Dated nightlies sort before plain `nightly-<host>`; the plain one is the one that people keep current.
    toolchains.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let dated =
            name.strip_prefix("nightly-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        (!name.starts_with("nightly"), dated, name)
    });
    toolchains
}

/// Every bpf-linker at hand whose release serves: the one that cargo installed, then the first on `PATH`.
pub(crate) fn linkers() -> Vec<Linker> {
    let home = cargo_home();
    let installed = home.as_ref().map(|home| home.join("bin/bpf-linker"));
    let on_path = child::find_program("bpf-linker").filter(|program| installed.as_ref() != Some(program));
    let record = home.and_then(|home| fs::read_to_string(home.join(".crates2.json")).ok());
    let mut found = Vec::new();
    if let Some(program) = installed.filter(|program| is_recent_linker(program)) {
        found.push(Linker { program, llvm_major: record.and_then(|record| recorded_llvm(&record)) });
    }
    if let Some(program) = on_path.filter(|program| is_recent_linker(program)) {
        found.push(Linker { program, llvm_major: None });
    }
    found
}

fn is_recent_linker(program: &Path) -> bool {
    child::is_executable(program)
        && child::stdout(Command::new(program).arg("--version"))
            .is_ok_and(|said| said.split_whitespace().last().and_then(Release::parse) >= Some(LINKER_RELEASE))
}

/// Where `cargo install` puts programs and keeps its record of them.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
}

/// The LLVM feature that cargo's record (`.crates2.json`) says bpf-linker was installed with.
fn recorded_llvm(record: &str) -> Option<u32> {
    let record: serde_json::Value = serde_json::from_str(record).ok()?;
    let (_, entry) =
        record.get("installs")?.as_object()?.iter().find(|(name, _)| name.starts_with("bpf-linker "))?;
    let feature = |value: &serde_json::Value| value.as_str()?.strip_prefix("llvm-")?.parse().ok();
    entry.get("features")?.as_array()?.iter().find_map(feature)
}

/// Builds and installs bpf-linker for this compiler from the distribution's LLVM.
pub(crate) fn install_linker(compiler: &Compiler) -> Result<()> {
    let major = compiler.version.llvm_major;
    child::run_quietly(
        child::cargo()
            .args(["install", "bpf-linker", "--version", &LINKER_RELEASE.to_string(), "--locked", "--force"])
            .args(["--no-default-features", "--features", &format!("llvm-{major}")])
            .env(format!("LLVM_SYS_{major}1_PREFIX"), llvm_prefix(major))
            .env("LLVM_PREFIX", llvm_prefix(major))
            // Else it would be built for the target or with the flags that somebody set for their own program.
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS"),
    )
    .context("bpf-linker could not be built")
}

/// Where the distribution's LLVM of this version lies.
pub(crate) fn llvm_prefix(major: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{major}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler_of_llvm(llvm_major: u32) -> Compiler {
        let version = RustcVersion { release: Release(1, 96, 0), llvm_major, text: String::new() };
        Compiler { rustc: "/usr/bin/rustc".into(), cargo: None, version }
    }

    #[test]
    fn cargos_record_tells_the_linkers_llvm() {
        let record = r#"{"installs":{"cargo-deny 0.18.0 (registry+x)":{"features":["llvm-1"]},
            "bpf-linker 0.13.0 (registry+x)":{"bins":["bpf-linker"],"features":["llvm-link-static","llvm-22"]}}}"#;
        assert_eq!(recorded_llvm(record), Some(22));
    }

    #[test]
    fn a_record_without_the_linker_tells_nothing() {
        for record in
            ["", "{}", r#"{"installs":[]}"#, r#"{"installs":{"bpf-linker 0.13.0":{"features":[]}}}"#]
        {
            assert_eq!(recorded_llvm(record), None, "{record}");
        }
    }

    #[test]
    fn a_linker_reads_bitcode_of_its_own_llvm_and_of_older_ones() {
        let linker = |llvm_major| Linker { program: "bpf-linker".into(), llvm_major };
        assert!(linker(Some(22)).reads(&compiler_of_llvm(22)));
        assert!(linker(Some(23)).reads(&compiler_of_llvm(22)));
        assert!(!linker(Some(21)).reads(&compiler_of_llvm(22)));
        assert!(linker(None).reads(&compiler_of_llvm(22)));
    }

    #[test]
    fn the_first_compiler_with_a_fitting_linker_is_taken() {
        let linker = Linker { program: "bpf-linker".into(), llvm_major: Some(22) };
        let compilers = [compiler_of_llvm(24), compiler_of_llvm(22), compiler_of_llvm(21)];
        let pair = Toolchain::pair(&compilers, std::slice::from_ref(&linker)).unwrap();
        assert_eq!((pair.compiler.version.llvm_major, &pair.linker), (22, &linker));
        assert!(Toolchain::pair(&compilers[..1], &[linker]).is_none());
    }

    #[test]
    fn a_toolchain_without_the_sources_of_core_is_no_candidate() {
        let folder = env::temp_dir().join(format!("xtask-toolchain-{}", std::process::id()));
        let library = folder.join("lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&library).unwrap();
        assert!(!has_core_sources(&folder));
        fs::write(library.join("lib.rs"), "").unwrap();
        assert!(has_core_sources(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }
}

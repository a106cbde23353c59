//! What a Rust compiler says of itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::child;

/// A release number, compared field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Release {
    /// Reads `1.96.0`, `1.97.0-nightly` or `1.95`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+', '~']).next()?;
        let mut fields = numbers.split('.').map(|field| field.parse::<u32>().ok());
        let release = Self(fields.next()??, fields.next()??, fields.next().unwrap_or(Some(0))?);
        fields.next().is_none().then_some(release)
    }

    /// The oldest compiler that the workspace's `rust-version` allows.
    pub(crate) fn oldest_allowed() -> Self {
        // The attribute is this project's own, checked by `the_workspace_states_its_rust_version`.
        Self::parse(env!("CARGO_PKG_RUST_VERSION")).unwrap_or(Self(1, 95, 0))
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The answer to `rustc -vV`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RustcVersion {
    /// The compiler's release, without its channel.
    pub(crate) release: Release,
    /// The major version of the LLVM that it writes bitcode with.
    pub(crate) llvm_major: u32,
    /// The whole answer, which identifies the compiler.
    pub(crate) text: String,
}

impl RustcVersion {
    /// Reads what `rustc -vV` printed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .map(str::trim)
                .with_context(|| format!("`rustc -vV` has no line `{name}: ...`"))
        };
        let release = field("release")?;
        let llvm = field("LLVM version")?;
        Ok(Self {
            release: Release::parse(release).with_context(|| format!("not a release number: `{release}`"))?,
            llvm_major: llvm
                .split('.')
                .next()
                .and_then(|major| major.parse().ok())
                .with_context(|| format!("not an LLVM version: `{llvm}`"))?,
            text: text.to_owned(),
        })
    }

    /// Asks a compiler.
    pub(crate) fn of(rustc: &Path) -> Result<Self> {
        Self::parse(&child::stdout(Command::new(rustc).arg("-vV"))?)
    }
}

/// Fails with what to do when the cargo in use is older than the workspace allows.
pub(crate) fn check_cargo() -> Result<()> {
    let said = child::stdout(child::cargo().arg("--version"))?;
    let oldest = Release::oldest_allowed();
    match said.split_whitespace().nth(1).and_then(Release::parse) {
        Some(release) if release >= oldest => Ok(()),
        _ => bail!(
            "this workspace needs cargo and rustc {oldest} or newer, and `cargo --version` says `{}`\n\
             install one with `rustup toolchain install {oldest}`, or from your distribution",
            said.trim()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\n\
        commit-hash: ac68faa20c58cbccd01ee7208bf3b6e93a7d7f96\ncommit-date: 2026-05-25\n\
        host: x86_64-unknown-linux-gnu\nrelease: 1.96.0\nLLVM version: 22.1.8\n";

    #[test]
    fn a_distribution_compiler_is_read() {
        let version = RustcVersion::parse(DEBIAN).unwrap();
        assert_eq!(version.release, Release(1, 96, 0));
        assert_eq!(version.llvm_major, 22);
        assert_eq!(version.text, DEBIAN);
    }

    #[test]
    fn a_nightly_compiler_is_read() {
        let text =
            DEBIAN.replace("release: 1.96.0", "release: 1.101.0-nightly").replace("22.1.8", "23.0.0-rust");
        let version = RustcVersion::parse(&text).unwrap();
        assert_eq!((version.release, version.llvm_major), (Release(1, 101, 0), 23));
    }

    #[test]
    fn an_answer_without_llvm_is_refused_by_name() {
        let text = DEBIAN.replace("LLVM version", "backend");
        let error = RustcVersion::parse(&text).unwrap_err().to_string();
        assert!(error.contains("LLVM version"), "{error}");
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(Release::parse("1.100.0") > Release::parse("1.95.9"));
        assert_eq!(Release::parse("1.95"), Some(Release(1, 95, 0)));
        assert_eq!(Release::parse("1.96.0+dfsg1-1~deb12u2"), Some(Release(1, 96, 0)));
        for wrong in ["", "1", "one.two", "1.2.3.4", "1..2"] {
            assert_eq!(Release::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_workspace_states_its_rust_version() {
        assert!(
            Release::parse(env!("CARGO_PKG_RUST_VERSION")).is_some(),
            "{}",
            env!("CARGO_PKG_RUST_VERSION")
        );
    }
}

//! What must be on the machine, and how Debian and its relatives provide it.
//!
//! Whether a thing is there is decided by looking at the file that it is needed for, never by asking the package
//! manager: that is fast, and right on any distribution.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::child;

/// A thing that must be on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    /// What to look for: a program's name, or a file's absolute path.
    pub(crate) what: String,
    /// The Debian package that brings it.
    pub(crate) package: String,
}

impl Need {
    /// A program that is looked for by name.
    pub(crate) fn program(name: &str, package: &str) -> Self {
        Self { what: name.to_owned(), package: package.to_owned() }
    }

    /// A file at a fixed place.
    pub(crate) fn file(path: &str, package: &str) -> Self {
        Self { what: path.to_owned(), package: package.to_owned() }
    }

    /// Whether it is there.
    pub(crate) fn is_met(&self) -> bool {
        if self.what.starts_with('/') {
            Path::new(&self.what).exists()
        } else {
            child::find_program(&self.what).is_some()
        }
    }
}

/// Those that are not there, each once.
pub(crate) fn unmet(needs: impl IntoIterator<Item = Need>) -> Vec<Need> {
    let mut missing: Vec<Need> = Vec::new();
    for need in needs {
        if !missing.contains(&need) && !need.is_met() {
            missing.push(need);
        }
    }
    missing
}

/// Installs the packages of what is missing, and checks that this helped. Does nothing when nothing is missing.
///
/// Fails, naming each missing thing and the command that would provide it, where it may not or cannot install.
pub(crate) fn provide(needs: impl IntoIterator<Item = Need>) -> Result<()> {
    let missing = unmet(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package.as_str()).collect();
    packages.sort_unstable();
    packages.dedup();
    let list =
        missing.iter().map(|need| format!("{} ({})", need.what, need.package)).collect::<Vec<_>>().join(", ");
    let command = format!("apt-get install -y {}", packages.join(" "));
    if child::find_program("apt-get").is_none() {
        bail!(
            "missing: {list}\nThere is no apt-get here: install these with this system's package manager (the names \
             in parentheses are Debian's)."
        );
    }
    if !child::is_root() {
        bail!("missing: {list}\nNot root, so not installed. As root: {command}");
    }
    install(&packages).with_context(|| format!("missing: {list}"))?;
    let still = unmet(missing);
    if let Some(need) = still.first() {
        bail!("package {} is installed, and {} is still not there", need.package, need.what);
    }
    Ok(())
}

/// Whether the package lists, brought up to date, offer a version of the package that `serves`.
pub(crate) fn offers(package: &str, serves: impl Fn(&str) -> bool) -> bool {
    if child::find_program("apt-cache").is_none() {
        return false;
    }
    child::stdout(Command::new("apt-cache").args(["madison", package]))
        .is_ok_and(|listed| versions(&listed).any(serves))
}

/// The versions in what `apt-cache madison` prints: `package | version | source`.
fn versions(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim)
}

/// Brings the package lists up to date.
pub(crate) fn update() -> Result<()> {
    child::run_quietly(apt_get().arg("update"))
}

/// Installs packages, or newer versions of them.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    println!("setup: installing {}", packages.join(" "));
    let attempt =
        || child::run_quietly(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages));
    // Lists that are absent or old are the usual reason for a failure, and bringing them up to date takes a while.
    attempt().or_else(|_| {
        update()?;
        attempt()
    })
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-o", "DPkg::Lock::Timeout=300"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_there_is_unmet() {
        let absent = [Need::program("no-such-program", "p1"), Need::file("/no/such/file", "p2")];
        let present = [Need::program("sh", "dash"), Need::file("/", "base-files")];
        assert_eq!(unmet(present.into_iter().chain(absent.clone())), absent);
    }

    #[test]
    fn nothing_missing_is_no_work() {
        provide([Need::program("sh", "a-package-that-does-not-exist")]).unwrap();
    }

    #[test]
    fn offered_versions_are_read() {
        let listed = " rustc-web | 1.96.0+dfsg1-1~deb12u2 | http://x bookworm-security/main amd64 Packages\n \
                      rustc-web | 1.85.0+dfsg3-1 | http://x bookworm/main amd64 Packages\n";
        assert_eq!(versions(listed).collect::<Vec<_>>(), ["1.96.0+dfsg1-1~deb12u2", "1.85.0+dfsg3-1"]);
    }
}

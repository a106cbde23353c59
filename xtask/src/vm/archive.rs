//! Packages of releases other than this machine's, fetched with this machine's apt, without touching what apt knows of
//! this machine: lists and downloads lie in a private folder, and apt is told that nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::child;

/// A package, as apt would install it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    version: String,
    architecture: String,
}

impl Package {
    /// The name that apt gives the downloaded file.
    fn file(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }
}

/// One release's packages.
pub(crate) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// The packages of these sources, as apt's list has them; `folder` keeps the lists and downloads. Fetches the lists.
    pub(crate) fn open(folder: &Path, sources: &str) -> Result<Self> {
        let archive = Self { folder: folder.to_owned() };
        for part in ["state/lists/partial", "cache/archives/partial", "downloads"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot create {}", folder.join(part).display()))?;
        }
        let lists = folder.join("sources.list");
        fs::write(&lists, sources).with_context(|| format!("cannot write {}", lists.display()))?;
        fs::write(folder.join("state/status"), "").context("cannot write apt's private state")?;
        child::run_quietly(archive.apt("apt-get").args(["-q", "update"]))?;
        Ok(archive)
    }

    /// What apt would install on an empty machine to have these packages.
    pub(crate) fn closure(&self, packages: &[&str]) -> Result<Vec<Package>> {
        let said =
            child::stdout(self.apt("apt-get").args(["-q", "-y", "--simulate", "install"]).args(packages))?;
        Ok(said.lines().filter_map(installed_by).collect())
    }

    /// Whether there is such a package.
    pub(crate) fn has(&self, package: &str) -> bool {
        self.apt("apt-cache").args(["show", package]).output().is_ok_and(|output| output.status.success())
    }

    /// Downloads packages and what they need.
    pub(crate) fn fetch_closure(&self, packages: &[&str], closure: &[Package]) -> Result<Vec<PathBuf>> {
        child::run_quietly(
            self.apt("apt-get").args(["-q", "-y", "--download-only", "install"]).args(packages),
        )?;
        let folder = self.folder.join("cache/archives");
        closure.iter().map(|package| expect_file(folder.join(package.file()))).collect()
    }

    /// Downloads packages without what they need.
    pub(crate) fn fetch(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let folder = self.folder.join("downloads");
        child::run_quietly(self.apt("apt-get").args(["-q", "download"]).args(packages).current_dir(&folder))?;
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        packages
            .iter()
            .map(|package| {
                let belongs = |file: &&PathBuf| {
                    file.file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{package}_")))
                };
                files
                    .iter()
                    .find(belongs)
                    .cloned()
                    .with_context(|| format!("apt did not download {package} to {}", folder.display()))
            })
            .collect()
    }

    /// Removes lists and downloads, once what was wanted is unpacked.
    pub(crate) fn clean(&self) {
        // What stays behind costs space and nothing else.
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn apt(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        let mut set = |name: &str, value: &str| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        let path = |part: &str| self.folder.join(part).to_string_lossy().into_owned();
        set("Dir::State", &path("state"));
        set("Dir::State::status", &path("state/status"));
        set("Dir::Cache", &path("cache"));
        set("Dir::Cache::archives", "archives");
        set("Dir::Etc::sourcelist", &path("sources.list"));
        for part in ["sourceparts", "preferences", "preferencesparts"] {
            set(&format!("Dir::Etc::{part}"), "/dev/null");
        }
        set("APT::Architecture", "amd64");
        set("APT::Architectures", "amd64");
        set("APT::Install-Recommends", "false");
        set("Acquire::Languages", "none");
        set("Acquire::Retries", "3");
        // Lists for package browsers, of no use here.
        set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false");
        // An old release's lists are no longer renewed.
        set("Acquire::Check-Valid-Until", "false");
        // apt's own user may not be allowed into this folder.
        set("APT::Sandbox::User", "root");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

fn expect_file(file: PathBuf) -> Result<PathBuf> {
    if file.is_file() {
        return Ok(file);
    }
    bail!("apt did not download {}", file.display())
}

/// Reads a line of a simulation: `Inst name (version origins... [architecture])`.
fn installed_by(line: &str) -> Option<Package> {
    let (name, details) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let (version, _) = details.split_once(' ')?;
    let (_, architecture) = details.split_once('[')?;
    let (architecture, _) = architecture.split_once(']')?;
    Some(Package {
        name: name.to_owned(),
        version: version.to_owned(),
        architecture: architecture.to_owned(),
    })
}

/// Unpacks packages into a folder, but for the paths that match `excluded` (as tar's `--exclude`).
pub(crate) fn unpack(packages: &[PathBuf], into: &Path, excluded: &[&str]) -> Result<()> {
    for package in packages {
        let mut reader = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(package)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `dpkg-deb`")?;
        let mut tar = Command::new("tar");
        // Packages of one release disagree on whether /lib is a folder or a link to one.
        tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(into);
        tar.args(excluded.iter().map(|pattern| format!("--exclude={pattern}")));
        if let Some(content) = reader.stdout.take() {
            tar.stdin(content);
        }
        let unpacked = child::run_quietly(&mut tar);
        // Closes our copy of the pipe, so that a reader without a tar ends as well.
        drop(tar);
        let read = reader.wait()?;
        unpacked.with_context(|| format!("cannot unpack {}", package.display()))?;
        if !read.success() {
            bail!("`dpkg-deb --fsys-tarfile {}` failed ({read})", package.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_a_simulation() {
        let package =
            installed_by("Inst libc6 (2.31-13+deb11u11 Debian:11/oldoldstable [amd64]) []").unwrap();
        assert_eq!(package.file(), "libc6_2.31-13+deb11u11_amd64.deb");
        let package = installed_by("Inst debconf (1:1.5 Debian:11/x, Debian:sec/x [all])").unwrap();
        assert_eq!(package.file(), "debconf_1%3a1.5_all.deb");
        assert_eq!(installed_by("Conf libc6 (2.31-13 Debian:11/x [amd64])"), None);
    }
}

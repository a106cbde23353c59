//! Packages of Debian releases other than this machine's, fetched with this machine's apt from the mirror that it uses
//! already, without touching what apt knows of this machine: lists and downloads lie in a private folder, and apt is
//! told that nothing is installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::child;
use crate::debian;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Names the mirror where apt's own sources do not: a URI, then if wanted that of the security archive.
const MIRROR_VARIABLE: &str = "GPU_TRACER_DEBIAN_MIRROR";

/// Where packages come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    main: String,
    security: Option<String>,
}

impl Mirror {
    /// The one that this machine's apt uses for Debian.
    pub(crate) fn of_this_machine() -> Result<Self> {
        if let Ok(named) = env::var(MIRROR_VARIABLE) {
            let mut words = named.split_whitespace().map(str::to_owned);
            let main = words.next().with_context(|| format!("{MIRROR_VARIABLE} is empty"))?;
            return Ok(Self { main, security: words.next() });
        }
        if let Some(mirror) = Self::in_targets(&targets()?) {
            return Ok(mirror);
        }
        // Whose packages a source has is known only once its lists were fetched.
        debian::update()?;
        Self::in_targets(&targets()?).with_context(|| {
            format!(
                "apt's sources on this machine name no Debian mirror: set {MIRROR_VARIABLE} to the URI of one"
            )
        })
    }

    fn in_targets(targets: &str) -> Option<Self> {
        let labelled = |wanted: &str| {
            targets
                .lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(_, of)| *of == wanted)
                .map(|(uri, _)| uri.to_owned())
        };
        Some(Self { main: labelled("Debian Debian")?, security: labelled("Debian Debian-Security") })
    }
}

/// The URI, origin and label of each of apt's sources.
fn targets() -> Result<String> {
    let format = "$(REPO_URI) $(ORIGIN) $(LABEL)";
    child::stdout(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))
}

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
    /// The packages of a release; `folder` keeps the lists and downloads. Fetches the lists.
    pub(crate) fn open(folder: &Path, mirror: &Mirror, suite: &str, security: bool) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is not there, so packages cannot be verified: install debian-archive-keyring");
        }
        let archive = Self { folder: folder.to_owned() };
        for part in ["state/lists/partial", "cache/archives/partial", "downloads"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot create {}", folder.join(part).display()))?;
        }
        let mut sources = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror.main);
        if let (true, Some(uri)) = (security, &mirror.security) {
            sources += &format!("deb [signed-by={KEYRING}] {uri} {suite}-security main\n");
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

    /// Removes what was downloaded, once it is unpacked.
    pub(crate) fn clean(&self) {
        // What stays behind costs space and nothing else.
        let _ = fs::remove_dir_all(self.folder.join("cache"));
        let _ = fs::remove_dir_all(self.folder.join("downloads"));
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
    fn the_mirror_is_the_one_that_has_debian_and_not_a_vendors() {
        let targets = "http://a.test/tools/ Vendor Vendor\nhttp://b.test/sec/ Debian Debian-Security\n\
                       http://b.test/debian/ Debian Debian\n";
        let expected =
            Mirror { main: "http://b.test/debian/".into(), security: Some("http://b.test/sec/".into()) };
        assert_eq!(Mirror::in_targets(targets), Some(expected));
        assert_eq!(Mirror::in_targets("http://a.test/u Ubuntu Ubuntu\n"), None);
        assert_eq!(Mirror::in_targets("http://a.test/u $(ORIGIN) $(LABEL)\n"), None);
    }

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

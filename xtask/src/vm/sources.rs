//! Where the packages of a release come from, and whose signatures they bear.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::archive::{self, Archive};
use crate::child;
use crate::debian;

/// Names the mirror of Debian where apt's own sources do not: a URI, then if wanted that of the security archive.
const DEBIAN_VARIABLE: &str = "GPU_TRACER_DEBIAN_MIRROR";
/// Names the mirror of Ubuntu that is used instead of that of apt's own sources, or of Ubuntu's own.
const UBUNTU_VARIABLE: &str = "GPU_TRACER_UBUNTU_MIRROR";
const UBUNTU_ARCHIVE: &str = "http://archive.ubuntu.com/ubuntu";

const DEBIAN_KEYS: &str = "usr/share/keyrings/debian-archive-keyring.gpg";
const UBUNTU_KEYS: &str = "usr/share/keyrings/ubuntu-archive-keyring.gpg";

/// Who has Ubuntu's keys for machines that are not Ubuntu.
const KEYS_FROM: Release = Release { vendor: Vendor::Debian, suite: "trixie", security: false };
const KEYS_PACKAGE: &str = "ubuntu-keyring";

/// Who publishes a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Debian,
    Ubuntu,
}

/// A release of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    /// Whose it is.
    pub(crate) vendor: Vendor,
    /// Its name in the archive.
    pub(crate) suite: &'static str,
    /// Whether it has security updates apart from its own packages.
    pub(crate) security: bool,
}

impl Release {
    /// The lines of apt's list of sources for it. `cache` keeps keys that this machine does not have.
    pub(crate) fn sources(self, cache: &Path) -> Result<String> {
        let (keys, pockets) = match self.vendor {
            Vendor::Debian => (debian_keys()?, self.pockets_of_debian(&Mirror::of_debian()?)),
            Vendor::Ubuntu => (ubuntu_keys(cache)?, self.pockets_of_ubuntu(&ubuntu_mirror())),
        };
        let line = |(uri, suite): &(String, String)| {
            format!("deb [signed-by={}] {uri} {suite} main\n", keys.display())
        };
        Ok(pockets.iter().map(line).collect())
    }

    /// (URI, suite) of what belongs to it.
    fn pockets_of_debian(self, mirror: &Mirror) -> Vec<(String, String)> {
        let security = mirror.security.as_ref().filter(|_| self.security);
        let security = security.map(|uri| (uri.clone(), format!("{}-security", self.suite)));
        [(mirror.main.clone(), self.suite.to_owned())].into_iter().chain(security).collect()
    }

    /// Likewise. Ubuntu's main archive has its security updates as well.
    fn pockets_of_ubuntu(self, uri: &str) -> Vec<(String, String)> {
        let pockets: &[&str] = if self.security { &["", "-updates", "-security"] } else { &[""] };
        pockets.iter().map(|pocket| (uri.to_owned(), format!("{}{pocket}", self.suite))).collect()
    }
}

fn debian_keys() -> Result<PathBuf> {
    let keys = Path::new("/").join(DEBIAN_KEYS);
    if !keys.exists() {
        bail!(
            "{} is not there, so packages cannot be verified: install debian-archive-keyring",
            keys.display()
        );
    }
    Ok(keys)
}

/// This machine's, or those that Debian has in a package.
fn ubuntu_keys(cache: &Path) -> Result<PathBuf> {
    let of_this_machine = Path::new("/").join(UBUNTU_KEYS);
    if of_this_machine.exists() {
        return Ok(of_this_machine);
    }
    let folder = cache.join("ubuntu-keys");
    let keys = folder.join(UBUNTU_KEYS);
    if !keys.exists() {
        let archive = Archive::open(&folder.join("apt"), &KEYS_FROM.sources(cache)?)
            .context("cannot fetch the keys of Ubuntu's archive from Debian")?;
        archive::unpack(&archive.fetch(&[KEYS_PACKAGE.to_owned()])?, &folder, &[])?;
        archive.clean();
    }
    if !keys.exists() {
        bail!("package {KEYS_PACKAGE} does not bring {UBUNTU_KEYS}");
    }
    Ok(keys)
}

fn ubuntu_mirror() -> String {
    let named = env::var(UBUNTU_VARIABLE).ok();
    let of_this_machine = || labelled(&targets().ok()?, "Ubuntu Ubuntu");
    named.or_else(of_this_machine).unwrap_or_else(|| UBUNTU_ARCHIVE.to_owned())
}

/// Where Debian's packages come from.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    main: String,
    security: Option<String>,
}

impl Mirror {
    /// The one that this machine's apt uses.
    fn of_debian() -> Result<Self> {
        if let Ok(named) = env::var(DEBIAN_VARIABLE) {
            let mut words = named.split_whitespace().map(str::to_owned);
            let main = words.next().with_context(|| format!("{DEBIAN_VARIABLE} is empty"))?;
            return Ok(Self { main, security: words.next() });
        }
        if let Some(mirror) = Self::in_targets(&targets()?) {
            return Ok(mirror);
        }
        // Whose packages a source has is known only once its lists were fetched.
        debian::update()?;
        Self::in_targets(&targets()?).with_context(|| {
            format!(
                "apt's sources on this machine name no Debian mirror: set {DEBIAN_VARIABLE} to the URI of one"
            )
        })
    }

    fn in_targets(targets: &str) -> Option<Self> {
        let main = labelled(targets, "Debian Debian")?;
        Some(Self { main, security: labelled(targets, "Debian Debian-Security") })
    }
}

/// The URI, origin and label of each of apt's sources.
fn targets() -> Result<String> {
    let format = "$(REPO_URI) $(ORIGIN) $(LABEL)";
    child::stdout(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))
}

/// The URI of the first that has this origin and label.
fn labelled(targets: &str, wanted: &str) -> Option<String> {
    let mut sources = targets.lines().filter_map(|line| line.split_once(' '));
    sources.find(|(_, of)| *of == wanted).map(|(uri, _)| uri.to_owned())
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
        assert_eq!(
            labelled("http://a.test/u Ubuntu Ubuntu\n", "Ubuntu Ubuntu"),
            Some("http://a.test/u".into())
        );
        assert_eq!(Mirror::in_targets("http://a.test/u $(ORIGIN) $(LABEL)\n"), None);
    }

    #[test]
    fn security_updates_are_where_each_distribution_has_them() {
        let mirror = Mirror { main: "m".into(), security: Some("s".into()) };
        let bullseye = Release { vendor: Vendor::Debian, suite: "bullseye", security: true };
        let pair = |uri: &str, suite: &str| (uri.to_owned(), suite.to_owned());
        assert_eq!(
            bullseye.pockets_of_debian(&mirror),
            [pair("m", "bullseye"), pair("s", "bullseye-security")]
        );
        let sid = Release { vendor: Vendor::Debian, suite: "sid", security: false };
        assert_eq!(sid.pockets_of_debian(&mirror), [pair("m", "sid")]);
        let jammy = Release { vendor: Vendor::Ubuntu, suite: "jammy", security: true };
        assert_eq!(
            jammy.pockets_of_ubuntu("u"),
            [pair("u", "jammy"), pair("u", "jammy-updates"), pair("u", "jammy-security")]
        );
    }
}

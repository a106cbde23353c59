//! Stock kernels of distributions: the image, the modules, and a small root folder with the headers and the very
//! compiler that the kernel was built with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::archive::{self, Archive};
use super::sources::{Release, Vendor};

/// A kernel line that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// As it is asked for on the command line.
    pub(crate) label: &'static str,
    /// The release that has it.
    release: Release,
}

/// All of them, oldest first.
pub(crate) const LINES: [Line; 6] = [
    Line { label: "5.10", release: Release { vendor: Vendor::Debian, suite: "bullseye", security: true } },
    Line { label: "5.15", release: Release { vendor: Vendor::Ubuntu, suite: "jammy", security: true } },
    Line { label: "6.1", release: Release { vendor: Vendor::Debian, suite: "bookworm", security: true } },
    Line { label: "6.8", release: Release { vendor: Vendor::Ubuntu, suite: "noble", security: true } },
    Line { label: "6.12", release: Release { vendor: Vendor::Debian, suite: "trixie", security: true } },
    Line { label: "7.2", release: Release { vendor: Vendor::Debian, suite: "sid", security: false } },
];

/// Beside headers and compiler, what building a module takes.
const BUILD_PACKAGES: [&str; 8] =
    ["base-files", "coreutils", "dash", "findutils", "grep", "make", "mawk", "sed"];

impl Vendor {
    /// What a release of a kernel ends with.
    fn flavour(self) -> &'static str {
        match self {
            Self::Debian => "-amd64",
            Self::Ubuntu => "-generic",
        }
    }

    /// The package that brings the newest headers, and the compiler that they do not bring with them.
    fn headers(self) -> &'static [&'static str] {
        match self {
            Self::Debian => &["linux-headers-amd64"],
            Self::Ubuntu => &["linux-headers-generic", "gcc"],
        }
    }
}

/// Of the packages above, what no build reads.
const NOT_FOR_BUILDS: [&str; 6] = [
    "./boot",
    "./usr/share/doc",
    "./usr/share/locale",
    "./usr/share/man",
    "./lib/modules/*/kernel",
    "./usr/lib/modules/*/kernel",
];

/// Of the kernel's packages, what no guest has hardware for: most of them.
const NOT_FOR_GUESTS: [&str; 3] = ["./usr/share/doc", "*/kernel/drivers/[!bn]*", "*/kernel/sound"];

/// A kernel that lies ready in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// As `uname -r` says.
    pub(crate) release: String,
    folder: PathBuf,
}

impl Kernel {
    /// Fetches a kernel, unless the cache has it.
    pub(crate) fn fetch(line: Line, cache: &Path, refresh: bool) -> Result<Self> {
        let folder = cache.join(line.release.suite);
        let record = folder.join("release");
        if !refresh && let Ok(release) = fs::read_to_string(&record) {
            return Ok(Self { release: release.trim().to_owned(), folder });
        }
        let Release { vendor, suite, .. } = line.release;
        eprintln!("vm: fetching the kernel of {vendor:?} {suite} and its compiler");
        let release = fetch(line, cache, &folder)
            .with_context(|| format!("cannot fetch kernel {} from {vendor:?} {suite}", line.label))?;
        fs::write(&record, &release).with_context(|| format!("cannot write {}", record.display()))?;
        Ok(Self { release, folder })
    }

    /// The compressed image.
    pub(crate) fn image(&self) -> Result<PathBuf> {
        let name = format!("boot/vmlinuz-{}", self.release);
        let module_folder = format!("usr/lib/modules/{}/vmlinuz", self.release);
        let places = [name, module_folder].map(|place| self.folder.join("kernel").join(place));
        let found = places.iter().find(|place| place.is_file()).cloned();
        found.with_context(|| format!("there is no {}: run again with --refresh", places[0].display()))
    }

    /// The folder that is `/lib/modules/RELEASE` on a machine with this kernel.
    pub(crate) fn modules(&self) -> PathBuf {
        self.folder.join("kernel/usr/lib/modules").join(&self.release)
    }

    /// The root folder in which modules for this kernel can be built.
    pub(crate) fn build_root(&self) -> PathBuf {
        self.folder.join("root")
    }
}

fn fetch(line: Line, cache: &Path, folder: &Path) -> Result<String> {
    let Release { vendor, suite, .. } = line.release;
    let archive = Archive::open(&folder.join("apt"), &line.release.sources(cache)?)?;
    let packages = [vendor.headers(), &BUILD_PACKAGES].concat();
    let closure = archive.closure(&packages)?;
    let release = closure
        .iter()
        .find_map(|package| release_of_headers(&package.name, vendor))
        .with_context(|| format!("{} brings no headers", packages[0]))?
        .to_owned();
    if !release.starts_with(&format!("{}.", line.label)) {
        eprintln!("vm: {vendor:?} {suite} has moved on from {}: its kernel is now {release}", line.label);
    }
    let build = archive.fetch_closure(&packages, &closure)?;
    replace(&folder.join("root"), |root| {
        archive::unpack(&build, root, &NOT_FOR_BUILDS)?;
        finish_root(root)
    })?;
    let image = archive.fetch(&image_packages(&archive, &release)?)?;
    replace(&folder.join("kernel"), |kernel| archive::unpack(&image, kernel, &NOT_FOR_GUESTS))?;
    archive.clean();
    Ok(release)
}

/// `5.10.0-32-amd64` of `linux-headers-5.10.0-32-amd64`.
fn release_of_headers(package: &str, vendor: Vendor) -> Option<&str> {
    let release = package.strip_prefix("linux-headers-")?;
    let is_one = release.starts_with(|c: char| c.is_ascii_digit()) && release.ends_with(vendor.flavour());
    is_one.then_some(release)
}

/// The packages with image and modules. Ubuntu has them apart, Debian from 7.x on.
fn image_packages(archive: &Archive, release: &str) -> Result<Vec<String>> {
    let choices: [&[&str]; 5] = [
        &["linux-binary-", "linux-modules-", "linux-base-"],
        &["linux-binary-unsigned-", "linux-modules-", "linux-base-"],
        &["linux-image-", "linux-modules-"],
        &["linux-image-"],
        &["linux-image-unsigned-"],
    ];
    for prefixes in choices {
        let packages: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{release}")).collect();
        if packages.iter().all(|package| archive.has(package)) {
            return Ok(packages);
        }
    }
    // Before the split the marker is at the end.
    let unsigned = format!("linux-image-{release}-unsigned");
    if archive.has(&unsigned) {
        return Ok(vec![unsigned]);
    }
    bail!("there is no image package for {release}")
}

/// Fills a folder from nothing; it appears under its name only when it is complete. The system folders at its top are
/// links into `usr`, as in today's releases, whichever way the packages have it.
fn replace(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = folder.with_extension("partial");
    remove(&partial)?;
    for name in ["bin", "lib", "lib64", "sbin"] {
        let real = partial.join("usr").join(name);
        fs::create_dir_all(&real).with_context(|| format!("cannot create {}", real.display()))?;
        std::os::unix::fs::symlink(Path::new("usr").join(name), partial.join(name))
            .with_context(|| format!("cannot create {}", partial.join(name).display()))?;
    }
    fill(&partial)?;
    remove(folder)?;
    fs::rename(&partial, folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Does what the packages' scripts would do on a real installation, as far as a build needs it, and makes the places
/// where the build's file systems go.
fn finish_root(root: &Path) -> Result<()> {
    for (link, target) in [("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")] {
        let link = root.join(link);
        if !link.exists() {
            std::os::unix::fs::symlink(target, &link)
                .with_context(|| format!("cannot create {}", link.display()))?;
        }
    }
    for folder in ["build", "dev", "proc", "tmp"] {
        fs::create_dir_all(root.join(folder))
            .with_context(|| format!("cannot create {}", root.join(folder).display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_from_the_headers_package_alone() {
        let cases = [
            (Vendor::Debian, "linux-headers-5.10.0-32-amd64", Some("5.10.0-32-amd64")),
            (Vendor::Debian, "linux-headers-7.2.13+deb14-amd64", Some("7.2.13+deb14-amd64")),
            (Vendor::Debian, "linux-headers-amd64", None),
            (Vendor::Debian, "linux-headers-6.1.0-57-common", None),
            (Vendor::Ubuntu, "linux-headers-5.15.0-164-generic", Some("5.15.0-164-generic")),
            (Vendor::Ubuntu, "linux-headers-5.15.0-164", None),
            (Vendor::Ubuntu, "linux-headers-generic", None),
            (Vendor::Ubuntu, "make", None),
        ];
        for (vendor, package, release) in cases {
            assert_eq!(release_of_headers(package, vendor), release, "{package}");
        }
    }

    #[test]
    fn a_folder_that_could_not_be_filled_does_not_appear() {
        let folder = std::env::temp_dir().join(format!("xtask-kernel-{}", std::process::id()));
        let root = folder.join("root");
        assert!(replace(&root, |_| bail!("no space")).is_err());
        assert!(!root.exists());
        replace(&root, |partial| Ok(fs::write(partial.join("lib/x"), "x")?)).unwrap();
        assert!(root.join("usr/lib/x").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}

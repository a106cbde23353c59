//! Devices that stand in for GPUs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::proc;
use crate::sys::{fd, mounts};

/// Nodes in a directory of their own, removed in the end.
#[derive(Debug)]
pub struct Device {
    nodes: Vec<(PathBuf, String, (u32, u32))>,
    /// Held while the number must be nobody else's.
    _lock: Option<File>,
    dir: TempDir,
}

/// `/dev/zero`: can be mapped.
const ZERO: (u32, u32) = (1, 5);
/// `/dev/random`: a second number; cannot be mapped.
const RANDOM: (u32, u32) = (1, 8);
/// `/dev/full`: hardly anybody has it open; cannot be mapped.
const FULL: (u32, u32) = (1, 7);

impl Device {
    /// One GPU, `nvidia0`.
    #[must_use]
    pub fn one() -> Self {
        Self::new(&[("nvidia0", ZERO)], None)
    }

    /// Two GPUs, `nvidia0` (can be mapped) and `nvidia1`.
    #[must_use]
    pub fn two() -> Self {
        Self::new(&[("nvidia0", ZERO), ("nvidia1", RANDOM)], None)
    }

    /// One GPU, `nvidia0`, whose number nobody on this host has open, and which no other test of any run uses meanwhile.
    /// It cannot be mapped.
    ///
    /// # Panics
    ///
    /// If somebody has it open all the same.
    #[must_use]
    pub fn nobodys() -> Self {
        let path = std::env::temp_dir().join("gpu-tracer-tests.lock");
        let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        lock.lock().unwrap_or_else(|error| panic!("locking {}: {error}", path.display()));
        let device = Self::new(&[("nvidia0", FULL)], Some(lock));
        // Programs that try out what a full disk does to them have it open for a moment.
        super::eventually("/dev/full (1:7) open in no other process", Duration::from_secs(30), || {
            device.strangers().is_empty().then_some(())
        });
        device
    }

    /// One GPU, `nvidia0`, which is `/dev/zero` itself: for tests that need no privilege.
    #[must_use]
    pub fn everybodys() -> Self {
        let dir = tempfile::Builder::new().prefix("gpu-tracer-test-").tempdir().expect("a directory");
        Self { nodes: vec![(PathBuf::from("/dev/zero"), "nvidia0".to_owned(), ZERO)], _lock: None, dir }
    }

    /// The nodes of the stand-in driver, which the tracer finds by itself.
    ///
    /// # Panics
    ///
    /// If it is not loaded: only the guests of `cargo xtask vm` have it.
    #[must_use]
    pub fn standin() -> Self {
        let names = (0..8).map(|minor| format!("nvidia{minor}"));
        let nodes = names.chain(["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]).map(|name| {
            let path = Path::new("/dev").join(&name);
            let rdev =
                fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).rdev();
            (path, name, (libc::major(rdev), libc::minor(rdev)))
        });
        Self { nodes: nodes.collect(), _lock: None, dir: directory_for_nodes() }
    }

    fn new(wanted: &[(&str, (u32, u32))], lock: Option<File>) -> Self {
        super::require_root();
        let dir = directory_for_nodes();
        let nodes = wanted
            .iter()
            .map(|(name, (major, minor))| {
                let path = dir.path().join(name);
                mounts::make_node(&path, *major, *minor).expect("the directory takes nodes");
                (path, (*name).to_owned(), (*major, *minor))
            })
            .collect();
        let device = Self { nodes, _lock: lock, dir };
        let strangers = device.strangers();
        if !strangers.is_empty() {
            eprintln!("note: processes outside this test have the same device open: {strangers:?}");
        }
        device
    }

    /// The first node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.nodes[0].0
    }

    /// The directory that the nodes are in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The nodes, with the devices' names.
    pub fn nodes(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.nodes.iter().map(|(path, name, _)| (path.as_path(), name.as_str()))
    }

    /// What tells the tracer of them: `--device MAJOR:MINOR=NAME`, each.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.nodes
            .iter()
            .flat_map(|(_, name, (major, minor))| ["--device".to_owned(), format!("{major}:{minor}={name}")])
            .collect()
    }

    /// `st_rdev` of the node with this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn rdev(&self, name: &str) -> u64 {
        let (path, ..) =
            self.nodes.iter().find(|(_, its, _)| its == name).unwrap_or_else(|| panic!("no device {name}"));
        fs::metadata(path).expect("the node exists").rdev()
    }

    fn strangers(&self) -> Vec<u32> {
        let me = BTreeSet::from([std::process::id()]);
        let mut found: Vec<u32> = self
            .nodes
            .iter()
            .flat_map(|(path, ..)| {
                let rdev = fs::metadata(path).expect("the node exists").rdev();
                proc::strangers(rdev, &me).expect("/proc can be read")
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// A directory on a file system that honours device nodes: `/tmp` need not.
fn directory_for_nodes() -> TempDir {
    let mut failures = Vec::new();
    for parent in [std::env::temp_dir(), "/var/tmp".into(), "/run".into(), "/dev".into()] {
        match try_directory(&parent) {
            Ok(dir) => return dir,
            Err(error) => failures.push(format!("{}: {error}", parent.display())),
        }
    }
    panic!("nowhere to make a device node:\n{}", failures.join("\n"));
}

fn try_directory(parent: &Path) -> std::io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::Builder::new().prefix("gpu-tracer-test-").tempdir_in(parent)?;
    // Other users are to reach the nodes.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let probe = dir.path().join("probe");
    mounts::make_node(&probe, ZERO.0, ZERO.1)?;
    fd::close(fd::open(&probe, libc::O_RDONLY | libc::O_CLOEXEC)?)?;
    fs::remove_file(probe)?;
    Ok(dir)
}

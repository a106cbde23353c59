//! Building the stand-in driver for a kernel with that kernel's own headers and compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::kernel::Kernel;
use crate::child;
use crate::fingerprint::Fingerprint;
use crate::workspace::Workspace;

/// The stand-in driver's modules, in the order in which they are loaded.
pub(crate) const DRIVER_MODULES: [&str; 2] = ["nvidia.ko", "nvidia_uvm.ko"];

/// Runs in a mount namespace of its own: `$1` is the root folder, `$2` the folder to build in, `$3` the release.
const BUILD: &str = "
mount --rbind /dev \"$1/dev\" && mount --rbind /proc \"$1/proc\" && mount --bind \"$2\" \"$1/build\" &&
exec chroot \"$1\" /usr/bin/env -i PATH=/usr/bin HOME=/tmp LC_ALL=C make -s -j2 -C \"/lib/modules/$3/build\" M=/build modules
";

/// Builds the stand-in driver in `folder`, unless it is up to date there; returns the modules' files.
pub(crate) fn build_driver(workspace: &Workspace, kernel: &Kernel, folder: &Path) -> Result<Vec<PathBuf>> {
    let sources = workspace.root().join("tests/standin-driver");
    let modules: Vec<PathBuf> = DRIVER_MODULES.iter().map(|name| folder.join(name)).collect();
    let mut inputs = Fingerprint::default();
    inputs.text("release", &kernel.release);
    inputs.folder(workspace.root(), &sources)?;
    let (inputs, record) = (inputs.finish(), folder.join("inputs"));
    if modules.iter().all(|module| module.is_file())
        && fs::read_to_string(&record).is_ok_and(|before| before == inputs)
    {
        return Ok(modules);
    }
    let _ = fs::remove_dir_all(folder);
    copy_files(&sources, folder)?;
    let mut build = Command::new("unshare");
    build.arg("--mount");
    if !child::is_root() {
        build.arg("--map-root-user");
    }
    build.args(["sh", "-c", BUILD, "build"]).arg(kernel.build_root()).arg(folder).arg(&kernel.release);
    child::run_quietly(&mut build)
        .with_context(|| format!("cannot build the stand-in driver for {}", kernel.release))?;
    fs::write(&record, inputs).with_context(|| format!("cannot write {}", record.display()))?;
    Ok(modules)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name()))
            .with_context(|| format!("cannot copy {}", entry.path().display()))?;
    }
    Ok(())
}

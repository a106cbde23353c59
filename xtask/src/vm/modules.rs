//! Kernel modules that the guest loads, with those that they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// What the tests need and a distribution may have built as a module: file systems to freeze and to hang in, loop
/// devices below them, what the tools ask about sockets, and the disk that outlives a boot.
const WANTED: [&str; 10] =
    ["crc32c_generic", "crc32c", "ext4", "loop", "fuse", "overlay", "unix", "unix_diag", "tun", "nvme"];

/// A module, uncompressed.
pub(crate) struct Module {
    /// As `lsmod` shows it.
    pub(crate) name: String,
    /// The object file.
    pub(crate) content: Vec<u8>,
}

/// The wanted modules and what they need, in an order in which they can be loaded. `folder` is `/lib/modules/RELEASE`.
/// What the kernel has built in, or does not have, is left out.
pub(crate) fn wanted(folder: &Path) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    find(folder, &mut files)?;
    let mut loading = Loading { files, seen: BTreeSet::new(), order: Vec::new() };
    for name in WANTED {
        loading.add(name)?;
    }
    Ok(loading.order)
}

struct Loading {
    files: BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    order: Vec<Module>,
}

impl Loading {
    fn add(&mut self, name: &str) -> Result<()> {
        let Some(file) = self.files.get(name) else { return Ok(()) };
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let content = uncompressed(file)?;
        for needed in depends(&content) {
            self.add(&needed)?;
        }
        self.order.push(Module { name: name.to_owned(), content });
        Ok(())
    }
}

/// All modules below a folder, by name. The kernel writes names with `_` where files may have `-`.
fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&path, files)?;
        } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn module_name(file: &str) -> Option<String> {
    let (stem, ending) = file.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"].contains(&ending).then(|| stem.replace('-', "_"))
}

fn uncompressed(file: &Path) -> Result<Vec<u8>> {
    let tool = match file.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).with_context(|| format!("cannot read {}", file.display())),
    };
    let output = Command::new(tool)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("cannot start `{tool}` to unpack {}", file.display()))?;
    if !output.status.success() {
        bail!("`{tool} -dc {}` failed: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// The names in the `depends=a,b` string of a module's `.modinfo`, which is a list of NUL-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = &module[at + KEY.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let names = String::from_utf8_lossy(&value[..end]);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_uses() {
        assert_eq!(module_name("crc32c-intel.ko.xz").as_deref(), Some("crc32c_intel"));
        assert_eq!(module_name("ext4.ko").as_deref(), Some("ext4"));
        assert_eq!(module_name("modules.order"), None);
        assert_eq!(module_name("x.ko.d"), None);
    }

    #[test]
    fn what_a_module_needs_is_read_from_its_own_words() {
        assert_eq!(
            depends(b"\x7fELF..\0license=GPL\0depends=jbd2,mbcache\0name=ext4\0"),
            ["jbd2", "mbcache"]
        );
        assert!(depends(b"\0depends=\0").is_empty());
        assert!(depends(b"nothing of the kind").is_empty());
    }

    #[test]
    fn a_module_comes_after_those_that_it_needs() {
        let folder = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        fs::create_dir_all(folder.join("kernel/fs")).unwrap();
        fs::write(folder.join("kernel/fs/ext4.ko"), b"\0depends=jbd2\0").unwrap();
        fs::write(folder.join("kernel/jbd2.ko"), b"\0depends=\0").unwrap();
        fs::write(folder.join("kernel/loop.ko"), b"\0depends=\0").unwrap();
        let names: Vec<_> = wanted(&folder).unwrap().into_iter().map(|module| module.name).collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["jbd2", "ext4", "loop"]);
    }
}

//! The files of the guest, put together from programs of this machine and the shared libraries that they need.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::cpio::{Kind, Writer};

enum Node {
    Folder,
    Copy(PathBuf),
    Content(Vec<u8>),
    Link(String),
    Device(u32, u32),
}

/// Files by their path in the guest, without the leading slash.
#[derive(Default)]
pub(crate) struct Tree(BTreeMap<String, (u32, Node)>);

impl Tree {
    /// Adds an empty folder and the folders above it.
    pub(crate) fn folder(&mut self, path: &str) {
        self.insert(path, 0o755, Node::Folder);
    }

    /// Adds a file with this content.
    pub(crate) fn content(&mut self, path: &str, permissions: u32, content: impl Into<Vec<u8>>) {
        self.insert(path, permissions, Node::Content(content.into()));
    }

    /// Adds a copy of a file of this machine.
    pub(crate) fn copy(&mut self, path: &str, permissions: u32, from: &Path) {
        self.insert(path, permissions, Node::Copy(from.to_owned()));
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.insert(path, 0o777, Node::Link(target.to_owned()));
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, permissions: u32, major: u32, minor: u32) {
        self.insert(path, permissions, Node::Device(major, minor));
    }

    /// Adds a program of this machine with the shared libraries that it is linked to, at their own places.
    pub(crate) fn program(&mut self, path: &str, from: &Path) -> Result<()> {
        for library in libraries(from)? {
            let place = library.to_str().with_context(|| format!("{} is not UTF-8", library.display()))?;
            self.copy(place, 0o755, &library);
        }
        self.copy(path, 0o755, from);
        Ok(())
    }

    fn insert(&mut self, path: &str, permissions: u32, node: Node) {
        let path = path.trim_matches('/');
        for (slash, _) in path.match_indices('/') {
            self.0.entry(path[..slash].to_owned()).or_insert((0o755, Node::Folder));
        }
        self.0.insert(path.to_owned(), (permissions, node));
    }

    /// Writes everything as an initramfs.
    pub(crate) fn write(&self, to: &Path) -> Result<()> {
        let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
        let mut writer = Writer::new(BufWriter::new(file));
        for (path, (permissions, node)) in &self.0 {
            let copied;
            let kind = match node {
                Node::Folder => Kind::Folder,
                Node::Content(content) => Kind::File(content),
                Node::Link(target) => Kind::Link(target),
                Node::Device(major, minor) => Kind::Device(*major, *minor),
                Node::Copy(from) => {
                    copied = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
                    Kind::File(&copied)
                }
            };
            writer
                .add(path, *permissions, &kind)
                .with_context(|| format!("cannot write {}", to.display()))?;
        }
        writer.finish().with_context(|| format!("cannot write {}", to.display()))?;
        Ok(())
    }
}

/// The shared libraries, and the loader, that a program needs; none for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // `ldd` fails on a static program, and says so in this machine's language unless asked not to.
    let output =
        Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot start `ldd`")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if said.contains("not a dynamic executable") || said.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        bail!("`ldd {}` failed ({})\n{said}", program.display(), output.status);
    }
    said.lines().filter_map(|line| library_in(line).transpose()).collect()
}

/// The file named by one line of `ldd`: `name => /path (0x...)` or `/path (0x...)`. The kernel's own
/// `linux-vdso.so.1 (0x...)` is no file.
fn library_in(line: &str) -> Result<Option<PathBuf>> {
    let line = line.trim();
    let found = line.split_once(" => ").map_or(line, |(_, found)| found);
    if found.starts_with("not found") {
        bail!("a shared library is not installed: {line}");
    }
    Ok(found.starts_with('/').then(|| found.split(" (").next().unwrap_or(found).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_every_kind_of_line() {
        let cases = [
            ("\tlinux-vdso.so.1 (0x00007ffd)", None),
            (
                "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)",
                Some("/lib/x86_64-linux-gnu/libc.so.6"),
            ),
            ("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", Some("/lib64/ld-linux-x86-64.so.2")),
        ];
        for (line, expected) in cases {
            assert_eq!(library_in(line).unwrap().as_deref(), expected.map(Path::new), "{line}");
        }
        assert!(library_in("\tlibx.so => not found").is_err());
    }

    #[test]
    fn a_file_brings_the_folders_above_it_and_they_come_first() {
        let mut tree = Tree::default();
        tree.content("/a/b/c", 0o644, "x");
        let paths: Vec<_> = tree.0.keys().map(String::as_str).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c"]);
    }

    #[test]
    fn a_folder_with_files_stays_a_folder() {
        let mut tree = Tree::default();
        tree.content("a/b", 0o644, "x");
        tree.folder("a");
        assert!(tree.0.contains_key("a/b") && matches!(tree.0["a"], (0o755, Node::Folder)));
    }
}

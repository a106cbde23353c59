//! One number for a set of inputs, to know whether anything changed since the last build.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Collects inputs; every name and length goes in too, so that moving bytes between inputs changes the result.
#[derive(Default)]
pub(crate) struct Fingerprint(DefaultHasher);

impl Fingerprint {
    /// Adds a piece of text under a name.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        (name, text).hash(&mut self.0);
    }

    /// Adds a file's content under its path relative to `root`.
    pub(crate) fn file(&mut self, root: &Path, file: &Path) -> Result<()> {
        let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        (file.strip_prefix(root).unwrap_or(file), content).hash(&mut self.0);
        Ok(())
    }

    /// Adds every file below a folder, in the order of their names.
    pub(crate) fn folder(&mut self, root: &Path, folder: &Path) -> Result<()> {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .with_context(|| format!("cannot read {}", folder.display()))?;
        entries.sort();
        for entry in entries {
            if entry.is_dir() { self.folder(root, &entry)? } else { self.file(root, &entry)? }
        }
        Ok(())
    }

    /// The result, as it is written beside what was built.
    pub(crate) fn finish(&self) -> String {
        format!("{:016x}\n", self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("xtask-fingerprint-{name}-{}", std::process::id()));
            fs::create_dir_all(folder.join("src")).unwrap();
            fs::write(folder.join("src/a.rs"), "one").unwrap();
            fs::write(folder.join("src/b.rs"), "two").unwrap();
            Self(folder)
        }

        fn fingerprint(&self) -> String {
            let mut fingerprint = Fingerprint::default();
            fingerprint.text("compiler", "1.96.0");
            fingerprint.folder(&self.0, &self.0).unwrap();
            fingerprint.finish()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_fingerprint_wherever_they_lie() {
        let (here, there) = (Folder::new("here"), Folder::new("there"));
        assert_eq!(here.fingerprint(), there.fingerprint());
    }

    #[test]
    fn a_changed_moved_added_or_removed_file_changes_it() {
        let folder = Folder::new("changes");
        let mut seen = vec![folder.fingerprint()];
        fs::write(folder.0.join("src/a.rs"), "onetwo").unwrap();
        seen.push(folder.fingerprint());
        fs::rename(folder.0.join("src/a.rs"), folder.0.join("a.rs")).unwrap();
        seen.push(folder.fingerprint());
        fs::write(folder.0.join("src/c.rs"), "").unwrap();
        seen.push(folder.fingerprint());
        fs::remove_file(folder.0.join("src/b.rs")).unwrap();
        seen.push(folder.fingerprint());
        let all = seen.clone();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 5, "{all:?}");
    }

    #[test]
    fn bytes_do_not_wander_between_inputs() {
        let of = |pairs: [(&str, &str); 2]| {
            let mut fingerprint = Fingerprint::default();
            pairs.iter().for_each(|(name, text)| fingerprint.text(name, text));
            fingerprint.finish()
        };
        assert_ne!(of([("a", "bc"), ("d", "e")]), of([("a", "b"), ("cd", "e")]));
    }
}

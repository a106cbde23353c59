//! Loaded kernel modules and how often each is referred to.

use std::path::Path;

/// A loaded module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name, with underscores.
    pub name: String,
    /// The module's reference count; `None` on a kernel that cannot unload modules.
    pub references: Option<u64>,
    /// Modules that use it; each is one of the references.
    pub used_by: Vec<String>,
}

impl Module {
    /// The loaded modules, in the kernel's order; `None` if the list is not there (a kernel without modules) or not
    /// readable. Counts change all the time: read again for every comparison.
    #[must_use]
    pub fn read_all(root: &Path) -> Option<Vec<Self>> {
        let text = std::fs::read_to_string(root.join("proc/modules")).ok()?;
        Some(
            text.lines()
                .filter_map(Self::parse)
                .map(|module| {
                    let path = root.join("sys/module").join(&module.name).join("refcnt");
                    let fresh =
                        std::fs::read_to_string(path).ok().and_then(|count| count.trim().parse().ok());
                    Self { references: fresh.or(module.references), ..module }
                })
                .collect(),
        )
    }

    /// One module, as it is now; `None` if it is not loaded, or the kernel does not count.
    #[must_use]
    pub fn read(root: &Path, name: &str) -> Option<Self> {
        let directory = root.join("sys/module").join(name);
        let references = std::fs::read_to_string(directory.join("refcnt")).ok()?.trim().parse().ok()?;
        let users = directory.join("holders").read_dir().ok()?.flatten();
        let used_by = users.filter_map(|user| user.file_name().into_string().ok()).collect();
        Some(Self { name: name.to_owned(), references: Some(references), used_by })
    }

    /// Address of the kernel's `struct module`; `None` if it is not loaded or root alone may know. Never to be shown.
    #[must_use]
    pub fn address(root: &Path, name: &str) -> Option<u64> {
        let path = root.join("sys/module").join(name).join("sections/.gnu.linkonce.this_module");
        let text = std::fs::read_to_string(path).ok()?;
        u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok().filter(|address| *address != 0)
    }

    /// `nvidia 9998336 24 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)`
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (name, _size, references, used_by) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // The name becomes part of a path.
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        plain.then(|| Self {
            name: name.to_owned(),
            references: references.parse().ok(),
            used_by: used_by
                .split(',')
                .filter(|user| !user.is_empty() && *user != "-" && !user.starts_with('['))
                .map(str::to_owned)
                .collect(),
        })
    }

    /// References that are not other modules': open files, wherever they are held, and what the kernel itself keeps.
    ///
    /// An open file is one reference, or two where the driver also owns the `cdev` (nvidia_uvm).
    #[must_use]
    pub fn references_beyond_modules(&self) -> Option<u64> {
        self.references.map(|count| count.saturating_sub(self.used_by.len() as u64))
    }

    /// Does it belong to a GPU driver's stack?
    #[must_use]
    pub fn is_gpu_driver(&self) -> bool {
        self.name.starts_with("nvidia") || self.name == "gdrdrv"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_dependent_modules_are_set_apart() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        let list = "nvidia_uvm 1540096 4 - Live 0x0 (POE)\nnvidia 9998336 24 nvidia_uvm,nvidia_modeset, Live 0x0 (POE)\n\
                    loop 1 - [permanent], Live 0x0\n../evil 1 2 - Live 0x0\n";
        std::fs::write(root.path().join("proc/modules"), list).unwrap();
        let count = root.path().join("sys/module/nvidia_uvm");
        std::fs::create_dir_all(&count).unwrap();
        std::fs::write(count.join("refcnt"), "6\n").unwrap();
        let modules = Module::read_all(root.path()).unwrap();
        let seen: Vec<_> =
            modules.iter().map(|module| (module.name.as_str(), module.references_beyond_modules())).collect();
        assert_eq!(seen, [("nvidia_uvm", Some(6)), ("nvidia", Some(22)), ("loop", None)]);
        assert_eq!(modules.iter().filter(|module| module.is_gpu_driver()).count(), 2);
    }

    #[test]
    fn one_module_is_read_with_its_users_and_its_address() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sys/module/nvidia");
        std::fs::create_dir_all(directory.join("holders/nvidia_uvm")).unwrap();
        std::fs::create_dir_all(directory.join("sections")).unwrap();
        std::fs::write(directory.join("refcnt"), "4\n").unwrap();
        let module = Module::read(root.path(), "nvidia").unwrap();
        assert_eq!(module.references_beyond_modules(), Some(3), "{module:?}");
        assert_eq!(Module::read(root.path(), "nvidia_uvm"), None);

        let address = directory.join("sections/.gnu.linkonce.this_module");
        std::fs::write(&address, "0xffffffffc0266040\n").unwrap();
        assert_eq!(Module::address(root.path(), "nvidia"), Some(0xffff_ffff_c026_6040));
        std::fs::write(&address, "0x0000000000000000\n").unwrap();
        assert_eq!(Module::address(root.path(), "nvidia"), None, "hidden from all but root");
    }

    #[test]
    fn a_kernel_without_modules_has_no_list() {
        assert_eq!(Module::read_all(tempfile::tempdir().unwrap().path()), None);
    }
}

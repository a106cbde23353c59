//! What the driver's modules count, against what was found.
//!
//! An open file of a character device keeps the module of its driver from being unloaded: one reference for its operations,
//! and one more where the driver names itself as the owner of the device (`nvidia_uvm` does). The kernel counts these
//! wherever the file is: also in a queue that cannot be walked, or in the hands of a task that is half-way through its
//! exit. So the count tells of files that no scan finds, and, where it adds up, that there are none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use gpu_tracer_common::snapshot::HoldRecord;

use crate::kernel::Module;
use crate::model::{DeviceNumber, DeviceRange, DeviceTable, ModuleUses, snapshot::ModuleUse};

/// Modules whose references are open files and other modules, nothing else.
const COUNTED: [&str; 2] = ["nvidia", "nvidia_uvm"];
/// Modules with devices of their own which count more than files, clients of DRM for one: they can be compared with
/// nothing unless they count none.
const IDLE_AT_BEST: [&str; 3] = ["nvidia_modeset", "nvidia_fs", "gdrdrv"];
/// These take the driver's functions one by one (`__symbol_get`), each of which is a reference, and are not listed as users.
const UNLISTED_USERS: [&str; 1] = ["nvidia_fs"];
/// Up to series 535 a file has more references than its operations and its device tell of.
const FRONTEND: &str = "nvidia-frontend";

/// The counts of the driver's modules.
#[derive(Debug)]
pub(super) struct ModuleCounts {
    root: PathBuf,
    /// Modules that an open file of a device refers to. A device keeps its driver for as long as that is loaded.
    owners: HashMap<DeviceNumber, Vec<&'static str>>,
}

/// When a snapshot was begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// References that are not other modules'; empty where nothing can be compared.
    counted: Vec<(&'static str, u64)>,
    /// Major numbers that the driver has.
    majors: HashSet<u32>,
}

impl ModuleCounts {
    /// Of the host whose root is `root`: `/` but for tests.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), owners: HashMap::new() }
    }

    /// Before anything is looked at.
    pub(super) fn begin(&self) -> Begun {
        let counted = COUNTED.into_iter().filter_map(|name| Some((name, self.count(name)?)));
        // Files can be put down to a module where its address is known (CAP_SYSLOG); where it counts none there is no file.
        let known =
            |(name, count): &(&'static str, u64)| *count == 0 || Module::address(&self.root, name).is_some();
        let mut counted: Vec<_> = counted.filter(known).collect();
        if counted.is_empty() || UNLISTED_USERS.iter().any(|name| self.is_loaded(name)) {
            return Begun::default();
        }
        let idle = IDLE_AT_BEST.into_iter().filter(|name| self.count(name) == Some(0));
        counted.extend(idle.map(|name| (name, 0)));
        let devices = std::fs::read_to_string(self.root.join("proc/devices")).unwrap_or_default();
        if devices.contains(FRONTEND) {
            return Begun::default();
        }
        let registered = devices.lines().filter_map(|line| line.trim().split_once(' '));
        let drivers = registered.filter(|(_, name)| module_of(name).is_some());
        Begun { counted, majors: drivers.filter_map(|(major, _)| major.parse().ok()).collect() }
    }

    /// After everything was looked at: `owners` are the records of which file refers to which modules.
    pub(super) fn end(&mut self, begun: &Begun, owners: &[HoldRecord], devices: &DeviceTable) -> ModuleUses {
        if begun.counted.is_empty() {
            return ModuleUses::default();
        }
        let found = self.learn(owners);
        let unchanged = begun.counted.iter().filter(|(name, before)| self.count(name) == Some(*before));
        let uses = unchanged.map(|(module, counted)| ModuleUse {
            module,
            counted: *counted,
            found: found.get(module).copied().unwrap_or(0),
            of_one_file: self.of_one_file(module),
        });
        let uses: Vec<ModuleUse> = uses.collect();
        let compared = |module: &str| uses.iter().any(|one| one.module == module) || !self.is_loaded(module);
        // A device of another driver may have been given any name.
        let covered = |range: &DeviceRange| {
            begun.majors.contains(&range.major) && module_of(range.naming.text()).is_some_and(compared)
        };
        let cover_all = devices.ranges.iter().all(covered);
        ModuleUses { uses, cover_all }
    }

    /// References that are not other modules'.
    fn count(&self, name: &str) -> Option<u64> {
        Module::read(&self.root, name)?.references_beyond_modules()
    }

    fn is_loaded(&self, name: &str) -> bool {
        self.root.join("sys/module").join(name).is_dir()
    }

    /// References of the files found, by module.
    fn learn(&mut self, owners: &[HoldRecord]) -> HashMap<&'static str, u64> {
        let addresses =
            COUNTED.into_iter().filter_map(|name| Some((Module::address(&self.root, name)?, name)));
        let names: HashMap<u64, &'static str> = addresses.collect();
        let mut seen = HashSet::new();
        let mut found = HashMap::new();
        for record in owners.iter().filter(|record| seen.insert(record.file)) {
            let of_file =
                [record.at, record.end].into_iter().filter_map(|address| names.get(&address).copied());
            let of_file: Vec<&'static str> = of_file.collect();
            for module in &of_file {
                *found.entry(*module).or_default() += 1;
            }
            self.owners.insert(DeviceNumber::from_kernel(record.rdev), of_file);
        }
        found
    }

    fn of_one_file(&self, module: &str) -> BTreeMap<DeviceNumber, u64> {
        let of_device = |owners: &Vec<&str>| owners.iter().filter(|owner| **owner == module).count() as u64;
        let counts = self.owners.iter().map(|(device, owners)| (*device, of_device(owners)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// The module that has a device of this name or prefix; `None` if it is not of NVIDIA's driver.
fn module_of(device: &str) -> Option<&'static str> {
    let known = [
        ("nvidia-uvm", "nvidia_uvm"),
        ("nvidia-modeset", "nvidia_modeset"),
        ("nvidia-fs", "nvidia_fs"),
        ("gdrdrv", "gdrdrv"),
        ("nvidia", "nvidia"),
    ];
    known.into_iter().find(|(prefix, _)| device.starts_with(prefix)).map(|(_, module)| module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device::Naming;
    use gpu_tracer_common::snapshot::{FILE_DEVICE, HOLD_OWNERS, Header};

    const NVIDIA: u64 = 0xffff_ffff_c000_1000;
    const UVM: u64 = 0xffff_ffff_c000_2000;
    const CTL: DeviceNumber = DeviceNumber { major: 195, minor: 255 };
    const VA_SPACE: DeviceNumber = DeviceNumber { major: 238, minor: 0 };

    struct Host(tempfile::TempDir);

    impl Host {
        fn new(nvidia: u64, uvm: u64) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for (name, address) in [("nvidia", NVIDIA), ("nvidia_uvm", UVM)] {
                for part in ["holders", "sections"] {
                    std::fs::create_dir_all(host.module(name).join(part)).unwrap();
                }
                let section = host.module(name).join("sections/.gnu.linkonce.this_module");
                std::fs::write(section, format!("{address:#018x}\n")).unwrap();
            }
            std::fs::create_dir_all(host.module("nvidia").join("holders/nvidia_uvm")).unwrap();
            host.registers("  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n");
            host.count(nvidia + 1, uvm);
            host
        }

        fn module(&self, name: &str) -> PathBuf {
            self.0.path().join("sys/module").join(name)
        }

        fn registers(&self, devices: &str) {
            std::fs::create_dir_all(self.0.path().join("proc")).unwrap();
            std::fs::write(self.0.path().join("proc/devices"), devices).unwrap();
        }

        fn count(&self, nvidia: u64, uvm: u64) {
            std::fs::write(self.module("nvidia").join("refcnt"), format!("{nvidia}\n")).unwrap();
            std::fs::write(self.module("nvidia_uvm").join("refcnt"), format!("{uvm}\n")).unwrap();
        }

        fn counts(&self) -> ModuleCounts {
            ModuleCounts::new(self.0.path())
        }
    }

    fn owners(file: u64, device: DeviceNumber, at: u64, end: u64) -> HoldRecord {
        HoldRecord {
            header: Header::new(HOLD_OWNERS),
            file_kind: FILE_DEVICE,
            rdev: device.to_kernel(),
            tid: 0,
            file,
            count: 1,
            by: 0,
            at,
            end,
            identity: 1,
            seen_ns: 0,
        }
    }

    /// The driver's devices.
    fn devices() -> DeviceTable {
        let fixed = |number: DeviceNumber, name: &str| DeviceRange {
            major: number.major,
            first: number.minor,
            last: number.minor,
            naming: Naming::Fixed(name.to_owned()),
        };
        let modeset = DeviceNumber { major: 195, minor: 254 };
        let ranges =
            vec![fixed(CTL, "nvidiactl"), fixed(modeset, "nvidia-modeset"), fixed(VA_SPACE, "nvidia-uvm")];
        DeviceTable { ranges, gpu_nodes: Vec::new() }
    }

    fn look(counts: &mut ModuleCounts, owners: &[HoldRecord]) -> ModuleUses {
        let begun = counts.begin();
        counts.end(&begun, owners, &devices())
    }

    fn unaccounted(uses: &ModuleUses, others: &[DeviceNumber]) -> Vec<(&'static str, u64)> {
        uses.unaccounted(others).into_iter().collect()
    }

    #[test]
    fn files_account_for_one_reference_to_nvidia_and_two_to_nvidia_uvm() {
        let host = Host::new(2, 2);
        // The second record of the same file is a repetition.
        let found = [owners(1, CTL, NVIDIA, 0), owners(2, VA_SPACE, UVM, UVM), owners(1, CTL, NVIDIA, 0)];
        let uses = look(&mut host.counts(), &found);
        assert_eq!(unaccounted(&uses, &[]), [("nvidia", 1)]);
        assert_eq!(unaccounted(&uses, &[VA_SPACE]), [("nvidia", 1)], "a file of another module");
        assert!(!uses.add_up(&[]));
        // A file that is known to be open, if not where.
        assert_eq!((unaccounted(&uses, &[CTL]), uses.add_up(&[CTL])), (vec![], true));
    }

    #[test]
    fn where_nothing_was_found_nothing_may_be_counted() {
        let uses = look(&mut Host::new(0, 2).counts(), &[]);
        assert_eq!(unaccounted(&uses, &[]), [("nvidia_uvm", 2)]);
        let uses = look(&mut Host::new(0, 0).counts(), &[]);
        assert!(uses.add_up(&[]) && unaccounted(&uses, &[]).is_empty(), "{uses:?}");
    }

    #[test]
    fn a_count_that_changed_meanwhile_says_nothing() {
        let host = Host::new(1, 0);
        let mut counts = host.counts();
        let begun = counts.begin();
        host.count(3, 0);
        let uses = counts.end(&begun, &[], &devices());
        assert_eq!((unaccounted(&uses, &[]), uses.add_up(&[])), (vec![], false));
    }

    #[test]
    fn a_module_that_counts_more_than_files_proves_nothing_unless_it_counts_none() {
        let host = Host::new(1, 0);
        let modeset = host.module("nvidia_modeset");
        std::fs::create_dir_all(modeset.join("holders/nvidia_drm")).unwrap();
        std::fs::create_dir_all(host.module("nvidia").join("holders/nvidia_modeset")).unwrap();
        host.count(3, 0);
        let adds_up = |count: &str| {
            std::fs::write(modeset.join("refcnt"), count).unwrap();
            let uses = look(&mut host.counts(), &[owners(1, CTL, NVIDIA, 0)]);
            assert_eq!(unaccounted(&uses, &[]), []);
            uses.add_up(&[])
        };
        assert_eq!((adds_up("1"), adds_up("2")), (true, false));
    }

    #[test]
    fn nothing_is_compared_where_more_than_files_is_counted() {
        let host = Host::new(6, 0);
        std::fs::create_dir_all(host.module("nvidia_fs")).unwrap();
        assert_eq!(look(&mut host.counts(), &[]), ModuleUses::default());
        std::fs::remove_dir(host.module("nvidia_fs")).unwrap();
        assert_ne!(look(&mut host.counts(), &[]), ModuleUses::default());
        host.registers("195 nvidia-frontend\n");
        assert_eq!(look(&mut host.counts(), &[]), ModuleUses::default());
    }

    #[test]
    fn files_that_cannot_be_put_down_to_a_module_are_not_held_against_it() {
        let host = Host::new(1, 0);
        for module in ["nvidia", "nvidia_uvm"] {
            let hidden = format!("{:#018x}\n", 0);
            std::fs::write(host.module(module).join("sections/.gnu.linkonce.this_module"), hidden).unwrap();
        }
        let uses = look(&mut host.counts(), &[owners(1, CTL, NVIDIA, 0)]);
        assert_eq!((unaccounted(&uses, &[]), uses.add_up(&[])), (vec![], false));
        // That nobody refers to either says itself.
        host.count(1, 0);
        assert!(look(&mut host.counts(), &[]).add_up(&[]));
    }

    #[test]
    fn a_device_of_another_driver_is_not_proved_to_be_free() {
        let host = Host::new(0, 0);
        let mut counts = host.counts();
        let mut devices = devices();
        let zero = DeviceNumber { major: 1, minor: 5 };
        devices.ranges.push(DeviceRange {
            major: zero.major,
            first: zero.minor,
            last: zero.minor,
            naming: Naming::Fixed("nvidia0".to_owned()),
        });
        let begun = counts.begin();
        assert!(!counts.end(&begun, &[], &devices).add_up(&[]), "whatever it is called");
    }

    #[test]
    fn a_kernel_that_does_not_count_is_no_reason_for_doubt() {
        let root = tempfile::tempdir().unwrap();
        let uses = look(&mut ModuleCounts::new(root.path()), &[owners(1, CTL, NVIDIA, 0)]);
        assert_eq!((unaccounted(&uses, &[]), uses.add_up(&[])), (vec![], false));
    }
}

//! What the kernel said at one instant: tasks, open device files, and who refers to them.

use std::collections::{BTreeMap, HashSet};

use super::{DeviceNumber, MmKey, TableKey, Task};

/// Identity of one `struct file` while it lives. Opaque: a kernel address, never shown, reused at once after release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(pub u64);

/// One open file of a GPU device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Which file.
    pub key: FileKey,
    /// Which device it is open on.
    pub device: DeviceNumber,
    /// The kernel's own count of references; `None` where it could not be read (`/proc` walk).
    pub count: Option<u64>,
    /// Tells it from most files that may come to have the same key later. Opaque; 0 where unknown (`/proc` walk).
    pub identity: u64,
    /// When it was last seen while the snapshot was taken, ns of boot time; 0 where that is not known.
    pub seen_ns: u64,
}

/// One reference to a file: to a device file of [`Snapshot::files`], or to a *carrier*, a file that can
/// itself hold device files (a unix socket with descriptors in its queue, an io_uring).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// What is referred to.
    pub file: FileKey,
    /// How.
    pub via: Via,
}

/// How a file is referred to. Each value is one reference in the kernel's count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// A slot of an fd table.
    Fd {
        /// The table.
        table: TableKey,
        /// The descriptor number.
        fd: u32,
    },
    /// A mapping.
    Map {
        /// The address space.
        mm: MmKey,
        /// First address.
        start: u64,
        /// Address after the last.
        end: u64,
    },
    /// Queued in a unix socket and not received yet (SCM_RIGHTS).
    InFlight {
        /// The socket in whose receive queue it sits: its `struct file`, or the `struct sock` of a connection that
        /// nobody has accepted yet.
        socket: FileKey,
        /// Inode number of that socket, as in `/proc/PID/fd` (`socket:[N]`); 0 when it has none yet.
        inode: u64,
        /// Tells two descriptors in the same queue apart.
        slot: u64,
    },
    /// A connection that waits in a listening socket's accept queue.
    Unaccepted {
        /// The listening socket.
        listener: FileKey,
    },
    /// A registered ("fixed") file of an io_uring.
    IoUring {
        /// The ring.
        ring: FileKey,
        /// Slot in the ring's file table.
        slot: u32,
    },
    /// A system call in progress keeps it, beside the descriptor it was given.
    SystemCall {
        /// The task in the call.
        tid: u32,
        /// The descriptor.
        fd: u32,
    },
    /// The driver itself holds it on behalf of another device file (`NV_ESC_REGISTER_FD`).
    DriverPin {
        /// The device file that holds it.
        by: FileKey,
    },
}

/// [`Missing::what`] of references to the driver's modules that no file accounts for.
pub const MODULE_REFERENCES: &str = "module-references";

/// Something that could not be looked at, so that an empty answer is no proof.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// What, in a stable word: `in-flight`, `io_uring`, `mappings`, `other-users`, `pid-namespace`, `half-exited-task`, ...
    pub what: &'static str,
    /// Why, for a person, ending with what would help.
    pub why: String,
}

/// How often a kernel module of the driver is referred to. Every open file of its devices is one such reference, or two,
/// wherever the file is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleUse {
    /// Name, with underscores.
    pub module: &'static str,
    /// References that are not other modules', as the kernel counts them: the same before the snapshot and after it.
    pub counted: u64,
    /// Those of the files that were found.
    pub found: u64,
    /// References that one open file of a device is, of each device that was seen since the programs were loaded.
    pub of_one_file: BTreeMap<DeviceNumber, u64>,
}

/// What the driver's modules count, as far as it can be compared with what was found.
///
/// Left out is a module whose count changed while the snapshot was taken, whose references are not files alone, or that the
/// kernel does not count because it cannot unload it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleUses {
    /// Those that can be compared.
    pub uses: Vec<ModuleUse>,
    /// Every device that was looked for belongs to one of these, or to a module that is not loaded.
    pub cover_all: bool,
}

impl ModuleUses {
    /// References that no file accounts for, by module, where there are any. `others` are the devices of files that are
    /// known to be open and were not found.
    #[must_use]
    pub fn unaccounted(&self, others: &[DeviceNumber]) -> BTreeMap<&'static str, u64> {
        let left =
            self.uses.iter().map(|one| (one.module, one.counted.saturating_sub(one.found + one.of(others))));
        left.filter(|(_, left)| *left > 0).collect()
    }

    /// Is it certain that no file is open but those found and `others`?
    #[must_use]
    pub fn add_up(&self, others: &[DeviceNumber]) -> bool {
        self.cover_all && self.uses.iter().all(|one| one.counted == one.found + one.of(others))
    }
}

impl ModuleUse {
    fn of(&self, files: &[DeviceNumber]) -> u64 {
        files.iter().filter_map(|device| self.of_one_file.get(device)).sum()
    }
}

/// How a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// BPF iterators.
    Iterators,
    /// A walk over `/proc/*/task/*/fd` and `maps`.
    ProcWalk,
}

/// The state of the world at one instant, as far as GPU devices are concerned.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was begun, ns of boot time (`CLOCK_BOOTTIME`).
    pub taken_ns: u64,
    /// How.
    pub source: Source,
    /// All tasks of the host (iterators) or those that hold something and their leaders (`/proc`).
    pub tasks: Vec<Task>,
    /// Open device files, in no particular order, each once.
    pub files: Vec<OpenFile>,
    /// References to `files` and to the carriers that hold them, each once.
    pub references: Vec<Reference>,
    /// What could not be seen.
    pub missing: Vec<Missing>,
    /// What the driver's modules count.
    pub modules: ModuleUses,
}

impl Snapshot {
    /// Takes a process of our own out of it: its tasks, its references, and the files that only it held.
    pub fn forget_process(&mut self, tgid: u32) {
        let (ours, others): (Vec<&Task>, Vec<&Task>) = self.tasks.iter().partition(|task| task.tgid == tgid);
        let tables: HashSet<TableKey> = ours.iter().filter_map(|task| task.table).collect();
        let mms: HashSet<MmKey> = ours.iter().filter_map(|task| task.mm).collect();
        let shared_tables: HashSet<TableKey> = others.iter().filter_map(|task| task.table).collect();
        let shared_mms: HashSet<MmKey> = others.iter().filter_map(|task| task.mm).collect();
        let mut ours: HashSet<FileKey> = HashSet::new();
        self.references.retain(|reference| {
            let drop = match &reference.via {
                Via::Fd { table, .. } => tables.contains(table) && !shared_tables.contains(table),
                Via::Map { mm, .. } => mms.contains(mm) && !shared_mms.contains(mm),
                _ => false,
            };
            if drop {
                ours.insert(reference.file);
            }
            !drop
        });
        // What its files held goes with them.
        loop {
            let alive: HashSet<FileKey> = self.references.iter().map(|reference| reference.file).collect();
            ours.retain(|file| !alive.contains(file));
            let before = self.references.len();
            let mut released = Vec::new();
            self.references.retain(|reference| {
                let drop = matches!(&reference.via, Via::DriverPin { by } if ours.contains(by));
                if drop {
                    released.push(reference.file);
                }
                !drop
            });
            ours.extend(released);
            if self.references.len() == before {
                break;
            }
        }
        let alive: HashSet<FileKey> = self.references.iter().map(|reference| reference.file).collect();
        self.files.retain(|file| alive.contains(&file.key) || !ours.contains(&file.key));
        self.tasks.retain(|task| task.tgid != tgid);
    }
}

//! Where in the kernel a task waits: read from the names of functions, innermost first.
//!
//! The first frame that belongs to some subsystem decides. Generic frames (locks, the scheduler, the system call entry)
//! belong to none.

/// Where a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the GPU driver.
    GpuDriver,
    /// For a file system to be thawed: the reader-writer semaphore that `FIFREEZE` holds.
    FrozenFileSystem,
    /// For the answer of a FUSE server.
    Fuse,
    /// For an NFS or other network file server.
    Nfs,
    /// In a file system or a disk below it.
    FileSystem,
    /// In a core dump.
    CoreDump,
    /// In the cgroup freezer.
    Freezer,
    /// For memory: a fault, reclaim, the lock of an address space.
    Memory,
    /// In the kernel; where, is not known.
    Kernel,
}

impl Place {
    /// The word of the contract.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::GpuDriver => "gpu-driver",
            Self::FrozenFileSystem => "frozen-file-system",
            Self::Fuse => "fuse",
            Self::Nfs => "nfs",
            Self::FileSystem => "file-system",
            Self::CoreDump => "core-dump",
            Self::Freezer => "freezer",
            Self::Memory => "memory",
            Self::Kernel => "kernel",
        }
    }

    /// A sentence in few words, for a headline.
    #[must_use]
    pub const fn brief(self) -> &'static str {
        match self {
            Self::GpuDriver => "It waits in the GPU driver.",
            Self::FrozenFileSystem => "A file system is frozen.",
            Self::Fuse => "A FUSE server is silent.",
            Self::Nfs => "A file server is silent.",
            Self::FileSystem => "It waits in a file system.",
            Self::CoreDump => "It waits for a core dump.",
            Self::Freezer => "Its cgroup is frozen.",
            Self::Memory => "It waits for memory.",
            Self::Kernel => "It waits in the kernel.",
        }
    }

    /// The place of a [word](Self::word).
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        const ALL: [Place; 9] = [
            Place::GpuDriver,
            Place::FrozenFileSystem,
            Place::Fuse,
            Place::Nfs,
            Place::FileSystem,
            Place::CoreDump,
            Place::Freezer,
            Place::Memory,
            Place::Kernel,
        ];
        ALL.into_iter().find(|place| place.word() == word)
    }

    /// `runs in ...`: of a task that does not sleep.
    #[must_use]
    pub const fn running_words(self) -> &'static str {
        match self {
            Self::GpuDriver => "runs in the GPU driver and does not come out",
            _ => "runs in the kernel and does not come out",
        }
    }

    /// The same as a sentence in few words.
    #[must_use]
    pub const fn running_brief(self) -> &'static str {
        match self {
            Self::GpuDriver => "It runs in the GPU driver.",
            _ => "It runs in the kernel.",
        }
    }

    /// `waits in ...`, as part of a sentence.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::GpuDriver => "waits in the GPU driver",
            Self::FrozenFileSystem => {
                "waits in the file system, not in the GPU driver: the file system is frozen"
            }
            Self::Fuse => "waits in the file system, not in the GPU driver: a FUSE server owes it an answer",
            Self::Nfs => "waits in the file system, not in the GPU driver: a file server owes it an answer",
            Self::FileSystem => "waits in the file system or the disk below it, not in the GPU driver",
            Self::CoreDump => "waits for a core dump, not in the GPU driver",
            Self::Freezer => "is frozen by the cgroup freezer",
            Self::Memory => "waits for memory, not in the GPU driver",
            Self::Kernel => "waits in the kernel",
        }
    }
}

/// Modules, and the places that their functions stand for.
const MODULES: &[(&str, Place)] = &[
    ("nvidia", Place::GpuDriver),
    ("nvidia_uvm", Place::GpuDriver),
    ("nvidia_modeset", Place::GpuDriver),
    ("nvidia_drm", Place::GpuDriver),
    ("fuse", Place::Fuse),
    ("virtiofs", Place::Fuse),
    ("nfs", Place::Nfs),
    ("nfsv3", Place::Nfs),
    ("nfsv4", Place::Nfs),
    ("sunrpc", Place::Nfs),
    ("ceph", Place::Nfs),
    ("libceph", Place::Nfs),
    ("cifs", Place::Nfs),
    ("9p", Place::Nfs),
    ("9pnet", Place::Nfs),
    ("lustre", Place::Nfs),
    ("ptlrpc", Place::Nfs),
    ("ext4", Place::FileSystem),
    ("jbd2", Place::FileSystem),
    ("xfs", Place::FileSystem),
    ("btrfs", Place::FileSystem),
    ("zfs", Place::FileSystem),
];

/// Beginnings of function names, the longer before the shorter.
const FUNCTIONS: &[(&str, Place)] = &[
    ("os_acquire_", Place::GpuDriver),
    ("nvidia_", Place::GpuDriver),
    ("nvUvm", Place::GpuDriver),
    ("uvm_", Place::GpuDriver),
    ("rm_", Place::GpuDriver),
    ("nvkms_", Place::GpuDriver),
    ("_nv0", Place::GpuDriver),
    ("__refrigerator", Place::Freezer),
    ("do_freezer_trap", Place::Freezer),
    ("cgroup_enter_frozen", Place::Freezer),
    ("coredump_task_exit", Place::CoreDump),
    ("sb_start_write", Place::FrozenFileSystem),
    ("__sb_start_write", Place::FrozenFileSystem),
    ("mnt_want_write", Place::FrozenFileSystem),
    ("fuse_", Place::Fuse),
    ("__fuse_", Place::Fuse),
    ("request_wait_answer", Place::Fuse),
    ("nfs_", Place::Nfs),
    ("nfs4_", Place::Nfs),
    ("nfs3_", Place::Nfs),
    ("rpc_", Place::Nfs),
    ("__rpc_", Place::Nfs),
    ("p9_", Place::Nfs),
    ("v9fs_", Place::Nfs),
    ("cifs_", Place::Nfs),
    ("ceph_", Place::Nfs),
    ("ext4_", Place::FileSystem),
    ("xfs_", Place::FileSystem),
    ("btrfs_", Place::FileSystem),
    ("jbd2_", Place::FileSystem),
    ("blk_", Place::FileSystem),
    ("submit_bio", Place::FileSystem),
    ("folio_wait", Place::FileSystem),
    ("wait_on_page", Place::FileSystem),
    ("do_coredump", Place::CoreDump),
    ("vfs_coredump", Place::CoreDump),
    ("handle_mm_fault", Place::Memory),
    ("do_swap_page", Place::Memory),
    ("try_to_free_", Place::Memory),
    ("mem_cgroup_", Place::Memory),
    ("exit_mmap", Place::Memory),
];

/// Where a task waits, from its kernel stack or, where that could not be read, from the function it sleeps in.
#[must_use]
pub fn place(wchan: Option<&str>, stack: &[String]) -> Place {
    let frames: Vec<&str> = if stack.is_empty() {
        wchan.into_iter().collect()
    } else {
        stack.iter().map(String::as_str).collect()
    };
    let innermost = frames.iter().find_map(|frame| known(frame));
    let semaphore = |frame: &&str| {
        matches!(function(frame), "percpu_rwsem_wait" | "__percpu_down_read" | "percpu_down_read")
    };
    if frames.iter().take(3).any(semaphore) {
        // The kernel has few such semaphores; in a call that writes a file it is the one that freezing holds.
        let writes = |frame: &&str| {
            let name = function(frame);
            name.contains("write")
                || name.contains("open")
                || name.contains("create")
                || name.contains("fault")
        };
        if stack.is_empty() || frames.iter().any(writes) {
            return Place::FrozenFileSystem;
        }
    }
    innermost.unwrap_or(Place::Kernel)
}

/// Is some function of the GPU driver on the stack, wherever it waits?
#[must_use]
pub fn in_gpu_driver(stack: &[String]) -> bool {
    stack.iter().any(|frame| known(frame) == Some(Place::GpuDriver))
}

fn function<'a>(frame: &'a &str) -> &'a str {
    frame.split(' ').next().unwrap_or(frame)
}

fn known(frame: &str) -> Option<Place> {
    let (name, module) = frame.split_once(' ').unwrap_or((frame, ""));
    let module = module.trim_start_matches('[').trim_end_matches(']');
    let of_module = MODULES.iter().find(|(known, _)| *known == module).map(|(_, place)| *place);
    let of_name = || FUNCTIONS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, place)| *place);
    of_module.or_else(of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_innermost_frame_that_belongs_somewhere_decides() {
        let cases: &[(&[&str], Place)] = &[
            (
                &["down_write", "os_acquire_rwlock_write [nvidia]", "nvidia_close [nvidia]", "__fput"],
                Place::GpuDriver,
            ),
            (&["down", "rwsem_down_write_slowpath", "uvm_va_space_destroy [nvidia_uvm]"], Place::GpuDriver),
            (
                &["percpu_rwsem_wait", "__percpu_down_read", "vfs_write", "ksys_write"],
                Place::FrozenFileSystem,
            ),
            (&["percpu_rwsem_wait", "__percpu_down_read", "cgroup_attach_task"], Place::Kernel),
            (&["request_wait_answer", "__fuse_simple_request", "fuse_flush", "filp_flush"], Place::Fuse),
            (&["__fuse_request_send [fuse]", "filp_close"], Place::Fuse),
            (&["rpc_wait_bit_killable [sunrpc]", "nfs4_file_flush [nfsv4]"], Place::Nfs),
            (&["io_schedule", "folio_wait_bit_common", "ext4_sync_file"], Place::FileSystem),
            (&["__refrigerator", "get_signal"], Place::Freezer),
            (&["coredump_task_exit", "do_exit"], Place::CoreDump),
            (&["futex_wait_queue", "do_syscall_64"], Place::Kernel),
            (&[], Place::Kernel),
        ];
        for (stack, expected) in cases {
            assert_eq!(place(None, &frames(stack)), *expected, "{stack:?}");
        }
    }

    #[test]
    fn without_a_stack_the_sleeping_function_is_all_there_is() {
        assert_eq!(place(Some("percpu_rwsem_wait"), &[]), Place::FrozenFileSystem);
        assert_eq!(place(Some("request_wait_answer"), &[]), Place::Fuse);
        assert_eq!(place(Some("os_acquire_semaphore"), &[]), Place::GpuDriver);
        assert_eq!(place(Some("hrtimer_nanosleep"), &[]), Place::Kernel);
        assert_eq!(place(None, &[]), Place::Kernel);
    }

    #[test]
    fn a_driver_frame_anywhere_is_seen() {
        assert!(in_gpu_driver(&frames(&["msleep", "nvidia_close [nvidia]"])));
        assert!(!in_gpu_driver(&frames(&["msleep", "filp_flush"])));
    }
}

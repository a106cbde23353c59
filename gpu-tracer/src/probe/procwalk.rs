//! A snapshot without BPF: a walk over `/proc`.
//!
//! For kernels without iterators and for people without privileges. It visits *tasks*, not processes: the handles of a
//! process whose leader is a zombie are under `/proc/PID/task/TID/fd` and nowhere else, and a thread may have an fd
//! table of its own.
//!
//! * **Devices are known by number.** Each descriptor's inode is asked through its magic link, with
//!   `AT_STATX_DONT_SYNC` so that a dead file server is not. `O_PATH` descriptors hold no device and are left out.
//! * **Each table, address space and open file counts once**, as far as `kcmp(2)` tells which are the same. Keys are
//!   numbers of this walk. A mapping does not say which open file it is of: it is taken to be of the first that its
//!   process has open on the same inode, and only if there is none it counts as a file of its own.
//! * **Nothing waits for ever.** Address spaces are left alone while a thread of theirs is exiting or in D state; all
//!   reading is done by threads that are given up when they stand still ([`crew`]).
//! * **It never proves "nobody".** There are no reference counts in `/proc`, what is queued in a socket has no name
//!   there, other people's processes are closed. All of that is in [`Snapshot::missing`], which is never empty.

mod assemble;
mod coverage;
mod crew;
mod identity;
mod kcmp;
mod mappings;
mod node;
mod ring;
mod visit;

#[cfg(test)]
mod programs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use node::device_at;
pub use ring::{RingError, fdinfo_ring_files};

use crate::model::snapshot::Source;
use crate::model::{DeviceTable, ModuleUses, Snapshot};
use crate::process::ProcDir;
use crate::process::patience::within;
use coverage::Gap;
use crew::{Beat, Limits};
use visit::Visit;

/// How long comparing what was found may take before it is done without the kernel's help.
const COMPARING: Duration = Duration::from_secs(3);
/// How long all visits together may take; how long those may that have to be made again.
const VISITING: Duration = Duration::from_secs(10);
const VISITING_AGAIN: Duration = Duration::from_secs(2);

/// What every visit of one walk needs to know.
#[derive(Debug)]
struct Site {
    /// Where `/proc` is.
    root: std::path::PathBuf,
    /// What counts as a GPU handle.
    devices: DeviceTable,
    /// Our own PID as that `/proc` shows it; `None` if it does not show us.
    own_pid: Option<u32>,
    /// PIDs of that `/proc` mean the same to system calls, so that `kcmp` can be asked.
    kernel: bool,
    /// Our mount namespace.
    mount_ns: Option<u32>,
    /// Device number of the file system behind anonymous shared memory, which has no device nodes.
    shmem: Option<(u32, u32)>,
    /// Mapped inodes that turned out to be no devices: most processes map the same libraries.
    ordinary: Mutex<HashSet<((u32, u32), u64)>>,
}

impl Site {
    fn new(root: &Path, devices: &DeviceTable) -> Self {
        let own = ProcDir::open(root).ok();
        let own_pid = own
            .as_ref()
            .and_then(|proc| proc.link("self").ok())
            .and_then(|text| std::str::from_utf8(&text.0).ok()?.parse().ok());
        Self {
            root: root.to_owned(),
            devices: devices.clone(),
            own_pid,
            kernel: own_pid == Some(std::process::id()) && own.as_ref().is_some_and(is_procfs),
            mount_ns: node::own_mount_ns(root),
            shmem: node::shmem_device(),
            ordinary: Mutex::default(),
        }
    }

    /// Is this inode known not to be a device?
    fn is_ordinary(&self, fs: (u32, u32), inode: u64) -> bool {
        fs.0 != 0 && self.ordinary.lock().is_ok_and(|known| known.contains(&(fs, inode)))
    }

    /// Remembers that it is none. Only where a file system is a block device of its own, inode numbers are unique:
    /// with major 0, subvolumes may share a device number and use the same inode numbers for different things.
    fn note_ordinary(&self, fs: (u32, u32), inode: u64) {
        if fs.0 != 0
            && let Ok(mut known) = self.ordinary.lock()
        {
            known.insert((fs, inode));
        }
    }
}

fn is_procfs(directory: &ProcDir) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Walks the `/proc` at `root` for handles of `devices`.
///
/// `now_boot_ns` becomes [`Snapshot::taken_ns`]. The caller's own process is left out. 2,000 processes with 50
/// descriptors each take about 0.9 s of processor time, spread over at most four threads; whatever the walk meets, it
/// ends after at most fifteen seconds.
#[must_use]
pub fn walk(root: &Path, devices: &DeviceTable, now_boot_ns: u64) -> Snapshot {
    let site = Arc::new(Site::new(root, devices));
    let mut gaps = coverage::of_place(&site);
    let pids = match ProcDir::open(root).and_then(|proc| proc.numbers()) {
        Ok(pids) => pids.into_iter().filter(|pid| Some(*pid) != site.own_pid).collect(),
        Err(error) => {
            gaps.push(Gap::NoProc(error.to_string()));
            Vec::new()
        }
    };
    let mut visits = BTreeMap::new();
    if !devices.is_empty() {
        visit_all(&site, pids, VISITING, &mut visits, &mut gaps);
        // What was in the middle of something is looked at again: by now it may have got through.
        let unsettled =
            visits.values().filter(|visit: &&Visit| visit.is_unsettled()).map(|visit| visit.pid).collect();
        visit_all(&site, unsettled, VISITING_AGAIN, &mut visits, &mut gaps);
    }
    let visits: Arc<Vec<Visit>> = Arc::new(visits.into_values().collect());

    let theirs = Arc::clone(&visits);
    let kernel = site.kernel;
    // Asking the kernel to compare two files takes a reference to each, and giving it back may run the driver's release.
    let found = within(COMPARING, move || assemble::assemble(&theirs, kernel)).unwrap_or_else(|_| {
        gaps.push(Gap::NotCompared);
        assemble::assemble(&visits, false)
    });
    let all_gaps = visits.iter().flat_map(|visit| visit.gaps.iter().map(|gap| (Some(visit.pid), gap)));
    let missing = coverage::missing(gaps.iter().map(|gap| (None, gap)).chain(all_gaps));
    Snapshot {
        taken_ns: now_boot_ns,
        source: Source::ProcWalk,
        tasks: found.tasks,
        files: found.files,
        references: found.references,
        missing,
        modules: ModuleUses::default(),
    }
}

/// Visits `pids`; later visits of a process replace earlier ones.
fn visit_all(
    site: &Arc<Site>,
    pids: Vec<u32>,
    total: Duration,
    visits: &mut BTreeMap<u32, Visit>,
    gaps: &mut Vec<Gap>,
) {
    let theirs = Arc::clone(site);
    let work = Arc::new(move |pid: u32, beat: &Beat| visit::visit(&theirs, pid, beat));
    let outcome = crew::run(pids, Limits { total, ..Limits::default() }, work);
    visits.extend(outcome.done.into_iter().map(|visit| (visit.pid, visit)));
    gaps.extend(outcome.stuck.into_iter().map(Gap::Stuck));
    if outcome.skipped > 0 {
        gaps.push(Gap::NotVisited(outcome.skipped));
    }
}

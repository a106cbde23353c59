//! What a walk cannot see, so that nobody takes its silence for proof.

use rustix::thread::CapabilitySet;

use super::Site;
use crate::model::{Missing, counted};
use crate::process::{ProcDir, namespaces};

/// Inode number of the initial user namespace (`PROC_USER_INIT_INO` of `include/linux/proc_ns.h`).
const INITIAL_USER: u32 = 0xEFFF_FFFD;
/// So many PIDs are named before the rest is only counted.
const NAMED: usize = 8;

/// Something that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// No `/proc` at all, with the reason.
    NoProc(String),
    /// This `/proc` is not of the initial PID namespace, or not known to be.
    OtherPidNamespace,
    /// Mounted with `hidepid`, and we are not exempt.
    HidePid,
    /// A process, or a thread of it, belongs to somebody else.
    Denied,
    /// Reading about a process failed for no good reason.
    Unreadable,
    /// Reading about this process did not return.
    Stuck(u32),
    /// So many processes were not visited for lack of time.
    NotVisited(usize),
    /// Comparing the finds did not return.
    NotCompared,
    /// A thread of the process is exiting or in D state, so that its address space was left alone.
    MapsLocked,
    /// Its address space may not be read, or only in part.
    MapsUnreadable,
    /// So many of its mapped files could not be found under their names.
    MapsUnidentified(usize),
    /// This thread of it is half-way through exit, its fd table already gone.
    HalfExited(u32),
    /// So many descriptors wait in its sockets.
    Queued(u64),
    /// This kernel does not show whether descriptors wait in sockets.
    QueuesHidden,
    /// An io_uring of it did not show its files.
    RingBusy,
    /// An io_uring of it may not be read, or only in part.
    RingUnreadable,
    /// So many registered files could not be found under their names.
    RingUnidentified(usize),
    /// It maps an io_uring that it has no descriptor of.
    RingUnlisted,
    /// The kernel does not tell whether its threads share one fd table.
    SharingUnknown,
}

/// What is wrong with this `/proc` as a place to look from.
pub(super) fn of_place(site: &Site) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let own = site.own_pid.and_then(|pid| ProcDir::open(site.root.join(pid.to_string())).ok());
    // The first process of this /proc is in the namespace that it shows; only root may ask where. We ourselves may be
    // further inside.
    let first = ProcDir::open(site.root.join("1")).ok();
    let namespace = [&first, &own].into_iter().flatten().find_map(|task| namespaces::one(task, "pid"));
    if namespace != Some(namespaces::INITIAL_PID) {
        gaps.push(Gap::OtherPidNamespace);
    }
    if is_older(rustix::system::uname().release().to_bytes(), (5, 7)) {
        gaps.push(Gap::QueuesHidden);
    }
    if let Some(own) = &own {
        // In a user namespace of its own, a process has every capability and still sees nobody else's.
        let privileged = namespaces::one(own, "user") == Some(INITIAL_USER)
            && rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
        let mounts = own.read("mountinfo", 4 << 20).unwrap_or_default();
        if !privileged && hides_pids(&mounts, site.root.as_os_str().as_encoded_bytes()) {
            gaps.push(Gap::HidePid);
        }
    }
    gaps
}

/// Is the kernel release `MAJOR.MINOR...` older than `than`? One that cannot be read is taken to be.
fn is_older(release: &[u8], than: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|byte| !byte.is_ascii_digit())
        .map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < than,
        _ => true,
    }
}

/// Is the `proc` at `mount_point` mounted with `hidepid`? Of several mounts there, the last is the visible one.
fn hides_pids(mountinfo: &[u8], mount_point: &[u8]) -> bool {
    let mut options = mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let point = fields.next()?;
        let options = fields.skip_while(|field| *field != b"-").nth(3)?;
        (point == mount_point).then_some(options)
    });
    let hides =
        |option: &[u8]| option.strip_prefix(b"hidepid=").is_some_and(|how| !matches!(how, b"0" | b"off"));
    options.next_back().is_some_and(|options| options.split(|byte| *byte == b',').any(hides))
}

/// All that was met, sorted and summed up. Never empty: a walk over `/proc` sees no reference counts.
pub(super) fn missing<'a>(gaps: impl Iterator<Item = (Option<u32>, &'a Gap)>) -> Vec<Missing> {
    let mut sums: Vec<Sum> = Vec::new();
    for (pid, gap) in gaps {
        let kind = std::mem::discriminant(gap);
        let sum = match sums.iter_mut().find(|sum| sum.kind == kind) {
            Some(sum) => sum,
            None => {
                sums.push(Sum { kind, first: gap.clone(), pids: Vec::new(), count: 0 });
                sums.last_mut().expect("just pushed")
            }
        };
        let (subject, count) = match gap {
            Gap::Stuck(pid) => (Some(*pid), 1),
            Gap::HalfExited(tid) => (Some(*tid), 1),
            Gap::NotVisited(count) | Gap::MapsUnidentified(count) | Gap::RingUnidentified(count) => {
                (pid, *count as u64)
            }
            Gap::Queued(count) => (pid, *count),
            _ => (pid, 1),
        };
        sum.count += count;
        sum.pids.extend(subject);
    }
    let mut missing: Vec<Missing> = sums.into_iter().map(Sum::into_missing).collect();
    missing.push(Missing {
        what: "reference-counts",
        why: "a walk over /proc sees no reference counts and is not one instant: handles that moved meanwhile, or that \
              only the kernel or a queue refers to, are not in it; use a kernel with BPF iterators (5.8 or newer), as root"
            .to_owned(),
    });
    missing.sort();
    missing
}

/// All gaps of one kind.
struct Sum {
    kind: std::mem::Discriminant<Gap>,
    first: Gap,
    pids: Vec<u32>,
    count: u64,
}

impl Sum {
    fn into_missing(mut self) -> Missing {
        self.pids.sort_unstable();
        self.pids.dedup();
        let who = processes(&self.pids);
        let (what, why) = of_the_walk(&self.first, self.count, &who)
            .or_else(|| of_mappings(&self.first, self.count, &who))
            .or_else(|| of_rings(&self.first, self.count, &who))
            .unwrap_or_else(|| of_handles(&self.first, self.count, &who));
        Missing { what, why }
    }
}

/// Words for what went wrong with the walk as such.
fn of_the_walk(gap: &Gap, count: u64, who: &str) -> Option<(&'static str, String)> {
    Some(match gap {
        Gap::NoProc(error) => ("proc", format!("no processes could be listed: {error}; mount /proc")),
        Gap::OtherPidNamespace => (
            "pid-namespace",
            "this /proc is not known to show the whole host, only one PID namespace; run on the host itself (for \
             example with `nsenter --target 1 --pid --mount`, or in a container with `--pid=host`)"
                .to_owned(),
        ),
        Gap::HidePid => (
            "hidepid",
            "/proc is mounted with `hidepid`, so that other users' processes do not even show; run as root"
                .to_owned(),
        ),
        Gap::Unreadable => ("unreadable", format!("reading about {who} failed; try again")),
        Gap::Stuck(_) => (
            "blocked-read",
            format!("reading about {who} did not return and was given up; see what it waits for with `gpu-tracer why`"),
        ),
        Gap::NotVisited(_) => (
            "time-limit",
            format!(
                "{} not looked at for lack of time; try again when the host is less busy",
                counted(count, "process was", "processes were")
            ),
        ),
        Gap::NotCompared => (
            "comparison",
            "finding out which handles are the same did not return: one may be listed several times; try again"
                .to_owned(),
        ),
        _ => return None,
    })
}

/// Words for mappings that were not seen.
fn of_mappings(gap: &Gap, count: u64, who: &str) -> Option<(&'static str, String)> {
    let why = match gap {
        Gap::MapsLocked => format!(
            "the address space of {who} was left alone, since a thread of it is exiting or in D state and reading \
             might never return; use a kernel with BPF iterators, as root"
        ),
        Gap::MapsUnreadable => format!("the address space of {who} may not be read; run as root"),
        Gap::MapsUnidentified(_) => {
            format!(
                "{} of {who} could not be identified by name; run as root",
                counted(count, "mapped file", "mapped files")
            )
        }
        _ => return None,
    };
    Some(("mappings", why))
}

/// Words for registered files that were not seen.
fn of_rings(gap: &Gap, count: u64, who: &str) -> Option<(&'static str, String)> {
    let why = match gap {
        Gap::RingBusy => format!("an io_uring of {who} was too busy to show its files; try again"),
        Gap::RingUnreadable => {
            format!("the registered files of an io_uring of {who} could not all be read; run as root")
        }
        Gap::RingUnidentified(_) => format!(
            "{} registered in io_urings of {who} could not be identified by name; use a kernel with BPF iterators, as \
             root",
            counted(count, "file", "files")
        ),
        Gap::RingUnlisted => format!(
            "{who} maps an io_uring without a descriptor, whose registered files are not in /proc; use a kernel with \
             BPF iterators, as root"
        ),
        _ => return None,
    };
    Some(("io_uring", why))
}

/// Words for tasks and descriptors that were not seen.
fn of_handles(gap: &Gap, count: u64, who: &str) -> (&'static str, String) {
    match gap {
        Gap::HalfExited(_) => (
            "half-exited-task",
            format!(
                "{who}: half-way through exit with the fd table already gone; what such a task still drops is not in \
                 /proc; wait for it to end"
            ),
        ),
        Gap::Queued(_) => (
            "in-flight",
            format!(
                "{} queued in sockets of {who}, and /proc does not say of what; use a kernel with BPF iterators, as root",
                counted(count, "descriptor is", "descriptors are")
            ),
        ),
        Gap::QueuesHidden => (
            "in-flight",
            "this kernel does not show whether descriptors are queued in sockets; use Linux 5.8 or newer, as root"
                .to_owned(),
        ),
        Gap::SharingUnknown => (
            "shared-tables",
            format!(
                "this kernel does not say whether the threads of {who} share one fd table, so that a handle may be \
                 counted too seldom or too often; use a kernel with kcmp, as root"
            ),
        ),
        _ => ("other-users", format!("{who} may not be looked into; {}", what_would_help())),
    }
}

fn what_would_help() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "run on the host itself, with CAP_SYS_PTRACE and unconfined"
    } else {
        "run as root"
    }
}

/// "process 428", "processes 428, 430 and 7 more".
fn processes(pids: &[u32]) -> String {
    let named: Vec<String> = pids.iter().take(NAMED).map(u32::to_string).collect();
    match (named.as_slice(), pids.len().saturating_sub(NAMED)) {
        ([], _) => "some processes".to_owned(),
        ([one], _) => format!("process {one}"),
        ([first @ .., last], 0) => format!("processes {} and {last}", first.join(", ")),
        (named, more) => format!("{} processes ({} and {more} more)", pids.len(), named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_empty() {
        let nothing = missing(std::iter::empty());
        assert_eq!(nothing.iter().map(|missing| missing.what).collect::<Vec<_>>(), ["reference-counts"]);
    }

    #[test]
    fn gaps_of_a_kind_are_summed_up() {
        let gaps: Vec<(Option<u32>, Gap)> = (1..=20).map(|pid| (Some(pid), Gap::Queued(2))).collect();
        let missing = missing(gaps.iter().map(|(pid, gap)| (*pid, gap)));
        let queued = missing.iter().find(|missing| missing.what == "in-flight").expect("told");
        assert!(
            queued.why.starts_with(
                "40 descriptors are queued in sockets of 20 processes (1, 2, 3, 4, 5, 6, 7, 8 and 12 more)"
            ),
            "{}",
            queued.why
        );
    }

    #[test]
    fn releases_compare_by_number() {
        let older = [b"5.6.19".as_slice(), b"4.19.0-27-amd64", b"5.6", b"nonsense", b""];
        let newer = [b"5.7".as_slice(), b"5.10.0-32-amd64", b"6.1.0", b"10.0-rc1"];
        assert_eq!(older.map(|release| is_older(release, (5, 7))), [true; 5]);
        assert_eq!(newer.map(|release| is_older(release, (5, 7))), [false; 4]);
    }

    #[test]
    fn hidepid_counts_on_the_mount_that_is_looked_through() {
        let mounts = b"22 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=invisible\n\
            40 27 0:50 / /other/proc rw shared:1 - proc proc rw,hidepid=0\n";
        assert!(hides_pids(mounts, b"/proc"));
        assert!(!hides_pids(mounts, b"/other/proc"));
        assert!(!hides_pids(mounts, b"/elsewhere"));
        assert!(!hides_pids(b"22 27 0:21 / /proc rw - proc proc rw\n22 27 0:21 / /proc\n", b"/proc"));
    }
}

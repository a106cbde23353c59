//! Who asks, and what they may see.
//!
//! The kernel says who is at the other end of a unix socket. Root and the members of one group see everything; everybody
//! else sees their own processes, how many others there are, and how much was withheld.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::report::{MissingReport, Report};

/// Groups of one process that are looked at.
const MOST_GROUPS: usize = 65_536;
/// No more of `/etc/group` is read.
const GROUP_FILE_MAX: u64 = 4 << 20;

/// The group whose members see everything, if there is one; shared, because it can be configured anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Group(Arc<AtomicU64>);

impl Group {
    /// 0 stands for none, so that the number of root's group is told from that.
    fn word(number: Option<u32>) -> u64 {
        number.map_or(0, |number| u64::from(number) + 1)
    }

    pub(super) fn new(number: Option<u32>) -> Self {
        Self(Arc::new(AtomicU64::new(Self::word(number))))
    }

    /// From now on; who is connected already stays who they were.
    pub(super) fn set(&self, number: Option<u32>) {
        self.0.store(Self::word(number), Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed).checked_sub(1)?).ok()
    }
}

/// Who is at the other end of a unix socket, as the kernel says.
///
/// Without the PID: one in another PID namespace has none here, and `rustix`'s `UCred` takes that 0 for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Effective user id.
    pub(crate) uid: u32,
    /// Effective group id.
    pub(crate) gid: u32,
}

impl Peer {
    /// Errors: it is no unix socket.
    pub(crate) fn of(socket: impl AsFd) -> std::io::Result<Self> {
        let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the size of `cred`, and any bytes make one.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            Ok(Self { uid: cred.uid, gid: cred.gid })
        } else {
            Err(std::io::Error::last_os_error())
        }
    }
}

/// What somebody may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Viewer {
    /// Their user; `None` for those who may see everything.
    user: Option<u32>,
}

impl Viewer {
    /// Root, or a member of the group.
    pub(super) const fn everything() -> Self {
        Self { user: None }
    }

    /// This user's processes only.
    pub(super) const fn user(uid: u32) -> Self {
        Self { user: Some(uid) }
    }

    /// Whoever is at the other end of `socket`; `group` is the one whose members see everything.
    pub(super) fn of(socket: impl AsFd, group: Option<u32>) -> std::io::Result<(Self, u32)> {
        let Peer { uid, gid } = Peer::of(&socket)?;
        let member = group.is_some_and(|group| {
            gid == group || groups_of(&socket).is_ok_and(|groups| groups.contains(&group))
        });
        Ok((if uid == 0 || member { Self::everything() } else { Self::user(uid) }, uid))
    }

    /// May they see a process of this user? Of a process whose user is not known: no.
    pub(super) fn may_see(self, uid: Option<u32>) -> bool {
        self.user.is_none_or(|own| uid == Some(own))
    }

    /// May they see everything?
    pub(super) fn sees_everything(self) -> bool {
        self.user.is_none()
    }

    /// Takes out of a report what they may not see, and says how much that was.
    pub(super) fn narrow(self, report: &mut Report) {
        if self.sees_everything() {
            return;
        }
        let before = report.holders.len();
        report.holders.retain(|holder| self.may_see(Some(holder.uid)));
        let withheld = before - report.holders.len();
        let held = report.holders.iter().flat_map(|holder| &holder.devices).flat_map(|device| &device.files);
        let own: HashSet<u64> = held.copied().collect();
        for file in &mut report.files {
            if !own.contains(&file.id) {
                (file.opener, file.opened_at, file.opened_exact, file.task) = (None, None, false, None);
            }
        }
        // What stands there may name processes of others.
        for missing in &mut report.coverage.missing {
            match missing.what.as_str() {
                HALF_EXITED => HALF_EXITED_OF_SOMEBODY.clone_into(&mut missing.why),
                OPENING => OPENING_BY_SOMEBODY.clone_into(&mut missing.why),
                _ => {}
            }
        }
        report.coverage.missing.dedup();
        if withheld > 0 {
            let (holders, are) = if withheld == 1 { ("holder", "is") } else { ("holders", "are") };
            report.coverage.missing.push(MissingReport {
                what: "withheld".to_owned(),
                why: format!(
                    "{withheld} {holders} of other users {are} not shown; ask as root (sudo gpu-tracer holders) or as a \
                     member of the daemon's group"
                ),
            });
            report.coverage.complete = false;
        }
    }
}

const HALF_EXITED: &str = "half-exited-task";
const HALF_EXITED_OF_SOMEBODY: &str = "a task is half-way through its exit, and what it has not released yet cannot be seen; ask as root which one";

const OPENING: &str = "opening";
const OPENING_BY_SOMEBODY: &str =
    "a task is inside the driver's open, and what it opens is in no table yet; ask as root which one";

/// Supplementary groups of the peer: `SO_PEERGROUPS`, Linux 4.13.
fn groups_of(socket: impl AsFd) -> std::io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the length of `groups`, and the length it needs.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let entries = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(entries);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || entries <= groups.len() || entries > MOST_GROUPS {
            return Err(error);
        }
        groups.resize(entries, 0);
    }
}

/// Number of a group, from `/etc/group` alone: directory services may hang.
pub(super) fn group_number(name: &str) -> Option<u32> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open("/etc/group").ok()?.take(GROUP_FILE_MAX).read_to_end(&mut text).ok()?;
    group_in(&String::from_utf8_lossy(&text), name)
}

fn group_in(file: &str, name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1))?.and_then(|number| number.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::report::{Cost, Coverage, FileReport, HeldDevice, Holder, Opener, SCHEMA, TaskReport};

    fn report() -> Report {
        let holder = |pid, uid, file| Holder {
            pid,
            uid,
            devices: vec![HeldDevice { files: vec![file], ..HeldDevice::default() }],
            ..Holder::default()
        };
        let opener =
            Opener { pid: 1, start_ns: 1, comm: "secret".into(), cmdline: "secret".into(), alive: true };
        let file = |id| FileReport {
            id,
            device: "nvidia0".into(),
            gpu: Some(0),
            state: "open".into(),
            since: None,
            for_ms: None,
            task: Some(TaskReport { pid: 1, tid: 1 }),
            references: Some(1),
            unexplained: 0,
            driver_pins: 0,
            opened_at: None,
            opened_exact: false,
            opener: Some(opener.clone()),
        };
        Report {
            schema: SCHEMA,
            taken_at: String::new(),
            boot_id: String::new(),
            plan: "lean".to_owned(),
            coverage: Coverage { complete: true, missing: Vec::new() },
            cost: Cost::default(),
            gpus: Vec::new(),
            files: vec![file(1), file(2), file(3)],
            holders: vec![holder(10, 1000, 1), holder(20, 0, 2), holder(30, 1001, 3)],
        }
    }

    #[test]
    fn the_other_end_of_a_pair_is_ourselves() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(Peer::of(&ours).unwrap(), Peer { uid, gid });
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn a_user_sees_own_holders_and_how_many_others_are_withheld_and_no_names_of_theirs() {
        let mut seen = report();
        Viewer::user(1000).narrow(&mut seen);
        assert_eq!(seen.holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [10]);
        assert_eq!(seen.files.len(), 3, "that the device is held is no secret");
        let named: Vec<u64> =
            seen.files.iter().filter(|file| file.opener.is_some()).map(|file| file.id).collect();
        assert_eq!(named, [1]);
        let tasks: Vec<u64> =
            seen.files.iter().filter(|file| file.task.is_some()).map(|file| file.id).collect();
        assert_eq!(tasks, [1]);
        let missing = &seen.coverage.missing[0];
        assert_eq!((missing.what.as_str(), seen.coverage.complete), ("withheld", false));
        assert!(missing.why.starts_with("2 holders"), "{}", missing.why);
    }

    #[test]
    fn root_and_the_group_see_everything() {
        let mut seen = report();
        Viewer::everything().narrow(&mut seen);
        assert_eq!(seen, report());
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        let file = "root:x:0:\ngpu-tracer:x:977:alice,bob\nbad\ngpu:x:\n";
        let found = |name| group_in(file, name);
        assert_eq!(
            (found("gpu-tracer"), found("12"), found("gpu"), found("bad")),
            (Some(977), Some(12), None, None)
        );
    }

    #[test]
    fn the_peer_of_a_socket_of_our_own_is_ourselves() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (_, uid) = Viewer::of(&ours, None).unwrap();
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        assert!(groups_of(&ours).is_ok(), "{:?}", groups_of(&ours));
    }
}

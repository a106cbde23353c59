//! Hooks that outlive the process that attached them.

use std::path::PathBuf;

use super::{
    Shell, attach, devices, is_root,
    parts::{Part, Playing},
    touches_by, until, walks_tables,
};
use crate::{
    kernel::Btf,
    model::event::EventKind,
    probe::{
        EventSource, ProbeError,
        events::{Options, Start, unpin},
    },
};

/// A directory that can be pinned in; what is mounted on it goes with it.
struct PinDir(tempfile::TempDir);

impl PinDir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pins")
    }

    fn options(&self) -> Options {
        Options { pin_dir: Some(self.path()), ..Options::default() }
    }

    fn sets(&self) -> Vec<String> {
        let names = self.path().read_dir().expect("readable");
        let names = names.map(|entry| entry.expect("readable").file_name().into_string().expect("plain"));
        // The kernel puts two files of its own into each BPF file system.
        names.filter(|name| !name.ends_with(".debug")).collect()
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        let _ = unpin(&self.path());
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_killed_owner_loses_nothing_and_the_next_one_continues() {
    if !is_root() {
        return;
    }
    let directory = PinDir::new();
    let mut owner = Playing::start(Part::Owner, &directory.path());
    let mut early = Shell::new();
    early.run("exec 9</dev/full");
    let early_pid = early.pid();
    let refused = EventSource::attach(&Btf::read(Btf::VMLINUX).unwrap(), &devices(), &directory.options());
    assert!(matches!(refused, Err(ProbeError::Busy { .. })), "{refused:?}");
    assert!(matches!(unpin(&directory.path()), Err(ProbeError::Busy { .. })));
    owner.kill();
    // Nobody is there to see this.
    let mut late = Shell::new();
    late.run("exec 9</dev/full");
    let late_pid = late.pid();
    let child: u32 = late.run("sleep 1000 >/dev/null & echo $!").parse().expect("a PID");
    late.run(&format!("kill -9 {child}; wait {child} 2>/dev/null"));

    let mut source = attach(&directory.options());
    assert_eq!(source.start(), Start::Resumed);
    assert!(
        source.hooks().iter().filter(|report| report.works.is_yes()).count() >= 8,
        "{:?}",
        source.hooks()
    );
    let events = until(&mut source, |kind| matches!(kind, EventKind::Freed { task } if task.tid == child));
    assert_eq!(touches_by(&events, late_pid).len(), 1, "{events:#?}");
    let walks = walks_tables(&source);
    let killed = |kind: &EventKind| matches!(kind, EventKind::Exiting { task, exit, held, .. } if task.tid == child && exit.signal() == Some(9) && held.len() == usize::from(walks));
    assert!(events.iter().any(|event| killed(&event.kind)), "{events:#?}");
    assert!(source.tracked().iter().any(|process| process.tgid == early_pid), "{:?}", source.tracked());
    assert_eq!(source.losses().expect("losses").total(), 0);

    // It goes on.
    late.run("exec 8</dev/full");
    until(&mut source, |kind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.tid == late_pid));
    drop(source);
    assert_eq!(directory.sets().len(), 1);
    assert_eq!(unpin(&directory.path()).expect("unpin"), 1);
    assert_eq!(directory.sets(), Vec::<String>::new());
    assert_eq!(unpin(&directory.path()).expect("unpin"), 0);
}

#[test]
fn hooks_of_another_version_are_replaced_and_that_is_told() {
    if !is_root() {
        return;
    }
    let directory = PinDir::new();
    drop(attach(&directory.options()));
    let before = directory.sets();
    // Another size of the ring is another version.
    let other = Options { ring_bytes: 1 << 16, ..directory.options() };
    let source = attach(&other);
    assert_eq!(source.start(), Start::Replaced);
    drop(source);
    let after = directory.sets();
    assert_eq!((before.len(), after.len()), (1, 1), "{before:?} {after:?}");
    assert_ne!(before, after);
    // Half of a set, as a process leaves it that is killed while it makes one, or that lost a map.
    std::fs::remove_file(directory.path().join(&after[0]).join("TRACKED")).expect("removed");
    std::fs::create_dir(directory.path().join("new-v2-0123456789abcdef")).expect("made");
    std::fs::create_dir(directory.path().join("theirs")).expect("made");
    let source = attach(&other);
    assert_eq!(source.start(), Start::Replaced);
    drop(source);
    let mut sets = directory.sets();
    sets.sort_unstable();
    assert_eq!(sets, ["theirs".to_owned(), after[0].clone()]);
}

#[test]
fn a_directory_that_cannot_be_pinned_in_is_refused_with_a_remedy() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("something"), "").expect("written");
    let options = Options { pin_dir: Some(directory.path().to_owned()), ..Options::default() };
    let refused = EventSource::attach(&Btf::read(Btf::VMLINUX).unwrap(), &devices(), &options);
    let text = refused.expect_err("no BPF file system").to_string();
    assert!(text.contains("not empty") && text.contains("mount -t bpf"), "{text}");
}

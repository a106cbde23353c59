//! Hosts made of files.

use std::os::unix::fs::symlink;

use super::*;

struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(host.0.path().join("proc/self/ns")).unwrap();
        host.write("proc/sys/kernel/osrelease", "6.1.0-32-amd64\n")
    }

    fn write(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn namespace(self, name: &str, inode: u64) -> Self {
        symlink(format!("{name}:[{inode}]"), self.0.path().join("proc/self/ns").join(name)).unwrap();
        self
    }

    fn probe(&self) -> Features {
        Features::probe(self.0.path())
    }
}

#[test]
fn versions_of_every_distribution_are_read() {
    for (release, number) in [
        ("6.18.44-fc-v857", (6, 18, 44)),
        ("5.10.0-32-amd64", (5, 10, 0)),
        ("6.1", (6, 1, 0)),
        ("7.2-rc3", (7, 2, 0)),
        ("4.18.0-553.el8_10.x86_64", (4, 18, 0)),
        ("", (0, 0, 0)),
        ("99999999999.1", (0, 1, 0)),
    ] {
        assert_eq!(KernelVersion::parse(release).number, number, "{release}");
    }
    let six = KernelVersion::parse("6.1.0");
    assert!(six.at_least(6, 1) && six.at_least(5, 19) && !six.at_least(6, 2) && !six.at_least(7, 0));
}

#[test]
fn an_empty_host_has_nothing_and_nothing_is_taken_for_granted() {
    let features = Features::probe(tempfile::tempdir().unwrap().path());
    assert_eq!(features.btf, Answer::No);
    assert!(matches!(features.kprobes, Answer::Denied(_)), "{:?}", features.kprobes);
    assert_eq!(features.lockdown, Lockdown::Unknown);
    assert_eq!((features.bpffs, features.cgroup2, features.modules), (None, None, None));
    assert_eq!((features.initial_pid_namespace, features.unprivileged_bpf_disabled), (None, None));
    assert_eq!(features.capabilities, Capabilities(0));
}

#[test]
fn kprobes_are_told_without_privilege() {
    let yes = Host::new().write("sys/bus/event_source/devices/kprobe/type", "8").probe();
    assert_eq!(yes.kprobes, Answer::Yes);
    let yes = Host::new().write("sys/kernel/tracing/kprobe_events", "").probe();
    assert_eq!(yes.kprobes, Answer::Yes);
    let no = Host::new().write("sys/bus/event_source/devices/uprobe/type", "9").probe();
    assert_eq!(no.kprobes, Answer::No);
}

#[test]
fn lockdown_is_what_stands_in_brackets() {
    let with = |text: &str| Host::new().write("sys/kernel/security/lockdown", text).probe().lockdown;
    assert_eq!(with("[none] integrity confidentiality\n"), Lockdown::None);
    assert_eq!(with("none [integrity] confidentiality\n"), Lockdown::Integrity);
    assert_eq!(with("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
    assert_eq!(with("none [something] new\n"), Lockdown::Unknown);
    assert_eq!(Host::new().write("sys/kernel/security/lsm", "capability").probe().lockdown, Lockdown::None);
    let unmounted = Host::new();
    std::fs::create_dir_all(unmounted.0.path().join("sys/kernel/security")).unwrap();
    assert_eq!(unmounted.probe().lockdown, Lockdown::Unknown);
}

#[test]
fn mounts_are_found_where_they_are() {
    let features = Host::new()
        .write(
            "proc/self/mountinfo",
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 /docker/1 /somewhere rw - cgroup2 cgroup2 rw\n\
             42 31 0:38 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n\
             43 31 0:39 / /sys/fs/bpf rw shared:9 - bpf none rw,mode=700\n\
             44 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=invisible\n",
        )
        .probe();
    assert_eq!(features.cgroup2.as_deref(), Some(Path::new("/sys/fs/cgroup/uni fied")));
    assert_eq!(features.bpffs.as_deref(), Some(Path::new("/sys/fs/bpf")));
    assert_eq!(features.hidepid, HidePid::Invisible);
}

#[test]
fn a_capability_in_a_user_namespace_is_denied_on_the_host() {
    let root = "CapEff:\t000001ffffffffff\n";
    let host = Host::new().write("proc/self/status", root).namespace("user", 4_026_531_837).probe();
    assert_eq!(host.may(Capability::Bpf), Answer::Yes);
    let inside = Host::new().write("proc/self/status", root).namespace("user", 4_026_532_100).probe();
    let Answer::Denied(why) = inside.may(Capability::Bpf) else {
        panic!("{:?}", inside.may(Capability::Bpf))
    };
    assert!(why.contains("user namespace"), "{why}");
    let nobody =
        Host::new().write("proc/self/status", "CapEff:\t0\n").namespace("user", 4_026_531_837).probe();
    let Answer::Denied(why) = nobody.may(Capability::SysPtrace) else { panic!() };
    assert!(why.starts_with("CAP_SYS_PTRACE is missing"), "{why}");
}

#[test]
fn the_initial_namespaces_are_known_by_their_inodes() {
    let host = Host::new().namespace("pid", 4_026_531_836).namespace("cgroup", 4_026_531_835).probe();
    assert_eq!((host.initial_pid_namespace, host.initial_cgroup_namespace), (Some(true), Some(true)));
    let container = Host::new().namespace("pid", 4_026_532_188).probe();
    assert_eq!((container.initial_pid_namespace, container.initial_user_namespace), (Some(false), None));
}

#[test]
fn io_uring_is_ruled_out_only_where_that_is_certain() {
    let with = |release: &str, disabled: Option<&str>| {
        let host = Host::new().write("proc/sys/kernel/osrelease", release);
        match disabled {
            Some(text) => host.write("proc/sys/kernel/io_uring_disabled", text).probe().io_uring,
            None => host.probe().io_uring,
        }
    };
    assert_eq!(with("6.18.1", Some("0\n")), Answer::Yes);
    assert!(matches!(with("6.18.1", Some("2\n")), Answer::Denied(_)));
    assert_eq!(with("6.18.1", None), Answer::No);
    assert_eq!(with("5.10.0", None), Answer::Yes);
    assert_eq!(with("4.19.0", None), Answer::No);
}

#[test]
fn type_information_of_modules_is_listed() {
    let features = Host::new()
        .write("sys/kernel/btf/vmlinux", "")
        .write("sys/kernel/btf/nvidia_uvm", "")
        .write("sys/kernel/btf/nvidia", "")
        .write("proc/modules", "nvidia 1 3 nvidia_uvm, Live 0x0\n")
        .probe();
    assert_eq!(
        (features.btf.clone(), features.module_btf.join(" ")),
        (Answer::Yes, "nvidia nvidia_uvm".to_owned())
    );
    assert_eq!(features.module("nvidia").and_then(Module::references_beyond_modules), Some(2));
    assert_eq!(features.module("nvidia_uvm"), None);
}

#[test]
fn this_host_is_probed_without_a_panic() {
    let features = Features::probe(Path::new("/"));
    assert_ne!(features.kernel.number, (0, 0, 0), "{features:?}");
    println!("{features:#?}");
}

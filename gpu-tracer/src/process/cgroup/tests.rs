//! Paths as runtimes, systemd, Kubernetes and Slurm make them.

use super::*;
use proptest::prelude::*;

const ID: &str = "4f0b1c9a7de28c1bb6f3a5e0d9c8b7a6958473625140f3e2d1c0bfaeb9d8c7e6";
const OTHER: &str = "aa00bb11cc22dd33ee44ff5566778899aa00bb11cc22dd33ee44ff5566778899";
const POD: &str = "9f1d3c52-0b7e-4c7a-8a3e-5d2f6b1c0a9e";

/// One row: the path (`ID`, `OTHER`, `POD`, `POD_` filled in), then what it must say, `-` for nothing.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

fn fill(text: &str) -> String {
    text.replace("{ID}", ID)
        .replace("{OTHER}", OTHER)
        .replace("{POD_}", &POD.replace('-', "_"))
        .replace("{POD}", POD)
}

fn check(rows: &[Row]) {
    for (path, container, pod, unit, job) in rows {
        let wanted = |text: &str| (text != "-").then(|| RawText::from(fill(text).as_str()));
        let expected = Placement {
            container: wanted(container),
            pod: wanted(pod),
            unit: wanted(unit),
            job: wanted(job),
        };
        assert_eq!(classify(fill(path).as_bytes()), expected, "{path}");
    }
}

#[test]
fn docker_and_podman_containers_are_named_with_their_full_id() {
    check(&[
        ("/docker/{ID}", "docker:{ID}", "-", "-", "-"),
        ("/system.slice/docker-{ID}.scope", "docker:{ID}", "-", "docker-{ID}.scope", "-"),
        ("/system.slice/docker.service", "-", "-", "docker.service", "-"),
        ("/docker/buildkit/{ID}", "container:{ID}", "-", "-", "-"),
        ("/ecs/6d1f0c3a9b7e4c8d/{ID}", "docker:{ID}", "-", "-", "-"),
        ("/ecs/{ID}", "docker:{ID}", "-", "-", "-"),
        ("/machine.slice/libpod-{ID}.scope/container", "podman:{ID}", "-", "libpod-{ID}.scope", "-"),
        ("/machine.slice/libpod-conmon-{ID}.scope", "-", "-", "libpod-conmon-{ID}.scope", "-"),
        (
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
            "podman:{ID}",
            "-",
            "libpod-{ID}.scope",
            "-",
        ),
        ("/system.slice/train.service/libpod-payload-{ID}", "podman:{ID}", "-", "train.service", "-"),
        ("/libpod_parent/libpod-{ID}", "podman:{ID}", "-", "-", "-"),
        ("/default/{ID}", "containerd:{ID}", "-", "-", "-"),
        ("/system.slice/nerdctl-{ID}.scope", "containerd:{ID}", "-", "nerdctl-{ID}.scope", "-"),
        ("/actions_job/{ID}", "container:{ID}", "-", "-", "-"),
        ("/build/4f0b1c9a7de28c1bb6f3a5e0d9c8b7a6", "-", "-", "-", "-"),
    ]);
}

#[test]
fn kubernetes_pods_are_found_under_both_cgroup_drivers() {
    check(&[
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_}.slice/cri-containerd-{ID}.scope",
            "containerd:{ID}",
            "{POD}",
            "cri-containerd-{ID}.scope",
            "-",
        ),
        (
            "/kubepods.slice/kubepods-pod{POD_}.slice/crio-{ID}.scope",
            "cri-o:{ID}",
            "{POD}",
            "crio-{ID}.scope",
            "-",
        ),
        (
            "/kubepods.slice/kubepods-pod{POD_}.slice/crio-conmon-{ID}.scope",
            "-",
            "{POD}",
            "crio-conmon-{ID}.scope",
            "-",
        ),
        (
            "/kubepods.slice/kubepods-pod{POD_}.slice/crio-{ID}.scope/container",
            "cri-o:{ID}",
            "{POD}",
            "crio-{ID}.scope",
            "-",
        ),
        ("/kubepods/besteffort/pod{POD}/{ID}", "containerd:{ID}", "{POD}", "-", "-"),
        ("/kubepods/pod{POD}/{ID}/init.scope", "containerd:{ID}", "{POD}", "-", "-"),
        ("/kubelet/kubepods/burstable/pod{POD}/crio-{ID}", "cri-o:{ID}", "{POD}", "-", "-"),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice/docker-{ID}.scope",
            "docker:{ID}",
            "{POD}",
            "docker-{ID}.scope",
            "-",
        ),
        // containerd without its systemd driver under a kubelet that uses systemd's notation.
        (
            "/system.slice/containerd.service/kubepods-burstable-pod{POD_}.slice:cri-containerd:{ID}",
            "containerd:{ID}",
            "{POD}",
            "containerd.service",
            "-",
        ),
        // A node that is itself a Docker container: the innermost container, and no unit of the inner systemd.
        (
            "/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD_}.slice/cri-containerd-{ID}.scope",
            "containerd:{ID}",
            "{POD}",
            "-",
            "-",
        ),
        // A static pod has a hash for a uid.
        (
            "/kubepods/burstable/pod6c3bf6c4f5e64ab2a1d0c9b8a7f6e5d4/{ID}",
            "containerd:{ID}",
            "6c3bf6c4f5e64ab2a1d0c9b8a7f6e5d4",
            "-",
            "-",
        ),
        ("/kubepods.slice/kubepods-burstable.slice", "-", "-", "-", "-"),
        ("/podcasts/pod{POD}", "-", "-", "-", "-"),
    ]);
}

#[test]
fn system_containers_are_named_as_their_manager_names_them() {
    check(&[
        ("/lxc/101/ns/system.slice/ssh.service", "lxc:101", "-", "-", "-"),
        ("/lxc/101/ns/user.slice/user-0.slice/session-c1.scope", "lxc:101", "-", "-", "-"),
        ("/lxc.payload.web-1/init.scope", "lxc:web-1", "-", "-", "-"),
        ("/lxc.payload/web", "lxc:web", "-", "-", "-"),
        ("/lxc.monitor.web-1", "-", "-", "-", "-"),
        ("/lxc.monitor/101", "-", "-", "-", "-"),
        ("/lxc/101/ns/docker/{ID}", "docker:{ID}", "-", "-", "-"),
        (
            "/machine.slice/machine-gpu\\x2dbox.scope/payload/system.slice/cron.service",
            "nspawn:gpu-box",
            "-",
            "machine-gpu\\x2dbox.scope",
            "-",
        ),
        (
            "/machine.slice/systemd-nspawn@my\\x2dbox.service/payload/init.scope",
            "nspawn:my-box",
            "-",
            "systemd-nspawn@my\\x2dbox.service",
            "-",
        ),
        (
            "/machine.slice/machine-qemu\\x2d3\\x2dwin11.scope/libvirt/vcpu0",
            "-",
            "-",
            "machine-qemu\\x2d3\\x2dwin11.scope",
            "-",
        ),
        (
            "/machine.slice/machine-lxc\\x2d5012\\x2dweb\\x2d2.scope/libvirt",
            "lxc:web-2",
            "-",
            "machine-lxc\\x2d5012\\x2dweb\\x2d2.scope",
            "-",
        ),
    ]);
}

#[test]
fn the_innermost_unit_counts_and_slices_do_not() {
    check(&[
        ("/", "-", "-", "-", "-"),
        ("", "-", "-", "-", "-"),
        ("/init.scope", "-", "-", "init.scope", "-"),
        ("/system.slice", "-", "-", "-", "-"),
        ("/system.slice/nvidia-persistenced.service", "-", "-", "nvidia-persistenced.service", "-"),
        ("/system.slice/ollama.service/worker/3", "-", "-", "ollama.service", "-"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "-", "-", "getty@tty1.service", "-"),
        ("/user.slice/user-1000.slice/session-3.scope", "-", "-", "session-3.scope", "-"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox\\x2desr-4242.scope",
            "-",
            "-",
            "app-gnome-firefox\\x2desr-4242.scope",
            "-",
        ),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "-", "-", "init.scope", "-"),
        ("/system.slice/gone.service (deleted)", "-", "-", "gone.service", "-"),
        ("/../../system.slice/ssh.service", "-", "-", "ssh.service", "-"),
        ("/.service", "-", "-", "-", "-"),
        ("/process_api/3cf98b989edce9cbc16e7085a348a0b6", "-", "-", "-", "-"),
    ]);
}

#[test]
fn slurm_jobs_are_found_in_both_hierarchies() {
    check(&[
        ("/slurm/uid_1000/job_42/step_0/task_0", "-", "-", "-", "slurm:42.0"),
        ("/slurm/uid_1000/job_42/step_batch", "-", "-", "-", "slurm:42.batch"),
        ("/slurm/uid_1000/job_42", "-", "-", "-", "slurm:42"),
        ("/slurm_gpu01/uid_0/job_7/step_extern/task_0", "-", "-", "-", "slurm:7.extern"),
        (
            "/system.slice/slurmstepd.scope/job_4711/step_interactive/user/task_0",
            "-",
            "-",
            "slurmstepd.scope",
            "slurm:4711.interactive",
        ),
        (
            "/system.slice/gpu01_slurmstepd.scope/job_5/step_2/slurm",
            "-",
            "-",
            "gpu01_slurmstepd.scope",
            "slurm:5.2",
        ),
        ("/system.slice/slurmd.service", "-", "-", "slurmd.service", "-"),
        ("/slurm/uid_1000/job_x/step_0", "-", "-", "-", "-"),
        ("/home/uid_1000/job_42/step_0", "-", "-", "-", "-"),
    ]);
}

#[test]
fn the_hierarchy_that_tells_most_is_taken_whole() {
    let telling =
        |text: &str| most_telling(fill(text).as_bytes()).map(|(path, place)| (path.to_text(), place));

    let hybrid = "12:memory:/docker/{ID}\n5:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n\
                  0::/system.slice/containerd.service\n";
    let (path, place) = telling(hybrid).expect("a path");
    assert_eq!(path, format!("/docker/{ID}"));
    assert_eq!(place.unit, None, "the unit of another hierarchy is not this process's");

    let slurm =
        "9:name=systemd:/system.slice/slurmd.service\n5:devices,freezer:/slurm/uid_1/job_3/step_0\n0::/\n";
    assert_eq!(telling(slurm).expect("a path").0, "/slurm/uid_1/job_3/step_0");

    assert_eq!(telling("4:memory:/a/b\n0::/\n").expect("a path").0, "/a/b");
    assert_eq!(telling("4:memory:/a/b\n3:devices:/c\n0::/\n").expect("a path").0, "/c");
    assert_eq!(telling("0::/user.slice/a:b\n").expect("a path").0, "/user.slice/a:b");
    assert_eq!(telling("0::/\n").expect("a path").0, "/");
    assert_eq!(telling("garbage\n"), None);
}

#[test]
fn names_stay_the_bytes_they_were() {
    let hostile = b"/lxc/\x1b[31m\xff\n/ns";
    assert_eq!(classify(hostile).container, Some(RawText::from(b"lxc:\x1b[31m\xff\n".to_vec())));
    assert_eq!(
        classify(b"/machine.slice/machine-a\\x1b\\xzz\\x.scope").container,
        Some(RawText::from(b"nspawn:a\x1b\\xzz\\x".to_vec()))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = classify(&bytes);
        let _ = most_telling(&bytes);
    }

    #[test]
    fn arbitrary_compositions_never_panic(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("docker"), Just("lxc"), Just("kubepods"), Just("slurm"), Just("job_"), Just("job_1"), Just("step_"),
                Just("pod"), Just("machine-.scope"), Just("machine-\\x"), Just("libpod-"), Just(".scope"), Just("-"),
                Just(":"), Just("ecs"), Just(ID), Just("docker-"), Just("\\x2d.scope")
            ],
            0..8,
        ),
        separator in "[/:-]",
    ) {
        let _ = classify(parts.join(&separator).as_bytes());
    }
}

//! Hosts made of files.

use super::*;
use crate::gpu::identity::tests::write_gpu;

const H200: &str = "Character devices:\n  1 mem\n  5 /dev/tty\n195 nvidia\n195 nvidiactl\n234 nvidia-caps-imex-channels\n\
                    235 nvidia-nvswitch\n236 nvidia-nvlink\n237 nvidia-caps\n238 nvidia-uvm\n240 gdrdrv\n\n\
                    Block devices:\n  7 loop\n195 nvidia-no-such\n";

fn host(devices: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    std::fs::write(root.path().join("proc/devices"), devices).unwrap();
    root
}

fn name(devices: &Devices, major: u32, minor: u32) -> Option<(String, Option<u32>)> {
    devices.table.identify(DeviceNumber { major, minor }).map(|device| (device.name, device.gpu))
}

fn named(name: &str, gpu: Option<u32>) -> Option<(String, Option<u32>)> {
    Some((name.to_owned(), gpu))
}

#[test]
fn every_device_of_the_driver_is_found_by_its_registered_name() {
    let root = host(H200);
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 255), named("nvidiactl", None));
    assert_eq!(name(&devices, 195, 254), named("nvidia-modeset", None));
    assert_eq!(name(&devices, 195, 3), named("nvidia3", None));
    assert_eq!(name(&devices, 195, 250), None);
    assert_eq!(name(&devices, 238, 0), named("nvidia-uvm", None));
    assert_eq!(name(&devices, 238, 1), named("nvidia-uvm-tools", None));
    assert_eq!(name(&devices, 238, 2), None);
    assert_eq!(name(&devices, 237, 12), named("nvidia-caps/nvidia-cap12", None));
    assert_eq!(name(&devices, 234, 0), named("nvidia-caps-imex-channels/channel0", None));
    assert_eq!(name(&devices, 235, 2), named("nvidia-nvswitch2", None));
    assert_eq!(name(&devices, 235, 255), named("nvidia-nvswitchctl", None));
    assert_eq!(name(&devices, 236, 0), named("nvidia-nvlink", None));
    assert_eq!(name(&devices, 240, 7), named("gdrdrv", None));
    assert_eq!(name(&devices, 1, 5), None);
    assert_eq!(name(&devices, 7, 0), None);
}

#[test]
fn the_old_driver_registers_one_name_for_all() {
    let root = host("Character devices:\n195 nvidia-frontend\n511 nvidia-uvm\n");
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 255), named("nvidiactl", None));
    assert_eq!(name(&devices, 195, 254), named("nvidia-modeset", None));
    assert_eq!(name(&devices, 511, 1), named("nvidia-uvm-tools", None));
}

#[test]
fn a_host_without_a_driver_has_nothing_to_look_for() {
    let root = host("Character devices:\n  1 mem\n\nBlock devices:\n195 nvidia\n");
    write_gpu(root.path(), "0000:01:00.0", 0, "GPU-a");
    let devices = discover(root.path(), &[]).unwrap();
    assert!(devices.table.is_empty(), "{devices:?}");
    assert_eq!(devices, Devices::default());
}

#[test]
fn nodes_carry_the_index_of_their_gpu_and_not_their_minor() {
    let root = host(H200);
    write_gpu(root.path(), "0000:0f:00.0", 1, "GPU-a");
    write_gpu(root.path(), "0000:a0:00.0", 0, "GPU-b");
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 1), named("nvidia1", Some(0)));
    assert_eq!(name(&devices, 195, 0), named("nvidia0", Some(1)));
    assert_eq!(devices.assumed, BTreeSet::new());
}

#[test]
fn a_mig_capability_belongs_to_the_gpu_of_its_minor() {
    let root = host(H200);
    write_gpu(root.path(), "0000:0f:00.0", 1, "GPU-a");
    write_gpu(root.path(), "0000:a0:00.0", 0, "GPU-b");
    let directory = root.path().join("proc/driver/nvidia-caps");
    std::fs::create_dir_all(&directory).unwrap();
    let list = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu1/gi0/access 138\ngpu9/gi0/access 200\n";
    std::fs::write(directory.join("mig-minors"), list).unwrap();
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 237, 1), named("nvidia-caps/nvidia-cap1", None));
    assert_eq!(name(&devices, 237, 4), named("nvidia-caps/nvidia-cap4", Some(1)));
    assert_eq!(name(&devices, 237, 138), named("nvidia-caps/nvidia-cap138", Some(0)));
    assert_eq!(name(&devices, 237, 200), named("nvidia-caps/nvidia-cap200", None));
}

#[test]
fn a_stand_in_becomes_a_gpu_and_other_names_are_shared() {
    let root = host("Character devices:\n  1 mem\n");
    let extra = ExtraDevice::list("1:5=nvidia4,1:3=kfd,1:7=nvidia4,1:5=nvidia4").unwrap();
    let devices = discover(root.path(), &extra).unwrap();
    assert_eq!(name(&devices, 1, 5), named("nvidia4", Some(4)));
    assert_eq!(name(&devices, 1, 7), named("nvidia4", Some(4)));
    assert_eq!(name(&devices, 1, 3), named("kfd", None));
    assert_eq!(devices.gpus, [Gpu { index: 4, minor: Some(5), ..Gpu::default() }]);
}

#[test]
fn a_stand_in_for_a_real_gpu_is_one_more_node_of_it() {
    let root = host(H200);
    write_gpu(root.path(), "0000:0f:00.0", 0, "GPU-a");
    let devices =
        discover(root.path(), &["1:5=nvidia0".parse().unwrap(), "1:3=nvidia7".parse().unwrap()]).unwrap();
    assert_eq!(name(&devices, 1, 5), named("nvidia0", Some(0)));
    assert_eq!(name(&devices, 195, 0), named("nvidia0", Some(0)));
    let uuids: Vec<_> = devices.gpus.iter().map(|gpu| (gpu.index, gpu.uuid.as_deref())).collect();
    assert_eq!(uuids, [(0, Some("GPU-a")), (7, None)]);
}

#[test]
fn a_name_by_the_user_beats_the_driver_s() {
    let root = host(H200);
    let devices = discover(root.path(), &["195:255=control".parse().unwrap()]).unwrap();
    assert_eq!(name(&devices, 195, 255), named("control", None));
}

#[test]
fn two_names_for_one_number_are_refused() {
    let root = host("Character devices:\n");
    let extra = ExtraDevice::list("1:5=nvidia0,1:5=nvidia1").unwrap();
    let message = discover(root.path(), &extra).unwrap_err().to_string();
    assert_eq!(message, "device 1:5 is given two names, nvidia0 and nvidia1; keep one");
}

#[test]
fn more_devices_than_can_be_watched_are_refused() {
    let root = host("Character devices:\n");
    let extra: Vec<ExtraDevice> =
        (0..=MAX_WANTED).map(|minor| format!("1:{minor}=a{minor}").parse().unwrap()).collect();
    assert!(
        matches!(discover(root.path(), &extra), Err(DeviceError::TooMany { count }) if count == MAX_WANTED + 1)
    );
    assert!(discover(root.path(), &extra[1..]).is_ok());
}

#[test]
fn a_gpu_that_does_not_answer_is_assumed_at_the_minor_that_is_left() {
    let root = host(H200);
    write_gpu(root.path(), "0000:02:00.0", 1, "GPU-b");
    std::fs::create_dir_all(root.path().join("proc/driver/nvidia/gpus/0000:01:00.0")).unwrap();
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 0), named("nvidia0", Some(0)));
    assert_eq!(devices.assumed, BTreeSet::from([0]));
    // The same, but that minor is taken: nothing is assumed of the node.
    write_gpu(root.path(), "0000:02:00.0", 0, "GPU-b");
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 0), named("nvidia0", Some(1)));
    assert_eq!(devices.gpus[0].minor, None);
}

#[test]
fn a_host_without_proc_says_so() {
    let root = tempfile::tempdir().unwrap();
    let message = discover(root.path(), &[]).unwrap_err().to_string();
    assert!(message.contains("proc/devices") && message.ends_with("is /proc mounted?"), "{message}");
}

#[test]
fn where_the_driver_lists_no_gpu_the_nodes_are_believed_and_that_is_said() {
    let root = host("Character devices:\n195 nvidia\n");
    let dev = root.path().join("dev");
    std::fs::create_dir_all(&dev).unwrap();
    std::fs::write(dev.join("nvidia1"), "a regular file").unwrap();
    for (node, minor) in [("nvidia0", 0), ("nvidia3", 3), ("nvidiactl", 255)] {
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            dev.join(node),
            rustix::fs::FileType::CharacterDevice,
            0o600.into(),
            rustix::fs::makedev(195, minor),
        );
        if made.is_err() {
            return; // Only root can make device nodes.
        }
    }
    let devices = discover(root.path(), &[]).unwrap();
    assert_eq!(name(&devices, 195, 3), named("nvidia3", Some(3)));
    assert_eq!(devices.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(devices.assumed, BTreeSet::from([0, 3]));
}

#[test]
fn the_gpus_of_this_host_have_nodes() {
    let devices = discover(Path::new("/"), &[]).unwrap();
    println!("{devices:#?}");
    for gpu in devices.gpus.iter().filter(|gpu| !devices.assumed.contains(&gpu.index)) {
        let minor = gpu.minor.expect("a GPU that answered has a minor");
        assert_eq!(name(&devices, NVIDIA_MAJOR, minor), named(&format!("nvidia{minor}"), Some(gpu.index)));
    }
}

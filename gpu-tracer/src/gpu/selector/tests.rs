//! A host of four GPUs whose minors are not their indexes.

use proptest::prelude::*;

use super::*;

fn gpus() -> Vec<Gpu> {
    let gpu = |index, minor, uuid: &str, bus: &str| Gpu {
        index,
        minor: Some(minor),
        uuid: Some(uuid.to_owned()),
        bus_id: Some(bus.to_owned()),
        name: None,
    };
    vec![
        gpu(0, 2, "GPU-8f6a0000-0001", "0000:0f:00.0"),
        gpu(1, 3, "GPU-8f6b0000-0002", "0000:2d:00.0"),
        gpu(2, 0, "GPU-12345678-0003", "0001:0f:00.0"),
        gpu(3, 1, "GPU-1234", "0001:a0:00.0"),
    ]
}

fn table() -> DeviceTable {
    let range = |major, first, last, naming| DeviceRange { major, first, last, naming };
    let node = |minor, gpu| (DeviceNumber { major: 195, minor }, gpu);
    DeviceTable {
        ranges: vec![
            range(195, 0, 247, Naming::Numbered("nvidia".to_owned())),
            range(195, 255, 255, Naming::Fixed("nvidiactl".to_owned())),
            range(238, 0, 0, Naming::Fixed("nvidia-uvm".to_owned())),
            range(237, 0, 8191, Naming::Numbered("nvidia-caps/nvidia-cap".to_owned())),
            range(1, 3, 3, Naming::Fixed("kfd".to_owned())),
        ],
        gpu_nodes: vec![node(2, 0), node(3, 1), node(0, 2), node(1, 3)],
    }
}

/// Paths that exist on the pretended host.
fn look(path: &Path) -> Node {
    let device = |major, minor| Node::CharacterDevice(DeviceNumber { major, minor });
    match path.to_str() {
        Some("/dev/nvidia0") => device(195, 0),
        Some("/tmp/odd-name") => device(195, 3),
        Some("/dev/nvidiactl") => device(195, 255),
        Some("/dev/zero") => device(1, 5),
        Some("/etc/passwd") => Node::Other,
        _ => Node::Absent,
    }
}

fn select(texts: &[&str]) -> Result<Selection, SelectorError> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    resolve_with(&texts, &gpus(), &table(), look)
}

fn indexes(texts: &[&str]) -> Vec<u32> {
    let selection = select(texts).unwrap_or_else(|error| panic!("{texts:?}: {error}"));
    assert_eq!((selection.devices, selection.all), (vec![], false), "{texts:?}");
    selection.gpus.into_iter().collect()
}

fn error(text: &str) -> String {
    select(&[text]).expect_err(text).to_string()
}

#[test]
fn indexes_and_ranges_join() {
    assert_eq!(indexes(&["2"]), [2]);
    assert_eq!(indexes(&["0-1,3"]), [0, 1, 3]);
    assert_eq!(indexes(&["3", "0-0", "3"]), [0, 3]);
    assert_eq!(indexes(&[" 1 , 2"]), [1, 2]);
}

#[test]
fn a_uuid_is_found_by_any_beginning_that_only_it_has_in_either_case() {
    assert_eq!(indexes(&["GPU-8f6a0000-0001"]), [0]);
    assert_eq!(indexes(&["gpu-8F6B"]), [1]);
    assert_eq!(indexes(&["GPU-1234"]), [3], "a whole UUID beats being the beginning of another");
    assert_eq!(
        error("GPU-8f6"),
        "\"GPU-8f6\" could be GPU 0 (GPU-8f6a0000-0001), GPU 1 (GPU-8f6b0000-0002); write more of it"
    );
    assert!(
        error("GPU-9").starts_with("\"GPU-9\" does not exist; this host has GPU 0 (GPU-8f6a0000-0001), ")
    );
}

#[test]
fn a_pci_address_is_found_in_every_form() {
    assert_eq!(indexes(&["0000:0f:00.0"]), [0]);
    assert_eq!(indexes(&["00000001:0F:00.0"]), [2]);
    assert_eq!(indexes(&["2D:00.0"]), [1]);
    assert_eq!(indexes(&["a0:00.0"]), [3]);
    assert_eq!(
        error("0f:00.0"),
        "\"0f:00.0\" could be GPU 0 (0000:0f:00.0), GPU 2 (0001:0f:00.0); write more of it"
    );
    assert!(error("0000:99:00.0").contains("does not exist; this host has GPU 0 (0000:0f:00.0)"));
}

#[test]
fn a_node_is_identified_by_its_number_and_not_by_the_digits_in_its_name() {
    assert_eq!(indexes(&["/dev/nvidia0"]), [2]);
    assert_eq!(indexes(&["/tmp/odd-name"]), [1]);
    // No such path here, as in a container: the name counts, whose digits are the minor.
    assert_eq!(indexes(&["/dev/nvidia2"]), [0]);
    assert_eq!(indexes(&["nvidia1"]), [3]);
}

#[test]
fn shared_devices_are_selected_by_name_or_path() {
    let selection =
        select(&["/dev/nvidiactl,nvidia-uvm", "nvidiactl", "kfd", "nvidia-caps/nvidia-cap2"]).unwrap();
    let names: Vec<&str> = selection.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["kfd", "nvidiactl", "nvidia-caps/nvidia-cap2", "nvidia-uvm"]);
    assert_eq!((selection.gpus.len(), selection.all), (0, false));
}

#[test]
fn nothing_and_all_mean_everything() {
    for texts in [&[][..], &["all"], &["ALL", "nvidiactl"], &["1,all"]] {
        let selection = select(texts).unwrap();
        assert!(selection.all, "{texts:?}");
        assert_eq!(selection.gpus.len(), 4, "{texts:?}");
    }
}

#[test]
fn what_does_not_exist_is_answered_with_what_does() {
    assert_eq!(error("9"), "GPU 9 does not exist; this host has 0-3");
    assert_eq!(error("2-4294967295"), "GPU 4 does not exist; this host has 0-3");
    let present = "this host has GPUs 0-3 and nvidiactl, nvidia-uvm, nvidia-caps/nvidia-capN, kfd";
    assert_eq!(error("nvidia9"), format!("\"nvidia9\" does not exist; {present}"));
    assert_eq!(error("/dev/nvidia9"), format!("\"/dev/nvidia9\" does not exist; {present}"));
    assert_eq!(error("foo\u{1b}[2J"), format!("\"foo\\u{{1b}}[2J\" does not exist; {present}"));
    for path in ["/dev/zero", "/etc/passwd"] {
        assert!(
            error(path).starts_with(&format!("{path:?} is no GPU device; this host has")),
            "{}",
            error(path)
        );
    }
    let none = resolve_with(&["0".to_owned()], &[], &DeviceTable::default(), look).unwrap_err();
    assert_eq!(none.to_string(), "GPU 0 does not exist; this host has no GPU");
}

#[test]
fn mistakes_are_named() {
    assert_eq!(error("3-1"), "\"3-1\" selects nothing: the range runs backwards");
    assert_eq!(error(""), "\"\" selects nothing: it is empty");
    for text in ["-", "1-", "-1", "1-2-3", "99999999999"] {
        assert!(error(text).contains("an index is a number such as 3"), "{text}: {}", error(text));
    }
    assert!(error("MIG-12").contains("select the GPU they are on"));
}

proptest! {
    #[test]
    fn hostile_text_never_panics(text in "\\PC*|[0-9,a-fGPU:./-]*") {
        let _ = select(&[&text]);
    }

    #[test]
    fn ranges_read_back(indexes in proptest::collection::btree_set(0_u32..40, 1..20)) {
        let gpus: Vec<Gpu> = (0..40).map(|index| Gpu { index, ..Gpu::default() }).collect();
        let selection = resolve_with(&[ranges(&indexes)], &gpus, &DeviceTable::default(), look).unwrap();
        prop_assert_eq!(selection.gpus, indexes);
    }
}

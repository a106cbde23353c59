//! Open files, and that every reference to them is accounted for.

use std::collections::BTreeSet;

use std::time::Duration;

use gpu_tracer_tests::harness::{Answer, Device, Play, Tracer, eventually};

fn assert_consistent(answer: &Answer) {
    let ids: BTreeSet<u64> = answer.report.files.iter().map(|file| file.id).collect();
    assert_eq!(ids.len(), answer.report.files.len(), "every file once\n{}", answer.text);
    let mut named = BTreeSet::new();
    for holder in &answer.report.holders {
        assert!(holder.tids.contains(&holder.tid), "tid is one of tids\n{}", answer.text);
        assert!(!holder.devices.is_empty(), "a holder holds something\n{}", answer.text);
        for device in &holder.devices {
            let files: BTreeSet<u64> = device.files.iter().copied().collect();
            assert_eq!(files.len(), device.files.len(), "every id once\n{}", answer.text);
            assert!(files.is_subset(&ids), "an id without a file\n{}", answer.text);
            let held = device.fds + device.maps + device.in_flight + device.io_uring;
            assert!(held >= files.len() as u64, "a file without a hold\n{}", answer.text);
            named.extend(files);
        }
    }
    for file in &answer.report.files {
        let by_nobody = !named.contains(&file.id);
        assert!(!by_nobody || file.unexplained > 0, "file {} is held by nobody\n{}", file.id, answer.text);
    }
}

#[test]
fn files_and_holders_agree_in_every_predicament() {
    for name in ["dup", "mapping", "in-flight-nested", "io-uring", "private-table", "shared-memory", "broker"]
    {
        let play = Play::stage(name, &[]);
        assert_consistent(&play.check());
    }
}

#[test]
fn several_predicaments_at_once_do_not_disturb_each_other() {
    let plays: Vec<Play> =
        ["renamed-worker", "zombie-leader", "in-flight", "mapping", "io-uring-mapped", "subreaper"]
            .iter()
            .map(|name| Play::stage(name, &[]))
            .collect();
    for play in &plays {
        assert_consistent(&play.check());
    }
}

#[test]
fn a_device_whose_holders_are_all_known_is_seen_completely() {
    for name in [
        "plain",
        "in-flight",
        "in-flight-netns",
        "in-flight-deserted",
        "in-flight-unaccepted",
        "io-uring",
        "private-table",
    ] {
        let play = Play::stage_on(Device::nobodys(), name, &[]);
        play.check();
        let tracer = Tracer::new(&play.device);
        // Other tasks of the host are half-way through exit for an instant now and then.
        eventually(&format!("a complete answer while {name} is staged"), Duration::from_secs(20), || {
            let answer = tracer.holders();
            assert_eq!(answer.status, 1, "{}", answer.text);
            let complete = answer.report.coverage.complete;
            assert_eq!(complete, answer.report.coverage.missing.is_empty(), "{}", answer.text);
            complete.then_some(())
        });
    }
}

#[test]
fn two_devices_are_told_apart_and_selected() {
    let play = Play::stage_on(Device::two(), "inherited", &["3"]);
    let answer = play.check();
    let gpus: BTreeSet<Option<u32>> = answer
        .of(play.truth.holders[0].pid)
        .flat_map(|holder| holder.devices.iter().map(|device| device.gpu))
        .collect();
    assert_eq!(gpus, BTreeSet::from([Some(0), Some(1)]), "{}", answer.text);
    let second = Tracer::new(&play.device).holders_of(&["1"]);
    for heir in &play.truth.holders {
        let devices: Vec<&str> = second
            .of(heir.pid)
            .flat_map(|holder| holder.devices.iter().map(|it| it.device.as_str()))
            .collect();
        assert_eq!(devices, ["nvidia1"], "{}", second.text);
    }
}

//! B4: what looks like a holder and is none. On a device that nobody else has open, the answer is exactly "nobody".

use std::time::Duration;

use gpu_tracer_tests::harness::{Device, Play, Tracer, eventually};

/// Stages it, demands that nobody is named, and that this is said with full certainty.
fn assert_nobody(scenario: &str) {
    let play = Play::stage_on(Device::nobodys(), scenario, &[]);
    assert!(play.truth.holders.is_empty() && !play.truth.innocents.is_empty(), "{:#?}", play.truth);
    play.check();
    assert_free(&play.device);
}

/// Other tasks of the host are half-way through exit for an instant now and then, so it is asked until it is certain.
fn assert_free(device: &Device) {
    let tracer = Tracer::new(device);
    let mut last = tracer.holders();
    let certain = eventually("an answer", Duration::from_secs(20), || {
        if last.status != 0 {
            last = tracer.holders();
        }
        assert!(last.report.holders.is_empty() && last.report.files.is_empty(), "{}", last.text);
        (last.status == 0).then(|| last.clone())
    });
    assert!(certain.report.coverage.complete, "{}", certain.text);
    assert!(certain.report.coverage.missing.is_empty(), "{}", certain.text);
}

#[test]
fn an_idle_device_is_held_by_nobody() {
    assert_free(&Device::nobodys());
}

#[test]
fn b4_opened_and_closed_is_not_held() {
    assert_nobody("open-close");
}

#[test]
fn b4_an_exec_with_close_on_exec_drops_it() {
    assert_nobody("exec-cloexec");
}

#[test]
fn b4_a_regular_file_of_that_name_is_no_device() {
    // One that can be mapped, as the scenario does.
    let play = Play::stage("regular-file", &[]);
    play.check();
}

#[test]
fn b4_a_zombie_holds_nothing() {
    assert_nobody("zombie");
}

#[test]
fn b4_an_o_path_descriptor_holds_nothing() {
    assert_nobody("o-path");
}

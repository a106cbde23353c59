//! Asked by somebody who may not see everything. These run as root too: the tracer then runs as `nobody`.

use gpu_tracer_tests::harness::{Answer, Device, Play, Tracer};

fn ask(device: &Device) -> Answer {
    Tracer::new(device).holders_as_nobody()
}

#[track_caller]
fn assert_says_what_it_cannot_see(answer: &Answer) {
    assert!(!answer.report.coverage.complete, "{}", answer.text);
    assert!(!answer.report.coverage.missing.is_empty(), "{}", answer.text);
    for missing in &answer.report.coverage.missing {
        assert!(!missing.what.is_empty() && missing.why.len() > 10, "{}", answer.text);
    }
}

#[test]
fn b10_unprivileged_and_seeing_nobody_the_answer_is_unknown() {
    // As root there is a number that no other run of these tests uses meanwhile.
    let device = if Tracer::runs_as_another_user() { Device::nobodys() } else { Device::everybodys() };
    let play = Play::stage_on(device, "plain", &[]);
    let answer = ask(&play.device);
    if Tracer::runs_as_another_user() {
        assert_eq!(answer.of(play.truth.holders[0].pid).count(), 0, "{}", answer.text);
        assert_eq!(answer.status, 3, "{}\n{}", answer.text, answer.err);
    }
    assert_says_what_it_cannot_see(&answer);
}

#[test]
fn b10_unprivileged_own_processes_are_seen() {
    let scenario = if Tracer::runs_as_another_user() { "other-user" } else { "mapping" };
    let play = Play::stage_on(Device::everybodys(), scenario, &[]);
    let answer = ask(&play.device);
    let holds = &play.truth.holders[0];
    let holder = answer.only(holds.pid);
    let counts = &holds.devices[&holder.devices[0].device];
    assert_eq!((holder.devices[0].fds, holder.devices[0].maps), (counts.fds, counts.maps), "{}", answer.text);
    assert_says_what_it_cannot_see(&answer);
}

#[test]
fn unprivileged_nobody_is_never_said_with_certainty() {
    let device = Device::everybodys();
    let answer = ask(&device);
    assert_ne!(answer.status, 0, "{}", answer.text);
    assert_says_what_it_cannot_see(&answer);
}

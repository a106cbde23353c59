//! Other namespaces: where the holder lives in one, and where the one who asks does.

use gpu_tracer_tests::harness::{Device, Play, Tracer};

#[test]
fn b9_a_node_that_no_path_of_the_host_leads_to_is_the_same_device() {
    Play::stage("other-node", &[]).check();
}

#[test]
fn b10_a_holder_in_a_child_pid_namespace_has_both_its_pids() {
    let play = Play::stage("pid-namespace", &[]);
    let answer = play.check();
    let holder = answer.only(play.truth.holders[0].pid);
    assert_eq!(holder.pid_in_ns, 2, "{}", answer.text);
}

#[test]
fn b10_asked_from_a_sibling_pid_namespace_the_answer_is_unknown() {
    let play = Play::stage_on(Device::nobodys(), "pid-namespace", &[]);
    let inside = ["unshare", "--pid", "--fork", "--mount-proc", "--"];
    let answer = Tracer::new(&play.device).holders_through(&inside);
    assert_eq!(answer.status, 3, "from in there nobody can be ruled out\n{}\n{}", answer.text, answer.err);
    assert!(!answer.report.coverage.complete, "{}", answer.text);
    let missing = answer.report.coverage.missing.iter().find(|missing| missing.what == "pid-namespace");
    let missing = missing.unwrap_or_else(|| panic!("does not say why\n{}", answer.text));
    assert!(missing.why.contains("on the host"), "does not say what would help\n{}", answer.text);
}

#[test]
fn an_asker_in_another_mount_namespace_sees_the_same() {
    let play = Play::stage("other-node", &[]);
    let inside = ["unshare", "--mount", "--"];
    let answer = Tracer::new(&play.device).holders_through(&inside);
    let holds = &play.truth.holders[0];
    let holder = answer.only(holds.pid);
    assert_eq!((holder.devices[0].fds, holder.devices[0].maps), (1, 1), "{}", answer.text);
}

#[test]
fn an_asker_in_another_network_namespace_sees_what_is_in_flight_in_the_hosts() {
    let play = Play::stage("in-flight", &[]);
    let inside = ["unshare", "--net", "--"];
    let answer = Tracer::new(&play.device).holders_through(&inside);
    let holder = answer.only(play.truth.holders[0].pid);
    assert_eq!(holder.devices[0].in_flight, 1, "{}", answer.text);
}

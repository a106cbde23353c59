//! Descriptors.

use gpu_tracer_tests::harness::Play;

#[test]
fn a_descriptor_is_a_hold_until_it_is_closed() {
    let mut play = Play::stage("plain", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn duplicates_are_descriptors_of_one_open_file() {
    let mut play = Play::stage("dup", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn twenty_thousand_handles_of_one_process_are_all_counted() {
    // As many as one process may have here, if that is less; a few are the worker's own.
    let limit = gpu_tracer_tests::sys::fd::lift_limit(21_000).expect("the limit can be read");
    let count = limit.saturating_sub(100).min(20_000);
    assert!(count >= 1_000, "a limit of {limit} open files is no test: raise it (ulimit -n)");
    Play::stage("many-handles", &[&count.to_string()]).check();
}

#[test]
fn a_descriptor_without_close_on_exec_is_held_by_the_new_program() {
    let mut play = Play::stage("exec-inherited", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn a_descriptor_taken_out_of_a_process_outlives_it() {
    Play::stage("taken", &[]).check();
}

#[test]
fn a_node_that_was_removed_is_still_the_same_device() {
    Play::stage("deleted-node", &[]).check();
}

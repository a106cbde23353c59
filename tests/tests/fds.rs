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
fn nineteen_thousand_handles_of_one_process_are_all_counted() {
    Play::stage("many-handles", &["19000"]).check();
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

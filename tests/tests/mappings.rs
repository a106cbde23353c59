//! Mappings.

use gpu_tracer_tests::harness::Play;

#[test]
fn b5_a_mapping_holds_without_a_descriptor_once_per_address_space() {
    let mut play = Play::stage("mapping", &[]);
    play.check();
    // A fork has a mapping of its own.
    play.next("");
    play.check();
    // Which stays when the parent dies.
    play.next("");
    play.check();
}

#[test]
fn a_mapping_with_a_hole_is_two_references() {
    Play::stage("split-mapping", &[]).check();
}

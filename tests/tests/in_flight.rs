//! Descriptors on their way through unix sockets.

use gpu_tracer_tests::harness::Play;

#[test]
fn b6_a_descriptor_in_flight_is_held_by_the_owner_of_the_receiving_end() {
    let mut play = Play::stage("in-flight", &[]);
    play.check();
    // Received.
    play.next("");
    play.check();
    // Closed.
    play.next("");
    play.check();
}

#[test]
fn b6_in_flight_on_a_connection_that_nobody_accepted_is_held_by_the_listener() {
    let mut play = Play::stage("in-flight-unaccepted", &[]);
    play.check();
    // Accepted, not received.
    play.next("");
    play.check();
    // Received.
    play.next("");
    play.check();
}

#[test]
fn b6_in_flight_in_a_socket_that_is_itself_in_flight() {
    let mut play = Play::stage("in-flight-nested", &[]);
    play.check();
    // The outer socket's content was received, the inner one's was not.
    play.next("");
    play.check();
}

#[test]
fn b6_in_flight_in_another_network_namespace() {
    let mut play = Play::stage("in-flight-netns", &[]);
    play.check();
    play.next("");
    play.check();
    play.next("");
    play.check();
}

#[test]
fn b6_in_flight_is_listed_under_everybody_who_could_receive_it() {
    let mut play = Play::stage("in-flight-shared", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn what_a_receiver_leaves_no_room_for_is_held_by_nobody() {
    let mut play = Play::stage("in-flight-dropped", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn b7_a_broker_that_keeps_its_copy_holds_after_the_receiver_has_died() {
    let mut play = Play::stage("broker", &[]);
    play.check();
    play.next("");
    play.check();
}

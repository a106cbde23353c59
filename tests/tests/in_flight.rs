//! Descriptors on their way through unix sockets.

use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};

use gpu_tracer_tests::harness::{Daemon, Device, Play};
use gpu_tracer_tests::sys::socket;

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
fn b6_in_flight_in_a_network_namespace_that_no_task_lives_in() {
    let mut play = Play::stage("in-flight-deserted", &[]);
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

/// Ends what goes on until this is set, however the test ends.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Binding takes a socket from one of the kernel's lists to another, closing it takes it out: before 6.0 those who follow
/// such a list without its lock may lose their way.
#[test]
fn sockets_that_come_and_go_hide_nothing_that_is_in_flight_or_the_answer_says_that_they_may() {
    const PAIRS: usize = 300;
    const LOOKS: usize = 10;
    let device = Device::one();
    let file = std::fs::File::open(device.path()).expect("anybody may open it");
    let pairs: Vec<_> = (0..PAIRS).map(|_| UnixStream::pair().expect("a pair")).collect();
    for (sender, _) in &pairs {
        socket::send(sender.as_raw_fd(), b"x", &[file.as_raw_fd()]).expect("there is room");
    }
    drop(file);
    // The programs are loaded once, and the answers come one after the other.
    let daemon = Daemon::start(&device);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _until = SetAtEnd(&over);
        for thread in 0..2 {
            let over = &over;
            scope.spawn(move || {
                for name in (0_u64..).take_while(|_| !over.load(Ordering::Relaxed)) {
                    let name = format!("gpu-tracer-{}-{thread}-{name}", std::process::id());
                    let name = SocketAddr::from_abstract_name(name).expect("a name");
                    drop(UnixDatagram::bind_addr(&name).expect("nobody else has it"));
                }
            });
        }
        let counts = (0..LOOKS).map(|_| {
            let answer = daemon.holders();
            let here = answer.of(std::process::id()).flat_map(|holder| &holder.devices);
            (here.map(|held| held.in_flight).sum::<u64>(), answer.misses("in-flight"))
        });
        let counts: Vec<_> = counts.collect();
        println!("in flight, and whether the answer says that there may be more: {counts:?}");
        let hidden = |(found, incomplete): &(u64, bool)| *found != PAIRS as u64 && !incomplete;
        assert!(!counts.iter().any(hidden), "{PAIRS} are in flight, seen were {counts:?}");
    });
}

//! Files registered with an io_uring.

use gpu_tracer_tests::harness::Play;

/// Some distributions switch io_uring off.
fn is_off() -> bool {
    let off = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let off = off.is_ok_and(|value| value.trim() == "2");
    if off {
        eprintln!("skipped: kernel.io_uring_disabled is 2");
    }
    off
}

#[test]
fn b8_a_registered_file_is_held_by_the_rings_owner() {
    if is_off() {
        return;
    }
    let mut play = Play::stage("io-uring", &[]);
    play.check();
    // Unregistered.
    play.next("");
    play.check();
}

#[test]
fn b8_a_ring_that_is_only_mapped_holds_as_well() {
    if is_off() {
        return;
    }
    Play::stage("io-uring-mapped", &[]).check();
}

#[test]
fn b8_a_ring_inherited_by_fork_has_two_owners() {
    if is_off() {
        return;
    }
    let mut play = Play::stage("io-uring-inherited", &[]);
    play.check();
    play.next("");
    play.check();
}

//! One snapshot, joined.

use super::*;
use crate::ledger::{HolderView, Ledger, View};

fn view_of(snapshot: &Snapshot) -> View {
    let mut ledger = Ledger::new();
    ledger.reconcile(snapshot);
    ledger.view()
}

/// (tgid, tid, fds, maps, in flight, io_uring) per holder, summed over files.
fn summary(view: &View) -> Vec<(u32, u32, u64, u64, u64, u64)> {
    let sum =
        |holder: &HolderView, field: fn(&crate::ledger::HeldFile) -> u64| holder.held.iter().map(field).sum();
    view.holders
        .iter()
        .map(|h| {
            let (fds, maps) = (sum(h, |f| f.fds), sum(h, |f| f.maps));
            (h.process.tgid, h.carrier.tid, fds, maps, sum(h, |f| f.in_flight), sum(h, |f| f.io_uring))
        })
        .collect()
}

#[test]
fn threads_that_share_a_table_count_its_descriptors_once() {
    let tasks = vec![task(10, 10), task(10, 11), task(10, 12)];
    let view =
        view_of(&world(1, tasks, vec![device(1, GPU0, 3)], vec![fd(1, 10, 3), fd(1, 10, 4), map(1, 10, 0)]));
    assert_eq!(summary(&view), [(10, 10, 2, 1, 0, 0)]);
    assert_eq!(view.holders[0].tids, [10, 11, 12]);
    assert_eq!((view.files[0].named, view.files[0].unexplained), (3, 0), "{:?}", view.files[0]);
}

#[test]
fn two_processes_that_share_a_table_are_both_holders_and_the_reference_counts_once() {
    let mut child = task(20, 20);
    child.table = Some(TableKey(10));
    let view = view_of(&world(1, vec![task(10, 10), child], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(summary(&view), [(10, 10, 1, 0, 0, 0), (20, 20, 1, 0, 0, 0)]);
    assert_eq!(view.files[0].named, 1);
}

#[test]
fn two_processes_that_share_an_address_space_are_both_holders() {
    let mut child = task(20, 20);
    child.mm = Some(MmKey(10));
    let view = view_of(&world(1, vec![task(10, 10), child], vec![device(1, GPU0, 1)], vec![map(1, 10, 0)]));
    assert_eq!(summary(&view), [(10, 10, 0, 1, 0, 0), (20, 20, 0, 1, 0, 0)]);
    assert_eq!(view.files[0].named, 1);
}

#[test]
fn a_thread_with_a_table_of_its_own_is_a_holder_of_its_own_and_maps_belong_to_the_leader() {
    let mut thread = task(10, 12);
    thread.table = Some(TableKey(99));
    let tasks = vec![task(10, 10), task(10, 11), thread];
    let view = view_of(&world(1, tasks, vec![device(1, GPU0, 2)], vec![fd(1, 99, 3), map(1, 10, 0)]));
    assert_eq!(summary(&view), [(10, 10, 0, 1, 0, 0), (10, 12, 1, 0, 0, 0)]);
    assert_eq!(view.holders[1].tids, [12]);
    assert_eq!(view.holders[1].process.start_ns, 10_000, "a process starts when its leader does");
}

#[test]
fn a_dead_leader_is_replaced_by_the_thread_that_cannot_be_interrupted() {
    let mut blocked = task(10, 13);
    blocked.state = TaskState::Uninterruptible;
    let tasks = vec![zombie(10), task(10, 11), blocked];
    let view = view_of(&world(1, tasks, vec![device(1, GPU0, 2)], vec![fd(1, 10, 3), map(1, 10, 0)]));
    assert_eq!(summary(&view), [(10, 13, 1, 1, 0, 0)]);
    assert_eq!(view.holders[0].tids, [11, 13]);
    assert_eq!(view.holders[0].leader.as_ref().map(|leader| leader.state), Some(TaskState::Zombie));
    assert_eq!(view.holders[0].process.start_ns, 10_000);
}

#[test]
fn a_zombie_holds_nothing_even_if_it_seems_to_have_a_table() {
    let mut dead = zombie(10);
    dead.table = Some(TableKey(10));
    let view = view_of(&world(1, vec![dead], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(summary(&view), []);
    assert_eq!(view.files.len(), 1, "the file is open all the same: {view:?}");
}

#[test]
fn an_exiting_task_that_still_has_its_table_is_a_holder() {
    let mut exiting = task(10, 10);
    (exiting.exiting, exiting.mm) = (true, None);
    let view = view_of(&world(1, vec![exiting], vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    assert_eq!(summary(&view), [(10, 10, 1, 0, 0, 0)]);
}

#[test]
fn a_descriptor_in_flight_belongs_to_everybody_who_has_the_receiving_socket() {
    let references = vec![in_flight(1, 50), fd(50, 10, 7), fd(50, 20, 8)];
    let view = view_of(&world(1, vec![task(10, 10), task(20, 20)], vec![device(1, CTL, 1)], references));
    assert_eq!(summary(&view), [(10, 10, 0, 0, 1, 0), (20, 20, 0, 0, 1, 0)]);
    assert_eq!((view.files[0].named, view.files[0].unexplained), (1, 0));
}

#[test]
fn a_descriptor_in_flight_belongs_once_to_a_process_that_has_the_socket_in_two_tables() {
    let mut thread = task(10, 12);
    thread.table = Some(TableKey(99));
    let references = vec![in_flight(1, 50), fd(50, 10, 7), fd(50, 99, 7), fd(1, 10, 3), fd(1, 99, 3)];
    let view = view_of(&world(1, vec![task(10, 10), thread], vec![device(1, CTL, 3)], references));
    assert_eq!(summary(&view), [(10, 10, 1, 0, 1, 0), (10, 12, 1, 0, 0, 0)]);
}

#[test]
fn sockets_in_each_others_queues_lead_to_the_owner_of_either() {
    let references =
        vec![in_flight(1, 50), in_flight(50, 51), in_flight(51, 50), in_flight(51, 52), fd(52, 10, 4)];
    let view = view_of(&world(1, vec![task(10, 10)], vec![device(1, CTL, 1)], references));
    assert_eq!(summary(&view), [(10, 10, 0, 0, 1, 0)]);
}

#[test]
fn a_circle_of_sockets_that_nobody_has_keeps_the_file_listed_without_a_holder() {
    let references = vec![in_flight(1, 50), in_flight(50, 51), in_flight(51, 50)];
    let view = view_of(&world(1, vec![task(10, 10)], vec![device(1, CTL, 1)], references));
    assert_eq!(summary(&view), []);
    assert_eq!((view.files.len(), view.files[0].named), (1, 1));
}

#[test]
fn a_connection_nobody_accepted_belongs_to_the_listener() {
    let waiting = Reference { file: FileKey(60), via: Via::Unaccepted { listener: FileKey(61) } };
    let references = vec![in_flight(1, 60), waiting, fd(61, 10, 3)];
    let view = view_of(&world(1, vec![task(10, 10)], vec![device(1, CTL, 1)], references));
    assert_eq!(summary(&view), [(10, 10, 0, 0, 1, 0)]);
}

#[test]
fn a_registered_file_belongs_to_whoever_has_or_maps_the_ring() {
    let slot = Reference { file: FileKey(1), via: Via::IoUring { ring: FileKey(70), slot: 0 } };
    let references = vec![slot, fd(70, 10, 5), map(70, 20, 0)];
    let view = view_of(&world(1, vec![task(10, 10), task(20, 20)], vec![device(1, GPU0, 1)], references));
    assert_eq!(summary(&view), [(10, 10, 0, 0, 0, 1), (20, 20, 0, 0, 0, 1)]);
}

#[test]
fn a_file_the_driver_keeps_belongs_to_the_holder_of_the_file_it_is_kept_for() {
    let pin = Reference { file: FileKey(2), via: Via::DriverPin { by: FileKey(1) } };
    let files = vec![device(1, GPU0, 1), device(2, CTL, 1)];
    let view = view_of(&world(1, vec![task(10, 10)], files, vec![pin, fd(1, 10, 3)]));
    assert_eq!(summary(&view), [(10, 10, 1, 0, 0, 0)]);
    let pinned: Vec<_> =
        view.holders[0].held.iter().map(|held| (held.device, held.fds, held.driver_pins)).collect();
    assert_eq!(pinned, [(GPU0, 1, 0), (CTL, 0, 1)]);
    assert_eq!((view.files[1].driver_pins, view.files[1].named, view.files[1].unexplained), (1, 1, 0));
}

#[test]
fn references_that_nobody_accounts_for_are_said_and_a_race_is_not_negative() {
    let files = vec![device(1, GPU0, 3), device(2, GPU0, 1)];
    let mut ledger = Ledger::new();
    let drift = ledger.reconcile(&world(
        1,
        vec![task(10, 10)],
        files,
        vec![fd(1, 10, 3), fd(2, 10, 4), fd(2, 10, 5)],
    ));
    let unexplained: Vec<_> = ledger.view().files.iter().map(|file| file.unexplained).collect();
    assert_eq!((unexplained, drift.racing), (vec![2, 0], 1));
}

#[test]
fn an_id_stays_while_the_file_lives_and_is_never_used_again() {
    let tasks = || vec![task(10, 10)];
    let mut ledger = Ledger::new();
    ledger.reconcile(&world(1, tasks(), vec![device(1, GPU0, 1)], vec![fd(1, 10, 3)]));
    let first = ledger.view().files[0].id;
    ledger.reconcile(&world(2, tasks(), vec![device(1, GPU0, 2)], vec![fd(1, 10, 3), fd(1, 10, 4)]));
    assert_eq!(ledger.view().files[0].id, first);
    let drift = ledger.reconcile(&world(3, tasks(), vec![device(1, CTL, 1)], vec![fd(1, 10, 3)]));
    assert_ne!(ledger.view().files[0].id, first, "the address is another device's file now");
    assert_eq!(drift.replaced, 1);
}

#[test]
fn a_long_chain_of_sockets_is_followed_to_its_end() {
    let mut references = vec![in_flight(1, 1_000)];
    references.extend((0..50_000).map(|n| in_flight(1_000 + n, 1_001 + n)));
    references.push(fd(51_000, 10, 3));
    let view = view_of(&world(1, vec![task(10, 10)], vec![device(1, CTL, 1)], references));
    assert_eq!(summary(&view), [(10, 10, 0, 0, 1, 0)]);
}

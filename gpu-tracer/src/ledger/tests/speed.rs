//! A large host. Run in a release build: `cargo test --release -p gpu-tracer --lib ledger::tests::speed -- --ignored --nocapture`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// 50,000 tasks in 5,000 processes; 1,000 of them hold 100 references each, half of them through a shared file.
fn large_world(taken_ns: u64) -> Snapshot {
    let tasks = (1..=5_000).flat_map(|n| (0..10).map(move |thread| task(n * 10, n * 10 + thread))).collect();
    let mut files = Vec::new();
    let mut references = Vec::new();
    for holder in (10..=10_000).step_by(10) {
        for n in 0..50u32 {
            let own = holder * 100 + u64::from(n);
            files.push(device(own, GPU0, 1));
            references.push(fd(own, holder, n));
            references.push(fd(u64::from(n) + 1, holder, 100 + n));
        }
    }
    files.extend((1..=50).map(|key| device(key, CTL, 1_000)));
    world(taken_ns, tasks, files, references)
}

/// Processor time of this thread: the wall clock of a busy machine says little.
fn spent() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
#[ignore = "measures time: for a release build"]
fn a_large_host_is_taken_over_in_a_fraction_of_fifty_milliseconds() {
    let mut ledger = Ledger::new();
    for n in 1..=5 {
        let snapshot = large_world(n);
        let begun = spent();
        let drift = ledger.reconcile(&snapshot);
        let reconciled = spent() - begun;
        let view = ledger.view();
        let viewed = spent() - begun - reconciled;
        println!(
            "{} references, {} tasks: reconciled in {reconciled:?} ({} changes), viewed in {viewed:?}",
            snapshot.references.len(),
            snapshot.tasks.len(),
            drift.changes.len()
        );
        assert_eq!((view.files.len(), view.holders.len()), (50_050, 1_000));
    }
}

/// `n` processes between two looks: each is forked by one that holds something, opens a device twice, and exits; half of
/// them are seen by the look.
fn storm(ledger: &mut Ledger, n: u32, round: u64) {
    let base = 1_000_000 + round * 10_000_000;
    for child in 0..n {
        let (tgid, at_ns) = (child + 1_000, base + u64::from(child) * 100);
        let task = TaskId::leader(ProcessId { tgid, start_ns: at_ns });
        let comm = || RawText::from("storm");
        ledger.apply(&event(at_ns, EventKind::Forked { parent: leader(10), child: task, comm: comm() }));
        let (table, access) = (TableKey(u64::from(tgid)), Access { read: true, write: true });
        for fd in [3, 4] {
            let (slot, comm) = (Some(Slot { table, fd }), comm());
            let kind = EventKind::DeviceTouched {
                task,
                device: GPU0,
                access,
                slot,
                file: None,
                untold_until_ns: None,
                comm,
            };
            ledger.apply(&event(at_ns + u64::from(fd), kind));
        }
        if child % 2 == 0 {
            let held = [3, 4].map(|fd| HeldAtExit {
                file: FileKey(u64::from(tgid) * 10 + u64::from(fd)),
                device: GPU0,
                fd,
                identity: at_ns,
            });
            let (table, held) = (Some(table), held.to_vec());
            let kind = EventKind::Exiting {
                task,
                group_dead: true,
                exit: Exit(0),
                table,
                held,
                may_wait: Vec::new(),
            };
            ledger.apply(&event(at_ns + 50, kind));
            ledger.apply(&event(at_ns + 60, EventKind::Freed { task }));
        }
    }
    let mut snapshot = one_holder(base + u64::from(n) * 100);
    for child in (0..n).filter(|child| child % 2 == 1) {
        let tgid = child + 1_000;
        let start_ns = base + u64::from(child) * 100;
        snapshot.tasks.push(Task { start_ns, ..task(tgid, tgid) });
        for slot in [3, 4] {
            let key = u64::from(tgid) * 10 + u64::from(slot);
            snapshot.files.push(OpenFile { identity: start_ns, ..device(key, GPU0, 1) });
            snapshot.references.push(fd(key, u64::from(tgid), slot));
        }
    }
    ledger.reconcile(&snapshot);
    for pending in ledger.pending() {
        let kind = EventKind::FileChecked { file: pending.file, count: None, still_same: false };
        ledger.apply(&event(snapshot.taken_ns + 1, kind));
    }
}

/// What `on` spends on growing numbers of things.
fn grows_in_proportion(what: &str, on: impl Fn(u32)) {
    let times = [2_000, 4_000, 8_000, 16_000].map(|n| {
        let begun = spent();
        on(n);
        (n, spent() - begun)
    });
    println!("{what}: {times:?}");
    assert!(times[3].1 < times[0].1 * 8 * 3, "{what}: {times:?}");
}

#[test]
#[ignore = "measures time: for a release build"]
fn a_storm_costs_in_proportion_to_its_size() {
    grows_in_proportion("three rounds of so many processes", |n| {
        let mut ledger = ledger_with_one_holder();
        (0..3).for_each(|round| storm(&mut ledger, n, round));
    });
}

#[test]
#[ignore = "measures time: for a release build"]
fn a_process_with_many_files_of_its_own_opens_and_exits_in_proportion_to_their_number() {
    grows_in_proportion("a process with so many files", |n| {
        let mut ledger = ledger_with_one_holder();
        (0..64).for_each(|fd| drop(ledger.apply(&opens(200_000 + u64::from(fd), 20, GPU0, fd))));
        let mut snapshot = one_holder(300_000);
        snapshot.tasks.push(task(20, 20));
        snapshot.files.extend((0..n).map(|slot| device(1_000 + u64::from(slot), GPU0, 1)));
        snapshot.references.extend((0..n).map(|slot| fd(1_000 + u64::from(slot), 20, slot)));
        ledger.reconcile(&snapshot);
        let held: Vec<(u64, u32)> = (0..n).map(|slot| (1_000 + u64::from(slot), slot)).collect();
        ledger.apply(&exiting(400_000, 20, 9, &held));
        ledger.reconcile(&one_holder(500_000));
    });
}

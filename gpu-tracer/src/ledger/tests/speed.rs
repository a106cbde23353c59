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

//! Threads, and tasks that do not run.

use std::time::Duration;

use gpu_tracer_tests::harness::{Answer, Device, Play, Tracer, eventually};

#[test]
fn b1_a_stuck_thread_of_a_dead_leader_is_named_with_where_it_waits() {
    let mut play = Play::stage("frozen-thread", &[]);
    let answer = play.check();
    let holder = answer.only(play.truth.holders[0].pid);
    let wchan = holder.wchan.as_deref().unwrap_or_default();
    assert!(wchan.contains("percpu"), "waits for a frozen file system, not in {wchan:?}\n{}", answer.text);
    let in_write = holder.stack.iter().any(|frame| frame.contains("write"));
    assert!(holder.stack.is_empty() || in_write, "a write is on the stack\n{}", answer.text);
    // Gone the moment the file system thaws.
    play.next("");
    play.check();
}

#[test]
fn b2_threads_of_a_zombie_leader_hold_and_every_handle_counts_once() {
    let mut play = Play::stage("zombie-leader", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn b11_a_stopped_holder_is_stopped_not_stuck() {
    let mut play = Play::stage("stopped", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn a_frozen_cgroup_is_said_to_be_frozen() {
    let mut play = Play::stage("frozen", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn a_cgroup_v1_freezer_is_said_to_be_frozen() {
    if gpu_tracer_tests::sys::mounts::mounted("cgroup", Some("freezer")).expect("/proc").is_none() {
        eprintln!("skipped: no cgroup v1 freezer is mounted here");
        return;
    }
    let mut play = Play::stage("frozen-v1", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn a_core_dump_in_progress_is_said_to_be_one() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("/proc");
    if pattern.starts_with(['|', '/', '@']) {
        eprintln!("skipped: core files do not go to the working directory here ({pattern:?})");
        return;
    }
    let mut play = Play::stage("dumping-core", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn b18_a_task_half_way_through_exit_makes_the_answer_unknown() {
    let mut play = Play::stage_on(Device::nobodys(), "half-exited", &[]);
    let answer = play.check();
    assert_eq!(answer.status, 3, "nobody can be named, and nobody may be ruled out\n{}", answer.text);
    let pid = play.truth.half_exited[0].to_string();
    let named = answer.report.coverage.missing.iter().any(|missing| missing.why.contains(&pid));
    assert!(named, "the reason names task {pid}\n{}", answer.text);
    play.next("");
    let free = ask_until_free(&play);
    assert!(free.report.holders.is_empty(), "{}", free.text);
}

/// Other tasks of the host are half-way through exit for an instant now and then.
fn ask_until_free(play: &Play) -> Answer {
    let tracer = Tracer::new(&play.device);
    eventually("an answer that nobody holds it", Duration::from_secs(20), || {
        Some(tracer.holders()).filter(|answer| answer.status == 0)
    })
}

#[test]
fn a_thread_with_a_table_of_its_own_is_the_one_that_holds() {
    let mut play = Play::stage("private-table", &[]);
    let answer = play.check();
    let holds = &play.truth.holders[0];
    assert_eq!(answer.only(holds.pid).tid, holds.tids[0], "{}", answer.text);
    // Then the leader's table holds something too: two entries of one process.
    play.next("");
    let answer = play.check();
    assert_eq!(answer.of(play.truth.holders[0].pid).count(), 2, "{}", answer.text);
}

#[test]
fn processes_that_share_a_table_hold_one_reference_together() {
    let mut play = Play::stage("shared-table", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn processes_that_share_memory_hold_one_mapping_together() {
    let mut play = Play::stage("shared-memory", &[]);
    play.check();
    play.next("");
    play.check();
}

#[test]
fn threads_do_not_multiply_what_their_process_holds() {
    Play::stage("many-threads", &["100"]).check();
}

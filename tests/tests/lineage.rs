//! Who inherited, and who only looks like it.

use std::collections::BTreeSet;

use gpu_tracer_tests::harness::{Device, Play};

#[test]
fn b3_heirs_of_a_dead_parent_hold_until_the_last_of_them_is_gone() {
    let mut play = Play::stage_on(Device::two(), "inherited", &["8"]);
    play.check();
    // One by one, the last one last; looked at now and then.
    for left in (0..50).rev() {
        play.next("");
        if left % 10 == 0 || left == 1 {
            let answer = play.check();
            let named: BTreeSet<u32> = answer.report.holders.iter().map(|holder| holder.pid).collect();
            let heirs = play.truth.holders.iter().filter(|heir| named.contains(&heir.pid)).count();
            assert_eq!(heirs, left, "{}", answer.text);
        }
    }
}

#[test]
fn b12_an_innocent_with_a_dead_openers_pid_is_not_accused() {
    Play::stage("pid-reuse", &[]).check();
}

#[test]
fn b12_an_orphan_adopted_by_a_subreaper_is_named_and_its_adopter_is_not() {
    Play::stage("subreaper", &[]).check();
}

#[test]
fn another_users_process_is_named_with_its_user() {
    Play::stage("other-user", &[]).check();
}

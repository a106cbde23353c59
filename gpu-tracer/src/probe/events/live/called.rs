//! System calls by which files change hands.

use std::time::{Duration, Instant};

use super::{Shell, attach, is_root, until};
use crate::{
    model::event::{Event, EventKind},
    probe::events::{EventSource, Options},
};

/// `None`: this kernel has no such tracepoints, or nothing can be tested at all.
fn source() -> Option<EventSource> {
    if !is_root() {
        return None;
    }
    let source = attach(&Options { calls: true, ..Options::default() });
    if !source.follows_calls() {
        eprintln!("skipped: {:?}", source.hooks());
        return None;
    }
    Some(source)
}

fn calls_of(events: &[Event], pid: u32) -> usize {
    let of_it = |event: &&Event| matches!(event.kind, EventKind::Called { task } if task.process.tgid == pid);
    events.iter().filter(of_it).count()
}

/// All that has come when nothing has come for a while.
fn settle(source: &mut EventSource, pid: u32) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let events = source.poll(Instant::now() + Duration::from_millis(300)).expect("poll");
        let quiet = calls_of(&events, pid) == 0;
        all.extend(events);
        if quiet {
            return all;
        }
    }
}

#[test]
fn a_close_of_a_device_is_told_and_one_of_anything_else_is_not() {
    let Some(mut source) = source() else { return };
    let mut shell = Shell::new();
    let pid = shell.pid();
    shell.run("exec 9</dev/full");
    settle(&mut source, pid);
    const OTHERS: usize = 30;
    for _ in 0..OTHERS {
        shell.run("exec 8</dev/null; exec 8<&-");
    }
    let of_others = calls_of(&settle(&mut source, pid), pid);
    // What it does with its memory may be anything.
    assert!(of_others <= OTHERS / 5, "{of_others} calls told of {OTHERS} closes of something else");
    shell.run("exec 9<&-");
    let closes = until(
        &mut source,
        |kind| matches!(kind, EventKind::Called { task } if task.process.tgid == pid && task.tid == pid),
    );
    assert!(calls_of(&closes, pid) >= 1);
}

#[test]
fn nobody_is_told_of_who_has_nothing_to_do_with_devices() {
    let Some(mut source) = source() else { return };
    let mut bystander = Shell::new();
    bystander.run("for n in 1 2 3 4 5; do exec 8</dev/null; exec 7<&8; exec 8<&-; exec 7<&-; done");
    let events = settle(&mut source, bystander.pid());
    assert_eq!(calls_of(&events, bystander.pid()), 0);
}

#[test]
fn many_closes_in_a_short_time_are_told_a_few_times_and_nothing_is_lost() {
    let Some(mut source) = source() else { return };
    let mut shell = Shell::new();
    let pid = shell.pid();
    let begun = Instant::now();
    shell.run("n=0; while [ $n -lt 2000 ]; do exec 9</dev/full; exec 9<&-; n=$((n + 1)); done");
    let took = begun.elapsed();
    let told = calls_of(&settle(&mut source, pid), pid) as u128;
    assert!(told >= 1 && told <= 2 + took.as_millis() / 4, "{told} told in {took:?}");
}

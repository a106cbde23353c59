//! The journal's intervals are what the ledger said at the time.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::model::change::ChangeKind;
use crate::model::event::{Event, EventKind, Exit, Sender, TaskId};

/// Something that a process does.
#[derive(Clone, Debug)]
enum Deed {
    Open,
    Close(usize),
    Fork,
    Give(u32),
    Exit,
    Nothing,
}

fn deeds() -> impl Strategy<Value = Vec<(u32, Deed)>> {
    let deed = prop_oneof![
        4 => Just(Deed::Open),
        3 => (0..4usize).prop_map(Deed::Close),
        3 => Just(Deed::Fork),
        2 => (0..6u32).prop_map(Deed::Give),
        2 => Just(Deed::Exit),
        1 => Just(Deed::Nothing),
    ];
    vec((0..6u32, deed), 1..40)
}

/// Does it in the world; `next` numbers files and processes.
fn do_it(world: &mut World, who: u32, deed: &Deed, next: &mut u32) {
    let alive: Vec<u32> = world.processes.keys().copied().collect();
    let Some(tgid) = alive.get(who as usize % alive.len().max(1)).copied() else {
        *next += 1;
        world.add(*next, 1, "python3", &[]);
        return;
    };
    let files: Vec<u64> = world.processes[&tgid].2.iter().copied().collect();
    match deed {
        Deed::Open => {
            *next += 1;
            world.processes.get_mut(&tgid).unwrap().2.insert(u64::from(*next));
        }
        Deed::Close(at) => {
            if let Some(file) = files.get(*at) {
                world.processes.get_mut(&tgid).unwrap().2.remove(file);
            }
        }
        Deed::Fork => {
            *next += 1;
            world.add(*next, tgid, "worker", &files);
        }
        Deed::Give(to) => {
            let to = alive[*to as usize % alive.len()];
            world.processes.get_mut(&to).unwrap().2.extend(files.first());
        }
        Deed::Exit => {
            world.processes.remove(&tgid);
        }
        Deed::Nothing => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn who_held_what_at_any_look_is_what_the_ledger_said_then(deeds in deeds(), restart in 0..40usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
        let (mut world, mut next) = (World::default(), 100);
        let mut said = Vec::new();
        for (step, (who, deed)) in deeds.iter().enumerate() {
            do_it(&mut world, *who, deed, &mut next);
            let now_ns = (1_001 + step as u64) * MS;
            if step == restart {
                // The next daemon knows nothing of what this one knew.
                desk.close();
                desk = Desk::open(options(dir.path(), "boot-1", now_ns - MS / 2));
            }
            desk.look(&world.snapshot(now_ns));
            said.push((now_ns, view(&desk.ledger)));
        }
        desk.close();
        let reader = read(dir.path());
        for (now_ns, said) in said {
            prop_assert_eq!(held_at(&reader, now_ns), said, "{} ms", now_ns / MS);
        }
    }
}

#[test]
fn an_interval_covers_its_beginning_and_not_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    world.add(10, 1, "python3", &[5]);
    desk.look(&world.snapshot(1_010 * MS));
    world.processes.clear();
    desk.look(&world.snapshot(1_020 * MS));
    desk.look(&world.snapshot(1_030 * MS));
    desk.close();
    let reader = read(dir.path());
    let pids = |ns| held_at(&reader, ns).iter().map(|(pid, _)| *pid).collect::<Vec<_>>();
    assert_eq!(pids(1_010 * MS - 1), [0u32; 0]);
    assert_eq!(pids(1_010 * MS), [10]);
    assert_eq!(pids(1_020 * MS - 1), [10]);
    assert_eq!(pids(1_020 * MS), [0u32; 0]);
}

#[test]
fn the_story_of_a_killed_heir_is_told_with_names_senders_and_giver() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    world.add(10, 1, "python3", &[4]);
    desk.look(&world.snapshot(1_010 * MS));
    let leader = |tgid| TaskId::leader(process(tgid));
    let event = |at: u64, kind| Event { at_ns: at * MS, kind };
    let heir = 200_000_000;
    desk.happen(&event(
        1_015,
        EventKind::Forked { parent: leader(10), child: leader(heir), comm: "python3".into() },
    ));
    world.add(heir, 10, "python3", &[4]);
    desk.look(&world.snapshot(2_020 * MS));
    desk.happen(&event(
        2_030,
        EventKind::Renamed { task: leader(heir), old: "python3".into(), new: "VLLM::Worker".into() },
    ));
    let sender = Sender { task: leader(77), comm: "pkill".into(), uid: 0 };
    desk.happen(&event(2_040, EventKind::Signalled { sender, target: leader(heir), signal: 9, code: 0 }));
    let exiting = EventKind::Exiting {
        task: leader(heir),
        group_dead: true,
        exit: Exit(9),
        table: Some(TableKey(u64::from(heir))),
        held: Vec::new(),
        may_wait: Vec::new(),
    };
    desk.happen(&event(2_041, exiting));
    world.processes.clear();
    desk.look(&world.snapshot(2_050 * MS));
    desk.look(&world.snapshot(2_070 * MS));
    desk.close();

    let reader = read(dir.path());
    let stories = reader.stories(heir, None).unwrap();
    assert_eq!(stories.len(), 1);
    let story = &stories[0];
    let told: Vec<&str> = story.events.iter().map(|event| event.line.what.as_str()).collect();
    let expected = ["inherited", "renamed", "killed", "exiting", "closed", "released"];
    assert!(expected.iter().all(|what| told.contains(what)), "{told:?} has not all of {expected:?}");
    let line = |what: &str| &story.events.iter().find(|event| event.line.what == what).unwrap().line;
    assert_eq!(line("inherited").from[0].pid, 10);
    assert_eq!(line("inherited").process.as_ref().unwrap().comm, "python3".into(), "its name then");
    assert_eq!(line("killed").process.as_ref().unwrap().comm, "VLLM::Worker".into(), "its name then");
    let by = &line("killed").by[0];
    assert_eq!((by.pid, by.comm.clone(), by.uid), (77, "pkill".into(), Some(0)));
    assert!(story.over, "{told:?}");
    assert_eq!(story.holdings.len(), 1);
    assert_eq!(story.holdings[0].how, "inherited");
    assert_eq!(story.ancestors[0].pid, 10);
    assert!(reader.coverage(story.window).unwrap().complete, "{:?}", reader.coverage(story.window));
    // The giver's story says who has it now.
    let giver = &reader.stories(10, None).unwrap()[0];
    assert!(giver.events.iter().any(|event| event.line.what == "inherited"));
}

#[test]
fn a_task_that_still_drops_what_it_held_is_said_to_hold_it_until_the_release() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let change = |at: u64, kind| Change {
        at_ns: at * MS,
        file: Some(7),
        device: Some(GPU0),
        process: Some(process(10)),
        kind,
    };
    desk.tell(&[
        change(1_001, ChangeKind::Found),
        change(1_002, ChangeKind::Closed { cause: crate::model::change::CloseCause::Exit }),
        Change {
            process: None,
            ..change(1_002, ChangeKind::Detached { by: vec![TaskId::leader(process(10))] })
        },
        Change {
            process: None,
            ..change(
                1_009,
                ChangeKind::Released {
                    how: crate::model::change::ReleasedHow::Seen,
                    last_holder: Some(process(10)),
                    after_kill_ns: Some(7 * MS),
                    after_exit_ns: None,
                },
            )
        },
    ]);
    desk.recorder.alive(1_020 * MS, i128::from(BOOTED));
    desk.close();
    let reader = read(dir.path());
    let at = |ms: u64| reader.at(wall(ms * MS), &everything(), None).unwrap().holdings;
    assert_eq!(at(1_005)[0].how, "dropping");
    assert!(at(1_009).is_empty());
    let (events, more) = reader.events(all(&reader), &everything(), None, 100).unwrap();
    let released = events.iter().find(|event| event.line.what == "released").unwrap();
    assert_eq!((released.line.after_kill_us, more), (Some(7_000), false));
}

#[test]
fn setting_the_clock_moves_the_times_and_not_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    world.add(10, 1, "early", &[5]);
    desk.look(&world.snapshot(1_010 * MS));
    // An hour back.
    let back = i128::from(BOOTED) - 3_600_000_000_000;
    desk.recorder.alive(1_015 * MS, back);
    world.add(11, 1, "late", &[7]);
    let changes = desk.ledger.reconcile(&world.snapshot(1_020 * MS)).changes;
    desk.tell(&changes);
    desk.recorder.alive(1_030 * MS, back);
    desk.close();
    let reader = read(dir.path());
    let (events, _) = reader.events(all(&reader), &everything(), None, 100).unwrap();
    let found: Vec<u32> = events
        .iter()
        .filter(|event| event.line.what == "found")
        .filter_map(|event| Some(event.line.process.as_ref()?.pid))
        .collect();
    assert_eq!(found, [10, 11]);
    let times: Vec<&str> = events.iter().map(|event| event.line.at.as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(events.iter().any(|event| event.line.what == "clock-set"), "it is said");
    // By the clock as it is set now.
    let hour_back = wall(1_020 * MS) - jiff::SignedDuration::from_hours(1);
    assert_eq!(reader.at(hour_back, &everything(), None).unwrap().holdings.len(), 2);
}

#[test]
fn an_open_file_that_nobody_is_known_to_hold_is_not_free() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let change = |at: u64, kind| Change {
        at_ns: at * MS,
        file: Some(7),
        device: Some(GPU0),
        process: Some(process(10)),
        kind,
    };
    desk.tell(&[
        change(1_001, ChangeKind::Found),
        change(1_002, ChangeKind::Closed { cause: crate::model::change::CloseCause::Close }),
    ]);
    desk.recorder.alive(1_020 * MS, i128::from(BOOTED));
    desk.close();
    let reader = read(dir.path());
    let then = reader.at(wall(1_010 * MS), &everything(), None).unwrap();
    assert_eq!((then.holdings.len(), then.unheld.len()), (0, 1), "{then:?}");
    let before = reader.at(wall(1_001 * MS), &everything(), None).unwrap();
    assert_eq!((before.holdings.len(), before.unheld.len()), (1, 0), "{before:?}");
}

#[test]
fn a_time_that_was_printed_means_the_same_after_the_clock_was_read_a_little_differently() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    world.add(10, 1, "python3", &[5]);
    desk.look(&world.snapshot(1_010 * MS));
    desk.recorder.alive(1_020 * MS, i128::from(BOOTED) + 300_000);
    desk.close();
    let reader = read(dir.path());
    let since = reader.holdings(all(&reader), &everything(), None).unwrap()[0].since;
    assert_eq!(since, wall(1_010 * MS));
    assert_eq!(reader.at(since, &everything(), None).unwrap().holdings.len(), 1);
}

//! Whatever was reported, in whatever order, and whatever was not: a snapshot puts it right.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::ledger::FileState;

/// What a ledger says of a file that a snapshot shows.
type Facts = (DeviceNumber, Option<u64>, u64, u64);
/// Who is behind a holder, and how it refers to each file: fds, maps, in flight, io_uring, driver pins.
type Held = ((ProcessId, u32, Vec<u32>), BTreeMap<FileKey, [u64; 5]>);

/// What the ledger says of the files of a snapshot, free of ids.
fn current(ledger: &Ledger, snapshot: &Snapshot) -> (BTreeMap<FileKey, Facts>, Vec<Held>) {
    let keys: BTreeSet<FileKey> = snapshot.files.iter().map(|file| file.key).collect();
    let key_of = |id| ledger.files.get(id).map(|file| file.key).filter(|key| keys.contains(key));
    let view = ledger.view();
    let files = view
        .files
        .iter()
        .filter_map(|file| Some((key_of(file.id)?, (file.device, file.count, file.named, file.driver_pins))));
    let holders = view.holders.iter().filter_map(|holder| {
        let held: BTreeMap<_, _> = holder
            .held
            .iter()
            .filter_map(|h| Some((key_of(h.id)?, [h.fds, h.maps, h.in_flight, h.io_uring, h.driver_pins])))
            .filter(|(_, ways)| ways.iter().sum::<u64>() > 0)
            .collect();
        let tids = if held.is_empty() { return None } else { holder.tids.clone() };
        Some(((holder.process, holder.carrier.tid, tids), held))
    });
    (files.collect(), holders.collect())
}

fn small_task() -> impl Strategy<Value = Task> {
    let state = prop_oneof![
        Just(TaskState::Running),
        Just(TaskState::Sleeping),
        Just(TaskState::Uninterruptible),
        Just(TaskState::Zombie)
    ];
    let place = (prop::option::of(1..5u64), prop::option::of(1..5u64));
    (1..6u32, 0..3u32, state, any::<bool>(), place, 1..4u32).prop_map(
        |(tgid, thread, state, exiting, (table, mm), ppid)| Task {
            state,
            exiting,
            ppid,
            table: table.map(TableKey),
            mm: mm.map(MmKey),
            ..task(tgid, if thread == 0 { tgid } else { tgid * 10 + thread })
        },
    )
}

fn small_via() -> impl Strategy<Value = Via> {
    prop_oneof![
        4 => (1..5u64, 0..4u32).prop_map(|(table, fd)| Via::Fd { table: TableKey(table), fd }),
        2 => (1..5u64, 0..3u64).prop_map(|(mm, start)| Via::Map { mm: MmKey(mm), start, end: start + 1 }),
        1 => (1..9u64, 0..3u64).prop_map(|(socket, slot)| Via::InFlight { socket: FileKey(socket), inode: socket, slot }),
        1 => (1..9u64).prop_map(|listener| Via::Unaccepted { listener: FileKey(listener) }),
        1 => (1..9u64, 0..2u32).prop_map(|(ring, slot)| Via::IoUring { ring: FileKey(ring), slot }),
        1 => (1..9u64).prop_map(|by| Via::DriverPin { by: FileKey(by) }),
    ]
}

/// Files 1 to 5 may be devices, 6 to 8 are carriers or nothing.
fn small_world() -> impl Strategy<Value = Snapshot> {
    let file = (1..6u64, any::<bool>(), prop::option::of(0..5u64), 0..3u64).prop_map(
        |(key, ctl, count, identity)| OpenFile {
            key: FileKey(key),
            device: if ctl { CTL } else { GPU0 },
            count,
            identity,
            seen_ns: 0,
        },
    );
    let reference = (1..9u64, small_via()).prop_map(|(file, via)| Reference { file: FileKey(file), via });
    let missing =
        prop_oneof![4 => Just(None), 1 => Just(Some("in-flight")), 1 => Just(Some("half-exited-task"))];
    (vec(small_task(), 0..8), vec(file, 0..6), vec(reference, 0..12), missing, 0..1_000u64, any::<bool>())
        .prop_map(|(tasks, files, references, missing, taken_ns, walk)| {
            let missing = missing.into_iter().map(|what| Missing { what, why: String::new() }).collect();
            let source = if walk && taken_ns % 4 == 0 { Source::ProcWalk } else { Source::Iterators };
            Snapshot { missing, source, ..world(taken_ns, tasks, files, references) }
        })
}

fn small_event() -> impl Strategy<Value = Event> {
    let id = (1..6u32, 0..3u32).prop_map(|(tgid, thread)| TaskId {
        process: process(tgid),
        tid: if thread == 0 { tgid } else { tgid * 10 + thread },
    });
    let device = prop_oneof![Just(GPU0), Just(CTL)];
    let name = || prop_oneof![Just(RawText::from("a")), Just(RawText::from("b")), Just(RawText::default())];
    let file = (1..9u64).prop_map(FileKey);
    let held = (file.clone(), device.clone(), 0..4u32, 0..3u64)
        .prop_map(|(file, device, fd, identity)| HeldAtExit { file, device, fd, identity });
    let slot = prop::option::of((1..5u64, 0..4u32))
        .prop_map(|slot| slot.map(|(table, fd)| Slot { table: TableKey(table), fd }));
    let touched = (id.clone(), device.clone(), slot, prop::option::of(file.clone()), name());
    let touched = touched.prop_map(|(task, device, slot, file, comm)| EventKind::DeviceTouched {
        task,
        device,
        access: Access::default(),
        slot,
        file,
        untold_until_ns: None,
        comm,
    });
    let exiting = (id.clone(), any::<bool>(), any::<i32>(), prop::option::of(1..5u64), vec(held, 0..4))
        .prop_map(|(task, group_dead, code, table, held)| {
            let table = table.map(TableKey);
            EventKind::Exiting { task, group_dead, exit: Exit(code), table, held, may_wait: Vec::new() }
        });
    let signalled = (id.clone(), id.clone(), 0..12i32, -7..129i32, name()).prop_map(
        |(task, target, signal, code, comm)| {
            let sender = Sender { task, comm, uid: 0 };
            EventKind::Signalled { sender, target, signal, code }
        },
    );
    let of_file = (file.clone(), device, id.clone(), name()).prop_flat_map(|(file, device, task, comm)| {
        prop_oneof![
            Just(EventKind::Opening { file, device, task, comm: comm.clone() }),
            Just(EventKind::Opened { file, device, task, comm }),
            Just(EventKind::OpenFailed { file, error: -5 }),
            Just(EventKind::Releasing { file, device, task }),
            Just(EventKind::ReleaseDeferred { file, device, work: FileKey(file.0 + 1000) }),
            Just(EventKind::Released { file, task: Some(task) }),
        ]
    });
    let of_process = (id.clone(), id, name(), name()).prop_flat_map(|(task, child, old, new)| {
        prop_oneof![
            Just(EventKind::Forked { parent: task, child, comm: old.clone() }),
            Just(EventKind::Execed { task, comm: new.clone() }),
            Just(EventKind::Renamed { task, old, new }),
            Just(EventKind::Freed { task }),
            Just(EventKind::OomKilled { victim: task }),
        ]
    });
    let checked = (file, prop::option::of(0..5u64), any::<bool>())
        .prop_map(|(file, count, still_same)| EventKind::FileChecked { file, count, still_same });
    let of_host = prop_oneof![
        (0..9u64).prop_map(|count| EventKind::Lost { count, cause: "ring-full" }),
        Just(EventKind::ModuleLoaded { name: "nvidia".to_owned() }),
        Just(EventKind::ModuleUnloaded { name: "nvidia".to_owned() }),
    ];
    let at_ns = prop_oneof![30 => 0..1_000u64, 1 => Just(u64::MAX)];
    let kind = prop_oneof![
        2 => touched, 2 => exiting, 2 => signalled, 6 => of_file, 4 => of_process, 2 => checked, 1 => of_host
    ];
    (at_ns, kind).prop_map(|(at_ns, kind)| event(at_ns, kind))
}

#[derive(Clone, Debug)]
enum Step {
    Happened(Event),
    Twice(Event),
    Looked(Box<Snapshot>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => small_event().prop_map(Step::Happened),
        1 => small_event().prop_map(Step::Twice),
        2 => small_world().prop_map(|world| Step::Looked(Box::new(world))),
    ];
    vec(step, 0..40)
}

/// Takes the steps; an id that was given must never mean another file.
fn walk(ledger: &mut Ledger, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut given: BTreeMap<u64, FileKey> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Happened(event) => drop(ledger.apply(event)),
            Step::Twice(event) => {
                ledger.apply(event);
                ledger.apply(event);
            }
            Step::Looked(snapshot) => drop(ledger.reconcile(snapshot)),
        }
        for (id, file) in ledger.files.iter() {
            let key = given.entry(id).or_insert(file.key);
            // What is deferred goes by the name of that work, and no other file can have that.
            if matches!(file.state, FileState::Deferred { .. }) {
                *key = file.key;
            }
            prop_assert_eq!(*key, file.key, "id {} means two files", id);
            prop_assert_eq!(
                ledger.files.id_of(file.key),
                Some(id),
                "the address of {} does not lead to it",
                id
            );
            let ordered = file.held_by.is_sorted_by(|a, b| a.process < b.process);
            prop_assert!(ordered, "{:?}", file.held_by);
        }
    }
    Ok(())
}

/// The snapshot that puts things right: after everything else, seeing everywhere.
fn last(snapshot: Snapshot) -> Snapshot {
    Snapshot { taken_ns: 1_000, missing: Vec::new(), source: Source::Iterators, ..snapshot }
}

proptest! {
    #[test]
    fn a_snapshot_puts_right_whatever_was_believed(steps in steps(), end in small_world(), rechecks: bool) {
        let mut ledger = if rechecks { Ledger::with_rechecks() } else { Ledger::new() };
        walk(&mut ledger, &steps)?;
        let end = last(end);
        ledger.reconcile(&end);
        let mut fresh = Ledger::new();
        fresh.reconcile(&end);
        prop_assert_eq!(current(&ledger, &end), current(&fresh, &end));
        // Nobody is accused of a file twice, and no reference is credited that the kernel does not count.
        for file in ledger.view().files {
            let counted = file.count.unwrap_or(u64::MAX);
            prop_assert!(file.dropping <= counted.saturating_sub(file.named), "{:?}", file);
        }
    }

    #[test]
    fn nothing_that_is_gone_stays_for_ever(steps in steps(), end in small_world(), rechecks: bool) {
        let mut ledger = if rechecks { Ledger::with_rechecks() } else { Ledger::new() };
        walk(&mut ledger, &steps)?;
        let mut end = last(end);
        end.tasks.retain(|task| !task.exiting);
        ledger.reconcile(&end);
        // Everything pending is found gone, and what waits for an event that was lost is given up.
        ledger.apply(&event(1_001, EventKind::Lost { count: 1, cause: "ring-full" }));
        for pending in ledger.pending() {
            ledger.apply(&event(1_002, EventKind::FileChecked { file: pending.file, count: None, still_same: false }));
        }
        end.taken_ns = 1_003;
        ledger.reconcile(&end);
        let keys: BTreeSet<FileKey> = end.files.iter().map(|file| file.key).collect();
        let extra = ledger.files.iter().filter(|(_, file)| {
            // What is reported for later than the snapshot is still to come; an open may hang as long as it likes.
            let later = file.latest_ns() > end.taken_ns || file.droppers.iter().any(|d| d.since_ns > end.taken_ns);
            !keys.contains(&file.key) && !later && !matches!(file.state, FileState::Opening { .. })
        });
        let extra: Vec<_> = extra.collect();
        prop_assert!(extra.is_empty(), "{:#?}", extra);
    }

    #[test]
    fn without_events_ids_follow_the_addresses_and_every_difference_is_counted(worlds in vec(small_world(), 1..6)) {
        let mut ledger = Ledger::new();
        let mut before: Option<BTreeMap<FileKey, (u64, DeviceNumber, u64)>> = None;
        for (n, world) in (1..).zip(worlds) {
            let world = Snapshot { taken_ns: n, ..last(world) };
            let drift = ledger.reconcile(&world);
            let now: BTreeMap<FileKey, (u64, DeviceNumber, u64)> =
                ledger.files.iter().map(|(id, file)| (file.key, (id, file.device, file.identity))).collect();
            if let Some(before) = before {
                let (mut new, mut replaced) = (0, 0);
                let mut keys = BTreeSet::new();
                // What is listed twice counts as first listed.
                for file in world.files.iter().filter(|file| keys.insert(file.key)) {
                    let known = before.get(&file.key);
                    let same = |(_, device, identity): &(u64, DeviceNumber, u64)| {
                        let equal = *identity == 0 || file.identity == 0 || *identity == file.identity;
                        *device == file.device && equal
                    };
                    let id = now[&file.key].0;
                    match known {
                        Some(known) if same(known) => prop_assert_eq!(known.0, id, "the same file"),
                        Some(known) => prop_assert_ne!(known.0, id, "another file"),
                        None => {}
                    }
                    replaced += u64::from(known.is_some_and(|known| !same(known)));
                    new += u64::from(known.is_none_or(|known| !same(known)));
                }
                prop_assert_eq!((drift.replaced, drift.unannounced), (replaced, new));
                let vanished = before.keys().filter(|key| !keys.contains(key)).count() as u64;
                prop_assert!(drift.vanished <= vanished, "{} of {}", drift.vanished, vanished);
            }
            before = Some(now);
        }
    }
}

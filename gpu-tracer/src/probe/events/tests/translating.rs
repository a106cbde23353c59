//! Records to events.

use gpu_tracer_common::events::{KIND_OPENED, KIND_RELEASED, TouchKey, WINDOW_NS, access_bits, exit_bits};
use proptest::prelude::*;

use super::{GPU0, NOT_OURS, SAME_TASK, TASK, devices, exit, in_driver, one_of_each, touch};
use crate::{
    model::{
        FileKey, ProcessId, RawText, TableKey,
        event::{Access, Event, EventKind, Exit, HeldAtExit, Sender, Slot, TaskId},
    },
    probe::events::{
        decode::Record,
        translate::{Touched, Translator},
    },
};

fn translator() -> Translator {
    let mut translator = Translator::default();
    translator.set_devices(&devices());
    translator
}

fn translate(translator: &mut Translator, bytes: &[u8]) -> Option<Event> {
    translator.translate(Record::decode(bytes).expect("a record"))
}

#[test]
fn each_record_says_what_it_says() {
    let mut translator = translator();
    let events: Vec<Event> =
        one_of_each().iter().map(|bytes| translate(&mut translator, bytes).expect("an event")).collect();
    assert!(events.iter().all(|event| event.at_ns == 1000), "{events:?}");
    let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
    let task = SAME_TASK;
    let child = TaskId { process: ProcessId { tgid: 502, start_ns: 90 }, tid: 502 };
    let init = TaskId { process: ProcessId { tgid: 1, start_ns: 1 }, tid: 1 };
    let comm = || RawText::from("python3");
    let expected = [
        EventKind::DeviceTouched {
            task,
            device: GPU0,
            access: Access { read: true, write: true },
            slot: Some(Slot { table: TableKey(0xf00), fd: 7 }),
            file: Some(FileKey(0xabc)),
            untold_until_ns: None,
            comm: comm(),
        },
        EventKind::Forked { parent: task, child, comm: comm() },
        EventKind::Execed { task, comm: "sh".into() },
        EventKind::Exiting {
            task,
            group_dead: true,
            exit: Exit(9),
            table: Some(TableKey(0xf00)),
            held: vec![HeldAtExit { file: FileKey(0xabc), device: GPU0, fd: 7, identity: 1 }],
            may_wait: Vec::new(),
        },
        EventKind::Freed { task },
        EventKind::Renamed { task, old: comm(), new: "VLLM::Worker_TP".into() },
        EventKind::Signalled {
            sender: Sender { task: init, comm: "pkill".into(), uid: 1000 },
            target: task,
            signal: 9,
            code: -6,
        },
        EventKind::OomKilled { victim: task },
        EventKind::ModuleLoaded { name: "nvidia_uvm".into() },
        EventKind::ModuleUnloaded { name: "nvidia_uvm".into() },
        EventKind::Opening { file: FileKey(0xabc), device: GPU0, task, comm: comm() },
        EventKind::Opened { file: FileKey(0xabc), device: GPU0, task, comm: comm() },
        EventKind::Releasing { file: FileKey(0xabc), device: GPU0, task },
        EventKind::ReleaseDeferred { file: FileKey(0xabc), device: GPU0, work: FileKey(0xdef) },
        EventKind::Released { file: FileKey(0xabc), task: Some(task) },
        EventKind::Mapped { file: FileKey(0xabc), task },
        EventKind::Called { task },
    ];
    for (kind, expected) in kinds.iter().zip(&expected) {
        assert_eq!(kind, expected);
    }
    assert_eq!(kinds.len(), expected.len());
}

#[test]
fn what_the_driver_returns_decides_whether_there_is_a_file() {
    let mut translator = translator();
    let mut kind = |bytes: &[u8]| translate(&mut translator, bytes).map(|event| event.kind);
    let failed = Some(EventKind::OpenFailed { file: FileKey(0xabc), error: -5 });
    assert_eq!(kind(&in_driver(KIND_OPENED, GPU0, 0, -5)), failed);
    assert_eq!(kind(&in_driver(KIND_OPENED, NOT_OURS, 0, 0)), None);
}

#[test]
fn the_end_of_deferred_work_names_the_work_and_not_an_address_that_may_be_anothers() {
    let done = translate(&mut translator(), &in_driver(KIND_RELEASED, GPU0, 0xdef, 0));
    let expected = EventKind::Released { file: FileKey(0xdef), task: Some(SAME_TASK) };
    assert_eq!(done.map(|event| event.kind), Some(expected));
}

#[test]
fn minors_that_nobody_asked_for_are_left_out() {
    let mut translator = translator();
    assert_eq!(translator.translate(Record::Touched(touch(1, NOT_OURS, 1))), None);
    assert_eq!(translator.take_touched(), []);
    let event = translate(&mut translator, &exit(0, &[(1, NOT_OURS, 3), (2, GPU0, 4)]));
    let Some(Event { kind: EventKind::Exiting { held, .. }, .. }) = event else { panic!("{event:?}") };
    assert_eq!(held, [HeldAtExit { file: FileKey(2), device: GPU0, fd: 4, identity: 1 }]);
}

#[test]
fn the_files_of_one_exit_come_together_however_many_records_they_take() {
    let mut translator = translator();
    let part = |first: u32| (first..first + 100).map(|fd| (u64::from(fd), GPU0, fd)).collect::<Vec<_>>();
    let more = exit_bits::MORE;
    assert_eq!(translate(&mut translator, &exit(more, &part(0))), None);
    assert_eq!(translate(&mut translator, &exit(more, &part(100))), None);
    // Somebody else's in between.
    translate(&mut translator, &one_of_each()[0]);
    let last = translate(&mut translator, &exit(exit_bits::GROUP_DEAD, &part(200)));
    let Some(Event { kind: EventKind::Exiting { held, group_dead: true, .. }, .. }) = last else {
        panic!("{last:?}")
    };
    assert_eq!(held.iter().map(|held| held.fd).collect::<Vec<_>>(), (0..300).collect::<Vec<_>>());
    // Nothing of it is left for the next.
    let next = translate(&mut translator, &exit(0, &[]));
    assert!(matches!(&next, Some(Event { kind: EventKind::Exiting { held, .. }, .. }) if held.is_empty()));
}

#[test]
fn touches_that_were_only_counted_are_told_once_more_when_the_window_ends() {
    let mut translator = translator();
    let settle = |translator: &mut Translator, now_ns, hits| {
        let mut events = Vec::new();
        let mut asked = Vec::new();
        let ask = |key: TouchKey, process: ProcessId| {
            asked.push((key, process));
            hits
        };
        translator.settle(now_ns, ask, &mut events);
        (events, asked)
    };
    assert_eq!(translator.next_due(), None);
    translator.translate(Record::Touched(touch(access_bits::READ, GPU0, 63)));
    assert_eq!(translator.next_due(), None, "nothing is in doubt while every touch is recorded");
    let last = touch(access_bits::READ | access_bits::LAST_OF_WINDOW, GPU0, 64);
    let told = translator.translate(Record::Touched(last)).expect("an event");
    let EventKind::DeviceTouched { untold_until_ns, .. } = told.kind else { panic!("{told:?}") };
    assert_eq!(untold_until_ns, Some(told.at_ns + WINDOW_NS));
    translator.take_touched();
    let due = translator.next_due().expect("a doubt");
    assert!(due > 100_000_000, "{due}");
    assert_eq!(settle(&mut translator, due - 1, Some(70)), (vec![], vec![]));
    // 70 by now, 6 of which were only counted.
    let (events, asked) = settle(&mut translator, due, Some(70));
    let kind = EventKind::DeviceTouched {
        task: SAME_TASK,
        device: GPU0,
        access: Access { read: true, write: false },
        slot: None,
        file: None,
        untold_until_ns: None,
        comm: "python3".into(),
    };
    assert_eq!(events, [Event { at_ns: due, kind }]);
    assert_eq!(asked, [(TouchKey { tgid: TASK.tgid, rdev: GPU0.to_kernel() }, SAME_TASK.process)]);
    let touched = Touched { process: SAME_TASK.process, device: GPU0, at_ns: due, cgroup: Some(42) };
    assert_eq!(translator.take_touched(), [touched]);
    assert_eq!(translator.next_due(), None);

    // All recorded: nothing more to tell. Forgotten by the kernel: then better once too often.
    translator.translate(Record::Touched(last));
    assert_eq!(settle(&mut translator, due, Some(64)).0, []);
    translator.translate(Record::Touched(last));
    assert_eq!(settle(&mut translator, due, None).0.len(), 1);
    // A touch that is recorded again says it itself.
    translator.translate(Record::Touched(last));
    translator.translate(Record::Touched(touch(access_bits::READ, GPU0, 70)));
    assert_eq!(translator.next_due(), None);
}

proptest! {
    #[test]
    fn whatever_comes_nothing_grows_without_bound(
        records in proptest::collection::vec((0_usize..10, any::<u32>(), any::<u32>(), any::<u64>()), 0..400),
    ) {
        let samples = one_of_each();
        let mut translator = translator();
        for (kind, detail, tgid, start_ns) in records {
            let mut bytes = samples[kind].clone();
            bytes[4..8].copy_from_slice(&detail.to_ne_bytes());
            bytes[16..20].copy_from_slice(&tgid.to_ne_bytes());
            bytes[24..32].copy_from_slice(&start_ns.to_ne_bytes());
            translate(&mut translator, &bytes);
        }
        let mut events = Vec::new();
        translator.settle(u64::MAX, |_, _| None, &mut events);
        prop_assert_eq!(translator.next_due(), None);
        prop_assert!(translator.take_touched().len() <= 400);
    }
}

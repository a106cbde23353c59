//! An incident like A2 of the incidents that this project is for, from the journal to the page.

use super::*;
use crate::journal::{Asked, GivenVerdict};
use crate::model::Gpu;
use crate::model::change::ProcessDescription;
use crate::model::event::{Event, EventKind, Exit, Sender, TaskId};
use crate::render::page::{Options as Page, page};

const SECOND: u64 = 1_000 * MS;
const SERVER: u32 = 400;
const WORKERS: std::ops::Range<u32> = 430..438;
/// The worker of GPU 4.
const STUCK: u32 = 434;

fn happen(desk: &mut Desk, at_ns: u64, kind: EventKind) {
    desk.happen(&Event { at_ns, kind });
}

fn kill(desk: &mut Desk, at_ns: u64, target: u32, exits: bool) {
    let sender = Sender { task: TaskId::leader(process(900)), comm: "pkill".into(), uid: 0 };
    let target = TaskId::leader(process(target));
    happen(desk, at_ns, EventKind::Signalled { sender, target, signal: 9, code: 0 });
    if exits {
        let table = Some(TableKey(u64::from(target.tid)));
        let exit = Exit(9);
        happen(
            desk,
            at_ns + MS,
            EventKind::Exiting {
                task: target,
                group_dead: true,
                exit,
                table,
                held: Vec::new(),
                may_wait: Vec::new(),
            },
        );
    }
}

/// A server and eight workers hold eight GPUs; everything is killed; one worker is stuck in the kernel.
fn stage(dir: &Path) {
    let begin = 1_000 * SECOND;
    let options = Options {
        host: Some("node-17".to_owned()),
        kernel: Some("6.18.5".to_owned()),
        ..options(dir, "5b0c6d52-41e1-4d7c-9a51-0d4c5c7ad8a1", begin)
    };
    let mut desk = Desk::open(options);
    let gpus: Vec<Gpu> = (0..8)
        .map(|index| Gpu {
            index,
            minor: Some(index),
            uuid: Some(format!("GPU-8f6a4c2e-0000-4000-8000-00000000000{index}")),
            bus_id: Some(format!("0000:{:02x}:00.0", 0x0f + index)),
            name: Some("NVIDIA H200".to_owned()),
        })
        .collect();
    desk.recorder.discovered(&gpus);
    let mut world = World::default();
    let files: Vec<u64> = (8..16).collect();
    let memory = |desk: &mut Desk, at_ns: u64, used: &dyn Fn(u32) -> u64| {
        for gpu in 0..8 {
            desk.recorder.memory(at_ns, gpu, Some(used(gpu)), Some(143_771));
        }
    };
    memory(&mut desk, begin, &|_| 1);
    world.add(300, 1, "nv-hostengine", &[0, 1, 2, 3]);
    desk.look(&world.snapshot(begin + 5 * SECOND));
    world.add(SERVER, 1, "python3", &files);
    desk.look(&world.snapshot(begin + 60 * SECOND));
    for (tgid, exe, cmdline) in [
        (300, "/usr/bin/nv-hostengine", "nv-hostengine -n"),
        (
            SERVER,
            "/opt/venv/bin/python3.12",
            "python3 -m vllm.entrypoints.openai.api_server --tensor-parallel-size 8",
        ),
    ] {
        let description = ProcessDescription {
            cmdline: cmdline.into(),
            exe: Some(exe.into()),
            cgroup: Some("/kubepods".into()),
        };
        desk.ledger.describe(process(tgid), begin + 61 * SECOND, description);
        let Desk { recorder, ledger, uids, .. } = &mut desk;
        recorder.described(process(tgid), begin + 61 * SECOND, ledger, uids);
    }
    for (rank, worker) in WORKERS.enumerate() {
        let at = begin + (90 + rank as u64 * 3) * SECOND;
        let forked = EventKind::Forked {
            parent: TaskId::leader(process(SERVER)),
            child: TaskId::leader(process(worker)),
            comm: "python3".into(),
        };
        happen(&mut desk, at, forked);
        world.add(worker, SERVER, "python3", &[8 + rank as u64]);
        desk.look(&world.snapshot(at + 5 * MS));
        let renamed = EventKind::Renamed {
            task: TaskId::leader(process(worker)),
            old: "python3".into(),
            new: format!("VLLM::Worker_TP{rank}").as_str().into(),
        };
        happen(&mut desk, at + SECOND, renamed);
        world.processes.get_mut(&worker).unwrap().1 = format!("VLLM::Worker_TP{rank}");
    }
    for minute in 3..10 {
        memory(&mut desk, begin + minute * 60 * SECOND, &|_| 93_699.min(minute * 20_000));
    }
    // The escalating cleanup.
    kill(&mut desk, begin + 600 * SECOND, SERVER, true);
    world.processes.remove(&SERVER);
    desk.look(&world.snapshot(begin + 601 * SECOND));
    for (rank, worker) in WORKERS.enumerate() {
        let stuck = worker == STUCK;
        kill(&mut desk, begin + (640 + rank as u64) * SECOND, worker, !stuck);
        if !stuck {
            world.processes.remove(&worker);
        }
        desk.look(&world.snapshot(begin + (640 + rank as u64) * SECOND + 160 * MS));
    }
    for minute in 11..15 {
        memory(&mut desk, begin + minute * 60 * SECOND, &|gpu| if gpu == 4 { 93_699 } else { 1 });
        desk.look(&world.snapshot(begin + minute * 60 * SECOND));
    }
    for second in (660..840).step_by(10) {
        let headline = format!(
            "GPU 4 is held by PID {STUCK} (VLLM::Worker_TP), which SIGKILL does not end. It waits in the GPU driver."
        );
        let given = GivenVerdict { gpu: Some(4), verdict: "stuck", status: 4, headline };
        desk.recorder.verdicts(begin + second * SECOND, vec![given]);
    }
    desk.close();
}

#[test]
fn the_report_of_a2_shows_which_process_pins_gpu_4_and_since_when() {
    let dir = tempfile::tempdir().unwrap();
    stage(dir.path());
    let reader = read(dir.path());
    let asked = Asked { selection: everything(), pid: None, events: 10_000 };
    let incident = reader.incident(all(&reader), reader.end(), &asked).unwrap();
    let zone = jiff::tz::TimeZone::UTC;
    let page = page(&incident, &Page { zone, nonce: 7, version: "0" });
    // To be looked at in a browser.
    if let Some(path) = std::env::var_os("GPU_TRACER_WRITE_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    let card =
        page.split("<div class=\"card").find(|card| card.contains("<h3>GPU 4:")).expect("a card for GPU 4");
    let card = card.split("</div>").next().unwrap();
    assert!(card.starts_with(" stuck\""), "{card}");
    assert!(card.contains("held by 1 process that SIGKILL did not end, 93699 MiB used"), "{card}");
    assert!(card.contains(&format!("PID {STUCK}")) && card.contains("VLLM::Worker_TP4"), "{card}");
    assert!(card.contains("inherited from python3[400]") && card.contains("from pkill[900]"), "{card}");
    let said = format!("<q>GPU 4 is held by PID {STUCK} (VLLM::Worker_TP), which SIGKILL does not end.");
    assert!(card.contains(&said) && card.contains("(stuck, exit status 4)"), "{card}");
    let free = page.split("<div class=\"card").find(|card| card.contains("<h3>GPU 6:")).unwrap();
    assert!(free.starts_with(" free\"") && free.contains("nobody held it"), "{free}");
    assert!(page.contains("The record of this time is complete."));
}

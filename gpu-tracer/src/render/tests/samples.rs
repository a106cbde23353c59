//! Reports made by hand, one for each situation worth reading.

use crate::model::report::*;

/// An empty, complete answer about these GPUs, without memory figures.
pub(super) fn empty(gpus: u32) -> Report {
    let gpu = |index| GpuReport { index, minor: Some(index), ..GpuReport::default() };
    Report {
        cost: Cost::default(),
        schema: SCHEMA,
        taken_at: "2026-11-29T15:02:11.123Z".to_owned(),
        boot_id: "9d4f8b0e-7a35-4b1f-8d0a-3c1f0f3c2a11".to_owned(),
        plan: "snapshot".to_owned(),
        coverage: Coverage { complete: true, missing: Vec::new() },
        gpus: (0..gpus).map(gpu).collect(),
        files: Vec::new(),
        holders: Vec::new(),
    }
}

pub(super) fn with_memory(mut report: Report, used: &[u64], unattributed: &[u64]) -> Report {
    for (gpu, (used, unattributed)) in report.gpus.iter_mut().zip(used.iter().zip(unattributed)) {
        gpu.name = Some("NVIDIA H200".to_owned());
        gpu.memory_used_mib = Some(*used);
        gpu.memory_total_mib = Some(143_771);
        gpu.unattributed_mib = Some(*unattributed);
    }
    report
}

pub(super) fn incomplete(mut report: Report) -> Report {
    report.coverage.complete = false;
    report.coverage.missing = vec![
        MissingReport {
            what: "other-users".to_owned(),
            why: "file descriptors of processes of other users cannot be read; run it as root".to_owned(),
        },
        MissingReport {
            what: "in-flight".to_owned(),
            why: "queues of unix sockets cannot be walked without BPF; needs root and Linux 5.15".to_owned(),
        },
    ];
    report
}

pub(super) fn device(name: &str, gpu: Option<u32>, fds: u64, maps: u64) -> HeldDevice {
    HeldDevice { device: name.to_owned(), gpu, fds, maps, ..HeldDevice::default() }
}

/// A healthy PyTorch process on GPU 0.
pub(super) fn python(pid: u32) -> Holder {
    Holder {
        pid,
        tid: pid,
        tids: vec![pid],
        start_ns: 1_000_000_000 * u64::from(pid),
        started_at: Some("2026-11-29T12:57:05.000Z".to_owned()),
        ppid: 1,
        uid: 1000,
        comm: "python3".into(),
        cmdline: "python3 train.py --epochs 90".into(),
        exe: Some("/usr/bin/python3.12".into()),
        state: "S".to_owned(),
        leader_state: "S".to_owned(),
        wchan: Some("futex_wait_queue".to_owned()),
        pid_in_ns: pid,
        cgroup: Some("/system.slice/train.service".into()),
        unit: Some("train.service".into()),
        role: "compute".to_owned(),
        why: vec!["live".to_owned()],
        devices: vec![
            device("nvidia0", Some(0), 20, 3),
            device("nvidiactl", None, 1, 27),
            device("nvidia-uvm", None, 2, 1),
        ],
        memory: vec![HeldMemory { gpu: 0, mib: 102_918, source: "nvml".to_owned() }],
        ..Holder::default()
    }
}

/// A thread of a defunct leader, in D state after a SIGKILL.
pub(super) fn stuck_thread() -> Holder {
    Holder {
        tid: 440,
        tids: vec![440, 441],
        state: "D".to_owned(),
        leader_state: "Z".to_owned(),
        wchan: Some("percpu_rwsem_wait".to_owned()),
        stack: ["percpu_rwsem_wait", "__percpu_down_read", "mnt_want_write", "vfs_write", "ksys_write"]
            .map(str::to_owned)
            .to_vec(),
        sigkill_pending: true,
        cmdline: "".into(),
        why: vec!["thread-of-defunct".to_owned(), "stuck-in-kernel".to_owned()],
        ..python(428)
    }
}

/// Fifty children with inherited handles, of a parent that is gone. Every seventh PID went to somebody else.
pub(super) fn children(renamed: bool) -> Report {
    let mut report = empty(8);
    report.files = (0..8)
        .map(|gpu| FileReport {
            id: u64::from(gpu),
            device: format!("nvidia{gpu}").into(),
            gpu: Some(gpu),
            state: "open".into(),
            since: None,
            for_ms: None,
            task: None,
            references: Some(50),
            unexplained: 0,
            driver_pins: 0,
            opened_at: None,
            opened_exact: false,
            opener: Some(Opener {
                pid: 480,
                start_ns: 7,
                comm: "launcher".into(),
                cmdline: "python3 launcher.py --nproc 50".into(),
                alive: false,
            }),
        })
        .collect();
    let pids = (481..).filter(|pid| !renamed || pid % 7 != 0).take(50);
    report.holders = pids
        .enumerate()
        .map(|(at, pid)| Holder {
            comm: if renamed { format!("w{at}").as_str().into() } else { "python3".into() },
            cmdline: if renamed {
                format!("w{at}").as_str().into()
            } else {
                "python3 launcher.py --nproc 50".into()
            },
            unit: None,
            cgroup: Some("/".into()),
            why: vec!["inherited".to_owned()],
            devices: (0..8)
                .map(|gpu| HeldDevice {
                    files: vec![u64::from(gpu)],
                    ..device(&format!("nvidia{gpu}"), Some(gpu), 1, 0)
                })
                .collect(),
            memory: Vec::new(),
            ..python(pid)
        })
        .collect();
    report
}

/// Eight GPUs, a server with its helper and eight renamed workers on all of them.
pub(super) fn renamed_workers() -> Report {
    let mut report = with_memory(empty(8), &[96_619; 8], &[9; 8]);
    let everywhere = |fds, maps| {
        let mut devices: Vec<HeldDevice> =
            (0..8).map(|gpu| device(&format!("nvidia{gpu}"), Some(gpu), fds, maps)).collect();
        devices.push(device("nvidiactl", None, 1, 28));
        devices
    };
    let container = "docker:0f3c2a11d9e84b6f9d4f8b0e7a354b1f8d0a3c1f0f3c2a11d9e84b6f9d4f8b0e";
    let inside = Holder {
        uid: 0,
        unit: Some("docker-0f3c2a11d9e84b6f9d4f8b0e7a354b1f8d0a3c1f0f3c2a11d9e84b6f9d4f8b0e.scope".into()),
        container: Some(container.into()),
        memory: Vec::new(),
        ..python(4000)
    };
    let server = Holder {
        pid_in_ns: 7,
        cmdline: "/usr/bin/python3 -m vllm.entrypoints.openai.api_server --tensor-parallel-size 8".into(),
        devices: everywhere(4, 2),
        ..inside.clone()
    };
    let helper = Holder {
        pid: 4001,
        tid: 4001,
        pid_in_ns: 8,
        comm: "resource_tracke".into(),
        cmdline: "/usr/bin/python3 -c from multiprocessing.resource_tracker import main;main(33)".into(),
        why: vec!["inherited".to_owned()],
        devices: everywhere(1, 0),
        ..inside.clone()
    };
    let worker = |rank: u32| {
        let name = format!("VLLM::Worker_TP{rank}");
        Holder {
            pid: 4010 + rank,
            tid: 4010 + rank,
            pid_in_ns: 17 + rank,
            comm: name[..15].into(),
            cmdline: name.as_str().into(),
            devices: everywhere(20, 3),
            memory: vec![HeldMemory { gpu: rank, mib: 96_610, source: "nvml".to_owned() }],
            why: vec!["live-orphan".to_owned()],
            ..inside.clone()
        }
    };
    report.holders = [server, helper].into_iter().chain((0..8).map(worker)).collect();
    report
}

/// A descriptor in a socket's queue, its sender dead.
pub(super) fn in_flight() -> Report {
    let mut report = with_memory(empty(1), &[12_297], &[12_288]);
    report.files = vec![FileReport {
        id: 1,
        device: "nvidiactl".into(),
        gpu: None,
        state: "open".into(),
        since: None,
        for_ms: None,
        task: None,
        references: Some(1),
        unexplained: 0,
        driver_pins: 0,
        opened_at: None,
        opened_exact: false,
        opener: None,
    }];
    report.holders = vec![Holder {
        comm: "broker".into(),
        cmdline: "/opt/broker --listen /run/broker.sock".into(),
        exe: Some("/opt/broker".into()),
        role: "unknown".to_owned(),
        devices: vec![HeldDevice { in_flight: 1, files: vec![1], ..device("nvidiactl", None, 0, 0) }],
        memory: Vec::new(),
        why: vec!["live".to_owned()],
        ..python(436)
    }];
    report
}

/// Names that would fool a terminal, a reader, or a parser.
pub(super) fn hostile() -> Report {
    let mut report = empty(1);
    let names: [(&[u8], &[u8], &[u8]); 6] = [
        (b"\x1b[2J\x1b[H", b"\x1b]0;owned\x07 rm -rf /", b"/tmp/\x1b[31mx"),
        (b"a) Z 1 7\n0", b"a) Z 1 7\n0  root  nobody", b"/tmp/a) Z 1 7"),
        ("\u{202e}nohtyp".as_bytes(), "\u{202e}yp.niart 3nohtyp\u{2066}".as_bytes(), b"/usr/bin/python3.12"),
        (b"\xff\xfe\x80", b"\xc3\x28 \xf0\x9f", b"/tmp/\xff"),
        (b"   ", b"", b"/tmp/blank"),
        (b"[kworker/0:1]", b"[kworker/0:1]   ", b"/home/mallory/miner (deleted)"),
    ];
    report.holders = names
        .iter()
        .zip(600..)
        .map(|((comm, cmdline, exe), pid)| Holder {
            comm: crate::model::RawText::from(comm.to_vec()),
            cmdline: crate::model::RawText::from(cmdline.to_vec()),
            exe: Some(crate::model::RawText::from(exe.to_vec())),
            unit: Some("=cmd(),\u{2028}.service".into()),
            memory: Vec::new(),
            ..python(pid)
        })
        .collect();
    report
}

/// Eight GPUs of which no two are in the same condition: stuck, idle context, monitor, releasing, unexplained, free.
pub(super) fn mixed() -> Report {
    let mut report = with_memory(empty(8), &[1, 1, 1, 99, 93_699, 99, 3, 3], &[1, 1, 1, 3, 9, 99, 3, 3]);
    report.gpus[3].minor = Some(4);
    report.gpus[4].minor = Some(3);
    let node = |id, gpu, state: &'static str, unexplained| FileReport {
        id,
        device: format!("nvidia{gpu}").into(),
        gpu: Some(gpu),
        state: state.into(),
        since: None,
        for_ms: None,
        task: None,
        references: Some(2),
        unexplained,
        driver_pins: 0,
        opened_at: None,
        opened_exact: false,
        opener: None,
    };
    report.files = vec![
        node(1, 3, "open", 0),
        node(2, 4, "open", 1),
        node(3, 5, "releasing", 0),
        node(4, 5, "releasing", 0),
    ];
    report.coverage.complete = false;
    let held =
        |id, gpu, fds| HeldDevice { files: vec![id], ..device(&format!("nvidia{gpu}"), Some(gpu), fds, 0) };
    let idle = Holder {
        role: "initialised".to_owned(),
        devices: vec![held(1, 3, 4)],
        memory: vec![HeldMemory { gpu: 3, mib: 96, source: "nvml".to_owned() }],
        ..python(700)
    };
    let stuck = Holder {
        devices: vec![held(2, 4, 20), device("nvidiactl", None, 1, 28)],
        memory: vec![HeldMemory { gpu: 4, mib: 93_690, source: "nvml".to_owned() }],
        ..stuck_thread()
    };
    let monitor = Holder {
        uid: 0,
        comm: "nvidia-persiste".into(),
        cmdline: "/usr/bin/nvidia-persistenced --verbose".into(),
        exe: Some("/usr/bin/nvidia-persistenced".into()),
        unit: Some("nvidia-persistenced.service".into()),
        role: "infrastructure".to_owned(),
        why: vec!["infrastructure".to_owned()],
        devices: vec![device("nvidiactl", None, 1, 0)],
        memory: Vec::new(),
        ..python(310)
    };
    report.holders = vec![monitor, idle, stuck];
    report
}

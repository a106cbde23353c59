//! What a process would choose to be called if it wanted to hide, and reports made of it.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::model::report::*;
use crate::model::{RawText, WallTime};
use crate::render::text::is_deceptive;

/// Bytes that a hostile process would choose.
pub(crate) fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|ch| ch.to_string().into_bytes()),
        proptest::sample::select(vec![
            "\x1b[2J",
            "\x1b]0;title\x07",
            "\r",
            "\n",
            "\t",
            "\0",
            "\x7f",
            "\u{85}",
            "\u{9b}31m",
            "\u{202e}",
            "\u{2066}",
            "\u{200b}",
            "\u{2028}",
            "\u{2029}",
            "\u{feff}",
            "\u{61c}",
            "\u{ad}",
            "\u{e0041}",
            "e\u{301}",
            "a) Z 1 7",
            "\\",
            "\\x1b",
            "\\x2d",
            "\\u{202e}",
            "\\n",
            " ",
            "=cmd()",
            "+1",
            "@x",
            "\"",
            ",",
            ";",
            "'",
            "日本",
            "👩‍💻",
            "…",
            "\u{a0}",
            "\u{3000}",
            "-1",
            "}",
            "%s",
            "worker12",
            "/usr/bin/python3.12",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

/// The first character that must not reach a terminal; line feeds are looked at as well.
pub(crate) fn first_deceptive(text: &str) -> Option<char> {
    text.chars().find(|ch| is_deceptive(*ch))
}

fn raw() -> impl Strategy<Value = RawText> {
    hostile_bytes().prop_map(RawText::from)
}

fn text() -> impl Strategy<Value = String> {
    hostile_bytes().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Mostly numbers that look like GPU indices, sometimes any.
fn index() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..9, 1 => any::<u32>()]
}

fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..5, 1 => any::<u64>()]
}

/// One of the words that mean something here, or anything.
fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![4 => proptest::sample::select(words).prop_map(str::to_owned), 1 => text()]
}

fn time() -> impl Strategy<Value = String> {
    word(&[
        "2026-11-29T15:02:11.123Z",
        "2026-11-29T12:57:00Z",
        "-009999-01-02T01:59:59Z",
        "9999-12-30T22:00:00Z",
    ])
}

const WHYS: &[&str] =
    &["live", "inherited", "thread-of-defunct", "stuck-in-kernel", "exiting", "infrastructure"];

fn gpu() -> impl Strategy<Value = GpuReport> {
    (
        index(),
        option::of(index()),
        option::of(text()),
        option::of(figure()),
        option::of(figure()),
        option::of(figure()),
    )
        .prop_map(|(index, minor, name, used, total, unattributed)| GpuReport {
            index,
            minor,
            uuid: name.clone(),
            bus_id: None,
            name,
            memory_used_mib: used,
            memory_total_mib: total,
            unattributed_mib: unattributed,
            idle_mib: None,
        })
}

fn file() -> impl Strategy<Value = FileReport> {
    let opener = (index(), figure(), raw(), raw(), any::<bool>())
        .prop_map(|(pid, start_ns, comm, cmdline, alive)| Opener { pid, start_ns, comm, cmdline, alive });
    let state = word(&["open", "detached", "unreferenced", "releasing", "deferred"]);
    let moment = || option::of(any::<i64>().prop_map(|ns| WallTime::from_unix_ns(ns.into())));
    let task = (index(), index()).prop_map(|(pid, tid)| TaskReport { pid, tid });
    let place = (word(&["nvidia0", "nvidia1", "nvidiactl"]), option::of(index()), state);
    let lasting = (moment(), option::of(figure()), option::of(task));
    let counts = (option::of(figure()), figure(), figure());
    (figure(), place, lasting, counts, (moment(), any::<bool>(), option::of(opener))).prop_map(
        |(id, (device, gpu, state), lasting, counts, opened)| FileReport {
            id,
            device: device.into(),
            gpu,
            state: state.into(),
            since: lasting.0,
            for_ms: lasting.1,
            task: lasting.2,
            references: counts.0,
            unexplained: counts.1,
            driver_pins: counts.2,
            opened_at: opened.0,
            opened_exact: opened.1,
            opener: opened.2,
        },
    )
}

fn held() -> impl Strategy<Value = HeldDevice> {
    let counts = (figure(), figure(), figure(), figure());
    (word(&["nvidia0", "nvidia1", "nvidiactl"]), option::of(index()), counts, vec(figure(), 0..4)).prop_map(
        |(device, gpu, (fds, maps, in_flight, io_uring), files)| HeldDevice {
            device,
            gpu,
            fds,
            maps,
            in_flight,
            io_uring,
            dropping: 0,
            files,
        },
    )
}

/// A holder that could be anything.
pub(crate) fn holder() -> impl Strategy<Value = Holder> {
    let ids = (index(), index(), vec(index(), 0..3), figure(), option::of(time()), index(), index());
    let names = (raw(), raw(), option::of(raw()));
    let states = (
        word(&["D", "S", "R"]),
        word(&["Z", "S"]),
        option::of(text()),
        vec(text(), 0..12),
        any::<bool>(),
        any::<bool>(),
    );
    let places =
        (option::of(raw()), option::of(raw()), option::of(raw()), option::of(raw()), option::of(raw()));
    let memory =
        (index(), figure()).prop_map(|(gpu, mib)| HeldMemory { gpu, mib, source: "nvml".to_owned() });
    let rest = (word(&["compute", "monitor"]), vec(word(WHYS), 0..3), vec(held(), 0..4), vec(memory, 0..3));
    (ids, names, states, places, rest).prop_map(|(ids, names, states, places, rest)| Holder {
        pid: ids.0,
        tid: ids.1,
        tids: ids.2,
        start_ns: ids.3,
        started_at: ids.4,
        pid_in_ns: ids.5,
        ppid: 1,
        session: ids.5,
        uid: ids.6,
        comm: names.0,
        cmdline: names.1,
        exe: names.2,
        state: states.0,
        leader_state: states.1,
        wchan: states.2,
        closing: None,
        stack: states.3,
        exiting: states.4,
        sigkill_pending: states.5,
        cgroup: places.0,
        container: places.1,
        pod: places.2,
        unit: places.3,
        job: places.4,
        role: rest.0,
        why: rest.1,
        devices: rest.2,
        memory: rest.3,
    })
}

/// Any report at all, consistent or not.
pub(crate) fn report() -> impl Strategy<Value = Report> {
    let missing = (text(), text()).prop_map(|(what, why)| MissingReport { what, why });
    let coverage =
        (any::<bool>(), vec(missing, 0..3)).prop_map(|(complete, missing)| Coverage { complete, missing });
    // Repeated, so that some of them are alike.
    let holders = vec((holder(), 1_usize..5), 0..4).prop_map(|kinds| {
        let repeat = |(holder, times): (Holder, usize)| {
            (0..times).map(move |at| Holder { pid: holder.pid.saturating_add(at as u32), ..holder.clone() })
        };
        kinds.into_iter().flat_map(repeat).collect()
    });
    (time(), coverage, vec(gpu(), 0..4), vec(file(), 0..4), holders).prop_map(
        |(taken_at, coverage, gpus, files, holders)| Report {
            cost: Cost::default(),
            schema: SCHEMA,
            taken_at,
            boot_id: "9d4f8b0e-0000-4000-8000-000000000000".to_owned(),
            plan: "snapshot".to_owned(),
            coverage,
            gpus,
            files,
            holders,
        },
    )
}

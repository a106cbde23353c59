use proptest::prelude::*;

use super::*;
use crate::render::tests::hostile::{first_deceptive, hostile_bytes};

fn report() -> DoctorReport {
    let check = |name: &str, answer, need, detail: &str, remedy: Option<&str>| Check {
        name: name.to_owned(),
        answer,
        need,
        detail: detail.to_owned(),
        remedy: remedy.map(str::to_owned),
    };
    DoctorReport {
        version: "0.1.0".to_owned(),
        ..DoctorReport::new(
            "6.12.48+deb13-amd64".to_owned(),
            "proc".to_owned(),
            vec![
                check(
                    "privilege",
                    Answer::Denied,
                    Need::Wanted,
                    "uid 1000 without CAP_BPF",
                    Some("run it as root"),
                ),
                check("btf", Answer::Yes, Need::Wanted, "/sys/kernel/btf/vmlinux, 6 MiB", None),
                check(
                    "iter/task",
                    Answer::Denied,
                    Need::Wanted,
                    "bpf(2) says EPERM",
                    Some("needs CAP_BPF and CAP_PERFMON, or root"),
                ),
                check(
                    "kprobe",
                    Answer::No,
                    Need::Optional,
                    "not compiled into this kernel; not needed for snapshots",
                    None,
                ),
                check(
                    "proc",
                    Answer::Degraded,
                    Need::Essential,
                    "only processes of uid 1000 can be read",
                    None,
                ),
            ],
            vec![
                FoundDevice {
                    name: "nvidia0".into(),
                    number: "195:0".into(),
                    gpu: Some(0),
                    source: "driver".into(),
                },
                FoundDevice {
                    name: "nvidiactl".into(),
                    number: "195:255".into(),
                    gpu: None,
                    source: "/proc/devices".into(),
                },
            ],
        )
    }
}

fn view(width: Option<usize>) -> View<'static> {
    View { width, color: false, expand: false, user: &|_| None }
}

#[test]
fn degraded_host() {
    insta::assert_snapshot!(doctor(&report(), &view(Some(100))));
}

#[test]
fn degraded_host_on_72_columns() {
    insta::assert_snapshot!(doctor(&report(), &view(Some(72))));
}

#[test]
fn host_without_devices_on_40_columns() {
    insta::assert_snapshot!(doctor(&DoctorReport { devices: Vec::new(), ..report() }, &view(Some(40))));
}

proptest! {
    #[test]
    fn hostile_details_stay_within_the_screen(texts in proptest::collection::vec(hostile_bytes(), 4), width in 20_usize..120) {
        let text = |at: usize| String::from_utf8_lossy(&texts[at]).into_owned();
        let check = Check { name: text(0), answer: Answer::No, need: Need::Wanted, detail: text(1), remedy: Some(text(2)) };
        let report = DoctorReport { kernel: text(3), checks: vec![check], ..report() };
        let shown = doctor(&report, &view(Some(width)));
        for line in shown.lines() {
            prop_assert_eq!(first_deceptive(line), None, "{}", line);
            prop_assert!(crate::render::text::columns(line) <= width, "{}", line);
        }
    }
}

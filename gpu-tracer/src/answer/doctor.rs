//! What works on this host: everything is tried, nothing is assumed.

use std::path::Path;
use std::time::Duration;

use super::{Question, ask};
use crate::gpu::claims::NvmlStatus;
use crate::gpu::nvml;
use crate::journal::{Health, State};
use crate::kernel::{self, Answer as Kernel, Btf, Capability, Devices, Features};
use crate::model::device::Naming;
use crate::model::doctor::{Answer, Check, DoctorReport, FoundDevice, Need};
use crate::probe::events::{COST_OF_CALLS, DriverState, can_follow_calls, survey_driver};
use crate::probe::iterators::RingAccess;
use crate::probe::{Iterators, ProbeError};

const NVML_DEADLINE: Duration = Duration::from_secs(2);

/// What works on this host, and what to do about the rest.
///
/// # Errors
/// Devices that cannot be discovered at all.
pub fn doctor(question: &Question) -> anyhow::Result<DoctorReport> {
    let root = Path::new("/");
    let asking = nvml::start();
    let devices = kernel::discover(root, &question.devices)?;
    let features = Features::probe(root);
    let btf = Btf::read(Btf::VMLINUX).map_err(ProbeError::from);
    let calls = btf.as_ref().is_ok_and(can_follow_calls);
    let loaded = btf.and_then(|btf| Iterators::load(&btf));
    let mut checks = host_checks(&features);
    checks.extend(source_checks(loaded.as_ref()));
    let status = ask::status();
    checks.extend(driver_checks(&features));
    checks.push(calls_check(calls, status.as_ref().is_some_and(|status| status.plan == "exhaustive")));
    checks.push(devices_check(&devices));
    checks.extend(status.map(|status| journal_check(&status.journal)));
    checks.push(nvml_check(&asking.finish(NVML_DEADLINE).status));
    let plan = if loaded.is_ok() { "snapshot" } else { "proc" };
    Ok(DoctorReport::new(release(&features), plan.to_owned(), checks, found(&devices, question)))
}

fn release(features: &Features) -> String {
    features.kernel.release.clone()
}

fn check(name: &str, need: Need, answer: Answer, detail: impl Into<String>, remedy: Option<String>) -> Check {
    Check { name: name.to_owned(), answer, need, detail: detail.into(), remedy }
}

/// From what the kernel room found out: the text of a denial is what to do about it.
fn from_kernel(name: &str, need: Need, answer: &Kernel, yes: &str, no: &str, otherwise: &str) -> Check {
    match answer {
        Kernel::Yes => check(name, need, Answer::Yes, yes, None),
        Kernel::No => check(name, need, Answer::No, no, Some(otherwise.to_owned())),
        Kernel::Denied(why) => check(name, need, Answer::Denied, no, Some(why.clone())),
    }
}

fn host_checks(features: &Features) -> Vec<Check> {
    let mut checks = Vec::new();
    for (capability, need, what) in [
        (features.bpf_capability(), Need::Wanted, "load BPF programs"),
        (Capability::Perfmon, Need::Wanted, "let BPF programs read the kernel"),
        (Capability::SysPtrace, Need::Wanted, "look at other users' processes"),
    ] {
        let name = format!("privilege/{}", capability.name());
        checks.push(from_kernel(
            &name,
            need,
            &features.may(capability),
            &format!("may {what}"),
            &format!("may not {what}"),
            "",
        ));
    }
    checks.push(from_kernel(
        "btf",
        Need::Wanted,
        &features.btf,
        "the kernel describes its own structures",
        "the kernel does not describe its own structures: no BPF program can be loaded",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y; all current distributions have it",
    ));
    checks.push(match features.initial_pid_namespace {
        Some(true) => {
            check("pid-namespace", Need::Wanted, Answer::Yes, "sees the processes of the whole host", None)
        }
        Some(false) => check(
            "pid-namespace",
            Need::Wanted,
            Answer::Degraded,
            "sees only the processes of this container",
            Some(
                "run it on the host, or with the host's PID namespace (docker run --pid=host, hostPID: true)"
                    .to_owned(),
            ),
        ),
        None => check(
            "pid-namespace",
            Need::Wanted,
            Answer::Degraded,
            "cannot tell whether it sees the whole host",
            Some("mount /proc".to_owned()),
        ),
    });
    checks.push(from_kernel(
        "kprobes",
        Need::Optional,
        &features.kprobes,
        "kernel functions can be probed",
        "kernel functions cannot be probed",
        "a kernel with CONFIG_KPROBE_EVENTS=y gives exact release times; the lean plan does without",
    ));
    checks
}

fn source_checks(loaded: Result<&Iterators, &ProbeError>) -> Vec<Check> {
    let iterators = match loaded {
        Ok(iterators) => iterators,
        Err(error) => {
            let answer = if error.is_denied() { Answer::Denied } else { Answer::No };
            let remedy = if error.is_denied() {
                "run as root (sudo gpu-tracer doctor)"
            } else {
                "until then /proc is walked, which cannot prove that nobody holds a GPU"
            };
            return vec![check(
                "iter/task",
                Need::Wanted,
                answer,
                error.to_string(),
                Some(remedy.to_owned()),
            )];
        }
    };
    let newer = |release: &str| Some(format!("needs Linux {release} or later"));
    let refused = |name, what: &str, why: Option<&str>, remedy| match why {
        None => check(name, Need::Wanted, Answer::Yes, what, None),
        Some(why) => check(name, Need::Wanted, Answer::No, format!("not {what}: {why}"), remedy),
    };
    vec![
        check(
            "iter/task",
            Need::Wanted,
            Answer::Yes,
            "descriptors, of every thread; takes no reference to any file",
            None,
        ),
        refused("mappings", "mappings that no descriptor shows", iterators.mappings_refused(), None),
        refused(
            "iter/unix",
            "descriptors in flight between processes",
            iterators.sockets_refused(),
            newer("5.17"),
        ),
        match iterators.rings() {
            RingAccess::NotThere => {
                check("io_uring", Need::Wanted, Answer::Yes, "this kernel has none", None)
            }
            RingAccess::Walk => {
                check("io_uring", Need::Wanted, Answer::Yes, "files registered with io_urings", None)
            }
            RingAccess::Fdinfo => check(
                "io_uring",
                Need::Wanted,
                Answer::Degraded,
                "io_urings are found, what is registered with them only by path",
                None,
            ),
            RingAccess::Unknown(why) => check(
                "io_uring",
                Need::Wanted,
                Answer::No,
                format!("not files registered with io_urings: {why}"),
                newer("6.1"),
            ),
        },
    ]
}

/// Which plan the daemon would take, and why: hook by hook.
fn driver_checks(features: &Features) -> Vec<Check> {
    let (state, hooks) = survey_driver(Path::new("/"), features);
    let (answer, detail, remedy) = match &state {
        DriverState::Complete => {
            (Answer::Yes, "the daemon follows the driver's own open and release (plan full)".to_owned(), None)
        }
        DriverState::NotLoaded => {
            (Answer::No, "the daemon takes plan lean until the driver is loaded, then full".to_owned(), None)
        }
        DriverState::InPart(why) => (Answer::Degraded, format!("the daemon takes plan lean: {why}"), None),
        DriverState::Impossible(why) => (
            Answer::No,
            "the daemon takes plan lean, which notices a release within 100 ms".to_owned(),
            Some(why.clone()),
        ),
        DriverState::NotAsked => return Vec::new(),
    };
    let mut checks = vec![check("plan", Need::Optional, answer, detail, remedy)];
    if matches!(state, DriverState::Complete | DriverState::InPart(_)) {
        checks.extend(hooks.into_iter().map(|hook| {
            let answer = if hook.works.is_yes() { Answer::Yes } else { Answer::No };
            let detail = hook.detail.unwrap_or_else(|| "can be followed".to_owned());
            let function = hook.hook.rsplit(':').next().unwrap_or_default();
            check(&format!("kprobe/{function}"), Need::Optional, answer, detail, None)
        }));
    }
    checks
}

/// The plan that nobody gets who does not ask for it, and what it costs.
fn calls_check(possible: bool, in_effect: bool) -> Check {
    let name = "plan/exhaustive";
    let (answer, detail) = match (possible, in_effect) {
        (_, true) => (Answer::Degraded, format!("the daemon was told to take it: {COST_OF_CALLS}")),
        (true, _) => (
            Answer::Yes,
            format!(
                "would tell of closes and mappings within milliseconds, and not be free: {COST_OF_CALLS}"
            ),
        ),
        _ => (Answer::No, "system calls cannot be followed on this kernel".to_owned()),
    };
    let remedy = in_effect.then(|| "take plan auto unless every close must be known at once".to_owned());
    check(name, Need::Optional, answer, detail, remedy)
}

fn devices_check(devices: &Devices) -> Check {
    if devices.table.is_empty() {
        return check(
            "devices",
            Need::Wanted,
            Answer::No,
            "no NVIDIA device in /proc/devices",
            Some(
                "load the driver (modprobe nvidia), or name a device with --device MAJOR:MINOR=NAME"
                    .to_owned(),
            ),
        );
    }
    let driver =
        devices.driver_version.as_deref().map_or(String::new(), |version| format!(", driver {version}"));
    check("devices", Need::Wanted, Answer::Yes, format!("{} GPUs{driver}", devices.gpus.len()), None)
}

/// Does the daemon write its history?
fn journal_check(journal: &Health) -> Check {
    let problem = journal.problem.clone().unwrap_or_else(|| "none is wanted (journal = false)".to_owned());
    match journal.state {
        State::Writing => {
            let mib = journal.bytes >> 20;
            check("journal", Need::Wanted, Answer::Yes, format!("{} ({mib} MiB)", journal.path), None)
        }
        State::Halted => check(
            "journal",
            Need::Wanted,
            Answer::Degraded,
            format!("history is not written to {}: {problem}", journal.path),
            Some("make room on that file system, or let it have another with --state-dir".to_owned()),
        ),
        State::Off => {
            check("journal", Need::Optional, Answer::No, format!("no history is kept: {problem}"), None)
        }
    }
}

fn nvml_check(status: &NvmlStatus) -> Check {
    let answer = match status {
        NvmlStatus::Complete => return check("nvml", Need::Optional, Answer::Yes, "memory figures", None),
        NvmlStatus::Absent(_) => Answer::No,
        _ => Answer::Degraded,
    };
    let remedy = "memory figures need the driver's libnvidia-ml.so.1; who holds what does not";
    check("nvml", Need::Optional, answer, status.to_string(), Some(remedy.to_owned()))
}

fn found(devices: &Devices, question: &Question) -> Vec<FoundDevice> {
    let mut found = Vec::new();
    for range in &devices.table.ranges {
        let extra = question
            .devices
            .iter()
            .any(|extra| extra.number.major == range.major && extra.number.minor == range.first);
        let source = if extra { "--device" } else { "/proc/devices" };
        let number = if range.first == range.last {
            format!("{}:{}", range.major, range.first)
        } else {
            format!("{}:{}-{}", range.major, range.first, range.last)
        };
        let name = match &range.naming {
            Naming::Fixed(name) => name.clone(),
            Naming::Numbered(prefix) => format!("{prefix}N"),
        };
        let gpu = devices.table.gpu_nodes.iter().find(|(node, _)| {
            range.first == range.last && node.major == range.major && node.minor == range.first
        });
        found.push(FoundDevice { name, number, gpu: gpu.map(|(_, gpu)| *gpu), source: source.to_owned() });
    }
    for (node, gpu) in &devices.table.gpu_nodes {
        if !found.iter().any(|device| device.gpu == Some(*gpu)) {
            let name = devices.table.identify(*node).map_or_else(|| node.to_string(), |device| device.name);
            found.push(FoundDevice {
                name,
                number: node.to_string(),
                gpu: Some(*gpu),
                source: "driver".to_owned(),
            });
        }
    }
    found
}

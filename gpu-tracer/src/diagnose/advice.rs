//! What to do, as commands that can be pasted.

use std::collections::BTreeSet;

use super::input::Input;
use super::role::is_infrastructure;
use super::words::{few, who};
use crate::model::diagnosis::{Advice, Finding};
use crate::model::{RawText, counted};

/// PIDs in one pasted command.
const MOST_PIDS: usize = 64;

pub(super) fn step(text: impl Into<String>, command: Option<String>) -> Advice {
    Advice { text: text.into(), command, affects: Vec::new() }
}

/// A word for a shell. Nothing that a process chose gets into a command with more than it can carry safely.
fn word(text: &RawText) -> Option<String> {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\'' | b'`' | b'"');
    if text.is_empty() || text.0[0] == b'-' || !text.0.iter().all(plain) {
        return None;
    }
    let text = String::from_utf8_lossy(&text.0).into_owned();
    let safe = |ch: char| ch.is_ascii_alphanumeric() || "_-.@:/=+,%".contains(ch);
    Some(if text.chars().all(safe) { text } else { format!("'{text}'") })
}

/// Stops whatever runs a holder, where it would be started again otherwise, or where stopping it is the cleaner way.
fn manager(finding: &Finding) -> Option<(String, String)> {
    if let Some(job) = &finding.job
        && let Some(id) = job.0.strip_prefix(b"slurm:")
    {
        let id = id.split(|byte| *byte == b'.').next().unwrap_or(id);
        let id = word(&RawText::from(id.to_vec()))?;
        return Some((format!("Cancel Slurm job {id}"), format!("scancel {id}")));
    }
    if let Some(container) = &finding.container {
        let at = container.0.iter().position(|byte| *byte == b':')?;
        let (runtime, id) = (&container.0[..at], &container.0[at + 1..]);
        let hex = id.len() > 12 && id.iter().all(u8::is_ascii_hexdigit);
        let id = word(&RawText::from(id[..if hex { 12 } else { id.len() }].to_vec()))?;
        let command = match runtime {
            b"docker" => format!("docker stop {id}"),
            b"podman" => format!("podman stop {id}"),
            b"containerd" | b"cri-o" => format!("crictl stop {id}"),
            b"lxc" if id.bytes().all(|byte| byte.is_ascii_digit()) => format!("pct stop {id}"),
            b"lxc" => format!("lxc-stop -n {id}"),
            b"nspawn" => format!("machinectl terminate {id}"),
            _ => return None,
        };
        let text = match &finding.pod {
            Some(pod) => format!(
                "Stop its container (of pod {}: delete the pod, or it is started again)",
                pod.to_text()
            ),
            None => "Stop its container".to_owned(),
        };
        return Some((text, command));
    }
    let unit = finding.unit.as_ref().filter(|unit| unit.0.ends_with(b".service"))?;
    let shared =
        [b"user@".as_slice(), b"ssh", b"cron", b"docker.service", b"containerd.service", b"init.scope"];
    if shared.iter().any(|start| unit.0.starts_with(start)) {
        return None;
    }
    let unit = word(unit)?;
    Some((format!("Stop {unit}, which may start it again otherwise"), format!("systemctl stop {unit}")))
}

/// What may refer to the driver and is no open file.
pub(super) fn kernel_clients() -> Advice {
    step(
        "No signal reaches a kernel client: see which modules use the driver (nvidia_peermem, nvidia_drm), and unload or stop what \
         is not needed.",
        Some("grep -E '^(nvidia|gdrdrv)' /proc/modules".to_owned()),
    )
}

/// Waiting, as a command.
pub(super) fn waiting(gpu: Option<u32>, text: &str) -> Advice {
    let selector = gpu.map_or_else(|| "all".to_owned(), |gpu| gpu.to_string());
    step(text, Some(format!("gpu-tracer wait {selector} --timeout 60s")))
}

/// How to end those that can be ended, and what to do about those that end by themselves.
pub(super) fn killing(gpu: Option<u32>, findings: &[Finding]) -> Vec<Advice> {
    let (ending, killable): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().filter(|finding| finding.killable).partition(|finding| finding.ending);
    let (infrastructure, others): (Vec<&Finding>, Vec<&Finding>) =
        killable.into_iter().partition(|finding| is_infrastructure(&finding.role));
    let mut advice = Vec::new();
    if !ending.is_empty() {
        let names: Vec<String> = ending.iter().map(|finding| who(finding)).collect();
        let text = match names.len() {
            1 => format!("Wait: {} is on its way out and needs no further signal.", few(&names)),
            _ => format!("Wait: {} are on their way out and need no further signal.", few(&names)),
        };
        advice.push(waiting(gpu, &text));
    }
    if !others.is_empty() {
        advice.extend(beyond(&others));
        let mut managers: Vec<(String, String)> =
            others.iter().filter_map(|finding| manager(finding)).collect();
        managers.sort();
        managers.dedup();
        advice.extend(
            managers.into_iter().take(8).map(|(text, command)| step(format!("{text}."), Some(command))),
        );
        let selector = gpu.map_or_else(|| "all".to_owned(), |gpu| gpu.to_string());
        advice.push(step(
            "End them in order and wait until everything is released (PIDs are checked by start time).",
            Some(format!("gpu-tracer release {selector}")),
        ));
        advice.push(kill(&others));
    }
    for finding in others.iter().filter(|finding| finding.why.iter().any(|why| why == "stopped")).take(3) {
        advice.push(step(
            format!("Or let {} go on: it is only stopped.", who(finding)),
            Some(format!("kill -CONT {}", finding.pid)),
        ));
    }
    if !infrastructure.is_empty() {
        let names: Vec<String> = infrastructure.iter().map(|finding| who(finding)).collect();
        let stop = infrastructure.iter().find_map(|finding| manager(finding)).map(|(_, command)| command);
        advice.push(step(
            format!(
                "Leave {} alone unless the GPU is to be reset or removed: it holds the device on purpose.",
                few(&names)
            ),
            stop,
        ));
    }
    advice
}

fn kill(findings: &[&Finding]) -> Advice {
    let pids: BTreeSet<u32> = findings.iter().map(|finding| finding.pid).collect();
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let shown = &pids[..pids.len().min(MOST_PIDS)];
    let more = pids.len() - shown.len();
    let started = match findings {
        [one] => one.started_at.as_deref().map_or_else(String::new, |at| format!(" It was started at {at}.")),
        _ => String::new(),
    };
    let rest = if more > 0 { format!(" These are not all: {more} more.") } else { String::new() };
    step(format!("Or kill by hand, at once.{started}{rest}"), Some(format!("kill -9 {}", shown.join(" "))))
}

/// Whom ending a holder affects besides.
fn beyond(findings: &[&Finding]) -> Option<Advice> {
    let others: BTreeSet<u32> =
        findings.iter().flat_map(|finding| finding.other_gpus.iter().copied()).collect();
    if others.is_empty() {
        return None;
    }
    let list: Vec<String> = others.iter().map(u32::to_string).collect();
    let text = format!("They hold GPU {} too: ending them affects those as well.", list.join(", "));
    Some(Advice { text, command: None, affects: others.into_iter().collect() })
}

/// What would let a stuck holder go.
pub(super) fn unblocking(input: &Input, gpu: Option<u32>, finding: &Finding) -> Vec<Advice> {
    let obstacle = input.waits.get(&finding.tid).and_then(|wait| wait.obstacle.as_ref());
    let mount = obstacle.and_then(|obstacle| obstacle.mount.as_ref()).and_then(word);
    let who = who(finding);
    match finding.waits_in.as_deref() {
        Some("frozen-file-system") => vec![step(
            format!("Thaw the file system that {who} waits for; it ends by itself then."),
            Some(format!("fsfreeze -u {}", mount.unwrap_or_else(|| "MOUNTPOINT".to_owned()))),
        )],
        Some("fuse") => match obstacle.and_then(|obstacle| obstacle.fuse_connection) {
            Some(connection) => vec![step(
                format!(
                    "Abort the FUSE connection that {who} waits for (its file system fails then), or revive its server."
                ),
                Some(format!("echo 1 > /sys/fs/fuse/connections/{connection}/abort")),
            )],
            None => vec![step(
                format!(
                    "Find the FUSE connection that {who} waits for (the one with waiting requests) and abort it, or revive its server."
                ),
                Some("grep -v '^0$' /sys/fs/fuse/connections/*/waiting".to_owned()),
            )],
        },
        Some("nfs") => vec![step(
            format!("Bring back the file server that {who} waits for, or detach it by force."),
            mount.map(|mount| format!("umount -f -l {mount}")),
        )],
        Some("freezer") => vec![step(
            format!("Thaw the cgroup of {who}."),
            cgroup(input, finding)
                .map(|cgroup| format!("echo THAWED > /sys/fs/cgroup/freezer{cgroup}/freezer.state")),
        )],
        Some("gpu-driver") => driver(input, gpu, &who),
        _ => vec![step(
            format!("Wait: {who} goes when what it waits for ends. See where."),
            Some(format!("cat /proc/{}/task/{}/stack", finding.pid, finding.tid)),
        )],
    }
}

fn cgroup(input: &Input, finding: &Finding) -> Option<String> {
    let holder = input.report.holders.iter().find(|holder| holder.tid == finding.tid)?;
    holder.cgroup.as_ref().and_then(word).filter(|cgroup| cgroup.starts_with('/'))
}

fn driver(input: &Input, gpu: Option<u32>, who: &str) -> Vec<Advice> {
    let mut advice = vec![step(
        format!(
            "Wait a minute: {who} is inside the GPU driver. A healthy release of a full GPU takes seconds; look for Xid lines."
        ),
        Some("dmesg | grep -i xid | tail".to_owned()),
    )];
    advice.extend(reset(input, gpu, "If it stays, nothing can be killed: reset the GPU"));
    advice
}

/// Thaws what the v2 freezer froze, where somebody wants it to go on rather than to end.
pub(super) fn thawing(input: &Input, finding: &Finding) -> Option<Advice> {
    if !finding.killable || !finding.why.iter().any(|why| why == "frozen") {
        return None;
    }
    let cgroup = cgroup(input, finding)?;
    Some(step(
        format!("Or thaw {} instead.", who(finding)),
        Some(format!("echo 0 > /sys/fs/cgroup{cgroup}/cgroup.freeze")),
    ))
}

/// A reset, and who must be off the GPU before it.
pub(super) fn reset(input: &Input, gpu: Option<u32>, text: &str) -> Vec<Advice> {
    let Some(gpu) = gpu else { return vec![step(format!("{text}."), None)] };
    let touches = |index: u32| -> Vec<String> {
        let mut names: Vec<String> = input
            .report
            .holders
            .iter()
            .filter(|holder| {
                holder.devices.iter().any(|held| held.gpu == Some(index))
                    || holder.devices.iter().all(|held| held.gpu.is_none())
            })
            .map(|holder| format!("PID {} ({})", holder.pid, holder.comm.to_text()))
            .collect();
        names.dedup();
        names
    };
    let mut advice = Vec::new();
    let own = touches(gpu);
    let first = if own.is_empty() {
        "nobody else is on it".to_owned()
    } else {
        format!("but first get {} off the GPU", few(&own))
    };
    advice.push(step(format!("{text}; {first}."), Some(format!("nvidia-smi --gpu-reset -i {gpu}"))));
    let busy: Vec<String> = input
        .report
        .gpus
        .iter()
        .filter(|other| other.index != gpu)
        .filter_map(|other| {
            let names = touches(other.index);
            (!names.is_empty())
                .then(|| format!("GPU {} ({})", other.index, counted(names.len(), "process", "processes")))
        })
        .collect();
    if !busy.is_empty() {
        advice.push(step(
            format!(
                "Where GPUs are joined by NVLink a reset needs all of them idle; still in use: {}.",
                few(&busy)
            ),
            Some("gpu-tracer holders".to_owned()),
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(pid: u32) -> Finding {
        Finding { pid, tid: pid, killable: true, role: "compute".to_owned(), ..Finding::default() }
    }

    fn commands(findings: &[Finding]) -> Vec<String> {
        killing(Some(4), findings).into_iter().filter_map(|advice| advice.command).collect()
    }

    #[test]
    fn whoever_runs_a_holder_is_asked_to_stop_it() {
        let with = |edit: fn(&mut Finding)| {
            let mut one = finding(7);
            edit(&mut one);
            commands(&[one]).remove(0)
        };
        assert_eq!(with(|one| one.job = Some("slurm:1234.batch".into())), "scancel 1234");
        assert_eq!(with(|one| one.unit = Some("train.service".into())), "systemctl stop train.service");
        assert_eq!(with(|one| one.container = Some("lxc:104".into())), "pct stop 104");
        assert_eq!(with(|one| one.container = Some("lxc:web".into())), "lxc-stop -n web");
        assert_eq!(
            with(|one| one.container = Some("docker:0123456789abcdef0123456789abcdef".into())),
            "docker stop 0123456789ab"
        );
        assert_eq!(with(|one| one.unit = Some("session-3.scope".into())), "gpu-tracer release 4");
    }

    #[test]
    fn names_cannot_smuggle_anything_into_a_command() {
        for hostile in
            ["a.service;reboot;.service", "$(reboot).service", "-H.service", "a\n.service", "a'b.service"]
        {
            let one = Finding { unit: Some(hostile.into()), ..finding(7) };
            for command in commands(&[one]) {
                let quoted = command.contains(&format!("'{hostile}'"));
                assert!(quoted || !command.contains(hostile), "{command}");
            }
        }
    }

    #[test]
    fn every_process_stands_once_in_the_command_and_infrastructure_in_none() {
        let mut infrastructure = finding(3);
        infrastructure.role = "infrastructure".to_owned();
        let all = commands(&[finding(9), finding(8), finding(9), infrastructure]);
        assert_eq!(all, ["gpu-tracer release 4", "kill -9 8 9"]);
    }
}

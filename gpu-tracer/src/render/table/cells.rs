//! What stands in the cells of one holder, escaped.

use jiff::Timestamp;

use super::super::memory::mib_on;
use super::super::ranges::{name_ranges, ranges};
use super::super::text::{escape, escape_str};
use crate::model::RawText;
use crate::model::report::{FileReport, HeldDevice, Holder};

/// GPUs whose own devices it holds; `-` when it holds only shared ones.
pub(super) fn gpus(holder: &Holder) -> String {
    let text = ranges(holder.devices.iter().filter_map(|device| device.gpu).map(u64::from));
    if text.is_empty() { "-".to_owned() } else { text }
}

/// `D`, `D (leader Z)`, `R exiting`
pub(super) fn state(holder: &Holder) -> String {
    let mut text = if holder.state.is_empty() { "?".to_owned() } else { escape_str(&holder.state) };
    if holder.exiting {
        text.push_str(" exiting");
    }
    if holder.tid != holder.pid && !holder.leader_state.is_empty() {
        text.push_str(&format!(" (leader {})", escape_str(&holder.leader_state)));
    }
    text
}

/// Why it still holds, and what it is where that is not plain computing.
pub(super) fn why(holder: &Holder) -> String {
    let mut words: Vec<&str> =
        holder.why.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    if !matches!(holder.role.as_str(), "" | "compute" | "unknown") && !words.contains(&holder.role.as_str()) {
        words.push(&holder.role);
    }
    words.iter().map(|word| escape_str(word)).collect::<Vec<_>>().join(", ")
}

/// `20 fd 3 map nvidia0-7; 1 fd 27 map nvidiactl`
pub(super) fn held(holder: &Holder) -> String {
    let mut shapes: Vec<(String, Vec<String>)> = Vec::new();
    for device in &holder.devices {
        let (shape, name) = (shape(device), escape_str(&device.device));
        match shapes.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, names)) => names.push(name),
            None => shapes.push((shape, vec![name])),
        }
    }
    let each = |(shape, names): (String, Vec<String>)| {
        let each = if names.len() > 1 { " each" } else { "" };
        let names = name_ranges(&names).join(", ");
        if shape.is_empty() { names } else { format!("{shape} {names}{each}") }
    };
    shapes.into_iter().map(each).collect::<Vec<_>>().join("; ")
}

fn shape(device: &HeldDevice) -> String {
    let counts = [
        (device.fds, "fd"),
        (device.maps, "map"),
        (device.in_flight, "in flight"),
        (device.io_uring, "io_uring"),
        (device.dropping, "being released"),
    ];
    let named =
        counts.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}"));
    named.collect::<Vec<_>>().join(" ")
}

/// Device memory, in MiB.
pub(super) fn memory(holder: &Holder) -> String {
    let mut gpus = holder.devices.iter().filter_map(|device| device.gpu);
    let only = gpus.next().filter(|first| gpus.all(|gpu| gpu == *first));
    let figures: Vec<(u32, u64)> = holder.memory.iter().map(|held| (held.gpu, held.mib)).collect();
    mib_on(&figures, only)
}

/// MiB on all GPUs together.
pub(super) fn memory_total(holder: &Holder) -> u64 {
    holder.memory.iter().fold(0, |total, held| total.saturating_add(held.mib))
}

/// Seconds from the start of the process to the taking of the report.
pub(super) fn age_s(holder: &Holder, taken_at: &str) -> Option<u64> {
    let started: Timestamp = holder.started_at.as_deref()?.parse().ok()?;
    let taken: Timestamp = taken_at.parse().ok()?;
    Some(u64::try_from(taken.as_second() - started.as_second()).unwrap_or(0))
}

/// `42s`, `12m`, `2h05m`, `3d4h`
pub(super) fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m"),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ if days < 100 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

/// The command line; the name before it where the two do not go together; the name alone where there is no command line.
pub(super) fn command(holder: &Holder) -> String {
    let line = trimmed(&holder.cmdline);
    if line.is_empty() {
        return escape(&holder.comm.0);
    }
    let goes_together = holder.comm.is_empty()
        || line.starts_with(&holder.comm.0)
        || base_name(first_word(line)).starts_with(&holder.comm.0);
    if goes_together { escape(line) } else { format!("{}: {}", escape(&holder.comm.0), escape(line)) }
}

/// The executable, where the process goes by another name. It cannot choose this one.
pub(super) fn other_exe(holder: &Holder) -> Option<String> {
    let exe = holder.exe.as_ref().filter(|exe| !exe.is_empty())?;
    let path = exe.0.strip_suffix(b" (deleted)").unwrap_or(&exe.0);
    let (name, line) = (base_name(path), trimmed(&holder.cmdline));
    let shown = if line.is_empty() { &holder.comm.0[..] } else { base_name(first_word(line)) };
    let cut = &name[..name.len().min(15)]; // comm has room for no more
    let same = names_version_of(name, shown) || (line.is_empty() && cut == shown);
    (!same).then(|| escape(&exe.0))
}

/// Is `shown` the file's name but for a version behind it (`python3` for `python3.12`)?
fn names_version_of(name: &[u8], shown: &[u8]) -> bool {
    !shown.is_empty()
        && name
            .strip_prefix(shown)
            .is_some_and(|rest| rest.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-')))
}

/// Who runs it: batch job, container, pod, unit; the cgroup where it has none of these.
pub(super) fn place(holder: &Holder) -> String {
    let mut parts = Vec::new();
    let known =
        |text: &'_ Option<RawText>| text.as_ref().filter(|text| !text.is_empty()).map(|text| escape(&text.0));
    parts.extend(known(&holder.job));
    parts.extend(known(&holder.container).map(|container| short_id(&container)));
    parts.extend(known(&holder.pod).map(|pod| format!("pod:{pod}")));
    // The unit of a container only repeats the container's id.
    parts.extend(known(&holder.unit).filter(|unit| !parts.iter().any(|part| names_same_id(part, unit))));
    if parts.is_empty() {
        parts.extend(known(&holder.cgroup).filter(|cgroup| cgroup != "/"));
    }
    parts.join(" ")
}

/// `docker:0123456789ab` for the full 64 digits, as the runtimes print it.
fn short_id(container: &str) -> String {
    match container.split_once(':') {
        Some((runtime, id)) if id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{runtime}:{}", &id[..12])
        }
        _ => container.to_owned(),
    }
}

fn names_same_id(part: &str, unit: &str) -> bool {
    part.split_once(':').is_some_and(|(_, id)| id.len() >= 12 && unit.contains(id))
}

/// Who opened what it holds, where that was somebody else: at most two, the rest counted.
pub(super) fn openers(holder: &Holder, files: &[&FileReport]) -> Option<String> {
    let mut openers: Vec<String> = Vec::new();
    for opener in files.iter().filter_map(|file| file.opener.as_ref()) {
        if (opener.pid, opener.start_ns) == (holder.pid, holder.start_ns) {
            continue;
        }
        let line = trimmed(&opener.cmdline);
        let name = escape(if line.is_empty() { &opener.comm.0 } else { line });
        let end = if opener.alive { "" } else { ", which is gone" };
        let text = format!("by PID {} ({name}){end}", opener.pid);
        if !openers.contains(&text) {
            openers.push(text);
        }
    }
    let more = openers.len().saturating_sub(2);
    openers.truncate(2);
    if more > 0 {
        openers.push(format!("and by {more} more"));
    }
    (!openers.is_empty()).then(|| openers.join(", "))
}

/// What keeps the task in the kernel: where it waits, and the innermost functions of its stack.
pub(super) fn waits(holder: &Holder) -> Option<String> {
    let wchan = holder.wchan.as_deref().filter(|wchan| !matches!(*wchan, "" | "0")).map(escape_str);
    let task = if holder.tid == holder.pid { String::new() } else { format!("thread {} ", holder.tid) };
    let place = wchan.map(|wchan| format!("{task}in {wchan}"));
    let pending =
        holder.sigkill_pending.then(|| "SIGKILL is already pending, another will not help".to_owned());
    let parts: Vec<String> = place.into_iter().chain(pending).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The innermost functions of the kernel stack.
pub(super) fn stack(holder: &Holder) -> Option<String> {
    const SHOWN: usize = 8;
    let shown: Vec<String> = holder.stack.iter().take(SHOWN).map(|frame| escape_str(frame)).collect();
    let more = if holder.stack.len() > SHOWN { " < ..." } else { "" };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(" < ")))
}

/// Without the blanks and NULs that programs which overwrite their arguments leave behind.
fn trimmed(cmdline: &RawText) -> &[u8] {
    let end = cmdline.0.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
    &cmdline.0[..end]
}

fn first_word(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').next().unwrap_or(line)
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

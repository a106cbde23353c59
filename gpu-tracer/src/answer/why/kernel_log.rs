//! Xid lines of the kernel log: the driver's own complaints. Hints, no proof of anything.
//!
//! The driver writes (`src/nvidia/src/kernel/gpu/rc/kernel_rc.c` of open-gpu-kernel-modules)
//!
//! ```text
//! NVRM: Xid (PCI:0000:0f:00): 31, pid=428, name=python3, Ch 00000008, intr 00000000. MMU Fault: ...
//! NVRM: Xid (PCI:0000:0f:00 GPU-I:05 GPU-CI:00): 13, pid=428, name=python3, Graphics Exception: ...
//! NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
//! NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.
//! ```
//!
//! The name is what a process calls itself, and other lines of the log begin with such a name: 15 bytes are enough for
//! `NVRM: Xid (PCI:`. So a line counts only if all of it up to the number is as the driver writes it, the PID is the one
//! before the name, and what root writes into the log from user space does not count at all.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::model::RawText;
use crate::model::report::GpuReport;

/// Lines that are told.
const TOLD: usize = 5;
/// Records that are read.
const MOST_RECORDS: usize = 50_000;
/// Time that reading may take.
const PATIENCE: Duration = Duration::from_millis(50);
/// Older lines belong to another story.
const RECENT_S: u64 = 24 * 3600;
/// Priorities of the kernel's own records; those from user space have a facility above it.
const KERNEL_PRIORITIES: u32 = 8;

/// The latest Xid lines of a day, oldest first; none where the log may not be read. `wanted` says which GPU is of interest.
pub(super) fn xids(gpus: &[GpuReport], wanted: impl Fn(Option<u32>) -> bool) -> Vec<String> {
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        return Vec::new();
    }
    let log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = log else { return Vec::new() };
    let begun = Instant::now();
    let mut found = VecDeque::new();
    let mut record = [0; 8192];
    for _ in 0..MOST_RECORDS {
        if begun.elapsed() > PATIENCE {
            break;
        }
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let xid = Xid::of_record(&record[..length]);
                found.extend(xid.filter(|xid| wanted(xid.gpu(gpus))));
            }
            // Overwritten while it was read: the next read goes on behind it.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if found.len() > TOLD {
            found.pop_front();
        }
    }
    // The log's clock stands still while the machine sleeps, as this one does.
    let now_s = clock_gettime(ClockId::Monotonic).tv_sec.unsigned_abs();
    found.into_iter().filter_map(|xid| xid.told(now_s, gpus)).collect()
}

/// Domain, bus and device.
type Address = (u32, u32, u32);

/// One complaint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Xid {
    /// Seconds of the log's clock.
    at_s: u64,
    address: Address,
    code: u32,
    /// Host PID of whose work it was, as far as the driver knew.
    pid: Option<u32>,
    /// The whole line.
    line: RawText,
}

impl Xid {
    /// Reads a record `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`, if it is an Xid's.
    fn of_record(record: &[u8]) -> Option<Self> {
        let split = record.iter().position(|byte| *byte == b';')?;
        let header = std::str::from_utf8(&record[..split]).ok()?;
        let mut fields = header.split(',');
        let priority: u32 = fields.next()?.parse().ok()?;
        let at_s = fields.nth(1)?.parse::<u64>().ok()? / 1_000_000;
        // What follows a line feed are properties of the record: a line feed in a text is escaped.
        let line = unescape(record[split + 1..].split(|byte| *byte == b'\n').next()?);
        let rest = line.strip_prefix(b"NVRM: Xid (PCI:")?;
        let close = rest.iter().position(|byte| *byte == b')')?;
        let place = std::str::from_utf8(&rest[..close]).ok()?;
        let address = address(place.split(' ').next()?)?;
        let rest = rest[close + 1..].strip_prefix(b": ")?;
        let comma = rest.iter().position(|byte| *byte == b',')?;
        let code = std::str::from_utf8(&rest[..comma]).ok()?.parse().ok()?;
        let pid = pid(&rest[comma + 1..]);
        (priority < KERNEL_PRIORITIES).then_some(Self { at_s, address, code, pid, line: RawText::from(line) })
    }

    /// Index of the GPU that complains.
    fn gpu(&self, gpus: &[GpuReport]) -> Option<u32> {
        let of = |gpu: &&GpuReport| gpu.bus_id.as_deref().and_then(address) == Some(self.address);
        gpus.iter().find(of).map(|gpu| gpu.index)
    }

    /// One line for a person; `None` if it is too old.
    fn told(&self, now_s: u64, gpus: &[GpuReport]) -> Option<String> {
        let ago = now_s.saturating_sub(self.at_s);
        let gpu = self.gpu(gpus).map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
        let pid = self.pid.map_or_else(String::new, |pid| format!(", PID {pid}"));
        (ago < RECENT_S).then(|| format!("{ago} s ago{gpu}{pid}, Xid {}: {}", self.code, self.line.to_text()))
    }
}

/// `0000:0f:00`, also with a function behind it, and with a domain of eight digits.
fn address(text: &str) -> Option<Address> {
    let mut parts = text.split(':').map(|part| u32::from_str_radix(part, 16));
    let (domain, bus) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let device = text.rsplit(':').next()?.split('.').next()?;
    let device = u32::from_str_radix(device, 16).ok()?;
    (text.matches(':').count() == 2).then_some((domain, bus, device))
}

/// The PID of ` pid=428, name=...`.
fn pid(rest: &[u8]) -> Option<u32> {
    let digits = rest.strip_prefix(b" pid=")?;
    let end = digits.iter().position(|byte| *byte == b',')?;
    std::str::from_utf8(&digits[..end]).ok()?.trim_matches('\'').parse().ok()
}

/// Takes back what `msg_add_ext_text` of `kernel/printk/printk.c` does: `\xNN` for what is not printable, and for backslashes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.strip_prefix(b"x").and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::text::escape_sentence;

    fn gpus() -> Vec<GpuReport> {
        let gpu =
            |index, bus: &str| GpuReport { index, bus_id: Some(bus.to_owned()), ..GpuReport::default() };
        vec![gpu(0, "0000:06:00.0"), gpu(4, "00000000:0F:00.0")]
    }

    /// What is told of a record that the kernel wrote 30 s ago.
    fn told(text: &str) -> Option<String> {
        told_of(format!("4,1234,100000000,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0f:00.0\n").as_bytes())
    }

    fn told_of(record: &[u8]) -> Option<String> {
        Xid::of_record(record)?.told(130, &gpus())
    }

    #[test]
    fn every_form_that_the_driver_writes_is_read() {
        let line = "NVRM: Xid (PCI:0000:0f:00): 31, pid=428, name=python3, Ch 00000008, intr 00000000.";
        assert_eq!(told(line).as_deref(), Some(&*format!("30 s ago, GPU 4, PID 428, Xid 31: {line}")));
        let forms = [
            ("(PCI:0000:0f:00 GPU-I:05): 13, pid=428, name=python3, x", "30 s ago, GPU 4, PID 428, Xid 13: "),
            (
                "(PCI:0000:0f:00 GPU-I:05 GPU-CI:00): 13, pid='428', name=a, x",
                "30 s ago, GPU 4, PID 428, Xid 13: ",
            ),
            (
                "(PCI:0000:06:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen",
                "30 s ago, GPU 0, Xid 79: ",
            ),
            ("(PCI:0000:0f:00): 79, GPU has fallen off the bus.", "30 s ago, GPU 4, Xid 79: "),
            ("(PCI:0001:0f:00): 154, GPU recovery action changed", "30 s ago, Xid 154: "),
        ];
        for (form, expected) in forms {
            let line = format!("NVRM: Xid {form}");
            assert_eq!(told(&line), Some(format!("{expected}{line}")));
        }
    }

    #[test]
    fn a_name_can_neither_make_a_line_nor_choose_the_pid() {
        let chosen = "NVRM: Xid (PCI:0000:0f:00): 31, pid=428, name=x, pid=1, name=init, Ch 0";
        assert!(told(chosen).is_some_and(|told| told.starts_with("30 s ago, GPU 4, PID 428, Xid 31: ")));
        // A process that calls itself `NVRM: Xid (PCI:` and dies.
        assert_eq!(told("NVRM: Xid (PCI:[77]: segfault at 0 ip 0 sp 0 error 4, likely on CPU 1)"), None);
        assert_eq!(told("x[77]: NVRM: Xid (PCI:0000:0f:00): 31, pid=428, name=x"), None);
        // Root's own words, from user space (facility 1).
        assert_eq!(told_of(b"12,1234,100000000,-;NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=x, y\n"), None);
    }

    #[test]
    fn a_name_with_controls_in_it_is_printed_as_one_harmless_line() {
        let line = r"NVRM: Xid (PCI:0000:0f:00): 31, pid=428, name=a\x0ab\x1b[2J\xe9\x5cx1b, Ch 0";
        let told = told(line).expect("an Xid");
        assert!(told.contains("name=a\nb\x1b[2J\\xe9\\x1b"), "{told:?}");
        assert!(
            escape_sentence(&told).ends_with(r"name=a\nb\x1b[2J\xe9\\x1b, Ch 0"),
            "{}",
            escape_sentence(&told)
        );
    }

    #[test]
    fn old_lines_and_other_lines_are_not_told() {
        let record = b"4,1,100000000,-;NVRM: Xid (PCI:0000:0f:00): 119, pid=428, name=python3, Timeout\n";
        let xid = Xid::of_record(record).expect("an Xid");
        assert_eq!(xid.told(100 + RECENT_S, &gpus()), None);
        for other in
            ["6,1,1,-;usb 1-1: new device", "garbage", "4,1,1,-;NVRM: Xid (PCI:zz:0f:00): 1, x", ";", ""]
        {
            assert_eq!(Xid::of_record(other.as_bytes()), None, "{other}");
        }
    }
}

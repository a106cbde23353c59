//! Xid lines of the kernel log: the driver's own complaints. Hints, no proof of anything.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use crate::kernel::boot_now;

/// Lines that are told.
const TOLD: usize = 5;
/// Records that are read.
const MOST_RECORDS: usize = 50_000;
/// Time that reading may take.
const PATIENCE: Duration = Duration::from_millis(50);
/// Older lines belong to another story.
const RECENT_S: u64 = 24 * 3600;

/// The latest Xid lines of a day, oldest first; none where the log may not be read.
pub(super) fn xids() -> Vec<String> {
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        return Vec::new();
    }
    let log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = log else { return Vec::new() };
    let begun = Instant::now();
    let now_s = boot_now() / 1_000_000_000;
    let mut found = VecDeque::new();
    let mut record = [0; 8192];
    for _ in 0..MOST_RECORDS {
        if begun.elapsed() > PATIENCE {
            break;
        }
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => found.extend(xid(&record[..length], now_s)),
            // Overwritten while it was read: the next read goes on behind it.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if found.len() > TOLD {
            found.pop_front();
        }
    }
    found.into()
}

/// The line of a record `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`, if it is an Xid's.
fn xid(record: &[u8], now_s: u64) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (header, rest) = text.split_once(';')?;
    let line = rest.lines().next()?;
    if !line.contains("NVRM: Xid") {
        return None;
    }
    let at_s = header.split(',').nth(2)?.parse::<u64>().ok()? / 1_000_000;
    let ago = now_s.saturating_sub(at_s);
    (ago < RECENT_S).then(|| format!("{ago} s ago: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_xids_are_told_with_their_age() {
        let record = b"4,1234,100000000,-;NVRM: Xid (PCI:0000:0f:00): 119, pid=428, name=python3, Timeout\n SUBSYSTEM=pci\n";
        let told = xid(record, 130).expect("an Xid");
        assert_eq!(told, "30 s ago: NVRM: Xid (PCI:0000:0f:00): 119, pid=428, name=python3, Timeout");
        assert_eq!(xid(record, 130 + RECENT_S), None);
        assert_eq!(xid(b"6,1,1,-;usb 1-1: new device", 2), None);
        assert_eq!(xid(b"garbage", 2), None);
    }
}

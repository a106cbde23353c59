//! The registered files of an io_uring, as its fdinfo shows them.

use std::path::Path;

use crate::model::RawText;
use crate::process::{ProcDir, ProcError};

/// Link text of an io_uring's descriptor, and the name of its mappings.
pub(super) const RING: &[u8] = b"anon_inode:[io_uring]";
/// Most bytes of a ring's fdinfo that are read.
const LIMIT: usize = 8 << 20;
/// A ring shows its files only to whoever gets its lock at the first try; so often that is tried.
const ATTEMPTS: u32 = 20;

/// Why the registered files of a ring are not known.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Its fdinfo could not be read.
    #[error(transparent)]
    Unreadable(#[from] ProcError),
    /// It shows no files, as it does while its lock is taken.
    #[error("the io_uring was busy at each of {ATTEMPTS} tries: ask again")]
    Busy,
    /// More than fits.
    #[error(
        "the io_uring's description is longer than {LIMIT} bytes: its registered files cannot all be read"
    )]
    TooLong,
}

/// The registered files of the io_uring that is descriptor `fd` of process (or thread) `pid`: slot and name.
///
/// The name is a path as [`device_at`](super::device_at) takes it, a description such as `socket:[42]`, or, on kernels
/// that write no paths, the last component alone.
///
/// # Errors
/// [`RingError`]; an empty list means that nothing is registered.
pub fn fdinfo_ring_files(root: &Path, pid: u32, fd: u32) -> Result<Vec<(u32, RawText)>, RingError> {
    registered(&ProcDir::open(root.join(pid.to_string()))?, fd)
}

/// The same, for the task whose directory is `task`.
pub(super) fn registered(task: &ProcDir, fd: u32) -> Result<Vec<(u32, RawText)>, RingError> {
    for _ in 0..ATTEMPTS {
        let text = task.read(format!("fdinfo/{fd}"), LIMIT)?;
        if text.len() == LIMIT {
            return Err(RingError::TooLong);
        }
        if let Some(files) = parse(&text) {
            return Ok(files);
        }
        std::thread::yield_now();
    }
    Err(RingError::Busy)
}

/// The lines that follow `UserFiles:` and begin with a slot number; `None` if there is no such section.
fn parse(text: &[u8]) -> Option<Vec<(u32, RawText)>> {
    let mut lines = text.split(|byte| *byte == b'\n').skip_while(|line| !line.starts_with(b"UserFiles:"));
    lines.next()?;
    let mut files = Vec::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let slot = std::str::from_utf8(&line[..colon]).ok().and_then(|slot| slot.trim_start().parse().ok());
        let Some(slot) = slot else { break };
        let name = line[colon + 1..].strip_prefix(b" ").unwrap_or_default();
        if !name.is_empty() && name != b"<none>" {
            files.push((slot, RawText::from(unescape(name))));
        }
    }
    Some(files)
}

/// Undoes the `\NNN` with which the kernel writes blanks and backslashes.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| first == b'\\' && digits.iter().all(|digit| matches!(digit, b'0'..=b'7')));
        let value =
            octal.map(|digits| digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0')));
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_and_paths_are_read_and_blanks_restored() {
        let text = b"pos:\t0\nSQEs:\t1\n    0: opcode:7\nUserFiles:\t6\n    0: /dev/zero\n    2: /tmp/a\\040b\\012c\\134\n    \
            3: <none>\n    5: /memfd:x\\040(deleted)\nUserBufs:\t1\n    0: 0x1/4096\n";
        let files = parse(text).expect("the section");
        let expected = [(0, "/dev/zero"), (2, "/tmp/a b\nc\\"), (5, "/memfd:x (deleted)")];
        assert_eq!(files, expected.map(|(slot, name)| (slot, RawText::from(name))));
    }

    #[test]
    fn a_ring_without_files_is_not_a_ring_that_does_not_tell() {
        assert_eq!(parse(b"pos:\t0\nUserFiles:\t0\nUserBufs:\t0\n"), Some(vec![]));
        assert_eq!(parse(b"pos:\t0\nflags:\t02000002\n"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[b"UserFiles:\t9\n    0: ", bytes.as_slice()].concat());
            let _ = unescape(&bytes);
        }
    }
}

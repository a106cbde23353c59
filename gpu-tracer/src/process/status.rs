//! `/proc/PID/status`.

/// Most bytes that are read: 65,536 supplementary groups make 700 KiB of a line that stands before what matters.
pub const LIMIT: usize = 1 << 20;

/// SIGKILL's bit in a signal mask.
const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// What of `status` is of use here. Whatever a kernel does not write is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Real user id.
    pub uid: Option<u32>,
    /// Thread-group id of the parent.
    pub ppid: Option<u32>,
    /// Who traces it; 0 for nobody.
    pub tracer: Option<u32>,
    /// Thread-group id in each PID namespace, from that of this `/proc` to the innermost (4.1 and newer).
    pub ns_tgids: Vec<u32>,
    /// Thread id likewise.
    pub ns_tids: Vec<u32>,
    /// SIGKILL pending for the thread or for its group.
    pub sigkill_pending: Option<bool>,
    /// A core dump is being written (4.15 and newer).
    pub core_dumping: Option<bool>,
}

impl Status {
    /// Reads the form that `proc_pid_status` of `fs/proc/array.c` writes. The kernel escapes newlines in the name, so
    /// no line is the process's own but the first; of a key that appears twice the first counts.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut status = Self::default();
        let mut pending = [None, None];
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let value = &line[colon + 1..];
            match &line[..colon] {
                b"Uid" => keep_first(&mut status.uid, first_number(value)),
                b"PPid" => keep_first(&mut status.ppid, first_number(value)),
                b"TracerPid" => keep_first(&mut status.tracer, first_number(value)),
                b"NStgid" if status.ns_tgids.is_empty() => status.ns_tgids = numbers(value).collect(),
                b"NSpid" if status.ns_tids.is_empty() => status.ns_tids = numbers(value).collect(),
                b"SigPnd" => keep_first(&mut pending[0], mask(value)),
                b"ShdPnd" => keep_first(&mut pending[1], mask(value)),
                b"CoreDumping" => {
                    keep_first(&mut status.core_dumping, first_number(value).map(|flag| flag != 0))
                }
                _ => {}
            }
        }
        status.sigkill_pending = pending
            .into_iter()
            .flatten()
            .reduce(|one, other| one | other)
            .map(|both| both & SIGKILL_BIT != 0);
        status
    }

    /// Thread-group id in the innermost PID namespace.
    #[must_use]
    pub fn tgid_in_ns(&self) -> Option<u32> {
        self.ns_tgids.last().copied()
    }
}

fn keep_first<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn numbers(value: &[u8]) -> impl Iterator<Item = u32> {
    let words = std::str::from_utf8(value).unwrap_or_default().split_ascii_whitespace();
    words.map_while(|word| word.parse().ok())
}

fn first_number(value: &[u8]) -> Option<u32> {
    numbers(value).next()
}

fn mask(value: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(value).ok()?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_killed_process_in_a_child_namespace_is_read() {
        let text = b"Name:\tpython3\\nUid:\nState:\tD (disk sleep)\nTgid:\t428\nPid:\t440\nPPid:\t7\nTracerPid:\t9\n\
            Uid:\t1000\t0\t0\t0\nGroups:\t1 2 3 \nNStgid:\t428\t12\t1\nNSpid:\t440\t13\t2\nCoreDumping:\t1\n\
            SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
        let expected = Status {
            uid: Some(1000),
            ppid: Some(7),
            tracer: Some(9),
            ns_tgids: vec![428, 12, 1],
            ns_tids: vec![440, 13, 2],
            sigkill_pending: Some(true),
            core_dumping: Some(true),
        };
        assert_eq!(Status::parse(text), expected);
        assert_eq!(expected.tgid_in_ns(), Some(1));
    }

    #[test]
    fn sigterm_alone_is_no_sigkill_and_silence_is_unknown() {
        assert_eq!(Status::parse(b"SigPnd:\t4000\nShdPnd:\t0\n").sigkill_pending, Some(false));
        assert_eq!(Status::parse(b"Name:\tx\n"), Status::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Status::parse(&bytes);
        }

        #[test]
        fn arbitrary_values_never_panic(key in "(Uid|PPid|NStgid|NSpid|SigPnd|ShdPnd|CoreDumping)", value in ".*") {
            let _ = Status::parse(format!("{key}:{value}\n").as_bytes());
        }
    }
}

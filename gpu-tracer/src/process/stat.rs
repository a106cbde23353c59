//! `/proc/PID/stat`, in which the process itself writes the second field.

use crate::model::{RawText, TaskState};

/// `PF_EXITING` of `include/linux/sched.h`: the task is in `do_exit`.
const PF_EXITING: u64 = 0x4;
/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// What of `stat` is of use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The task's id, in the PID namespace of that `/proc`.
    pub tid: u32,
    /// The name it wears.
    pub comm: RawText,
    /// Its state.
    pub state: TaskState,
    /// Thread-group id of its parent; 0 when that is outside of the PID namespace.
    pub ppid: u32,
    /// Session: the id of the process that began it, whether that lives or not. Others come to it by fork alone. 0 when
    /// that is outside of the PID namespace.
    pub session: u32,
    /// `PF_EXITING`.
    pub exiting: bool,
    /// `PF_KTHREAD`.
    pub kernel_thread: bool,
    /// Threads in its group.
    pub threads: u32,
    /// Start, ns of boot time, in steps of a clock tick (10 ms).
    pub start_ns: u64,
    /// Where in its memory the command line ends. 0: it has no memory, or is in an exec that has not put the new command
    /// line there yet, or that is not ours to know. A process cannot make it 0 itself: nothing may be mapped there.
    pub arg_end: u64,
}

impl Stat {
    /// Reads the form that `do_task_stat` of `fs/proc/array.c` writes.
    ///
    /// The name ends at the *last* `)`: it may contain `)`, spaces, digits and newlines, the fields behind it cannot.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = text.get(open + 1..close)?;
        let fields: Vec<&str> =
            std::str::from_utf8(&text[close + 1..]).ok()?.split_ascii_whitespace().collect();
        // Fields are numbered as in proc(5): the state is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        let flags: u64 = field(9)?.parse().ok()?;
        let ticks: u64 = field(22)?.parse().ok()?;
        Some(Self {
            tid: std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?,
            comm: RawText::from(name.to_vec()),
            state: TaskState::from_letter(*field(3)?.as_bytes().first()?),
            ppid: field(4)?.parse().ok()?,
            // -1 once the task has given up its signal handlers.
            session: u32::try_from(field(6)?.parse::<i64>().ok()?).unwrap_or(0),
            exiting: flags & PF_EXITING != 0,
            kernel_thread: flags & PF_KTHREAD != 0,
            threads: field(20)?.parse().ok()?,
            start_ns: ticks_to_ns(ticks),
            arg_end: field(49).and_then(|field| field.parse().ok()).unwrap_or(0),
        })
    }

    /// Zombie or already reaped.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, TaskState::Zombie | TaskState::Dead)
    }

    /// Could a read of this task's address space wait for ever?
    #[must_use]
    pub fn may_hold_mm(&self) -> bool {
        !self.is_dead() && (self.exiting || self.state == TaskState::Uninterruptible)
    }
}

/// Clock ticks, as `/proc` counts time, in ns.
#[must_use]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    // SAFETY: sysconf reads a constant of the C library and touches no memory of ours.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let per_second = u128::try_from(per_second).ok().filter(|hz| *hz > 0).unwrap_or(100);
    u64::try_from(u128::from(ticks) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(comm: &[u8], tail: &str) -> Vec<u8> {
        [b"428 (".as_slice(), comm, b") ", tail.as_bytes()].concat()
    }

    const TAIL: &str =
        "D 1 428 428 0 -1 4194628 100 0 0 0 0 0 0 0 20 0 3 0 84403 3133440 390 18446744073709551615 1 1\n";

    #[test]
    fn a_name_that_looks_like_fields_is_only_a_name() {
        let stat = Stat::parse(&line(b"a) Z 1 7", TAIL)).expect("parses");
        assert_eq!(stat.comm, RawText::from("a) Z 1 7"));
        assert_eq!((stat.tid, stat.state, stat.ppid), (428, TaskState::Uninterruptible, 1));
        assert_eq!(stat.session, 428);
        assert_eq!((stat.exiting, stat.kernel_thread, stat.threads), (true, false, 3));
        assert_eq!(stat.start_ns, 844_030_000_000);
        assert!(stat.may_hold_mm());
    }

    #[test]
    fn a_task_that_has_ended_but_for_its_parent_has_no_session() {
        let stat = Stat::parse(&line(b"x", &TAIL.replace("428 428", "-1 -1"))).expect("parses");
        assert_eq!(stat.session, 0);
    }

    #[test]
    fn a_truncated_line_is_no_stat() {
        let whole = line(b"x", TAIL);
        for length in 0..60 {
            assert_eq!(Stat::parse(&whole[..length]), None, "{length} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Stat::parse(&bytes);
        }

        #[test]
        fn every_name_comes_back_as_it_was(comm in proptest::collection::vec(1..=255u8, 0..16)) {
            let stat = Stat::parse(&line(&comm, TAIL)).expect("parses");
            prop_assert_eq!(stat.comm, RawText::from(comm));
            prop_assert_eq!(stat.ppid, 1);
        }
    }
}

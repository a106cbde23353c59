//! Boot time and wall clock.
//!
//! The kernel stamps everything with boot time (ns since boot, suspend included); people want the wall clock. The two
//! drift apart only when somebody sets the clock, so a pair read together converts between them for as long as an
//! answer takes; a daemon reads a new pair now and then.

use std::path::Path;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use crate::model::WallTime;

const NS: i128 = 1_000_000_000;

/// Converts between boot time and wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Wall clock at boot: what has to be added to a boot time, ns.
    pub boot_to_wall_offset: i128,
}

impl Clock {
    /// Reads both clocks together.
    #[must_use]
    pub fn now() -> Self {
        // If the process is interrupted between the readings the pair is useless: the tightest of a few is kept.
        let pairs = (0..4).map(|_| {
            let before = nanoseconds(ClockId::Boottime);
            let wall = nanoseconds(ClockId::Realtime);
            let after = nanoseconds(ClockId::Boottime);
            (after - before, wall - (before + (after - before) / 2))
        });
        Self { boot_to_wall_offset: pairs.min_by_key(|(width, _)| *width).map_or(0, |(_, offset)| offset) }
    }

    /// The wall clock at `boot_ns` of boot time; the end of time for what lies beyond it.
    #[must_use]
    pub fn wall(&self, boot_ns: u64) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(boot_ns) + self.boot_to_wall_offset).unwrap_or(Timestamp::MAX)
    }

    /// The same as the JSON contract writes it.
    #[must_use]
    pub fn wall_time(&self, boot_ns: u64) -> WallTime {
        WallTime::from_unix_ns(i128::from(boot_ns) + self.boot_to_wall_offset)
    }

    /// Boot time, ns, of a wall clock time; `None` for times before boot.
    #[must_use]
    pub fn boot_ns(&self, wall: Timestamp) -> Option<u64> {
        u64::try_from(wall.as_nanosecond() - self.boot_to_wall_offset).ok()
    }
}

/// ns of boot time now, as `bpf_ktime_get_boot_ns` gives it.
#[must_use]
pub fn boot_now() -> u64 {
    u64::try_from(nanoseconds(ClockId::Boottime)).unwrap_or(0)
}

/// Identity of this boot, which boot times and PIDs belong to; `None` if `/proc` is not readable.
#[must_use]
pub fn boot_id(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn nanoseconds(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * NS + i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_now_is_the_wall_clock_now() {
        let clock = Clock::now();
        let (before, converted, after) = (Timestamp::now(), clock.wall(boot_now()), Timestamp::now());
        let slack = jiff::SignedDuration::from_millis(50);
        assert!(before - slack <= converted && converted <= after + slack, "{before} {converted} {after}");
    }

    #[test]
    fn times_convert_both_ways_and_out_of_range_times_do_not_wrap() {
        let clock = Clock { boot_to_wall_offset: 1_700_000_000 * NS };
        let time: Timestamp = "2023-11-14T22:13:25.5Z".parse().unwrap();
        assert_eq!(clock.wall(5_500_000_000), time);
        assert_eq!(clock.boot_ns(time), Some(5_500_000_000));
        assert_eq!(clock.boot_ns(Timestamp::UNIX_EPOCH), None);
        assert!(clock.wall(u64::MAX) > time);
        assert_eq!(Clock { boot_to_wall_offset: i128::from(i64::MAX) * NS }.wall(1), Timestamp::MAX);
    }

    #[test]
    fn the_boot_id_is_read_without_its_newline() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(boot_id(root.path()), None);
        let directory = root.path().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("boot_id"), "0b5c7e1e-0000-4000-8000-000000000001\n").unwrap();
        assert_eq!(boot_id(root.path()).as_deref(), Some("0b5c7e1e-0000-4000-8000-000000000001"));
    }
}

//! A second look at tasks that seem stuck: are they still there, do they move, and what do they wait for?
//!
//! A task that was killed is inside the driver, in D state, for some hundred ms of an ordinary exit. So it is looked at until it
//! has gone, or has stayed for so long that it counts as stuck; a quiet host costs nothing.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use super::obstacle::{self, obstacle};
use crate::diagnose::input::{HalfGone, LASTING, Obstacle, RESTLESS, Wait};
use crate::diagnose::place::{Place, in_gpu_driver, place};
use crate::model::TaskState;
use crate::model::report::{Holder, Report};
use crate::process::facts::read_stat;
use crate::process::namespaces::is_initial_pid;
use crate::process::{ProcDir, ProcFs, stack, status};

/// Tasks that are looked at twice; more of them wait for the same thing.
const MOST_TASKS: usize = 256;
/// Until the second look: a wait of a moment is over by then.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Between all further looks.
const STEP: Duration = Duration::from_millis(50);

/// How long it may take to tell who is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Two looks; nobody is called stuck for them.
    Hasty,
    /// Until everybody has gone or counts as stuck.
    Thorough,
}

/// A task as it was at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    start_ns: u64,
    state: TaskState,
    /// Times it gave up the processor by itself.
    switches: Option<u64>,
}

/// A task that is watched.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    pid: u32,
    tid: u32,
    /// Would it count as stuck if it stayed? Not one that reads from a disk.
    may_be_stuck: bool,
}

impl Suspect {
    /// `None`: nothing about this holder seems stuck.
    fn holder(holder: &Holder) -> Option<Self> {
        let killed = holder.sigkill_pending || holder.exiting;
        let place = place(holder.wchan.as_deref(), &holder.stack);
        let in_the_way =
            matches!(place, Place::GpuDriver | Place::FrozenFileSystem) || in_gpu_driver(&holder.stack);
        (killed || holder.state == "D").then_some(Self {
            pid: holder.pid,
            tid: holder.tid,
            may_be_stuck: killed || in_the_way,
        })
    }
}

/// By task id: whether it moved between the looks, and what is in its way. Empty, at once, where nothing seems stuck.
pub(super) fn waits(report: &Report, half_gone: &[HalfGone], patience: Patience) -> HashMap<u32, Wait> {
    let half_gone = half_gone.iter().map(|task| Suspect { pid: task.pid, tid: task.tid, may_be_stuck: true });
    let suspects: Vec<Suspect> =
        report.holders.iter().filter_map(Suspect::holder).chain(half_gone).take(MOST_TASKS).collect();
    // Where `/proc` numbers processes differently from the kernel it would be others that are looked at.
    if suspects.is_empty() || !is_initial_pid() {
        return HashMap::new();
    }
    let first: Vec<Option<Seen>> = suspects.iter().map(|one| see(one.pid, one.tid)).collect();
    let begun = Instant::now();
    let mut obstacles = obstacles(&suspects, begun);
    let mut waits = watch(
        &suspects,
        &first,
        patience,
        |one| see(one.pid, one.tid),
        |until| {
            thread::sleep(until.saturating_sub(begun.elapsed()));
            begun.elapsed()
        },
    );
    for (tid, wait) in &mut waits {
        wait.obstacle = obstacles.remove(tid);
    }
    waits
}

fn obstacles(suspects: &[Suspect], begun: Instant) -> HashMap<u32, Obstacle> {
    // One process that does not answer must not use up the time of all.
    let enough = begun + 2 * obstacle::PATIENCE;
    let mut obstacles = HashMap::new();
    for Suspect { pid, tid, .. } in suspects {
        if Instant::now() >= enough {
            break;
        }
        let (wchan, frames) = where_it_waits(*pid, *tid);
        if let Some(obstacle) = obstacle(*pid, *tid, place(wchan.as_deref(), &frames)) {
            obstacles.insert(*tid, obstacle);
        }
    }
    obstacles
}

/// Looks again and again; `sleep` sleeps until a moment after the first look and gives the moment that it has become.
fn watch(
    suspects: &[Suspect],
    first: &[Option<Seen>],
    patience: Patience,
    look: impl Fn(&Suspect) -> Option<Seen>,
    mut sleep: impl FnMut(Duration) -> Duration,
) -> HashMap<u32, Wait> {
    let mut waits: HashMap<u32, Wait> = HashMap::new();
    let mut until = BETWEEN_LOOKS;
    loop {
        let now = sleep(until);
        let mut open = false;
        for (suspect, first) in suspects.iter().zip(first) {
            let wait = waits.entry(suspect.tid).or_insert_with(|| Wait { unmoved: true, ..Wait::default() });
            if wait.gone || wait.is_lasting() || wait.over_ms > 0 && !suspect.may_be_stuck {
                continue;
            }
            let seen = look(suspect);
            wait.over_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
            wait.gone = first.zip(seen).is_none_or(|(first, seen)| first.start_ns != seen.start_ns);
            wait.unmoved &= seen.is_some_and(|seen| seen.switches.is_some() && Some(seen) == *first);
            open |= suspect.may_be_stuck && !wait.gone && !wait.is_lasting();
        }
        if !open || patience == Patience::Hasty {
            return waits;
        }
        // Not past the moment at which the next of them counts as stuck.
        let next = [LASTING, RESTLESS].into_iter().filter(|moment| *moment > now).min();
        until = next.map_or(now + STEP, |moment| moment.min(now + STEP));
    }
}

/// `None` when it has ended.
fn see(pid: u32, tid: u32) -> Option<Seen> {
    let task = task(pid, tid)?;
    let stat = read_stat(&task).ok().filter(|stat| !stat.is_dead())?;
    let status = task.read("status", status::LIMIT).ok()?;
    let switches = status.split(|byte| *byte == b'\n').find_map(|line| {
        let number = line.strip_prefix(b"voluntary_ctxt_switches:")?;
        std::str::from_utf8(number).ok()?.trim().parse().ok()
    });
    Some(Seen { start_ns: stat.start_ns, state: stat.state, switches })
}

pub(super) fn task(pid: u32, tid: u32) -> Option<ProcDir> {
    ProcFs::host().process(pid).and_then(|process| process.below(format!("task/{tid}"))).ok()
}

/// The function it sleeps in and its kernel stack.
pub(super) fn where_it_waits(pid: u32, tid: u32) -> (Option<String>, Vec<String>) {
    let Some(task) = task(pid, tid) else { return (None, Vec::new()) };
    let state = read_stat(&task).map_or(TaskState::Running, |stat| stat.state);
    stack::where_it_waits(&task, state)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const DISK: Seen = Seen { start_ns: 1, state: TaskState::Uninterruptible, switches: Some(7) };

    /// What becomes of a task that is as `seen` says so many ms after the first look; and for how long it is watched, ms.
    fn watched(may_be_stuck: bool, patience: Patience, seen: impl Fn(u64) -> Option<Seen>) -> (Wait, u64) {
        let now = Cell::new(Duration::ZERO);
        let ms = |now: Duration| u64::try_from(now.as_millis()).unwrap();
        let suspect = Suspect { pid: 7, tid: 7, may_be_stuck };
        let mut waits = watch(
            &[suspect],
            &[seen(0)],
            patience,
            |_| seen(ms(now.get())),
            |until| {
                now.set(until.max(now.get()));
                now.get()
            },
        );
        (waits.remove(&7).expect("it was watched"), ms(now.get()))
    }

    #[test]
    fn an_ordinary_exit_is_watched_until_it_is_over_and_is_not_stuck() {
        let (wait, took) = watched(true, Patience::Thorough, |ms| (ms < 160).then_some(DISK));
        assert!(wait.gone && !wait.is_lasting(), "{wait:?}");
        assert_eq!(took, 200, "not longer");
    }

    #[test]
    fn one_that_stays_is_stuck_after_a_second_and_one_that_moves_after_two() {
        let (wait, took) = watched(true, Patience::Thorough, |_| Some(DISK));
        assert!(wait.is_lasting() && wait.unmoved, "{wait:?}");
        assert_eq!(took, 1000);
        let moving = |ms| Some(Seen { switches: Some(ms), ..DISK });
        let (wait, took) = watched(true, Patience::Thorough, moving);
        assert!(wait.is_lasting() && !wait.unmoved, "{wait:?}");
        assert_eq!(took, 2000);
    }

    #[test]
    fn a_haste_and_a_disk_take_two_looks_and_nobody_is_called_stuck_for_them() {
        for (may_be_stuck, patience) in [(true, Patience::Hasty), (false, Patience::Thorough)] {
            let (wait, took) = watched(may_be_stuck, patience, |_| Some(DISK));
            assert!(!wait.is_lasting() && !wait.gone, "{wait:?}");
            assert_eq!(took, 100);
        }
    }

    #[test]
    fn another_task_with_the_same_id_is_not_the_one() {
        let (wait, _) = watched(true, Patience::Thorough, |ms| Some(Seen { start_ns: 1 + ms / 100, ..DISK }));
        assert!(wait.gone, "{wait:?}");
    }

    #[test]
    fn our_own_task_is_seen_and_one_that_is_not_there_has_ended() {
        assert!(see(std::process::id(), std::process::id()).is_some());
        assert_eq!(see(std::process::id(), u32::MAX), None);
    }
}

//! Will a holder go when it is killed, and if not, what is in the way?

use super::input::Wait;
use super::place::{Place, in_gpu_driver, place};
use crate::model::RawText;
use crate::model::report::Holder;

/// What is to be expected of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Going {
    /// Does SIGKILL end it, or has it done so already?
    pub(super) killable: bool,
    /// It has been killed or exits by itself: it will be gone without anything more being done.
    pub(super) ending: bool,
    /// One sentence.
    pub(super) because: String,
    /// Where it waits, if that is what decides.
    pub(super) place: Option<Place>,
    /// The same as a sentence.
    pub(super) waits: Option<String>,
}

impl Going {
    fn killable(because: &str) -> Self {
        Self { killable: true, ending: false, because: because.to_owned(), place: None, waits: None }
    }

    fn ending(because: &str) -> Self {
        Self { ending: true, ..Self::killable(because) }
    }
}

const PENDING: &str =
    "SIGKILL is already pending: another one will not help. It goes when what it waits for ends.";

/// Of a task that has been seen to be on its way, and not yet to stay there.
pub(super) const ENDING: &str =
    "It has been killed and is on its way out: nothing more is to be done than to wait.";

/// What SIGKILL does to this holder.
///
/// Nothing is called stuck for one look: a task is in the driver, in D state, for some hundred ms of an ordinary exit.
///
/// `releasing`: its task was seen to enter the driver's release, and not to leave it.
pub(super) fn going(holder: &Holder, wait: Option<&Wait>, releasing: bool) -> Going {
    let said = |word: &str| holder.why.iter().any(|why| why == word);
    let killed = holder.sigkill_pending || holder.exiting;
    let uninterruptible = holder.state == "D";
    if wait.is_some_and(|wait| wait.gone) {
        return Going::ending("It has ended while this was asked.");
    }
    if holder.pid == 1 {
        let because = "It is PID 1: the system ends with it.".to_owned();
        return Going { killable: false, ..Going::with_place(holder, because) };
    }
    if said("frozen") {
        return frozen(holder, uninterruptible);
    }
    let place = match place(holder.wchan.as_deref(), &holder.stack) {
        Place::Kernel if releasing => Place::GpuDriver,
        place => place,
    };
    if said("dumping-core") {
        let blocked = uninterruptible && !matches!(place, Place::CoreDump | Place::Kernel | Place::Memory);
        return if blocked {
            stuck(
                holder,
                place,
                wait,
                "It writes a core dump and cannot go on: SIGKILL acts only when that wait ends.",
            )
        } else {
            Going::killable("It writes a core dump: SIGKILL ends the dump and the process.")
        };
    }
    let lasting = wait.is_some_and(Wait::is_lasting);
    let unmoved = lasting && wait.is_some_and(|wait| wait.unmoved);
    let in_driver = place == Place::GpuDriver || in_gpu_driver(&holder.stack);
    match (killed, holder.state.as_str()) {
        (true, "D") if lasting => stuck(holder, place, wait, PENDING),
        (true, "R") if lasting && releasing => stuck(
            holder,
            place,
            wait,
            "It runs in the driver's release of the device, which no signal ends. It goes when the driver is done.",
        ),
        (true, "R") if lasting && in_driver || unmoved && holder.sigkill_pending => stuck(
            holder,
            place,
            wait,
            "It runs in the kernel and does not look at the SIGKILL that is pending: another one will not help.",
        ),
        (true, "S") if lasting && in_driver => stuck(holder, place, wait, PENDING),
        (true, _) => Going::ending(ENDING),
        (false, "D") if unmoved && matches!(place, Place::FrozenFileSystem | Place::GpuDriver) => {
            stuck(holder, place, wait, "SIGKILL acts only when that wait ends.")
        }
        (false, "D") => Going {
            killable: true,
            ..Going::with_place(holder, "SIGKILL ends it as soon as its wait in the kernel ends.".to_owned())
        },
        (false, "T" | "t") => Going::killable(
            "It is stopped: SIGKILL ends it all the same, SIGCONT lets it act on other signals.",
        ),
        _ if said("thread-of-defunct") => {
            Going::killable("Its leader is a zombie, but a thread of it lives: SIGKILL to the PID ends that.")
        }
        _ => Going::killable("It lives and SIGKILL ends it."),
    }
}

fn frozen(holder: &Holder, uninterruptible: bool) -> Going {
    // cgroup v1 freezes in uninterruptible sleep, v2 in a sleep that a fatal signal ends.
    if uninterruptible {
        stuck(
            holder,
            Place::Freezer,
            None,
            "Its cgroup is frozen (v1): SIGKILL acts only when that is thawed.",
        )
    } else {
        Going::killable("Its cgroup is frozen (v2): SIGKILL ends it all the same.")
    }
}

fn stuck(holder: &Holder, place: Place, wait: Option<&Wait>, because: &str) -> Going {
    Going {
        killable: false,
        ending: false,
        because: because.to_owned(),
        place: Some(place),
        waits: Some(waits((holder.tid, &holder.state), holder.wchan.as_deref(), place, wait)),
    }
}

/// One sentence on where a task waits, or runs.
pub(super) fn waits(
    (tid, state): (u32, &str),
    wchan: Option<&str>,
    place: Place,
    wait: Option<&Wait>,
) -> String {
    let words = if state == "R" { place.running_words() } else { place.words() };
    let mut text = format!("Task {tid} {words}");
    if let Some(wchan) = wchan.filter(|wchan| !wchan.is_empty()) {
        text.push_str(&format!(" ({wchan})"));
    }
    let obstacle = wait.and_then(|wait| wait.obstacle.as_ref());
    if let Some(obstacle) = obstacle {
        let named = |what: &str, text: &Option<RawText>| {
            text.as_ref().map_or_else(String::new, |text| format!(" {what} {}", text.to_text()))
        };
        text.push_str(&format!(
            "; its system call is about{}{} ({})",
            named("", &obstacle.path).replace("  ", " "),
            named("on", &obstacle.mount),
            obstacle.file_system
        ));
    }
    text.push('.');
    text
}

impl Going {
    fn with_place(holder: &Holder, because: String) -> Self {
        let place = place(holder.wchan.as_deref(), &holder.stack);
        let shown = holder.state == "D" && place != Place::Kernel;
        Self {
            killable: false,
            ending: false,
            because,
            place: shown.then_some(place),
            waits: (holder.state == "D")
                .then(|| waits((holder.tid, &holder.state), holder.wchan.as_deref(), place, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::input::{LASTING, RESTLESS};
    use super::*;

    fn holder(why: &[&str], state: &str) -> Holder {
        Holder {
            pid: 428,
            tid: 440,
            state: state.to_owned(),
            why: why.iter().map(|word| (*word).to_owned()).collect(),
            ..Holder::default()
        }
    }

    fn after(over: Duration) -> Wait {
        Wait {
            over_ms: u64::try_from(over.as_millis()).expect("it is short"),
            unmoved: true,
            ..Wait::default()
        }
    }

    #[test]
    fn a_killed_task_in_d_state_does_not_go_and_it_is_said_where_it_waits() {
        let holder = Holder {
            sigkill_pending: true,
            wchan: Some("percpu_rwsem_wait".to_owned()),
            ..holder(&["stuck-in-kernel"], "D")
        };
        let going = going(&holder, Some(&after(LASTING)), false);
        assert!(!going.killable);
        assert_eq!(going.place, Some(Place::FrozenFileSystem));
        let waits = going.waits.unwrap();
        assert!(waits.contains("waits in the file system, not in the GPU driver"), "{waits}");
    }

    #[test]
    fn an_ordinary_exit_through_the_driver_is_not_called_stuck_while_it_lasts() {
        for (state, exiting) in [("D", true), ("D", false), ("R", true), ("S", true)] {
            let leaving = Holder {
                exiting,
                sigkill_pending: !exiting,
                stack: vec!["os_acquire_semaphore [nvidia]".to_owned()],
                ..holder(&["exiting"], state)
            };
            let is_stuck = |wait: Option<&Wait>| {
                let going = going(&leaving, wait, false);
                assert_ne!(going.killable, !going.ending, "{state}: one of both, {going:?}");
                !going.killable
            };
            assert!(!is_stuck(None), "{state}: seen once");
            assert!(!is_stuck(Some(&after(Duration::from_millis(160)))), "{state}");
            assert!(is_stuck(Some(&after(LASTING))), "{state}");
            let moving = |over| Wait { unmoved: false, ..after(over) };
            assert!(!is_stuck(Some(&moving(LASTING))), "{state}: it moves");
            assert!(is_stuck(Some(&moving(RESTLESS))), "{state}: it moves and does not arrive");
            assert!(!is_stuck(Some(&Wait { gone: true, ..after(RESTLESS) })), "{state}");
        }
    }

    #[test]
    fn spinning_in_the_driver_with_sigkill_pending_is_stuck_and_spinning_elsewhere_is_leaving() {
        let in_driver = Holder {
            sigkill_pending: true,
            stack: vec!["_kgspRpcRecvPoll [nvidia]".to_owned()],
            ..holder(&["stuck-in-kernel"], "R")
        };
        let moving = Wait { unmoved: false, ..after(RESTLESS) };
        assert!(!going(&in_driver, Some(&moving), false).killable);
        let elsewhere = Holder { stack: Vec::new(), ..in_driver };
        assert!(going(&elsewhere, Some(&moving), false).killable);
        assert!(!going(&elsewhere, Some(&after(LASTING)), false).killable);
    }

    #[test]
    fn one_that_spins_in_a_release_that_was_seen_to_begin_is_in_the_driver_and_does_not_wait() {
        // Of a task that runs there is no stack, and one that exits has no signal pending.
        let spinning = Holder { exiting: true, ..holder(&["exiting"], "R") };
        assert!(going(&spinning, Some(&after(LASTING)), false).ending, "nothing tells");
        assert!(going(&spinning, None, true).ending, "seen once");
        let going = going(&spinning, Some(&after(LASTING)), true);
        assert!(!going.killable && !going.ending, "{going:?}");
        assert_eq!(going.place, Some(Place::GpuDriver));
        let waits = going.waits.unwrap();
        assert!(waits.contains("runs in the GPU driver") && !waits.contains("waits"), "{waits}");
        assert!(going.because.contains("the driver's release"), "{}", going.because);
    }

    #[test]
    fn both_freezers_are_told_apart_by_the_state_they_freeze_in() {
        assert!(!going(&holder(&["frozen"], "D"), None, false).killable);
        assert!(going(&holder(&["frozen"], "S"), None, false).killable);
    }

    #[test]
    fn a_disk_wait_of_a_moment_is_no_reason_to_give_up() {
        let reading = Holder { wchan: Some("folio_wait_bit".to_owned()), ..holder(&["live"], "D") };
        assert!(going(&reading, Some(&after(RESTLESS)), false).killable);
        let frozen = Holder { wchan: Some("percpu_rwsem_wait".to_owned()), ..holder(&["live"], "D") };
        assert!(going(&frozen, None, false).killable, "seen once only");
        assert!(
            going(&frozen, Some(&after(Duration::from_millis(100))), false).killable,
            "a call of an instant"
        );
        assert!(!going(&frozen, Some(&after(LASTING)), false).killable);
    }

    #[test]
    fn pid_1_is_not_to_be_killed() {
        assert!(!going(&Holder { pid: 1, ..holder(&["live"], "S") }, None, false).killable);
    }
}

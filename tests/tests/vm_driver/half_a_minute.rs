//! B14 for as long as a real driver may be stuck, with the times in which it has to be told.

use super::*;

/// How the daemon has each file of a device, from an answer that it gave at once.
fn states(daemon: &Daemon, device: &str) -> Vec<String> {
    let answer = daemon.get("/v1/holders").expect("it answers");
    let files = answer["files"].as_array().expect("a list").iter();
    let of_device = files.filter(|file| file["device"] == device);
    of_device.map(|file| file["state"].as_str().expect("a state").to_owned()).collect()
}

/// Nanoseconds until the daemon has the only file of a device so; `since` is the boot time at which it became so.
#[track_caller]
fn time_to_answer(daemon: &Daemon, device: &str, state: &str, since: u64) -> u64 {
    eventually(&format!("{device} {state}"), SOON, || (states(daemon, device) == [state]).then_some(()));
    boot_ns() - since
}

/// Nanoseconds from a kill to the line that says that the device was released, where nothing is in the way: what telling
/// takes on this machine, which is emulated and may have other things to do. The longest of a few.
fn usual_delay(daemon: &Daemon, watch: &mut Watch) -> u64 {
    let delays = (0..3).map(|_| {
        let mut process = Holding::open(&[DEVICE]);
        assert_eq!(states(daemon, DEVICE), ["open"]);
        watch.told.clear();
        let killed = boot_ns();
        process.kill();
        line(watch, "released", DEVICE);
        assert!(states(daemon, DEVICE).is_empty());
        boot_ns() - killed
    });
    delays.max().expect("a few")
}

/// Milliseconds since midnight of a time such as `2026-11-30T01:35:32.019Z`.
fn of_day(time: &str) -> u64 {
    let number = |from: usize, to: usize| time[from..to].parse::<u64>().expect("digits");
    ((number(11, 13) * 60 + number(14, 16)) * 60 + number(17, 19)) * 1000 + number(20, 23)
}

#[test]
fn b14_blocked_for_half_a_minute_a_release_and_a_deferred_close_are_told_at_once_and_so_are_their_ends() {
    const OTHER: &str = "nvidia4";
    const BLOCKED_NS: u64 = 30_000_000_000;
    const MS: u64 = 1_000_000;
    let Some(_knobs) = standin_driver() else { return };
    let daemon = daemon();
    let mut watch = daemon.watch();
    let usual = usual_delay(&daemon, &mut watch);
    // A second, and the fifth of one: more only where the machine needs that for what is ordinary.
    let (soon, at_once) = ((1000 * MS).max(4 * usual), (200 * MS).max(4 * usual));

    driver::tell("release 3 block\ndefer-close 4 0\nrelease 4 block").expect("the driver listens");
    let (mut stuck, mut gone) = (Holding::open(&[DEVICE]), Holding::open(&[OTHER]));
    let killed = boot_ns();
    stuck.kill();
    let releasing_after = time_to_answer(&daemon, DEVICE, "releasing", killed);
    gone.kill();
    gone.0.wait().expect("it is ours");
    let reaped = boot_ns();
    let deferred_after = time_to_answer(&daemon, OTHER, "deferred", reaped);
    assert!(
        proc::state(gone.pid(), gone.pid()).expect("/proc can be read").is_none(),
        "it is gone altogether"
    );

    let mut answers = 0;
    while boot_ns() < reaped + BLOCKED_NS {
        assert_eq!(
            (states(&daemon, DEVICE), states(&daemon, OTHER)),
            (vec!["releasing".into()], vec!["deferred".into()])
        );
        answers += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let answer = answer_with_state(&daemon, DEVICE, "releasing");
    let held = holder(&answer, stuck.pid());
    assert_eq!((held.tid, held.exiting, held.state.as_str()), (stuck.pid(), true, "D"), "{}", answer.text);
    let top = held.stack.first().map(String::as_str).unwrap_or_default();
    assert!(top.starts_with("os_acquire_semaphore"), "{top:?} is the top of the stack\n{}", answer.text);
    let since = files(&answer, DEVICE)[0].since.as_deref().expect("it is known when it began");
    let began = (boot_ns() - killed) / MS;
    let age = (of_day(&answer.report.taken_at) + 86_400_000 - of_day(since)) % 86_400_000;
    assert!(
        age <= began && age + soon / MS >= BLOCKED_NS / MS,
        "releasing for {age} ms, killed {began} ms ago"
    );

    watch.told.clear();
    let let_go = boot_ns();
    driver::tell("clear").expect("the driver listens");
    let released = line(&mut watch, "released", DEVICE);
    let told_after = boot_ns() - let_go;
    let finished = line(&mut watch, "released", OTHER);
    let finished_after = boot_ns() - let_go;
    assert!(states(&daemon, DEVICE).is_empty() && states(&daemon, OTHER).is_empty());
    let latency = released["after_kill_us"].as_u64().expect("it was killed") * 1000;
    let off = latency.abs_diff(let_go - killed);
    println!(
        "usual {} ms; releasing after {} ms, deferred after {} ms, asked {answers} times; then released after {} ms, \
the deferred one after {} ms, latency told {} ms, off by {} ms",
        usual / MS,
        releasing_after / MS,
        deferred_after / MS,
        told_after / MS,
        finished_after / MS,
        latency / MS,
        off / MS
    );
    assert!(releasing_after <= soon && deferred_after <= soon, "within {} ms", soon / MS);
    assert!(told_after <= at_once && finished_after <= at_once, "within {} ms", at_once / MS);
    assert!(off <= at_once, "the latency is right to {} ms: {released}", at_once / MS);
    for end in [&released, &finished] {
        assert_eq!(end["cause"], "seen", "{end}");
        assert!(end["at_ns"].as_u64().is_some_and(|at| at >= let_go && at <= let_go + at_once), "{end}");
    }
    assert_eq!(losses(&daemon), 0, "{}", daemon.status());
}

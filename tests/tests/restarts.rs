//! SCENARIOS B13: handles older than the daemon, a daemon that is killed and started again, and more opens than it can be told of.

use std::collections::BTreeSet;
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Device, Play, eventually};
use serde_json::Value;

#[test]
fn b13_handles_older_than_the_daemon_are_found() {
    let play = Play::stage("many-handles", &["300"]);
    let daemon = Daemon::start(&play.device);
    daemon.check(&play);
}

#[test]
fn b13_killed_and_started_again_it_knows_what_is_so_and_that_nobody_looked_meanwhile() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    let before = Play::stage_on(Device::one(), "plain", &[]);
    daemon.check(&before);
    daemon.kill();
    let meanwhile = Play::stage_on(Device::one(), "many-handles", &["100"]);
    daemon.start_again();
    daemon.check(&before);
    daemon.check(&meanwhile);
    let status = daemon.status();
    let gaps = status["gaps"].as_array().unwrap();
    assert!(gaps.iter().any(|gap| gap["cause"] == "not-running"), "{status:#}");
    // The hooks were there all the time.
    assert_eq!(status["start"], "resumed", "{status:#}");
}

/// Who opened the files of this play, and how many of its holders are told to have inherited. Others may have the device open.
fn openers(daemon: &Daemon, play: &Play) -> (Vec<Option<u32>>, usize) {
    let answer = daemon.check(play);
    let family = play.family();
    let own: Vec<_> = answer.report.holders.iter().filter(|holder| family.contains(&holder.pid)).collect();
    let held = |id: u64| own.iter().flat_map(|holder| &holder.devices).any(|held| held.files.contains(&id));
    let files = answer.report.files.iter().filter(|file| held(file.id));
    let openers = files.map(|file| file.opener.as_ref().map(|opener| opener.pid)).collect();
    let heirs = own.iter().filter(|holder| holder.why.iter().any(|why| why == "inherited"));
    (openers, heirs.count())
}

#[test]
fn b13_who_opened_a_file_is_known_to_the_daemon_after_the_next() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    // While another test opens the device all the time, nothing tells who opened which of several new files.
    let known = (0..5).find_map(|_| {
        let play = Play::stage_on(Device::one(), "inherited", &["2"]);
        let known = openers(&daemon, &play);
        (known.0.iter().all(Option::is_some) && known.1 > 0).then_some((play, known))
    });
    let (play, known) = known.unwrap_or_else(|| panic!("nobody is known to have opened\n{}", daemon.said()));
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
    daemon.start_again();
    assert_eq!(openers(&daemon, &play), known, "after a clean end\n{}", daemon.said());
    let path = daemon.state_dir().join("open-files.json");
    let begun = std::fs::metadata(&path).and_then(|kept| kept.modified()).expect("it is there");
    // Something new has it written once more; then it may be killed.
    let _another = Play::stage_on(Device::one(), "plain", &[]);
    eventually("it written down", Duration::from_secs(30), || {
        std::fs::metadata(&path).and_then(|kept| kept.modified()).is_ok_and(|at| at > begun).then_some(())
    });
    daemon.kill();
    daemon.start_again();
    assert_eq!(openers(&daemon, &play), known, "after a SIGKILL\n{}", daemon.said());
}

/// The numbers of the files of these processes, as the daemon has them now.
fn numbers(daemon: &Daemon, play: &Play) -> BTreeSet<u64> {
    let answer = daemon.check(play);
    let family = play.family();
    let own = answer.report.holders.iter().filter(|holder| family.contains(&holder.pid));
    own.flat_map(|holder| &holder.devices).flat_map(|held| held.files.iter().copied()).collect()
}

/// The numbers of the files that the journal has for these processes, once it has as many holdings as wanted.
fn recorded(daemon: &Daemon, play: &Play, holdings: usize) -> BTreeSet<u64> {
    let pid = play.truth.holders[0].pid.to_string();
    eventually("it in the journal", Duration::from_secs(60), || {
        let told = daemon.history(&["--pid", &pid, "--since", "1h", "--format", "json"]);
        let answer: Value = serde_json::from_slice(&told.out).ok()?;
        let held = answer["holdings"].as_array().filter(|held| held.len() >= holdings)?;
        Some(held.iter().filter_map(|held| held["file"].as_u64()).collect())
    })
}

#[test]
fn b13_a_file_has_one_number_and_is_counted_once_however_often_the_daemon_is_replaced() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    let play = Play::stage_on(Device::one(), "many-handles", &["15"]);
    let known = numbers(&daemon, &play);
    assert_eq!(known.len(), 15, "{known:?}");
    let path = daemon.state_dir().join("open-files.json");
    eventually("it written down", Duration::from_secs(60), || {
        let text = std::fs::read(&path).ok()?;
        let document: Value = serde_json::from_slice(&text).ok()?;
        let ids: BTreeSet<u64> =
            document["files"].as_array()?.iter().filter_map(|file| file["id"].as_u64()).collect();
        known.is_subset(&ids).then_some(())
    });
    assert_eq!(recorded(&daemon, &play, 15), known);
    for round in 1..=2 {
        daemon.kill();
        daemon.start_again();
        assert_eq!(numbers(&daemon, &play), known, "SIGKILL {round}\n{}", daemon.said());
        assert_eq!(recorded(&daemon, &play, 15 * (round + 1)), known, "SIGKILL {round}");
    }
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
    daemon.start_again();
    assert_eq!(numbers(&daemon, &play), known, "after a clean end\n{}", daemon.said());
    // What comes later gets numbers that none has had.
    let later = numbers(&daemon, &Play::stage_on(Device::one(), "many-handles", &["3"]));
    assert!(later.iter().min() > known.iter().max(), "{later:?} after {known:?}");
}

#[test]
fn b13_killed_again_and_again_under_load_it_knows_each_time_who_opened_what_while_it_was_away() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    let node = device.path().to_owned();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let storm = std::thread::spawn({
        let (stop, node) = (std::sync::Arc::clone(&stop), node.clone());
        move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(std::fs::File::open(&node).expect("anybody may open it"));
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    });
    for round in 1..=3 {
        daemon.kill();
        // By another process than that which storms: what a process does beyond its budget is not told.
        let meanwhile = Play::stage_on(Device::one(), "plain", &[]);
        daemon.start_again();
        let pid = meanwhile.truth.holders[0].pid;
        let answer = daemon.answer_when("an opener that only the ring can name", |answer| {
            answer
                .report
                .files
                .iter()
                .any(|file| file.opener.as_ref().is_some_and(|opener| opener.pid == pid))
        });
        assert_eq!(answer.only(pid).devices[0].fds, 1, "round {round}\n{}", answer.text);
        daemon.check(&meanwhile);
        let status = daemon.status();
        assert_eq!(
            (&status["start"], &status["losses"]["ring-full"]),
            (&"resumed".into(), &0.into()),
            "{status:#}"
        );
        let gaps = status["gaps"].as_array().unwrap();
        assert!(gaps.iter().any(|gap| gap["cause"] == "not-running"), "round {round}: {status:#}");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    storm.join().unwrap();
}

#[test]
fn b13_a_flood_of_opens_leaves_the_answer_right_and_every_loss_counted() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let node = device.path().to_owned();
    for _ in 0..100_000 {
        drop(std::fs::File::open(&node).expect("anybody may open it"));
    }
    let kept = std::fs::File::open(&node).expect("anybody may open it");
    let own = std::process::id();
    let answer = daemon.answer_when("this process", |answer| answer.of(own).count() == 1);
    assert_eq!(answer.only(own).devices[0].fds, 1, "{}", answer.text);
    let status = daemon.status();
    // What a process does beyond its budget is counted, once and nowhere else.
    let lost: u64 = status["losses"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let events = status["counts"]["events"].as_u64().unwrap();
    assert!(events + lost > 0 && status["losses"]["ring-full"] == 0, "{status:#}");
    drop(kept);
    daemon.answer_when("that this process let go", |answer| answer.of(own).count() == 0);
}

//! What happens to the disk, to the file and to the daemon.

use super::*;
use crate::journal::{JournalError, NAME, Retention, VERSION};

fn one_holder() -> World {
    let mut world = World::default();
    world.add(10, 1, "python3", &[5]);
    world
}

/// A journal with one holder from 1,010 ms on, closed at 1,020 ms.
fn written(dir: &Path) {
    let mut desk = Desk::open(options(dir, "boot-1", 1_000 * MS));
    desk.look(&one_holder().snapshot(1_010 * MS));
    desk.look(&one_holder().snapshot(1_020 * MS));
    desk.close();
}

#[test]
fn between_two_daemons_and_two_boots_there_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let mut desk = Desk::open(options(dir.path(), "boot-1", 2_000 * MS));
    desk.look(&one_holder().snapshot(2_010 * MS));
    desk.close();
    let later = BOOTED + 1_000_000_000_000;
    let next_boot = Options { wall_offset_ns: later, ..options(dir.path(), "boot-2", 500 * MS) };
    let mut opened = crate::journal::open(next_boot).unwrap();
    opened.recorder.alive(600 * MS, i128::from(later));
    assert!(opened.recorder.close());
    assert_eq!(opened.last_file, 2, "each daemon found the file anew");

    let reader = read(dir.path());
    let coverage = reader.coverage(all(&reader)).unwrap();
    let causes: Vec<&str> = coverage.holes.iter().map(|hole| hole.cause.as_str()).collect();
    assert_eq!((coverage.complete, &causes[..]), (false, &["not-running", "reboot"][..]), "{coverage:#?}");
    assert_eq!((coverage.holes[0].from, coverage.holes[0].to), (wall(1_020 * MS), wall(2_000 * MS)));
    // Inside the hole the answer is what was known before it, and it says so.
    let at = reader.at(wall(1_500 * MS), &everything(), None).unwrap();
    assert_eq!((at.answered, at.holdings.len()), (Some(wall(1_020 * MS)), 1));
    assert!(!at.coverage.complete);
    // Nothing that was held before the reboot is held after it.
    let now = reader.at(reader.end(), &everything(), None).unwrap();
    assert!(now.holdings.is_empty(), "{:?}", now.holdings);
    assert!(now.coverage.complete, "{:?}", now.coverage);
}

#[test]
fn a_file_that_is_open_after_a_restart_goes_on_in_its_row() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let mut desk = Desk::open(options(dir.path(), "boot-1", 2_000 * MS));
    let mut before = Ledger::new();
    before.reconcile(&one_holder().snapshot(1_020 * MS));
    desk.ledger.expect(&before.recollections());
    desk.look(&one_holder().snapshot(2_010 * MS));
    desk.look(&World::default().snapshot(2_020 * MS));
    desk.close();
    let reader = read(dir.path());
    let holdings = reader.holdings(all(&reader), &everything(), None).unwrap();
    let times: Vec<(u64, Option<i64>)> = holdings.iter().map(|held| (held.file, held.until_ns)).collect();
    let ms = |ms: u64| i64::try_from(ms * MS).unwrap();
    assert_eq!(
        times,
        [(1, Some(ms(1_020) + 1)), (1, Some(ms(2_020)))],
        "what was held in between nobody saw"
    );
    let files: Vec<(i64, i64, i64)> = {
        let db = rusqlite::Connection::open(dir.path().join(NAME)).unwrap();
        let mut select = db.prepare("SELECT id, since_ns, until_ns FROM file").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    assert_eq!(files, [(1, ms(1_010), ms(2_020))]);
    let left = crate::journal::open(options(dir.path(), "boot-1", 3_000 * MS)).unwrap();
    assert!(left.left.is_empty() && left.recorder.close(), "it has ended");
}

#[test]
fn a_row_that_ended_in_sight_or_in_another_boot_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let of_another = crate::journal::open(options(dir.path(), "boot-2", 3_000 * MS)).unwrap();
    assert!(of_another.left.is_empty() && of_another.recorder.close());
    let again = crate::journal::open(options(dir.path(), "boot-1", 4_000 * MS)).unwrap();
    assert!(again.left.is_empty() && again.recorder.close(), "its end was written at the opening before");
}

#[test]
fn before_the_record_and_after_its_end_nothing_is_claimed() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let reader = read(dir.path());
    let early = reader.at(wall(10 * MS), &everything(), None).unwrap();
    assert_eq!((early.answered, early.coverage.holes[0].cause.as_str()), (None, "no-record"));
    let late = reader.at(wall(100_000 * MS), &everything(), None).unwrap();
    assert_eq!(late.coverage.holes[0].cause, "no-sign-of-life");
    assert_eq!(late.holdings.len(), 1, "as it was at the end of the record");
    let soon =
        reader.at(wall(1_020 * MS) + jiff::SignedDuration::from_secs(11), &everything(), None).unwrap();
    assert!(soon.coverage.complete, "a sign of life comes every ten seconds: {:?}", soon.coverage);
}

#[test]
fn a_copy_is_read_on_another_machine_even_where_nothing_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("a b#?%.db");
    std::fs::copy(dir.path().join(NAME), &path).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.at(wall(1_015 * MS), &everything(), None).unwrap().holdings.len(), 1);
    let selection = reader.select(&["5".to_owned()]).unwrap().unwrap();
    assert_eq!(reader.at(wall(1_015 * MS), &selection, None).unwrap().holdings.len(), 1);
    assert!(reader.select(&["9".to_owned()]).unwrap().is_err(), "that host had no such GPU");
}

#[test]
fn a_broken_file_is_moved_aside_whole_and_a_new_one_is_begun() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let path = dir.path().join(NAME);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..2_000].fill(b'x');
    std::fs::write(&path, &bytes).unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 2_000 * MS));
    let aside = desk.recorder.health().moved_aside.expect("it is told where it is");
    assert_eq!(std::fs::read(&aside).unwrap(), bytes, "nothing of it is lost");
    desk.look(&one_holder().snapshot(2_010 * MS));
    desk.close();
    assert_eq!(held_at(&read(dir.path()), 2_010 * MS).len(), 1);
}

#[test]
fn a_newer_journal_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let path = dir.path().join(NAME);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", VERSION + 1).unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let refused = crate::journal::open(options(dir.path(), "boot-1", 2_000 * MS)).err().unwrap();
    assert!(matches!(refused, JournalError::Newer { .. }), "{refused}");
    assert!(matches!(Reader::open(&path), Err(JournalError::Newer { .. })));
    assert!(std::fs::read(&path).unwrap() == before, "it has been touched");
}

#[test]
fn what_is_no_journal_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let missing = Reader::open(&path).err().unwrap().to_string();
    assert!(missing.contains("gpu-tracer run"), "{missing}");
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(Reader::open(&path), Err(JournalError::Empty)));
    std::fs::write(
        &path,
        b"a text, and a long one at that: longer than the header of a database is, by far ......",
    )
    .unwrap();
    assert!(Reader::open(&path).err().unwrap().is_corrupt());
}

#[test]
fn records_that_do_not_fit_become_one_gap_and_the_next_look_puts_the_intervals_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = one_holder();
    desk.look(&world.snapshot(1_010 * MS));
    // The journal hears nothing of what happens from here on.
    let flood: Vec<Change> = (0..super::super::queue::CAPACITY as u64 + 1)
        .map(|n| Change {
            at_ns: 1_011 * MS + n,
            file: None,
            device: None,
            process: None,
            kind: crate::model::change::ChangeKind::Module { name: "x".to_owned(), loaded: true },
        })
        .collect();
    desk.tell(&flood);
    world.processes.clear();
    world.add(11, 1, "other", &[7]);
    let end = Instant::now() + Duration::from_secs(30);
    // The room may be there at once, or after the writer has come.
    let mut now_ns = 1_020 * MS;
    loop {
        desk.look(&world.snapshot(now_ns));
        if desk.recorder.health().dropped > 0 && !desk.recorder.wants_standing() {
            break;
        }
        assert!(Instant::now() < end, "{:?}", desk.recorder.health());
        std::thread::sleep(Duration::from_millis(5));
        now_ns += MS;
    }
    desk.look(&world.snapshot(now_ns + 10 * MS));
    let now = view(&desk.ledger);
    desk.close();
    let reader = read(dir.path());
    let coverage = reader.coverage(all(&reader)).unwrap();
    assert_eq!(coverage.holes.len(), 1, "{coverage:?}");
    assert_eq!(coverage.holes[0].cause, "journal-overflow");
    assert!(coverage.holes[0].events >= Some(flood.len() as u64), "{coverage:?}");
    assert_eq!(held_at(&reader, now_ns + 5 * MS), now);
}

#[test]
fn a_disk_that_cannot_be_written_stops_the_history_and_it_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    // No disk has so much room.
    let retention = Retention { free: u64::MAX - 1, ..Retention::default() };
    let path = dir.path().join("state");
    // First a directory that is not there.
    let mut desk = Desk::open(Options {
        retention: Retention { free: 0, ..retention },
        ..options(&path, "boot-1", 1_000 * MS)
    });
    assert_eq!(desk.recorder.health().state, State::Halted);
    assert!(desk.recorder.health().problem.is_some());
    let mut world = one_holder();
    desk.look(&world.snapshot(1_010 * MS));
    std::fs::create_dir(&path).unwrap();
    desk.await_state(State::Writing);
    world.add(11, 1, "other", &[7]);
    let end = Instant::now() + Duration::from_secs(30);
    while !desk.recorder.wants_standing() {
        assert!(Instant::now() < end, "it does not ask what is held");
        std::thread::sleep(Duration::from_millis(5));
    }
    desk.look(&world.snapshot(1_030 * MS));
    desk.look(&world.snapshot(1_040 * MS));
    desk.close();
    let reader = read(&path);
    assert_eq!(held_at(&reader, 1_040 * MS).len(), 2);
    let at = |ms: u64| reader.at(wall(ms * MS), &everything(), None).unwrap().coverage.complete;
    assert!(!at(1_010) && at(1_040), "{:?}", reader.coverage(all(&reader)));
}

#[test]
fn what_is_too_old_or_too_much_goes_and_the_record_says_that_it_begins_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = one_holder();
    for step in 0..6_000u64 {
        let (old, new) = (20 + step as u32 - 1, 20 + step as u32);
        world.processes.remove(&old);
        world.add(new, 1, "short", &[1_000 + step]);
        desk.look(&world.snapshot((1_010 + step) * MS));
    }
    desk.close();
    let mut db = rusqlite::Connection::open(dir.path().join(NAME)).unwrap();
    db.pragma_update(None, "foreign_keys", "OFF").unwrap();
    let count = |db: &rusqlite::Connection, table: &str| -> i64 {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let before = ["event", "holding", "file", "process", "process_name"].map(|table| count(&db, table));
    let limits = Retention { age: Duration::from_secs(2), size: u64::MAX, free: 0 };
    let mut cursors = super::super::retention::Cursors::default();
    let now_ns = 7_010 * MS;
    while super::super::retention::prune(&mut db, &limits, dir.path(), (1, now_ns), &mut cursors)
        .unwrap()
        .more
    {}
    let after = ["event", "holding", "file", "process", "process_name"].map(|table| count(&db, table));
    for (before, after) in before.iter().zip(after) {
        assert!(after > 0 && after * 2 < *before, "{before:?} {after:?}");
    }
    drop(db);
    let reader = read(dir.path());
    assert_eq!(held_at(&reader, 7_005 * MS).len(), 2, "what still goes on is kept however old it is");
    let early = reader.at(wall(1_500 * MS), &everything(), None).unwrap();
    assert!(!early.coverage.complete && early.answered.is_none(), "{early:?}");
    assert!(reader.at(wall(6_500 * MS), &everything(), None).unwrap().coverage.complete);
}

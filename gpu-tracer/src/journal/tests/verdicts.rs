//! What was said of GPUs, and who the holders were.

use rusqlite::Connection;

use super::*;
use crate::diagnose::{RoleRule, Roles};
use crate::journal::{Asked, GivenVerdict, NAME, schema};
use crate::model::change::ProcessDescription;
use crate::model::event::{Event, EventKind, Exit, Sender, TaskId};
use crate::model::history::VerdictSpan;

const SECOND: u64 = 1_000 * MS;

fn asked() -> Asked {
    Asked { selection: everything(), pid: None, events: 1_000 }
}

fn held(headline: &str) -> GivenVerdict {
    GivenVerdict { gpu: Some(0), verdict: "held", status: 1, headline: headline.to_owned() }
}

fn times(spans: &[VerdictSpan]) -> Vec<(String, u64, u64)> {
    let ns = |moment: Timestamp| (moment.as_nanosecond() - i128::from(BOOTED)) as u64 / SECOND;
    spans.iter().map(|span| (span.headline.clone(), ns(span.since), ns(span.until))).collect()
}

#[test]
fn a_verdict_lasts_as_long_as_the_same_is_said_and_is_found_at_any_moment_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot", 100 * SECOND));
    for (at, headline) in [(110, "a"), (120, "a"), (130, "b"), (140, "b"), (150, "a")] {
        desk.recorder.verdicts(at * SECOND, vec![held(headline)]);
    }
    // A GPU that somebody holds for hours.
    for at in (4_000..12_000).step_by(60) {
        desk.recorder.verdicts(at * SECOND, vec![held("long")]);
    }
    desk.close();
    let reader = read(dir.path());
    let history = reader.history(all(&reader), &asked()).unwrap();
    let told = |headline: &str, since, until| (headline.to_owned(), since, until);
    assert_eq!(
        times(&history.verdicts),
        [told("a", 110, 120), told("b", 130, 140), told("a", 150, 150), told("long", 4_000, 11_980)]
    );
    let at = |second: u64| times(&reader.history_at(wall(second * SECOND), &asked()).unwrap().verdicts);
    assert_eq!(at(115), [told("a", 110, 120)]);
    assert_eq!(at(125), [told("a", 110, 120)], "what had been said last");
    assert_eq!(at(135), [told("b", 130, 140)]);
    assert_eq!(at(105), [], "nothing had been said");
    assert_eq!(at(2_000), [], "that was long before");
    assert_eq!(at(11_000)[0].0, "long", "far from its beginning");
    let inside = Window { from: wall(9_000 * SECOND), to: wall(9_001 * SECOND) };
    assert_eq!(reader.history(inside, &asked()).unwrap().verdicts.len(), 1);
}

#[test]
fn a_journal_of_version_1_is_read_as_it_is_and_goes_on_as_one_of_today() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let old = Connection::open(&path).unwrap();
    old.pragma_update(None, "auto_vacuum", "INCREMENTAL").unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    schema::version_1(&old);
    old.execute_batch(&format!(
        "INSERT INTO boot (boot_id, wall_offset_ns) VALUES ('old', {BOOTED});
         INSERT INTO run (boot, started_ns, alive_ns, stopped, version, plan)
             VALUES (1, {0}, {1}, 1, '0.1', 'lean');
         INSERT INTO device (boot, number, name, gpu) VALUES (1, '195:0', 'nvidia0', 0);
         INSERT INTO process (boot, pid, start_ns, seen_ns) VALUES (1, 440, 7, {0});
         INSERT INTO process_name (process, since_ns, comm) VALUES (1, 7, 'worker');
         INSERT INTO file (boot, device, since_ns) VALUES (1, 1, {0});
         INSERT INTO holding (boot, file, process, since_ns, how) VALUES (1, 1, 1, {0}, 'found');
         INSERT INTO event (boot, at_ns, what, process, file) VALUES (1, {0}, 4, 1, 1);",
        10 * SECOND,
        20 * SECOND
    ))
    .unwrap();
    drop(old);
    let then = |reader: &Reader| reader.history_at(wall(15 * SECOND), &asked()).unwrap();
    let before = then(&read(dir.path()));
    assert_eq!((before.holdings.len(), before.verdicts.len()), (1, 0), "{before:?}");
    assert_eq!(before.holdings[0].process.comm, RawText::from("worker"));

    let mut desk = Desk::open(options(dir.path(), "new", 100 * SECOND));
    desk.recorder.verdicts(110 * SECOND, vec![held("today")]);
    desk.close();
    let reader = read(dir.path());
    let after = then(&reader);
    assert_eq!(after.holdings[0].process, before.holdings[0].process);
    let today = reader.history_at(wall(111 * SECOND), &asked()).unwrap();
    assert_eq!(today.verdicts[0].headline, "today");
    let version: i64 =
        Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, schema::VERSION);
}

/// Who holds file 0, and what it runs.
fn with_holder(dir: &Path, comm: &str, exe: &str) -> Desk {
    let mut desk = Desk::open(options(dir, "boot", 100 * SECOND));
    let mut world = World::default();
    world.add(440, 1, comm, &[0]);
    desk.look(&world.snapshot(101 * SECOND));
    let description = ProcessDescription { exe: Some(exe.into()), ..ProcessDescription::default() };
    desk.ledger.describe(process(440), 102 * SECOND, description);
    let Desk { recorder, ledger, uids, .. } = &mut desk;
    recorder.described(process(440), 102 * SECOND, ledger, uids);
    desk
}

#[test]
fn what_a_site_says_of_its_programs_holds_for_its_past_and_our_own_helper_is_known_by_what_it_runs() {
    let role = |comm: &str, exe: &str, roles: Roles| {
        let dir = tempfile::tempdir().unwrap();
        with_holder(dir.path(), comm, exe).close();
        let reader = read(dir.path()).with_roles(roles);
        reader.history_at(reader.end(), &asked()).unwrap().holdings[0].role.clone()
    };
    let rule = RoleRule { role: "monitor", exe: "/opt/site/gpu-watch".to_owned() };
    let ours = Roles { rules: vec![rule], ..Roles::default() };
    assert_eq!(role("gpu-watch", "/opt/site/gpu-watch", Roles::default()), "compute");
    assert_eq!(role("gpu-watch", "/opt/site/gpu-watch", ours), "monitor");
    assert_eq!(role("gpu-tracer-nvml", "/usr/bin/gpu-tracer", Roles::default()), "own-helper");
    assert_eq!(role("gpu-tracer-nvml", "/tmp/python3", Roles::default()), "compute", "a name proves nothing");
}

#[test]
fn a_process_whose_leader_is_dead_and_whose_thread_is_not_is_still_to_end() {
    let end = |group_dead| {
        let dir = tempfile::tempdir().unwrap();
        let mut desk = with_holder(dir.path(), "python3", "/usr/bin/python3");
        let target = TaskId::leader(process(440));
        let sender = Sender { task: TaskId::leader(process(900)), comm: "pkill".into(), uid: 0 };
        let killed = EventKind::Signalled { sender, target, signal: 9, code: 0 };
        desk.happen(&Event { at_ns: 110 * SECOND, kind: killed });
        let exiting = EventKind::Exiting {
            task: target,
            group_dead,
            exit: Exit(9),
            table: Some(TableKey(440)),
            held: Vec::new(),
            may_wait: Vec::new(),
        };
        desk.happen(&Event { at_ns: 111 * SECOND, kind: exiting });
        desk.close();
        let reader = read(dir.path());
        reader.history(all(&reader), &asked()).unwrap().fates[0].clone()
    };
    let leader = end(false);
    assert_eq!((leader.pending, leader.signal), (true, Some(9)), "{leader:?}");
    assert!(!end(true).pending);
}

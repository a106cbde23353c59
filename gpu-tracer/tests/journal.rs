//! What a kill and a power cut leave of a journal: a file that opens, all that was committed, and no wrong interval.
//!
//! The writer runs in a process of its own: this test program again, asked for [`writer`]. `GPU_TRACER_JOURNAL_TRIALS` sets how
//! often it is killed (50) and how often the power is cut (40).

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpu_tracer::journal::{self, NAME, Opened, Options, Reader, Recorder, Retention};
use gpu_tracer::ledger::Ledger;
use gpu_tracer::model::change::{Change, ChangeKind, CloseCause, ReleasedHow};
use gpu_tracer::model::{DeviceNumber, DeviceTable, ProcessId};
use rusqlite::Connection;

const DIRECTORY: &str = "GPU_TRACER_JOURNAL_CHILD";
const TRIALS: &str = "GPU_TRACER_JOURNAL_TRIALS";
const BOOTED: i64 = 1_700_000_000_000_000_000;
/// File `n` is found at `BEGIN + n * STEP` and let go of half a step later.
const BEGIN: u64 = 1_000_000_000;
const STEP: u64 = 1_000;
const EVENTS_OF_A_FILE: u64 = 3;

fn options(directory: &Path) -> Options {
    let options = Options::new(directory, "boot-1", BEGIN - STEP, BOOTED);
    Options { retention: Retention { free: 0, ..Retention::default() }, ..options }
}

fn tell(recorder: &mut Recorder, n: u64) {
    let process = ProcessId { tgid: 1_000 + (n % 50) as u32, start_ns: 7 };
    let device = DeviceNumber { major: 195, minor: 0 };
    let change = |at_ns, process, kind| Change { at_ns, file: Some(n), device: Some(device), process, kind };
    let at_ns = BEGIN + n * STEP;
    let released = ChangeKind::Released {
        how: ReleasedHow::Seen,
        last_holder: Some(process),
        after_kill_ns: None,
        after_exit_ns: None,
    };
    let changes = [
        change(at_ns, Some(process), ChangeKind::Found),
        change(at_ns + STEP / 2, Some(process), ChangeKind::Closed { cause: CloseCause::Close }),
        change(at_ns + STEP / 2, None, released),
    ];
    recorder.changes(&changes, &Ledger::new(), &DeviceTable::default(), &HashMap::new());
}

/// Not a test of its own: what is killed. Writes for ever and says how much is committed.
#[test]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let Opened { mut recorder, last_file, .. } = journal::open(options(Path::new(&directory))).unwrap();
    assert_eq!(last_file, 0);
    let mut said = 0;
    for n in 1.. {
        tell(&mut recorder, n);
        let health = recorder.health();
        if health.records != said {
            said = health.records;
            println!("committed {said}");
        }
        // Not faster than it can be written: what does not fit is a gap, which is tested elsewhere.
        if n * EVENTS_OF_A_FILE > said + 8_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Starts the writer, and kills it so long after its first commit; gives what it had said was committed.
fn killed_writer(directory: &Path, after: Duration) -> u64 {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["writer", "--exact", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let committed = |line: &String| line.rsplit_once("committed ")?.1.parse::<u64>().ok();
    let mut numbers = lines.map_while(Result::ok).filter_map(|line| committed(&line));
    let mut last = numbers.next().expect("the writer commits");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    for number in numbers {
        last = number;
    }
    killer.join().unwrap();
    last
}

/// Events in the file, which must be a beginning of what was told, without a wrong interval.
#[track_caller]
fn events_of_a_beginning(directory: &Path) -> u64 {
    let db = Connection::open(directory.join(NAME)).unwrap();
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs();
    let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    if number("SELECT count(*) FROM sqlite_schema WHERE name = 'event'") == 0 {
        // The cut came before anything was on the disk.
        return 0;
    }
    let events = number("SELECT count(*) FROM event");
    assert_eq!(events, number("SELECT coalesce(max(id), 0) FROM event"), "an event is missing in between");
    let begun = events.div_ceil(EVENTS_OF_A_FILE);
    assert_eq!(number("SELECT count(*) FROM holding"), begun);
    let wrong = format!(
        "SELECT count(*) FROM holding WHERE since_ns <> {BEGIN} + file * {STEP} \
         OR (until_ns IS NOT NULL AND until_ns <> since_ns + {STEP} / 2) OR (until_ns IS NULL AND file < {begun})"
    );
    assert_eq!(number(&wrong), 0, "a wrong interval");
    events
}

fn trials(usual: u64) -> u64 {
    std::env::var(TRIALS).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A number that nobody foresees, in this range.
fn any(range: std::ops::Range<u64>) -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    range.start + RandomState::new().hash_one(range.end) % (range.end - range.start).max(1)
}

#[test]
fn a_writer_killed_at_any_moment_leaves_all_that_it_had_committed_and_the_next_goes_on() {
    for trial in 0..trials(50) {
        let dir = tempfile::tempdir().unwrap();
        let after = Duration::from_micros(any(0..60_000));
        let committed = killed_writer(dir.path(), after);
        let events = events_of_a_beginning(dir.path());
        assert!(events >= committed, "trial {trial}: {events} events of {committed}, killed after {after:?}");
        let Opened { recorder, last_file, .. } = journal::open(options(dir.path())).unwrap();
        assert_eq!(recorder.health().moved_aside, None, "trial {trial}");
        assert_eq!(last_file, events.div_ceil(EVENTS_OF_A_FILE), "trial {trial}");
        assert!(recorder.close());
        Reader::open(&dir.path().join(NAME)).unwrap();
    }
}

/// Ends of commits in a log: SQLite's file format, section 4.1. A frame with a size in it ends a commit.
fn commits(log: &[u8]) -> Vec<usize> {
    let word = |at: usize| log.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
    let (page, salt) = (word(8).unwrap() as usize, log[16..24].to_vec());
    let mut ends = vec![32];
    let mut at = 32;
    while log.get(at + 8..at + 16) == Some(&salt[..]) && at + 24 + page <= log.len() {
        let size = word(at + 4).unwrap();
        at += 24 + page;
        if size != 0 {
            ends.push(at);
        }
    }
    ends
}

/// Bytes of a log of fewer pages than SQLite's checkpoint waits for (1,000), each with its head.
const UNCHECKED: usize = 900 * (4_096 + 24);

#[test]
fn a_power_cut_that_truncates_or_reorders_the_log_costs_the_last_commits_and_nothing_else() {
    // What is in the database file was synchronised in the log before: a cut there cannot be. So the log is one that has not come
    // to a checkpoint, and has grown since the last.
    let written = (0..20).map(|trial| {
        let ms = 100 + trial * 70;
        let left = tempfile::tempdir().unwrap();
        killed_writer(left.path(), Duration::from_millis(ms));
        let read = |name: &str| std::fs::read(left.path().join(name)).unwrap_or_default();
        (read(NAME), read(&format!("{NAME}-wal")))
    });
    let mut best = (Vec::new(), Vec::new(), vec![32]);
    for (db, log) in written {
        let ends = if log.len() > 32 { commits(&log) } else { vec![32] };
        if ends.len() > best.2.len() && ends[ends.len() - 1] < UNCHECKED {
            best = (db, log, ends);
        }
        if best.2.len() > 3 {
            break;
        }
    }
    let (db, log, ends) = best;
    assert!(ends.len() > 1, "the log never had a commit");
    println!("{} commits in the log", ends.len() - 1);
    let opened = |log: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), &db).unwrap();
        std::fs::write(dir.path().join(format!("{NAME}-wal")), log).unwrap();
        events_of_a_beginning(dir.path())
    };
    let end_of_log = *ends.last().unwrap();
    for trial in 0..trials(40) {
        let cut = any(32..end_of_log as u64) as usize;
        let mut damaged = log[..end_of_log].to_vec();
        if trial % 2 == 0 {
            damaged.truncate(cut);
        } else {
            // What was written later is there, and this page is not.
            let hole = cut..(cut + 4_096).min(end_of_log);
            damaged[hole].fill(0);
        }
        // A page of zeros is none the worse for it.
        let Some(cut) = (0..end_of_log).find(|at| damaged.get(*at) != log.get(*at)) else { continue };
        let safe = ends.iter().copied().filter(|end| *end <= cut).max().unwrap();
        let (found, expected) = (opened(&damaged), opened(&log[..safe]));
        assert_eq!(found, expected, "trial {trial}, damage at {cut} of {end_of_log}");
    }
}

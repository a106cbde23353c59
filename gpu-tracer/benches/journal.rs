//! How fast the journal is written, how large it gets, and how long a question to a full one takes.
//!
//! `cargo xtask bench journal`, or by itself with `EVENTS SECONDS`: it stops at whichever comes first, and says so.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gpu_tracer::gpu::selector::Selection;
use gpu_tracer::journal::{self, Asked, NAME, Opened, Options, Reader, Recorder, Retention, Window};
use gpu_tracer::ledger::Ledger;
use gpu_tracer::model::change::{Change, ChangeKind, CloseCause, Killer, ReleasedHow};
use gpu_tracer::model::event::TaskId;
use gpu_tracer::model::event::{Exit, Sender};
use gpu_tracer::model::{DeviceNumber, DeviceTable, ProcessId};
use jiff::{SignedDuration, Timestamp};

/// What it all is spread over.
const SPAN: u64 = 30 * 86_400 * 1_000_000_000;
const BOOTED: i64 = 1_700_000_000_000_000_000;
const BEGIN: u64 = 100_000_000_000;
const QUESTIONS: usize = 300;
/// What is wanted: events per second, ms for the slowest of a hundred questions about a moment and about an hour.
const RATE: f64 = 100_000.0;
const MOMENT: f64 = 50.0;
const HOUR: f64 = 100.0;

fn main() {
    // Cargo adds an argument of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let events = numbers.next().unwrap_or(10_000_000);
    let seconds = numbers.next().unwrap_or(300);
    println!("journal: {}", load());
    let dir = tempfile::Builder::new().prefix("journal-bench-").tempdir().expect("a directory");
    let (written, took) = fill(dir.path(), events, Duration::from_secs(seconds));
    let bytes = std::fs::metadata(dir.path().join(NAME)).map_or(0, |file| file.len());
    let rate = written as f64 / took.as_secs_f64();
    println!(
        "journal: {written} events written and on the disk in {:.1} s: {rate:.0} events/s, at least {RATE:.0} are wanted: {}; {:.1} us of processor time each{}",
        took.as_secs_f64(),
        verdict(rate >= RATE),
        processor_time().as_secs_f64() * 1e6 / written as f64,
        if written < events {
            format!(" (stopped at {seconds} s; {events} were wanted)")
        } else {
            String::new()
        }
    );
    println!(
        "journal: {:.0} MiB, {:.0} bytes per event",
        bytes as f64 / 1048576.0,
        bytes as f64 / written as f64
    );
    let last = Timestamp::from_nanosecond(i128::from(BOOTED) + i128::from(BEGIN)).expect("in range");
    let span = SPAN as f64 * written as f64 / events as f64;
    let any = |part: f64| last + SignedDuration::from_nanos((span * part) as i64);
    let part = |n: usize| (n as f64 * 0.618_033_988_75).fract();
    ask("--at, at any time of 30 days", Some(MOMENT), |n| {
        let reader = Reader::open(&dir.path().join(NAME)).expect("it opens");
        reader.history_at(any(part(n)), &asked(0)).expect("it answers").holdings.len()
    });
    ask("--since 1h, the last hour", Some(HOUR), |_| {
        let reader = Reader::open(&dir.path().join(NAME)).expect("it opens");
        let window = Window { from: any(1.0) - SignedDuration::from_hours(1), to: any(1.0) };
        reader.history(window, &asked(0)).expect("it answers").holdings.len()
    });
    ask("one hour of any time", Some(HOUR), |n| {
        let reader = Reader::open(&dir.path().join(NAME)).expect("it opens");
        let to = any(part(n).max(0.01));
        reader
            .history(Window { from: to - SignedDuration::from_hours(1), to }, &asked(0))
            .expect("it answers")
            .holdings
            .len()
    });
    ask("the same with --events", None, |n| {
        let reader = Reader::open(&dir.path().join(NAME)).expect("it opens");
        let to = any(part(n).max(0.01));
        let window = Window { from: to - SignedDuration::from_hours(1), to };
        reader.history(window, &asked(10_000)).expect("it answers").events.len()
    });
    println!("journal: {}", load());
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// How busy the machine is with this and everything else.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let averages: Vec<&str> = load.split_whitespace().take(3).collect();
    format!("load average {} on {processors} processors", averages.join(" "))
}

fn asked(events: usize) -> Asked {
    Asked { selection: Selection { all: true, ..Selection::default() }, pid: None, events }
}

/// `most`: what the slowest of a hundred may take, ms.
fn ask(what: &str, most: Option<f64>, question: impl Fn(usize) -> usize) {
    let mut took = Vec::with_capacity(QUESTIONS);
    let cpu = processor_time();
    let mut rows = 0;
    let end = Instant::now() + Duration::from_secs(60);
    for n in 1..=QUESTIONS {
        let begun = Instant::now();
        rows += question(n);
        took.push(begun.elapsed());
        if Instant::now() > end {
            break;
        }
    }
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let wanted = most.map_or_else(String::new, |most| {
        format!(", at most {most:.0} ms is wanted: {}", verdict(at(0.99) <= most))
    });
    println!(
        "journal: {what}: median {:.1} ms, p99 {:.1} ms{wanted}, longest {:.1} ms; {:.1} ms of processor time each ({} questions, {} rows on average)",
        at(0.5),
        at(0.99),
        at(1.0),
        (processor_time() - cpu).as_secs_f64() * 1e3 / took.len() as f64,
        took.len(),
        rows / took.len()
    );
}

/// Of this process, so far: what a busy machine does not change.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Six events for each open file: found, inherited by another, killed, exiting, closed, released.
fn fill(directory: &Path, events: u64, limit: Duration) -> (u64, Duration) {
    let options = Options::new(directory, "boot-1", BEGIN, BOOTED);
    let retention = Retention { free: 0, size: u64::MAX, age: Duration::MAX };
    let Opened { mut recorder, .. } = journal::open(Options { retention, ..options }).expect("it opens");
    recorder.alive(BEGIN, i128::from(BOOTED));
    let begun = Instant::now();
    let (mut told, mut n) = (0, 0);
    while told < events && begun.elapsed() < limit {
        let mut batch = Vec::with_capacity(600);
        for _ in 0..100 {
            n += 1;
            batch.extend(life_of_a_file(n, BEGIN + SPAN / (events / 6).max(1) * n));
        }
        told += batch.len() as u64;
        recorder.changes(&batch, &Ledger::new(), &DeviceTable::default(), &HashMap::new());
        wait_for_room(&recorder, told);
    }
    recorder.alive(BEGIN + SPAN / (events / 6).max(1) * (n + 1), i128::from(BOOTED));
    let dropped = recorder.health().dropped;
    assert_eq!(dropped, 0, "records were dropped");
    assert!(recorder.close());
    (told, begun.elapsed())
}

/// What does not fit is dropped, in order that nobody waits; here it is to be measured how much fits.
fn wait_for_room(recorder: &Recorder, told: u64) {
    while told > recorder.health().records + 50_000 {
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn life_of_a_file(n: u64, at_ns: u64) -> [Change; 6] {
    let process = |n: u64| ProcessId { tgid: 1_000 + (n % 30_000) as u32, start_ns: n / 4 * 1_000 };
    let (first, second) = (process(n / 8), process(n / 8 + 1_000_000));
    // Most are short; some last for hours.
    let lasts = match n % 100 {
        0 => 6 * 3_600_000_000_000,
        1..10 => 600_000_000_000,
        _ => 3_000_000_000,
    };
    let device = DeviceNumber { major: 195, minor: (n % 8) as u32 };
    let change = |at_ns, process, kind| Change {
        at_ns,
        file: Some(n),
        device: Some(device),
        process: Some(process),
        kind,
    };
    let sender = Sender { task: TaskId::leader(process(7)), comm: "pkill".into(), uid: 0 };
    let by = Killer::Process(sender);
    let end = at_ns + lasts;
    let exiting =
        ChangeKind::Exiting { tid: second.tgid, group_dead: true, exit: Exit(9), by: Some(by.clone()) };
    let released = ChangeKind::Released {
        how: ReleasedHow::Checked,
        last_holder: Some(second),
        after_kill_ns: Some(160_000_000),
        after_exit_ns: Some(150_000_000),
    };
    [
        change(at_ns, first, ChangeKind::Found),
        change(at_ns + 1_000, second, ChangeKind::Inherited { from: first }),
        Change { file: None, device: None, ..change(end, second, ChangeKind::Killed { by }) },
        Change { file: None, device: None, ..change(end + 1_000, second, exiting) },
        change(end + 2_000, second, ChangeKind::Closed { cause: CloseCause::Exit }),
        change(end + 3_000, second, released),
    ]
}

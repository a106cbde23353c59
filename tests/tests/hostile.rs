//! Names that lie, names that attack whoever prints them, and processes that come and go while they are looked at.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpu_tracer_tests::harness::{Device, Play, Tracer};

#[test]
fn a1_a_renamed_worker_is_named_with_the_program_that_it_is() {
    let play = Play::stage("renamed-worker", &[]);
    let answer = play.check();
    let holder = answer.only(play.truth.holders[0].pid);
    let program = Play::program().canonicalize().expect("the scenario program exists");
    assert_eq!(holder.exe.as_deref(), program.to_str(), "{}", answer.text);
    assert_eq!(holder.comm, "VLLM::Worker_TP", "{}", answer.text);
    assert_eq!(holder.cmdline, "VLLM::Worker_TP0", "{}", answer.text);
}

#[test]
fn a_name_that_looks_like_the_rest_of_stat_changes_nothing() {
    // "a) Z 1 7", which other tools take for a zombie; then one that claims to be stopped and somebody's child.
    for name in ["6129205a2031203720", "782920542034203420"] {
        Play::stage("hostile-name", &[name]).check();
    }
}

#[test]
fn no_holder_is_lost_to_its_name() {
    Play::stage("hostile-swarm", &["1000"]).check();
}

/// Says that it is over when it is left, however that is.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Mappings of this process that stay: each second page of a range, so that none can be merged with the next.
fn map_many(pages: usize) {
    const PAGE: usize = 4096;
    // SAFETY: memory that nobody else has is mapped, and its rights are changed.
    unsafe {
        let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let range = libc::mmap(std::ptr::null_mut(), pages * PAGE, none, private, -1, 0);
        assert_ne!(range, libc::MAP_FAILED);
        for page in (0..pages).step_by(2) {
            assert_eq!(libc::mprotect(range.cast::<u8>().add(page * PAGE).cast(), PAGE, libc::PROT_READ), 0);
        }
    }
}

#[test]
fn looks_harm_nobody_while_processes_come_and_go() {
    // Each shares this process's address space until it executes. A look that is at its mappings at that moment must not be the
    // end of the kernel, nor leave the lock of this address space taken: where the kernel's own iterator of mappings is used,
    // it is before Linux 6.2.
    map_many(8_000);
    let over = AtomicBool::new(false);
    let come_and_go = || {
        let mut ended = 0;
        while !over.load(Ordering::Relaxed) {
            ended += u32::from(Command::new("true").status().expect("true").success());
        }
        ended
    };
    let tracer = Tracer::new(&Device::nobodys());
    thread::scope(|scope| {
        let over = Over(&over);
        let ended: Vec<_> = (0..2).map(|_| scope.spawn(come_and_go)).collect();
        (0..3).for_each(|_| drop(tracer.holders()));
        drop(over);
        let ended: Vec<u32> = ended.into_iter().map(|one| one.join().expect("no panic")).collect();
        assert!(ended.iter().all(|ended| *ended > 0), "{ended:?}");
    });
}

/// Everything that must not reach a terminal raw, in text that should hold none of it but line ends.
fn offences(printed: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(printed) else {
        return vec!["not UTF-8".to_owned()];
    };
    let is_offence = |letter: &char| {
        let directs =
            matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (letter.is_control() && *letter != '\n') || directs
    };
    text.chars().filter(is_offence).map(|letter| format!("{letter:?}")).collect()
}

#[test]
fn no_name_reaches_a_table_raw() {
    let play = Play::stage("hostile-swarm", &["120"]);
    let table = Tracer::new(&play.device).printed("table", &["--expand"]);
    let text = String::from_utf8_lossy(&table.out).into_owned();
    assert_eq!(table.status, 1, "{text}\n{}", table.err);
    assert_eq!(offences(&table.out), Vec::<String>::new(), "{text}");
    let words: BTreeSet<&str> = text.split(|letter: char| !letter.is_ascii_digit()).collect();
    for holds in &play.truth.holders {
        assert!(words.contains(holds.pid.to_string().as_str()), "process {} is lost in\n{text}", holds.pid);
    }
}

#[test]
fn no_name_breaks_csv_or_becomes_a_formula() {
    let play = Play::stage("hostile-swarm", &["120"]);
    let csv = Tracer::new(&play.device).printed("csv", &[]);
    let text = String::from_utf8(csv.out.clone()).expect("CSV is UTF-8");
    assert_eq!(csv.status, 1, "{text}\n{}", csv.err);
    let rows = parse_csv(&text);
    let header = rows.first().expect("a header");
    let pid_column = header.iter().position(|name| name == "pid").expect("a column of PIDs");
    let mut pids = BTreeSet::new();
    for row in &rows[1..] {
        assert_eq!(row.len(), header.len(), "{row:?}\n{text}");
        pids.insert(row[pid_column].clone());
        for field in row {
            let number = field.parse::<f64>().is_ok();
            let formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']) && !number;
            assert!(!formula, "a spreadsheet would run {field:?}\n{text}");
            assert_eq!(offences(field.as_bytes()), Vec::<String>::new(), "{field:?}");
        }
    }
    for holds in &play.truth.holders {
        assert!(pids.contains(&holds.pid.to_string()), "process {} is lost in\n{text}", holds.pid);
    }
    let headless = Tracer::new(&play.device).printed("csv,noheader", &[]);
    let headless = parse_csv(&String::from_utf8(headless.out).expect("CSV is UTF-8"));
    assert!(!headless.contains(header), "{headless:?}");
}

/// RFC 4180: quoted fields may hold commas, line ends and doubled quotes.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut letters = text.chars().peekable();
    let mut quoted = false;
    while let Some(letter) = letters.next() {
        let row = rows.last_mut().expect("there is always a row");
        let field = row.last_mut().expect("there is always a field");
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(String::new()),
            '\r' if !quoted && letters.peek() == Some(&'\n') => {}
            '\n' if !quoted => rows.push(vec![String::new()]),
            other => field.push(other),
        }
    }
    assert!(!quoted, "a quote was left open in\n{text}");
    rows.retain(|row| row.iter().any(|field| !field.is_empty()));
    rows
}

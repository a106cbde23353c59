//! The table of kernels in the README, against the kernel that this runs on.

use std::collections::BTreeMap;
use std::process::Command;

use gpu_tracer_tests::harness::{Daemon, Device, Tracer, check_verified_quickly, kernel_line};
use serde_json::Value;

const README: &str = include_str!("../../README.md");

/// The table's row for a kernel line (`6.1`): what it says in each column.
fn row(line: &str) -> Option<BTreeMap<&'static str, &'static str>> {
    let (_, section) = README.split_once("## Which kernels\n").expect("the README has that section");
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let mut rows =
        section.lines().skip_while(|text| !text.starts_with('|')).take_while(|text| text.starts_with('|'));
    let header = cells(rows.next().expect("a table"));
    let row = rows.map(cells).find(|row| row[0] == line)?;
    Some(header.into_iter().zip(row).collect())
}

/// Does a cell of the table say that it works?
fn says_yes(cell: &str) -> bool {
    match cell.split([' ', ',', ':']).next() {
        Some("yes") => true,
        Some("no") => false,
        _ => panic!("{cell:?} begins with neither yes nor no"),
    }
}

#[test]
fn the_table_of_kernels_is_true_of_this_one() {
    let (major, minor) = kernel_line();
    let line = format!("{major}.{minor}");
    let Some(row) = row(&line) else {
        eprintln!("skipped: Linux {line} is not in the README's table");
        return;
    };
    let device = Device::nobodys();
    let tracer = Tracer::new(&device);
    let mut doctor = Command::new(Tracer::program());
    let doctor = doctor.args(["doctor", "--format", "json"]).output().expect("the tracer starts");
    let doctor: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let works = |check: &str| {
        let checks = doctor["checks"].as_array().expect("a list");
        let check = checks.iter().find(|one| one["name"] == check).expect("doctor looks at it");
        check["answer"] == "yes"
    };
    let columns = [
        ("descriptors", "iter/task"),
        ("mappings", "mappings"),
        ("in flight", "iter/unix"),
        ("io_uring", "io_uring"),
    ];
    for (column, check) in columns {
        assert_eq!(says_yes(row[column]), works(check), "{column} on {line}\n{doctor:#}");
    }
    let misses = |what: &str| tracer.holders().misses(what);
    for (column, word) in [("mappings", "mappings"), ("in flight", "in-flight"), ("io_uring", "io_uring")] {
        assert_eq!(says_yes(row[column]), !misses(word), "{column} on {line}");
    }
    let daemon = Daemon::start(&device);
    let status = daemon.status();
    let hooks = status["hooks"].as_array().expect("a list");
    let all = !hooks.is_empty() && hooks.iter().all(|hook| hook["works"] == true);
    assert_eq!(says_yes(row["events (lean)"]), all, "events on {line}\n{status:#}");
}

#[test]
fn no_program_takes_the_verifier_long() {
    /// Each has a lesser one to take its place, or its answer is missed only where it would matter. Names are as short as the kernel
    /// keeps them.
    const OF_NEWER_KERNELS: [&str; 7] = [
        "iter_tasks",
        "iter_sockets",
        "iter_rings",
        "iter_recheck",
        "iter_file_mappi",
        "on_touch",
        "on_exit",
    ];
    let device = Device::one();
    let _daemon = Daemon::start(&device);
    if !check_verified_quickly(&OF_NEWER_KERNELS) {
        eprintln!("skipped: this kernel does not tell how much it verified");
    }
}

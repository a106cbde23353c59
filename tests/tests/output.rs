//! The command line's contract: exit statuses, formats, and what never appears.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use gpu_tracer_tests::harness::{Device, Play, Tracer};

#[test]
fn json_has_every_field_of_the_contract() {
    let play = Play::stage("plain", &[]);
    let answer = play.check();
    let document: serde_json::Value = serde_json::from_str(&answer.text).expect("JSON");
    let has = |value: &serde_json::Value, fields: &str| {
        for field in fields.split_whitespace() {
            assert!(value.get(field).is_some(), "no field {field} in\n{value:#}");
        }
    };
    has(&document, "schema taken_at boot_id plan coverage gpus files holders");
    has(&document["coverage"], "complete missing");
    has(&document["files"][0], "id device gpu state references unexplained opened_at opened_exact opener");
    let pid = play.truth.holders[0].pid;
    let holders = document["holders"].as_array().expect("a list");
    let holder = holders.iter().find(|holder| holder["pid"] == pid).expect("the holder");
    has(
        holder,
        "pid tid start_ns ppid uid comm cmdline exe state leader_state wchan exiting sigkill_pending pid_in_ns \
         cgroup container unit job role why devices memory",
    );
    has(&holder["devices"][0], "device gpu fds maps in_flight io_uring files");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("/proc");
    assert_eq!(document["boot_id"], boot.trim());
    let taken = document["taken_at"].as_str().expect("a time");
    assert!(taken.len() == 24 && taken.ends_with('Z') && taken.as_bytes()[10] == b'T', "{taken}");
}

#[test]
fn held_is_exit_status_1_in_every_format() {
    let play = Play::stage("plain", &[]);
    let tracer = Tracer::new(&play.device);
    let pid = play.truth.holders[0].pid.to_string();
    for format in ["table", "json", "csv", "csv,noheader"] {
        let printed = tracer.printed(format, &[]);
        let text = String::from_utf8_lossy(&printed.out);
        assert_eq!(printed.status, 1, "{format}\n{text}\n{}", printed.err);
        assert!(text.contains(&pid), "{format} does not name {pid}\n{text}");
    }
}

#[test]
fn wrong_usage_is_exit_status_2_with_a_message() {
    let device = Device::one();
    let tracer = Tracer::new(&device);
    for (format, arguments) in
        [("nonsense", &[][..]), ("json", &["--no-such-option"]), ("json", &["no-such-gpu"])]
    {
        let printed = tracer.printed(format, arguments);
        assert_eq!(printed.status, 2, "{format} {arguments:?}\n{}", printed.err);
        assert!(!printed.err.trim().is_empty(), "{format} {arguments:?}: no message");
        assert!(printed.out.is_empty(), "{}", String::from_utf8_lossy(&printed.out));
    }
}

#[test]
fn the_tracer_never_lists_itself() {
    let play = Play::stage("plain", &[]);
    let answer = play.check();
    let itself = Tracer::program().canonicalize().expect("the tracer exists");
    for holder in &answer.report.holders {
        assert_ne!(holder.exe.as_deref(), itself.to_str(), "{}", answer.text);
    }
}

#[test]
fn a_table_that_is_not_for_a_terminal_has_no_colours() {
    let play = Play::stage("frozen-thread", &[]);
    let table = Tracer::new(&play.device).printed("table", &[]);
    let text = String::from_utf8_lossy(&table.out);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert!(text.contains("thread-of-defunct") && text.contains("stuck-in-kernel"), "{text}");
}

#[test]
fn a_group_of_similar_holders_is_one_row_and_unfolds() {
    let play = Play::stage_on(Device::two(), "inherited", &["8"]);
    let tracer = Tracer::new(&play.device);
    let [grouped, unfolded] = [&[][..], &["--expand"]].map(|arguments| {
        let printed = tracer.printed("table", arguments);
        String::from_utf8(printed.out).expect("UTF-8")
    });
    let rows = |text: &str| text.lines().filter(|line| line.contains("heir-")).count();
    assert!(rows(&grouped) <= 4, "50 holders in one readable group\n{grouped}");
    assert!(rows(&unfolded) >= 50, "{unfolded}");
    assert!(grouped.contains("50"), "the group says how many it is\n{grouped}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let play = Play::stage("many-handles", &["5000"]);
    let mut command = Tracer::new(&play.device).command("json", &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tracer starts");
    // Takes one byte of a document much longer than a pipe holds, and leaves.
    let mut out = child.stdout.take().expect("a pipe");
    let mut byte = [0];
    out.read_exact(&mut byte).expect("it prints something");
    drop(out);
    let status = gpu_tracer_tests::harness::eventually("the end", Duration::from_secs(20), || {
        child.try_wait().expect("it is our child")
    });
    let mut complaints = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut complaints).expect("text");
    assert!(!complaints.contains("panicked"), "{complaints}");
    assert_ne!(status.code(), Some(101), "{complaints}");
}

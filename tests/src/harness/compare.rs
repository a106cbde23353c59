//! The tracer's answer against the truth.

use std::collections::{BTreeMap, BTreeSet};

use super::{Answer, Holder};
use crate::truth::{Counts, Holds, OpenFile, Truth, from_hex};

/// Everything that differs, each in a sentence; empty when the answer is right. `family` is every process of the
/// scenario: whoever of it holds nothing must not be named.
pub(super) fn differences(answer: &Answer, truth: &Truth, family: &BTreeSet<u32>) -> Vec<String> {
    let mut found = Vec::new();
    if answer.report.schema != 1 {
        found.push(format!("schema {} instead of 1", answer.report.schema));
    }
    for holds in &truth.holders {
        let named: Vec<&Holder> = answer.of(holds.pid).collect();
        if named.is_empty() {
            found.push(format!("process {} holds and is not named", holds.pid));
        } else {
            compare_holder(holds, &named, &mut found);
        }
    }
    accusations(answer, truth, family, &mut found);
    if truth.half_exited.is_empty() {
        compare_files(answer, truth, &mut found);
    }
    compare_status(answer, truth, &mut found);
    found
}

/// Panics with the differences and both sides.
#[track_caller]
pub(super) fn demand_none(differences: &[String], answer: &Answer, truth: &Truth) {
    if differences.is_empty() {
        return;
    }
    let truth = serde_json::to_string_pretty(truth).unwrap_or_default();
    panic!(
        "the answer is wrong:\n  {}\n\nthe truth:\n{truth}\n\nthe answer (exit status {}):\n{}\n{}",
        differences.join("\n  "),
        answer.status,
        answer.text,
        answer.err
    );
}

fn compare_holder(holds: &Holds, named: &[&Holder], found: &mut Vec<String>) {
    let pid = holds.pid;
    let mut differs = |what: &str, is: String, should: String| {
        if is != should {
            found.push(format!("{what} of {pid} is {is}, should be {should}"));
        }
    };
    let tids: BTreeSet<u32> = named.iter().flat_map(|holder| holder.tids.iter().copied()).collect();
    let should: BTreeSet<u32> = holds.tids.iter().copied().collect();
    differs("tids", format!("{tids:?}"), format!("{should:?}"));
    for holder in named {
        let first = if holder.tids.contains(&pid) { Some(pid) } else { holder.tids.first().copied() };
        differs("tid", format!("{:?}", Some(holder.tid)), format!("{first:?}"));
        differs("pid_in_ns", holder.pid_in_ns.to_string(), holds.pid_in_ns.unwrap_or(pid).to_string());
        differs("exiting", holder.exiting.to_string(), false.to_string());
        if let Some(state) = holds.state {
            differs("state", holder.state.clone(), state.to_string());
        }
        if let Some(state) = holds.leader_state {
            differs("leader_state", holder.leader_state.clone(), state.to_string());
        }
        if let Some(pending) = holds.sigkill_pending {
            differs("sigkill_pending", holder.sigkill_pending.to_string(), pending.to_string());
        }
        if let Some(ppid) = holds.ppid {
            differs("ppid", holder.ppid.to_string(), ppid.to_string());
        }
        if let Some(uid) = holds.uid {
            differs("uid", holder.uid.to_string(), uid.to_string());
        }
        if let Some(comm) = &holds.comm_hex {
            differs("comm", format!("{:?}", holder.comm), format!("{:?}", as_text(comm)));
        }
        if let Some(cmdline) = &holds.cmdline_hex {
            differs("cmdline", format!("{:?}", holder.cmdline), format!("{:?}", as_text(cmdline)));
        }
        differs("why", said(&holder.why, &holds.why), format!("{:?}", set(&holds.why)));
    }
    differs("devices", format!("{:?}", totals(named)), format!("{:?}", holds.devices));
}

/// The reasons given; where the truth is simply `live`, a tool that can prove that the launcher is gone may say so. That
/// a handle is inherited is true of every child of a holder, and told where the truth does not ask for it; so is what only
/// a daemon can know, that it was passed on.
fn said(is: &[String], should: &[String]) -> String {
    let mut is = set(is);
    for known_to_a_daemon in ["inherited", "passed"] {
        if !should.iter().any(|word| word == known_to_a_daemon) {
            is.remove(known_to_a_daemon);
        }
    }
    if should.iter().any(|word| word == "live") && is.remove("live-orphan") {
        is.insert("live");
    }
    format!("{is:?}")
}

fn set(words: &[String]) -> BTreeSet<&str> {
    words.iter().map(String::as_str).collect()
}

/// A process's counts, all its fd tables together.
fn totals(named: &[&Holder]) -> BTreeMap<String, Counts> {
    let mut totals: BTreeMap<String, (Counts, BTreeSet<u64>)> = BTreeMap::new();
    for device in named.iter().flat_map(|holder| &holder.devices) {
        let (counts, files) = totals.entry(device.device.clone()).or_default();
        counts.fds += device.fds;
        counts.maps += device.maps;
        counts.in_flight += device.in_flight;
        counts.io_uring += device.io_uring;
        files.extend(&device.files);
    }
    totals
        .into_iter()
        .map(|(name, (counts, files))| (name, Counts { files: files.len() as u64, ..counts }))
        .collect()
}

/// Processes of the scenario that are named and hold nothing, and dead ones that are named.
fn accusations(answer: &Answer, truth: &Truth, family: &BTreeSet<u32>, found: &mut Vec<String>) {
    let holding: BTreeSet<u32> = truth.holders.iter().map(|holds| holds.pid).collect();
    let mut innocents: BTreeMap<u32, &str> =
        family.iter().map(|pid| (*pid, "it only belongs to the scenario")).collect();
    innocents.extend(truth.dead.iter().map(|pid| (*pid, "it is dead")));
    innocents.extend(truth.innocents.iter().map(|innocent| (innocent.pid, innocent.because.as_str())));
    for holder in &answer.report.holders {
        if let Some(because) = innocents.get(&holder.pid).filter(|_| !holding.contains(&holder.pid)) {
            found.push(format!("process {} is named and holds nothing: {because}", holder.pid));
        }
    }
}

/// The open files behind the scenario's holders.
fn compare_files(answer: &Answer, truth: &Truth, found: &mut Vec<String>) {
    let ids: BTreeSet<u64> = truth
        .holders
        .iter()
        .flat_map(|holds| answer.of(holds.pid))
        .flat_map(|holder| holder.devices.iter().flat_map(|device| device.files.iter().copied()))
        .collect();
    let mut files = Vec::new();
    for file in answer.report.files.iter().filter(|file| ids.contains(&file.id)) {
        if file.unexplained != 0 || file.state != "open" {
            found.push(format!("file {}: {}, {} unexplained", file.id, file.state, file.unexplained));
        }
        match file.references {
            Some(references) => files.push(OpenFile { device: file.device.clone(), references }),
            None => found.push(format!("file {}: references are unknown", file.id)),
        }
    }
    files.sort();
    let mut should = truth.files.clone();
    should.sort();
    if files != should {
        found.push(format!("files are {}, should be {}", briefly(&files), briefly(&should)));
    }
}

/// Lists of thousands are no help in a message.
fn briefly(files: &[OpenFile]) -> String {
    let mut counted: BTreeMap<&OpenFile, usize> = BTreeMap::new();
    for file in files {
        *counted.entry(file).or_default() += 1;
    }
    let parts: Vec<String> = counted
        .iter()
        .map(|(file, count)| format!("{count} of {} with {} references", file.device, file.references))
        .collect();
    format!("[{}]", parts.join(", "))
}

fn compare_status(answer: &Answer, truth: &Truth, found: &mut Vec<String>) {
    if !truth.half_exited.is_empty() {
        if answer.status != 3 && truth.holders.is_empty() && answer.report.holders.is_empty() {
            found.push(format!("exit status {}, though a task is half-way through exit", answer.status));
        }
        if answer.report.coverage.complete || !answer.misses("half-exited-task") {
            found.push("does not say that a task half-way through exit may hold anything".to_owned());
        }
    }
    if !truth.holders.is_empty() && answer.status != 1 {
        found.push(format!("exit status {}, though the device is held", answer.status));
    }
}

/// Bytes of a process as the JSON shows them: what is not UTF-8 as `\xNN`.
fn as_text(hex: &str) -> String {
    let bytes = from_hex(hex).expect("a scenario prints hexadecimal digits");
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Process 10 with one descriptor and one mapping of one file, its child 11 with the mapping; 12 is an innocent.
    fn truth() -> Truth {
        let counts = |fds| Counts { fds, maps: 1, files: 1, ..Counts::default() };
        let mut holds = Holds::live(10).states('S', 'S').device("nvidia0", counts(1));
        (holds.ppid, holds.uid, holds.sigkill_pending) = (Some(9), Some(0), Some(false));
        (holds.comm_hex, holds.cmdline_hex) = (Some("61".to_owned()), Some("62ff".to_owned()));
        let heir = Holds::live(11).inherited().device("nvidia0", counts(0));
        Truth::default().holder(holds).holder(heir).files("nvidia0", 1, 3).innocent(12, "idle").dead(13)
    }

    fn right() -> Value {
        let holder = |pid: u32, fds: u32| {
            json!({
                "pid": pid, "tid": pid, "tids": [pid], "start_ns": 1, "ppid": pid - 1, "uid": 0, "comm": "a",
                "cmdline": "b\\xff", "exe": null, "state": "S", "leader_state": "S", "wchan": null, "stack": [],
                "exiting": false, "sigkill_pending": false, "pid_in_ns": pid,
                "why": if pid == 11 { json!(["live", "inherited"]) } else { json!(["live"]) },
                "devices": [{"device": "nvidia0", "gpu": 0, "fds": fds, "maps": 1, "in_flight": 0, "io_uring": 0,
                             "files": [7]}],
            })
        };
        json!({
            "schema": 1, "taken_at": "", "boot_id": "", "plan": "snapshot",
            "coverage": {"complete": true, "missing": []},
            "files": [{"id": 7, "device": "nvidia0", "state": "open", "references": 3, "unexplained": 0,
                       "opened_exact": false}],
            "holders": [holder(10, 1), holder(11, 0)],
        })
    }

    fn compared(status: i32, document: &Value) -> Vec<String> {
        let report = serde_json::from_value(document.clone()).expect("it follows the contract");
        let answer = Answer { status, text: document.to_string(), err: String::new(), report };
        differences(&answer, &truth(), &BTreeSet::from([9, 10, 11, 12]))
    }

    #[test]
    fn a_right_answer_differs_in_nothing() {
        assert_eq!(compared(1, &right()), Vec::<String>::new());
    }

    #[test]
    fn every_wrong_field_is_a_difference() {
        let wrong = [
            ("/schema", json!(2)),
            ("/files/0/references", json!(2)),
            ("/files/0/references", json!(null)),
            ("/files/0/unexplained", json!(1)),
            ("/files/0/state", json!("detached")),
            ("/files/0/device", json!("nvidia1")),
            ("/holders/0/pid", json!(99)),
            ("/holders/0/tid", json!(99)),
            ("/holders/0/tids", json!([10, 14])),
            ("/holders/0/ppid", json!(1)),
            ("/holders/0/uid", json!(1)),
            ("/holders/0/comm", json!("b")),
            ("/holders/0/cmdline", json!("b")),
            ("/holders/0/state", json!("D")),
            ("/holders/0/leader_state", json!("Z")),
            ("/holders/0/exiting", json!(true)),
            ("/holders/0/sigkill_pending", json!(true)),
            ("/holders/0/pid_in_ns", json!(2)),
            ("/holders/0/why", json!([])),
            ("/holders/0/why", json!(["stopped"])),
            ("/holders/0/why", json!(["live", "stuck-in-kernel"])),
            ("/holders/1/why", json!(["live"])),
            ("/holders/0/devices/0/device", json!("nvidia1")),
            ("/holders/0/devices/0/fds", json!(2)),
            ("/holders/0/devices/0/maps", json!(0)),
            ("/holders/0/devices/0/in_flight", json!(1)),
            ("/holders/0/devices/0/io_uring", json!(1)),
            ("/holders/0/devices/0/files", json!([7, 8])),
        ];
        for (place, value) in wrong {
            let mut document = right();
            *document.pointer_mut(place).expect("it is there") = value.clone();
            assert!(!compared(1, &document).is_empty(), "{value} at {place} goes unnoticed");
        }
    }

    #[test]
    fn a_missing_an_accused_and_a_doubled_holder_are_differences() {
        let change = |edit: &dyn Fn(&mut Vec<Value>)| {
            let mut document = right();
            edit(document["holders"].as_array_mut().expect("a list"));
            compared(1, &document)
        };
        assert!(!change(&|holders| drop(holders.pop())).is_empty());
        for accused in [9, 12, 13] {
            let accuse = |holders: &mut Vec<Value>| {
                let mut holder = holders[0].clone();
                holder["pid"] = json!(accused);
                holders.push(holder);
            };
            assert!(!change(&accuse).is_empty(), "nobody minds that {accused} is accused");
        }
        assert!(!change(&|holders| holders.push(holders[0].clone())).is_empty());
    }

    #[test]
    fn a_wrong_exit_status_is_a_difference() {
        for status in [0, 2, 3] {
            assert!(!compared(status, &right()).is_empty(), "exit status {status} goes unnoticed");
        }
    }
}

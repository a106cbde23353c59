//! Does the daemon's record say what a fresh look says?

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::daemon::Daemon;
use super::{Subject, timed};
use crate::interrupt;
use crate::stage::STANDIN_ARGUMENT;

/// How long the daemon may take to know what happened last.
const SETTLE: Duration = Duration::from_secs(10);

/// What both say, counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    pub(super) holders: usize,
    pub(super) references: u64,
}

/// The daemon's answer must come to equal what a fresh look without it sees: no stormer, and of this process everything. Other
/// processes on this machine, which may open and close the device meanwhile, are not compared.
pub(super) fn agree(subject: &Subject, daemon: &Daemon) -> Result<Agreed> {
    let start = Instant::now();
    loop {
        let socket = daemon.socket().into_os_string();
        let asked =
            [answer(subject, &["--socket".into(), socket])?, answer(subject, &["--standalone".into()])?];
        if asked[0]["plan"] == asked[1]["plan"] {
            bail!("the daemon did not answer: its answer is of plan {}", asked[0]["plan"]);
        }
        let [ledger, snapshot] = asked.each_ref().map(held);
        if ledger == snapshot {
            let references = ledger.0.values().map(|counts| counts.iter().sum::<u64>()).sum();
            return Ok(Agreed { holders: ledger.0.len(), references });
        }
        if start.elapsed() > SETTLE {
            bail!("the ledger says {ledger:?}, a fresh snapshot {snapshot:?}");
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn answer(subject: &Subject, whom: &[std::ffi::OsString]) -> Result<Value> {
    let mut command = Command::new(&subject.gpu_tracer);
    command.args(["holders", "--format", "json", "--device", STANDIN_ARGUMENT]).args(whom);
    serde_json::from_str(&timed(&mut command)?.stdout).context("`gpu-tracer holders` printed no JSON")
}

/// What this program's processes hold: per process its descriptors, mappings and messages; and the reference counts of these
/// files, how often each.
fn held(answer: &Value) -> (BTreeMap<u64, [u64; 3]>, BTreeMap<u64, u64>) {
    let (mut holders, mut files, mut ours) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let own = u64::from(std::process::id());
    let is_own =
        |holder: &&Value| [&holder["pid"], &holder["ppid"]].iter().any(|pid| pid.as_u64() == Some(own));
    for holder in answer["holders"].as_array().into_iter().flatten().filter(is_own) {
        let counts: &mut [u64; 3] = holders.entry(holder["pid"].as_u64().unwrap_or(0)).or_default();
        for device in holder["devices"].as_array().into_iter().flatten() {
            for (count, name) in counts.iter_mut().zip(["fds", "maps", "in_flight"]) {
                *count += device[name].as_u64().unwrap_or(0);
            }
            ours.extend(device["files"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        }
    }
    let is_ours = |file: &&Value| file["id"].as_u64().is_some_and(|id| ours.contains(&id));
    for file in answer["files"].as_array().into_iter().flatten().filter(is_ours) {
        *files.entry(file["references"].as_u64().unwrap_or(0)).or_default() += 1;
    }
    (holders, files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_reference_more_is_a_difference() {
        let answer = |fds: u64, references: u64| {
            let devices = json!([{"fds": fds, "maps": 0, "in_flight": 0, "files": [1]}]);
            json!({"holders": [{"pid": std::process::id(), "ppid": 1, "devices": devices}],
                   "files": [{"id": 1, "references": references}]})
        };
        assert_eq!(held(&answer(1, 1)), held(&answer(1, 1)));
        assert_ne!(held(&answer(1, 1)), held(&answer(2, 1)));
        assert_ne!(held(&answer(1, 1)), held(&answer(1, 2)));
    }
}

//! An answer against the model: process by process, open file by open file.

use std::collections::{BTreeMap, BTreeSet};

use super::expected::{Expected, ExpectedFile};
use super::numbers::Numbers;
use crate::harness::{Answer, HeldFile, Holder, Missing};
use crate::truth::Counts;

/// Our processes: PIDs, and when each was started, in hundredths of a second of boot time. PIDs are used again.
pub type Family = BTreeMap<u32, u64>;

/// A hundredth of a second.
const TICK_NS: u64 = 10_000_000;

fn is_ours(holder: &Holder, family: &Family) -> bool {
    family.get(&holder.pid) == Some(&(holder.start_ns / TICK_NS))
}

/// An open file as an answer shows it.
pub(super) struct Shown<'a> {
    pub(super) file: &'a HeldFile,
    pub(super) pids: BTreeSet<u32>,
}

/// In what an answer differs from what must be so, each in a sentence.
#[derive(Clone, Debug, Default)]
pub struct Differences {
    /// What is wrong.
    pub wrong: Vec<String>,
    /// Files that are released, which somebody who remembers them cannot say yet: on the safe side, and not for long.
    pub lingering: Vec<String>,
}

/// Everything in which an answer differs from what must be so. Only processes of the `family` are
/// looked at; others may hold the same device. With `numbers`, the answer comes from somebody who remembers: who opened a
/// file, and by which number it went before.
#[must_use]
pub fn differences(
    expected: &Expected,
    answer: &Answer,
    family: &Family,
    numbers: Option<&mut Numbers>,
) -> Differences {
    let mut found = Vec::new();
    // Of other processes' files and exits the model knows nothing; references to ours are all looked at below.
    let about_ours = |missing: &&Missing| match missing.what.as_str() {
        "half-exited-task" => names(&missing.why, family),
        "unexplained-references" => false,
        _ => true,
    };
    for missing in answer.report.coverage.missing.iter().filter(about_ours) {
        found.push(format!("the answer is not complete: {}: {}", missing.what, missing.why));
    }
    compare_holders(expected, answer, family, &mut found);
    let mut shown = files_of(answer, family);
    let lingering = if numbers.is_some() { take_lingering(&mut shown) } else { Vec::new() };
    for Shown { file, pids } in shown.values() {
        if file.unexplained != 0 || file.state != "open" {
            found.push(format!(
                "file #{} of {} held by {pids:?}: {}, {:?} references, {} unexplained; every reference is known",
                file.id, file.device, file.state, file.references, file.unexplained
            ));
        }
    }
    match numbers {
        Some(numbers) => numbers.compare(expected, &shown, &mut found),
        None => compare_files(expected.files.values(), shown.values(), &mut found),
    }
    Differences { wrong: found, lingering }
}

/// Does the text name one of these processes? Half-way through an exit may be anybody on this host.
fn names(text: &str, family: &Family) -> bool {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .any(|pid| family.contains_key(&pid))
}

/// Takes out files that nobody is said to hold and of which it is only not known yet whether they are released.
fn take_lingering(shown: &mut BTreeMap<u64, Shown<'_>>) -> Vec<String> {
    let is_lingering = |shown: &Shown<'_>| {
        shown.pids.is_empty() && shown.file.state != "open" && shown.file.unexplained == 0
    };
    let lingering = shown.extract_if(.., |_, shown| is_lingering(shown));
    lingering
        .map(|(number, shown)| format!("file #{number} is {}; it is released", shown.file.state))
        .collect()
}

fn compare_holders(expected: &Expected, answer: &Answer, family: &Family, found: &mut Vec<String>) {
    for holder in answer.report.holders.iter().filter(|holder| is_ours(holder, family)) {
        if let Some(name) = expected.names.get(&holder.pid).filter(|name| **name != holder.comm) {
            found.push(format!("process {} is called {:?}, should be {name:?}", holder.pid, holder.comm));
        }
    }
    let mut totals: BTreeMap<u32, BTreeMap<String, (Counts, BTreeSet<u64>)>> = BTreeMap::new();
    for holder in answer.report.holders.iter().filter(|holder| is_ours(holder, family)) {
        for device in &holder.devices {
            let of_process = totals.entry(holder.pid).or_default();
            let (counts, files) = of_process.entry(device.device.clone()).or_default();
            counts.fds += device.fds;
            counts.maps += device.maps;
            counts.in_flight += device.in_flight;
            counts.io_uring += device.io_uring;
            files.extend(&device.files);
            if device.dropping != 0 {
                found.push(format!(
                    "process {} drops {} references; nobody does",
                    holder.pid, device.dropping
                ));
            }
        }
    }
    let is: BTreeMap<u32, BTreeMap<String, Counts>> = totals
        .into_iter()
        .map(|(pid, devices)| {
            let devices = devices
                .into_iter()
                .map(|(name, (counts, files))| (name, Counts { files: files.len() as u64, ..counts }));
            (pid, devices.collect())
        })
        .collect();
    let pids: BTreeSet<u32> = is.keys().chain(expected.holders.keys()).copied().collect();
    for pid in pids {
        let (is, should) = (is.get(&pid), expected.holders.get(&pid));
        if is != should {
            found.push(format!("process {pid} holds {}, should be {}", words(is), words(should)));
        }
    }
}

fn words(devices: Option<&BTreeMap<String, Counts>>) -> String {
    let Some(devices) = devices else { return "nothing".to_owned() };
    let parts: Vec<String> = devices
        .iter()
        .map(|(name, counts)| {
            let Counts { fds, maps, in_flight, io_uring, files } = counts;
            let rings = if *io_uring == 0 { String::new() } else { format!(" {io_uring} io_uring") };
            format!("{name}: {fds} fds {maps} maps {in_flight} in flight{rings} of {files} files")
        })
        .collect();
    parts.join("; ")
}

/// The files that processes of the family refer to, or have opened and nobody refers to, by number, with who refers to them.
fn files_of<'a>(answer: &'a Answer, family: &Family) -> BTreeMap<u64, Shown<'a>> {
    let mut referrers: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for holder in &answer.report.holders {
        for file in holder.devices.iter().flat_map(|device| &device.files) {
            referrers.entry(*file).or_default().insert(holder.pid);
        }
    }
    let ours = answer.report.holders.iter().filter(|holder| is_ours(holder, family));
    let ours: BTreeSet<u32> = ours.map(|holder| holder.pid).collect();
    // Who opened it counts only where nobody holds it: a PID of ours may have been somebody else's before.
    let is_ours = |file: &HeldFile, pids: &BTreeSet<u32>| {
        !pids.is_disjoint(&ours)
            || pids.is_empty() && file.opener.as_ref().is_some_and(|opener| family.contains_key(&opener.pid))
    };
    answer
        .report
        .files
        .iter()
        .map(|file| Shown { file, pids: referrers.remove(&file.id).unwrap_or_default() })
        .filter(|shown| is_ours(shown.file, &shown.pids))
        .map(|shown| (shown.file.id, shown))
        .collect()
}

impl Shown<'_> {
    /// What it is in the model's terms, openers left out.
    pub(super) fn traits(&self) -> (&str, Option<u64>, &BTreeSet<u32>) {
        (&self.file.device, self.file.references, &self.pids)
    }
}

impl ExpectedFile {
    pub(super) fn traits(&self) -> (&str, Option<u64>, &BTreeSet<u32>) {
        (&self.device, Some(self.references), &self.pids)
    }
}

/// Numbers mean nothing here: as many of each sort must be there as should.
pub(super) fn compare_files<'a>(
    expected: impl Iterator<Item = &'a ExpectedFile>,
    shown: impl Iterator<Item = &'a Shown<'a>>,
    found: &mut Vec<String>,
) {
    let mut sorts: BTreeMap<_, (i64, i64)> = BTreeMap::new();
    expected.for_each(|file| sorts.entry(file.traits()).or_default().1 += 1);
    shown.for_each(|file| sorts.entry(file.traits()).or_default().0 += 1);
    for ((device, references, pids), (is, should)) in sorts {
        if is != should {
            let references = references.map_or("an unknown number of".to_owned(), |count| count.to_string());
            found.push(format!(
                "open files of {device} with {references} references, held by {pids:?}: {is}, should be {should}"
            ));
        }
    }
}

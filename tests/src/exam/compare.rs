//! An answer against the model: process by process, open file by open file.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Expected, ExpectedFile, Id};
use crate::harness::{Answer, HeldFile, Missing};
use crate::truth::Counts;

/// Which of the model's files a daemon calls by which number. Its numbers stay, so a file must keep its own.
pub type Numbers = BTreeMap<Id, u64>;

/// An open file as an answer shows it.
struct Shown<'a> {
    file: &'a HeldFile,
    pids: BTreeSet<u32>,
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
    family: &BTreeSet<u32>,
    numbers: Option<&mut Numbers>,
) -> Differences {
    let mut found = Vec::new();
    let about_ours = |missing: &&Missing| missing.what != "half-exited-task" || names(&missing.why, family);
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
        Some(numbers) => compare_remembered(expected, &shown, numbers, &mut found),
        None => compare_files(expected.files.values(), shown.values(), &mut found),
    }
    Differences { wrong: found, lingering }
}

/// Does the text name one of these processes? Half-way through an exit may be anybody on this host.
fn names(text: &str, family: &BTreeSet<u32>) -> bool {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .any(|pid| family.contains(&pid))
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

fn compare_holders(expected: &Expected, answer: &Answer, family: &BTreeSet<u32>, found: &mut Vec<String>) {
    let mut totals: BTreeMap<u32, BTreeMap<String, (Counts, BTreeSet<u64>)>> = BTreeMap::new();
    for holder in answer.report.holders.iter().filter(|holder| family.contains(&holder.pid)) {
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

/// The files that processes of the family refer to or have opened, by number, with who refers to them.
fn files_of<'a>(answer: &'a Answer, family: &BTreeSet<u32>) -> BTreeMap<u64, Shown<'a>> {
    let mut referrers: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for holder in &answer.report.holders {
        for file in holder.devices.iter().flat_map(|device| &device.files) {
            referrers.entry(*file).or_default().insert(holder.pid);
        }
    }
    let is_ours = |file: &HeldFile, pids: &BTreeSet<u32>| {
        pids.iter().any(|pid| family.contains(pid))
            || file.opener.as_ref().is_some_and(|opener| family.contains(&opener.pid))
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
    fn traits(&self) -> (&str, Option<u64>, &BTreeSet<u32>) {
        (&self.file.device, self.file.references, &self.pids)
    }
}

impl ExpectedFile {
    fn traits(&self) -> (&str, Option<u64>, &BTreeSet<u32>) {
        (&self.device, Some(self.references), &self.pids)
    }
}

/// Numbers mean nothing here: as many of each sort must be there as should.
fn compare_files<'a>(
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

/// Files that were told apart before must be the same still; the others are told apart as far as they differ.
fn compare_remembered(
    expected: &Expected,
    shown: &BTreeMap<u64, Shown<'_>>,
    numbers: &mut Numbers,
    found: &mut Vec<String>,
) {
    numbers.retain(|id, _| expected.files.contains_key(id));
    let mut left: BTreeMap<Id, &ExpectedFile> = expected.files.iter().map(|(id, file)| (*id, file)).collect();
    let mut unclaimed: BTreeMap<u64, &Shown<'_>> =
        shown.iter().map(|(number, file)| (*number, file)).collect();
    for (id, number) in numbers.iter() {
        let (Some(should), is) = (left.remove(id), unclaimed.remove(number)) else { continue };
        match is {
            None => found.push(format!("file #{number} is gone; it should be held: {should:?}")),
            Some(is) if is.traits() != should.traits() => {
                found.push(format!("file #{number} is {:?}, should be {:?}", is.traits(), should.traits()));
            }
            Some(_) => {}
        }
    }
    compare_files(left.values().copied(), unclaimed.values().copied(), found);
    for (id, should) in &left {
        let mut alike = unclaimed.values().filter(|shown| shown.traits() == should.traits());
        let unique = left.values().filter(|other| other.traits() == should.traits()).count() == 1;
        if let (Some(is), None, true) = (alike.next(), alike.next(), unique) {
            numbers.insert(*id, is.file.id);
        }
    }
    for (id, number) in numbers.iter() {
        let (Some(should), Some(is)) = (expected.files.get(id), shown.get(number)) else { continue };
        if let (Some(should), Some(is)) = (should.opener, &is.file.opener)
            && is.pid != should
        {
            found.push(format!("file #{number} was opened by {}, should be {should}", is.pid));
        }
    }
}

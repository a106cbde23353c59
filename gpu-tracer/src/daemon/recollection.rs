//! What this daemon knows of open files that no look at the kernel can tell, written down for the next one: it may end at any
//! moment, and be replaced by a newer one while a training run has its GPUs for weeks.
//!
//! The file has kernel addresses in it, so that it is root's alone, and it is worth nothing in another boot.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::lastly::{self, Lastly};
use super::numbering::Numbering;
use crate::ledger::{Opened, Origin, Recollection};
use crate::model::change::Identity;
use crate::model::{DeviceNumber, FileKey, ProcessId, RawText};
use crate::probe::events::{Losses, Start};

const NAME: &str = "open-files.json";
/// Of the document; another is not read.
const VERSION: u32 = 2;
/// It is not written more often.
const RHYTHM: Duration = Duration::from_secs(1);
/// Nor so often that it takes more than this part of a processor.
const SHARE: u32 = 100;

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    boot_id: String,
    /// Whoever wrote it has seen everything that was told until its end.
    whole: bool,
    openers: Vec<Opener>,
    files: Vec<File>,
}

type Process = (u32, u64);

#[derive(Serialize, Deserialize)]
struct Opener {
    process: Process,
    parent: Option<Process>,
    comm: RawText,
    cmdline: RawText,
    exe: Option<RawText>,
    cgroup: Option<RawText>,
}

#[derive(Serialize, Deserialize)]
struct File {
    id: u64,
    address: u64,
    device: (u32, u32),
    identity: u64,
    seen_ns: u64,
    /// When, whether that is exact, and the opener's place among [`Document::openers`].
    opened: Option<(u64, bool, usize)>,
    origins: Vec<(Process, Came)>,
}

#[derive(Serialize, Deserialize)]
enum Came {
    Opened,
    Inherited(Process),
    Passed(Option<Process>),
}

/// What was written down by a daemon of this boot, and whether it had seen everything until its end.
pub(super) fn read(lastly: &Lastly) -> Option<(Vec<Recollection>, bool)> {
    let text = fs::read(lastly.directory().join(NAME)).ok()?;
    let document: Document = serde_json::from_slice(&text).ok()?;
    if document.version != VERSION || document.boot_id != lastly.boot_id() {
        return None;
    }
    let openers: Vec<Arc<Identity>> =
        document.openers.into_iter().map(|opener| Arc::new(opener.into())).collect();
    let files = document.files.into_iter().map(|file| file.recollection(&openers));
    Some((files.collect(), document.whole))
}

/// Writes down what is known now.
pub(super) fn write(lastly: &Lastly, files: &[Recollection], whole: bool) -> std::io::Result<()> {
    let mut openers = Vec::new();
    let mut places: HashMap<*const Identity, usize> = HashMap::new();
    let files = files.iter().map(|file| {
        let opened = file.opened.as_ref().map(|opened| {
            let place = *places.entry(Arc::as_ptr(&opened.opener)).or_insert_with(|| {
                openers.push(Opener::from(opened.opener.as_ref()));
                openers.len() - 1
            });
            (opened.at_ns, opened.exact, place)
        });
        File::new(file, opened)
    });
    let files = files.collect();
    let document = Document { version: VERSION, boot_id: lastly.boot_id().to_owned(), whole, openers, files };
    lastly::replace(&lastly.directory().join(NAME), |file| {
        file.set_permissions(Permissions::from_mode(0o600))?;
        let mut writer = BufWriter::new(file);
        serde_json::to_writer(&mut writer, &document)?;
        writer.flush()
    })
}

fn pair(process: ProcessId) -> Process {
    (process.tgid, process.start_ns)
}

fn process((tgid, start_ns): Process) -> ProcessId {
    ProcessId { tgid, start_ns }
}

impl From<&Identity> for Opener {
    fn from(identity: &Identity) -> Self {
        let Identity { process, comm, cmdline, exe, cgroup, parent } = identity.clone();
        Self { process: pair(process), parent: parent.map(pair), comm, cmdline, exe, cgroup }
    }
}

impl From<Opener> for Identity {
    fn from(opener: Opener) -> Self {
        let Opener { process: opener_is, parent, comm, cmdline, exe, cgroup } = opener;
        Self { process: process(opener_is), comm, cmdline, exe, cgroup, parent: parent.map(process) }
    }
}

impl File {
    fn new(known: &Recollection, opened: Option<(u64, bool, usize)>) -> Self {
        let came = |origin: Origin| match origin {
            Origin::Unknown => None,
            Origin::Opened => Some(Came::Opened),
            Origin::Inherited { from } => Some(Came::Inherited(pair(from))),
            Origin::Passed { from } => Some(Came::Passed(from.map(pair))),
        };
        let origins =
            known.origins.iter().filter_map(|(holder, origin)| Some((pair(*holder), came(*origin)?)));
        Self {
            id: known.id,
            address: known.file.0,
            device: (known.device.major, known.device.minor),
            identity: known.identity,
            seen_ns: known.seen_ns,
            opened,
            origins: origins.collect(),
        }
    }

    fn recollection(self, openers: &[Arc<Identity>]) -> Recollection {
        let opened = self.opened.and_then(|(at_ns, exact, place)| {
            Some(Opened { at_ns, exact, opener: Arc::clone(openers.get(place)?) })
        });
        let origin = |came: Came| match came {
            Came::Opened => Origin::Opened,
            Came::Inherited(from) => Origin::Inherited { from: process(from) },
            Came::Passed(from) => Origin::Passed { from: from.map(process) },
        };
        Recollection {
            id: self.id,
            file: FileKey(self.address),
            device: DeviceNumber { major: self.device.0, minor: self.device.1 },
            identity: self.identity,
            seen_ns: self.seen_ns,
            opened,
            origins: self.origins.into_iter().map(|(holder, came)| (process(holder), origin(came))).collect(),
        }
    }
}

/// When it is to be written, and what was read.
pub(super) struct Keeping {
    /// Of the daemon before this one, until the first look.
    before: Option<(Vec<Recollection>, bool)>,
    /// Changes that were known when it was written last.
    written: u64,
    not_before: Instant,
    /// Why it could not be written: said once.
    problem: Option<String>,
}

impl Keeping {
    pub(super) fn new(lastly: Option<&Lastly>, now: Instant) -> Self {
        Self { before: lastly.and_then(read), written: 0, not_before: now, problem: None }
    }
}

impl Core {
    /// Just after the first look: who opened what, as the daemon before knew it.
    pub(super) fn recall(&mut self) {
        let Some((known, whole)) = self.keeping.before.take() else { return };
        let resumed = self.source.as_ref().is_some_and(|source| source.start() == Start::Resumed);
        self.ledger.recall(&known, whole && resumed && !self.lost_any());
    }

    /// Before the first look: numbers of files go on after all that was ever given, and files that are there still keep theirs.
    /// `left`: files in the journal's record that had no end, and its last one; `None` where no journal is kept.
    pub(super) fn number_files(&mut self, left: Option<(&HashSet<u64>, u64)>) {
        if let Some((_, last_file)) = left {
            self.ledger.continue_after(last_file);
        }
        self.numbering = self.lastly.as_ref().map(|lastly| Numbering::go_on(lastly, &mut self.ledger));
        let Some((known, _)) = &self.keeping.before else { return };
        // A number by which the journal knows a file that has ended is another's.
        let is_free = |id: u64| left.is_none_or(|(open, last)| open.contains(&id) || id > last);
        let known: Vec<Recollection> = known.iter().filter(|file| is_free(file.id)).cloned().collect();
        self.ledger.expect(&known);
    }

    /// Was anything not told since the hooks were attached?
    fn lost_any(&self) -> bool {
        let losses = self.source.as_ref().map(|source| source.losses());
        !matches!(losses, Some(Ok(losses)) if losses == Losses::default())
    }

    /// When it is to be written, if there is anything new.
    pub(super) fn keeping_due(&self) -> Option<Instant> {
        (self.keeping.written != self.counters.changes).then_some(self.keeping.not_before)
    }

    pub(super) fn keep_if_due(&mut self) {
        if self.keeping_due().is_some_and(|due| Instant::now() >= due) {
            self.keep(false);
        }
    }

    /// `whole`: at the end, when all that was told has been seen.
    pub(super) fn keep(&mut self, whole: bool) {
        let Some(lastly) = self.lastly() else { return };
        let begun = Instant::now();
        let problem = write(lastly, &self.ledger.recollections(), whole).err().map(|error| error.to_string());
        self.keeping.written = self.counters.changes;
        self.keeping.not_before = Instant::now() + RHYTHM.max(begun.elapsed() * SHARE);
        if let Some(why) = problem.as_ref().filter(|why| self.keeping.problem.as_ref() != Some(why)) {
            super::log::warning(&format!(
                "who opened what will not be known to the next daemon: {NAME}: {why}"
            ));
        }
        self.keeping.problem = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recollections() -> Vec<Recollection> {
        let id = |tgid| ProcessId { tgid, start_ns: u64::from(tgid) << 40 };
        let opener = Arc::new(Identity {
            process: id(10),
            comm: "python3".into(),
            cmdline: RawText::from(b"a \xff\x1b[2J b".to_vec()),
            exe: Some("/usr/bin/python3".into()),
            cgroup: None,
            parent: Some(id(1)),
        });
        let device = DeviceNumber { major: 195, minor: 255 };
        let file = |address: u64, opened, origins| Recollection {
            id: address & 0xfff,
            file: FileKey(address),
            device,
            identity: u64::MAX - address,
            seen_ns: 5,
            opened,
            origins,
        };
        let opened = |at_ns| Some(Opened { at_ns, exact: at_ns > 1, opener: Arc::clone(&opener) });
        vec![
            file(0xffff_8881_0000_0000, opened(1), vec![(id(10), Origin::Opened)]),
            file(0xffff_8881_0000_0100, opened(2), vec![(id(20), Origin::Inherited { from: id(10) })]),
            file(
                3,
                None,
                vec![
                    (id(30), Origin::Passed { from: None }),
                    (id(40), Origin::Passed { from: Some(id(30)) }),
                ],
            ),
        ]
    }

    #[test]
    fn what_is_written_reads_back_and_is_roots_alone() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        assert_eq!(read(&lastly), None);
        for whole in [false, true] {
            write(&lastly, &recollections(), whole).unwrap();
            assert_eq!(read(&lastly), Some((recollections(), whole)));
        }
        let mode = fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_of_another_boot_or_version_or_no_document_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let lastly = Lastly::open(dir.path()).unwrap();
        write(&lastly, &recollections(), true).unwrap();
        let path = dir.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        let spoilt = [
            text.replace(lastly.boot_id(), "another"),
            text.replace("\"version\":2", "\"version\":1"),
            text[..text.len() / 2].to_owned(),
            // A place that no opener has.
            "[]".to_owned(),
        ];
        for spoilt in spoilt {
            fs::write(&path, spoilt).unwrap();
            assert_eq!(read(&lastly), None);
        }
        fs::write(&path, text.replace("[2,true,0]", "[2,true,9]")).unwrap();
        assert_eq!(read(&lastly).unwrap().0[1].opened, None, "an opener that is not there is not named");
    }
}

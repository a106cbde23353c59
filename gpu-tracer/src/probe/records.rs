//! Records of a snapshot to files and references, each once: passes may repeat a record, and threads repeat each other.

use gpu_tracer_common::snapshot::{
    FILE_DEVICE, HOLD_DRIVER_PIN, HOLD_FD, HOLD_IN_FLIGHT, HOLD_IO_URING, HOLD_MAP, HOLD_UNACCEPTED,
    HoldRecord, fd_bits,
};

use crate::model::hash::Map;
use crate::model::{DeviceNumber, DeviceTable, FileKey, MmKey, OpenFile, Reference, TableKey, Via};

/// Records by the file that they are about, those of one file in the order in which they came.
///
/// Files come in the order in which they were met: fd table by fd table, and so mostly in the order in which they were opened.
/// Whoever has met them before finds what is known of them one beside the other in memory, which by their addresses would
/// lie all over the place.
pub(super) struct ByFile {
    holds: Vec<HoldRecord>,
    /// The first record of each file.
    first: Vec<usize>,
    /// The next record of the same file, or [`LAST`].
    next: Vec<usize>,
}

/// There is no next.
const LAST: usize = usize::MAX;

impl ByFile {
    pub(super) fn new(holds: Vec<HoldRecord>) -> Self {
        let mut first = Vec::with_capacity(holds.len());
        let mut next = vec![LAST; holds.len()];
        let mut latest: Map<u64, usize> = Map::with_capacity_and_hasher(holds.len(), Default::default());
        for (index, hold) in holds.iter().enumerate() {
            match latest.insert(hold.file, index) {
                Some(before) => next[before] = index,
                None => first.push(index),
            }
        }
        Self { holds, first, next }
    }

    /// The records as they came, to which more may be added.
    pub(super) fn into_records(self) -> Vec<HoldRecord> {
        self.holds
    }

    fn files(&self) -> impl Iterator<Item = impl Iterator<Item = &HoldRecord> + Clone> {
        let following = |index: &usize| Some(self.next[*index]).filter(|next| *next != LAST);
        let records = move |first: &usize| std::iter::successors(Some(*first), following);
        self.first.iter().map(move |first| records(first).map(|index| &self.holds[index]))
    }

    /// Device files that the kernel counts more references of than were found.
    pub(super) fn unaccounted(&self) -> Vec<u64> {
        let mut short = Vec::new();
        let mut found = Vec::new();
        for records in self.files() {
            let counted = records.filter(|hold| hold.file_kind == FILE_DEVICE && hold.count != u64::MAX);
            let Some(most) = counted.clone().map(|hold| hold.count).max() else { continue };
            // As many are there at least; telling which are the same takes longer.
            if most > 1 {
                found.clear();
                found.extend(counted.clone().map(place));
                found.sort_unstable();
                found.dedup();
                if most > found.len() as u64 {
                    short.extend(counted.map(|hold| hold.file).next());
                }
            }
        }
        short
    }

    /// Files, and references file by file, those of one file in order.
    pub(super) fn assemble(&self, devices: &DeviceTable) -> (Vec<OpenFile>, Vec<Reference>) {
        let mut files: Vec<OpenFile> = Vec::with_capacity(self.holds.len());
        let mut references: Vec<Reference> = Vec::with_capacity(self.holds.len());
        for records in self.files() {
            let (first_file, first) = (files.len(), references.len());
            for hold in records {
                let key = FileKey(hold.file);
                if hold.file_kind == FILE_DEVICE {
                    let device = DeviceNumber::from_kernel(hold.rdev);
                    // The programs report whole majors where a range is long.
                    if !devices.contains(device) {
                        continue;
                    }
                    let count = (hold.count != u64::MAX).then_some(hold.count);
                    let (identity, seen_ns) = (hold.identity, hold.seen_ns);
                    let seen = OpenFile { key, device, count, identity, seen_ns };
                    match files.get_mut(first_file) {
                        // The last is the latest, but for passes that go on at the same time.
                        Some(known) => *known = OpenFile { seen_ns: seen_ns.max(known.seen_ns), ..seen },
                        None => files.push(seen),
                    }
                }
                if let Some(via) = via(hold) {
                    references.push(Reference { file: key, via });
                }
            }
            if references.len() - first > 1 {
                let mut own = references.split_off(first);
                own.sort_unstable();
                own.dedup();
                references.append(&mut own);
            }
        }
        (files, references)
    }
}

/// What makes a reference another one: how, by what, and where in it.
fn place(hold: &HoldRecord) -> (u16, u64, u64, u64) {
    let end = if hold.header.kind == HOLD_FD { 0 } else { hold.end };
    (hold.header.kind, hold.by, hold.at, end)
}

/// Device files that belong to a module, or for which the driver may hold others.
pub(super) fn worth_a_closer_look(holds: &[HoldRecord]) -> Vec<u64> {
    let plain = |hold: &HoldRecord| hold.header.kind == HOLD_FD && hold.end & fd_bits::PLAIN != 0;
    distinct(holds, |hold| hold.file_kind == FILE_DEVICE && !plain(hold))
}

/// Files with such a record, each once.
pub(super) fn distinct(holds: &[HoldRecord], which: impl Fn(&HoldRecord) -> bool) -> Vec<u64> {
    let mut files: Vec<u64> = holds.iter().filter(|hold| which(hold)).map(|hold| hold.file).collect();
    files.sort_unstable();
    files.dedup();
    files
}

fn via(hold: &HoldRecord) -> Option<Via> {
    Some(match hold.header.kind {
        HOLD_FD => Via::Fd { table: TableKey(hold.by), fd: u32::try_from(hold.at).ok()? },
        HOLD_MAP => Via::Map { mm: MmKey(hold.by), start: hold.at, end: hold.end },
        HOLD_IN_FLIGHT => Via::InFlight { socket: FileKey(hold.by), inode: hold.at, slot: hold.end },
        HOLD_UNACCEPTED => Via::Unaccepted { listener: FileKey(hold.by) },
        HOLD_IO_URING => Via::IoUring { ring: FileKey(hold.by), slot: u32::try_from(hold.at).ok()? },
        HOLD_DRIVER_PIN => Via::DriverPin { by: FileKey(hold.by) },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use gpu_tracer_common::snapshot::{FILE_SOCKET, Header};

    use super::*;
    use crate::model::DeviceRange;
    use crate::model::device::Naming;

    const GPU0: DeviceNumber = DeviceNumber { major: 195, minor: 0 };

    fn devices() -> DeviceTable {
        let naming = Naming::Fixed("nvidia0".to_owned());
        let range = DeviceRange { major: 195, first: 0, last: 0, naming };
        DeviceTable { ranges: vec![range], ..DeviceTable::default() }
    }

    fn record(kind: u16, file: u64, count: u64, by: u64, at: u64) -> HoldRecord {
        let header = Header::new(kind);
        HoldRecord {
            header,
            file_kind: FILE_DEVICE,
            rdev: 195 << 20,
            tid: 1,
            file,
            count,
            by,
            at,
            end: 0,
            identity: 7,
            seen_ns: 5,
        }
    }

    fn fd(file: u64, count: u64, at: u64) -> HoldRecord {
        record(HOLD_FD, file, count, 50, at)
    }

    #[test]
    fn each_file_and_each_reference_is_there_once_file_by_file_and_the_latest_count_holds() {
        let again = HoldRecord { end: fd_bits::PLAIN, ..fd(9, 2, 4) };
        let socket = HoldRecord { file_kind: FILE_SOCKET, rdev: 0, ..record(HOLD_IN_FLIGHT, 3, 1, 70, 1) };
        let foreign = HoldRecord { rdev: 195 << 20 | 1, ..fd(1, 1, 8) };
        let holds = [fd(9, 1, 5), fd(4, 1, 3), fd(9, 3, 4), foreign, again, socket];
        let (files, references) = ByFile::new(holds.to_vec()).assemble(&devices());
        let file = |key, count| OpenFile {
            key: FileKey(key),
            device: GPU0,
            count: Some(count),
            identity: 7,
            seen_ns: 5,
        };
        assert_eq!(files, [file(9, 2), file(4, 1)]);
        let at = |file, fd| Reference { file: FileKey(file), via: Via::Fd { table: TableKey(50), fd } };
        let in_flight = Via::InFlight { socket: FileKey(70), inode: 1, slot: 0 };
        let expected = [at(9, 4), at(9, 5), at(4, 3), Reference { file: FileKey(3), via: in_flight }];
        assert_eq!(references, expected);
    }

    #[test]
    fn a_file_is_unaccounted_for_if_more_is_counted_than_was_found_however_often() {
        let twice = HoldRecord { end: fd_bits::PLAIN, ..fd(2, 2, 4) };
        let unknown = fd(4, u64::MAX, 1);
        let holds = [fd(1, 1, 3), fd(2, 2, 4), twice, fd(3, 2, 5), fd(3, 2, 6), unknown];
        assert_eq!(ByFile::new(holds.to_vec()).unaccounted(), [2]);
    }

    #[test]
    fn a_file_is_looked_at_closely_unless_all_that_is_known_of_it_says_that_there_is_nothing_to_find() {
        let none = |file| HoldRecord { end: fd_bits::PLAIN, ..fd(file, 1, 3) };
        let mapped = HoldRecord { end: 0x1001, ..record(HOLD_MAP, 3, 1, 60, 0x1000) };
        assert_eq!(worth_a_closer_look(&[none(1), fd(2, 1, 4), mapped, fd(2, 1, 5), none(3)]), [2, 3]);
    }
}

//! Which devices an address space maps.
//!
//! `maps` has the device number of the *file system*, so a mapping's inode is asked through `/proc/PID/map_files`,
//! which is root's; others have to look for it under the name that `maps` shows.

use std::collections::HashMap;

use super::Site;
use super::coverage::Gap;
use super::crew::Beat;
use super::node::{Inode, Node, look, look_at_path};
use super::ring::{RING, unescape};
use crate::process::{ProcDir, ProcError};

/// Most bytes of a `maps` that are read: room for 500,000 mappings.
const LIMIT: usize = 64 << 20;

/// The mapped devices of one address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    /// The thread through which it was read.
    pub(super) tid: u32,
    /// Mappings of GPU devices.
    pub(super) mappings: Vec<Mapping>,
    /// Inode numbers of mapped io_urings.
    pub(super) rings: Vec<u64>,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// First address.
    pub(super) start: u64,
    /// Address after the last.
    pub(super) end: u64,
    /// What is mapped.
    pub(super) node: Node,
}

/// One line of `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
    start: u64,
    end: u64,
    fs: (u32, u32),
    inode: u64,
    name: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads `START-END PERMS OFFSET MAJOR:MINOR INODE NAME`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = field()?.split_once('-')?;
        let (_, _, fs, inode) = (field()?, field()?, field()?, field()?);
        let (major, minor) = fs.split_once(':')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let hex_u32 = |text| u32::from_str_radix(text, 16).ok();
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            fs: (hex_u32(major)?, hex_u32(minor)?),
            inode: inode.parse().ok()?,
            name: fields.next().unwrap_or_default().trim_ascii_start(),
        })
    }
}

/// Reads the address space of thread `tid`, whose directory is `task`.
pub(super) fn read(site: &Site, task: &ProcDir, tid: u32, beat: &Beat, gaps: &mut Vec<Gap>) -> Option<Space> {
    let text = match task.read("maps", LIMIT) {
        Ok(text) => text,
        Err(ProcError::Gone { .. }) => return None,
        Err(_) => {
            gaps.push(Gap::MapsUnreadable);
            return None;
        }
    };
    if text.len() == LIMIT {
        gaps.push(Gap::MapsUnreadable);
    }
    // Only a thread-group leader is listed in /proc, but every thread has a directory there, with its map_files.
    let map_files = ProcDir::open(site.root.join(format!("{tid}/map_files"))).ok();
    let mut space = Space { tid, ..Space::default() };
    let mut known: HashMap<((u32, u32), u64), Option<Node>> = HashMap::new();
    let mut unidentified = 0;
    for line in text.split(|byte| *byte == b'\n').filter_map(Line::parse) {
        if line.name == RING {
            space.rings.push(line.inode);
        }
        // Shared anonymous memory wears names such as "/dev/zero (deleted)".
        if line.inode == 0 || !line.name.starts_with(b"/") || Some(line.fs) == site.shmem {
            continue;
        }
        let node = *known.entry((line.fs, line.inode)).or_insert_with(|| {
            beat.tick();
            if site.is_ordinary(line.fs, line.inode) {
                return None;
            }
            match identify(site, task, map_files.as_ref(), &line) {
                Some(Inode::Device(node)) => site.devices.identify(node.device).map(|_| node),
                Some(_) => {
                    site.note_ordinary(line.fs, line.inode);
                    None
                }
                None => {
                    unidentified += 1;
                    None
                }
            }
        });
        space.mappings.extend(node.map(|node| Mapping { start: line.start, end: line.end, node }));
    }
    if unidentified > 0 {
        gaps.push(Gap::MapsUnidentified(unidentified));
    }
    Some(space)
}

/// What is mapped there; `None` if that cannot be told.
fn identify(site: &Site, task: &ProcDir, map_files: Option<&ProcDir>, line: &Line<'_>) -> Option<Inode> {
    if let Some(directory) = map_files {
        match look(directory, format!("{:x}-{:x}", line.start, line.end)) {
            Ok(inode) => return Some(inode),
            // Unmapped meanwhile: then it is no mapping.
            Err(rustix::io::Errno::NOENT) if is_gone(directory, line) => {
                return Some(Inode::Other(line.inode));
            }
            Err(_) => {}
        }
    }
    let inode = look_at_path(task, &unescape(line.name), site.mount_ns)?;
    // A name may lead elsewhere by now.
    let number = match inode {
        Inode::Device(node) => node.inode,
        Inode::Socket(number) | Inode::Anonymous(number) | Inode::Other(number) => number,
    };
    (number == line.inode).then_some(inode)
}

/// The entry itself is not there, as opposed to leading nowhere.
fn is_gone(map_files: &ProcDir, line: &Line<'_>) -> bool {
    map_files.link(format!("{:x}-{:x}", line.start, line.end)).is_err_and(|error| error.is_gone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_with_a_name_full_of_blanks_is_read() {
        let line =
            b"7f0a670ca000-7f0a670cb000 r--p 00000000 fe:00 10036748                   /tmp/pw/a b\\012 c";
        let expected = Line {
            start: 0x7f0a_670c_a000,
            end: 0x7f0a_670c_b000,
            fs: (0xfe, 0),
            inode: 10_036_748,
            name: b"/tmp/pw/a b\\012 c",
        };
        assert_eq!(Line::parse(line), Some(expected));
    }

    #[test]
    fn anonymous_memory_has_no_name() {
        let line = Line::parse(b"7f0a670b8000-7f0a670c5000 rw-p 00000000 00:00 0 ").expect("a line");
        assert_eq!((line.inode, line.name), (0, b"".as_slice()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Line::parse(&bytes);
        }
    }
}

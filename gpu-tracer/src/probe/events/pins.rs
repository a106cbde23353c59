//! Hooks that outlive the process: maps and links with names in a BPF file system.
//!
//! ```text
//! PIN_DIR/                      locked by the process that uses it
//!   v2-0123456789abcdef/        layout of the records, hash of the programs and of where this kernel has its fields
//!     EVENTS TRACKED ...        maps
//!     link-on_exit              links, by program: as long as they have a name the hooks stay attached
//!     prog-on_open_begin        programs, and links, of the hooks at the driver's functions
//! ```
//!
//! A process that is killed leaves all of it, and the hooks go on filling the ring. The next one continues where that one
//! stopped reading. A directory of another version is of no use to it and is removed, which detaches its hooks.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use aya::maps::{Map, MapData};
use gpu_tracer_common::LAYOUT;
use rustix::{
    fs::{FlockOperation, flock, statfs},
    mount::{MountFlags, mount},
};

use super::{
    hooks::{Attached, HOOKS},
    sys,
};
use crate::probe::ProbeError;

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Begin of the name of a directory that is not complete yet.
const UNFINISHED: &str = "new-";

/// A pin directory, for us alone as long as this lives.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    version: String,
    _lock: File,
}

/// What is kept of a set of hooks.
pub(super) struct Kept {
    pub(super) maps: Vec<(&'static str, MapData)>,
    pub(super) links: Vec<Attached>,
}

impl Pins {
    /// Takes the directory, which is made if need be. `programs` are all bytes that decide what the hooks do.
    pub(super) fn take(root: &Path, programs: &[&[u8]]) -> Result<Self, ProbeError> {
        let lock = lock(root)?;
        let version = format!("v{LAYOUT}-{:016x}", fingerprint(programs));
        Ok(Self { root: root.to_owned(), version, _lock: lock })
    }

    /// Where everything of this version is.
    pub(super) fn directory(&self) -> PathBuf {
        self.root.join(&self.version)
    }

    /// What an earlier process left, if it is of this version and complete.
    pub(super) fn reopen(&self, maps: &[&'static str]) -> Result<Option<Kept>, ProbeError> {
        let directory = self.directory();
        if !directory.is_dir() {
            return Ok(None);
        }
        let map = |name: &&'static str| {
            let source = |source| ProbeError::Map { map: name, source };
            Ok((*name, MapData::from_pin(directory.join(name)).map_err(source)?))
        };
        let maps = maps.iter().map(map).collect::<Result<_, ProbeError>>()?;
        let mut links = Vec::new();
        for (index, hook) in HOOKS.iter().enumerate() {
            for (program, name) in hook.pin_names().enumerate() {
                let path = directory.join(name);
                match sys::open_pin(&path) {
                    Ok(link) => links.push(Attached::new(index, program, link)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(source) => return Err(ProbeError::Pin { path, source }),
                }
            }
        }
        Ok(Some(Kept { maps, links }))
    }

    /// Gives names to all of it. Either everything is kept or nothing is.
    pub(super) fn keep<'a>(
        &self,
        maps: &[(&'static str, &Map)],
        links: &[Attached],
        programs: impl Iterator<Item = (String, BorrowedFd<'a>)>,
    ) -> Result<(), ProbeError> {
        let unfinished = self.root.join(format!("{UNFINISHED}{}", self.version));
        let refused = |path: &Path, source| ProbeError::Pin { path: path.to_owned(), source };
        remove(&unfinished)?;
        directory(&unfinished).map_err(|source| refused(&unfinished, source))?;
        for (name, map) in maps {
            let path = unfinished.join(name);
            map.pin(&path).map_err(|error| refused(&path, io::Error::other(error)))?;
        }
        for attached in links {
            let name = HOOKS[attached.hook].pin_names().nth(attached.program).unwrap_or_default();
            let path = unfinished.join(name);
            sys::pin(attached.link.as_fd(), &path).map_err(|source| refused(&path, source))?;
        }
        for (name, program) in programs {
            let path = unfinished.join(name);
            sys::pin(program, &path).map_err(|source| refused(&path, source))?;
        }
        let finished = self.directory();
        remove(&finished)?;
        fs::rename(&unfinished, &finished).map_err(|source| refused(&finished, source))
    }

    /// Removes whatever is there of other versions, or unfinished; says how many there were.
    pub(super) fn remove_others(&self) -> Result<usize, ProbeError> {
        remove_all_but(&self.root, Some(&self.version))
    }
}

/// Detaches all hooks that were left in a pin directory, of whatever version; says how many sets of them there were.
///
/// Errors: somebody is using them, or they cannot be removed.
pub fn unpin(pin_dir: &Path) -> Result<usize, ProbeError> {
    if !pin_dir.is_dir() {
        return Ok(0);
    }
    let _lock = lock(pin_dir)?;
    remove_all_but(pin_dir, None)
}

fn remove_all_but(root: &Path, version: Option<&str>) -> Result<usize, ProbeError> {
    let refused = |source| ProbeError::Pin { path: root.to_owned(), source };
    let mut removed = 0;
    for entry in fs::read_dir(root).map_err(refused)? {
        let name = entry.map_err(refused)?.file_name();
        // Whatever else people keep there is theirs.
        let ours = name.to_str().is_some_and(|name| name.starts_with(UNFINISHED) || is_version(name));
        if ours && name.to_str() != version {
            remove(&root.join(&name))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// `v`, digits, `-`, sixteen hexadecimal digits.
fn is_version(name: &str) -> bool {
    name.strip_prefix('v').and_then(|rest| rest.split_once('-')).is_some_and(|(layout, hash)| {
        layout.parse::<u16>().is_ok() && hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Removes one set. Nothing there is fine.
fn remove(directory: &Path) -> Result<(), ProbeError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ProbeError::Pin { path: directory.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the directory, sees to it that it is on a BPF file system, and locks it.
fn lock(root: &Path) -> Result<File, ProbeError> {
    let refused = |source| ProbeError::Pin { path: root.to_owned(), source };
    directory(root).map_err(refused)?;
    if !is_bpf_fs(root).map_err(refused)? {
        if fs::read_dir(root).map_err(refused)?.next().is_some() {
            return Err(refused(io::Error::other("it is on another file system and not empty")));
        }
        // A directory of our own can carry one. What is mounted inside a mount namespace of its own (systemd's
        // `PrivateMounts=`) ends with it, so a service should rather use `/sys/fs/bpf`.
        mount("bpf", root, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"mode=0700")
            .map_err(|errno| refused(errno.into()))?;
    }
    let file = File::open(root).map_err(refused)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ProbeError::Busy { path: root.to_owned() }),
        Err(errno) => Err(refused(errno.into())),
    }
}

fn is_bpf_fs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.f_type as i64 == BPF_FS_MAGIC)
}

/// FNV-1a.
fn fingerprint(parts: &[&[u8]]) -> u64 {
    parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_things_in_a_pin_directory_are_not_ours() {
        let ours = ["v2-0123456789abcdef", "v65535-ffffffffffffffff"];
        let not_ours =
            ["v2", "v-0123456789abcdef", "v2-0123456789abcdeg", "v2-123", "x", "v65536-0123456789abcdef", ""];
        assert_eq!(ours.map(is_version), [true; 2]);
        assert_eq!(not_ours.map(is_version), [false; 7], "{not_ours:?}");
    }

    #[test]
    fn every_byte_of_the_programs_counts() {
        let hash = |parts: &[&[u8]]| fingerprint(parts);
        assert_eq!(hash(&[b"ab", b"c"]), hash(&[b"abc"]));
        assert_ne!(hash(&[b"abc"]), hash(&[b"abd"]));
    }
}

//! A FUSE file system of one file whose FLUSH is never answered.
//!
//! Whoever closes that file waits for an answer that does not come; when a killed process closes it on its way out, it
//! waits in D state with its later descriptors still to be closed. Enough of the protocol (7.31) for that and no more.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::mounts;

/// Name of the one file.
pub const FILE: &str = "never-flushed";

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const ROOT: u64 = 1;
const THE_FILE: u64 = 2;
/// The kernel refuses smaller read buffers (`FUSE_MIN_READ_BUFFER` is 8 KiB).
const BUFFER: usize = 256 * 1024;

/// Opens the FUSE device; the file system ends when its last descriptor is closed.
pub fn open() -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .context("/dev/fuse: this kernel has no FUSE, or /dev hides it")
}

/// Mounts the file system that `device` serves.
pub fn mount(device: &File, target: &Path) -> Result<()> {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mounts::mount("gpu-tracer-scenario", target, "fuse", &options)
        .with_context(|| format!("mounting FUSE on {}", target.display()))
}

/// The file that aborts the connection behind `target` when something is written to it; the control file system is
/// mounted at `spare` first if it is mounted nowhere. Must be called while the mount still answers.
pub fn abort_file(target: &Path, spare: &Path) -> Result<PathBuf> {
    let control = if let Some(control) = mounts::mounted("fusectl", None)? {
        control
    } else {
        std::fs::create_dir_all(spare)?;
        mounts::mount("none", spare, "fusectl", "").context("mounting fusectl")?;
        spare.to_path_buf()
    };
    let minor = libc::minor(std::fs::metadata(target)?.dev());
    Ok(control.join(minor.to_string()).join("abort"))
}

/// Serves requests until the connection ends.
pub fn serve(device: c_int) -> io::Result<()> {
    // SAFETY: the caller hands the descriptor over; it is closed when this returns.
    let mut device = unsafe { File::from_raw_fd(device) };
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            // The request was interrupted before it was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The connection is over.
            Err(_) => return Ok(()),
        };
        let Some(request) = Request::parse(&buffer[..length]) else { continue };
        if let Some(answer) = request.answer() {
            // The kernel refuses an answer to a request that was withdrawn meanwhile: nothing to do about it.
            let _ = device.write_all(&answer);
        }
    }
}

/// The parts of a request that matter here.
struct Request<'a> {
    opcode: u32,
    unique: u64,
    node: u64,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// `struct fuse_in_header` is 40 bytes: length, opcode, unique, node, ids.
    fn parse(message: &'a [u8]) -> Option<Self> {
        Some(Self {
            opcode: u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?),
            unique: u64::from_ne_bytes(message.get(8..16)?.try_into().ok()?),
            node: u64::from_ne_bytes(message.get(16..24)?.try_into().ok()?),
            body: message.get(40..)?,
        })
    }

    /// The whole answer, or `None` where there is none to give: or, for FLUSH, where giving none is the point.
    fn answer(&self) -> Option<Vec<u8>> {
        let body = match self.opcode {
            FLUSH | FORGET | BATCH_FORGET | INTERRUPT => return None,
            INIT => Ok(init_reply()),
            LOOKUP if self.node == ROOT && self.body == [FILE.as_bytes(), &[0]].concat() => {
                Ok(lookup_reply())
            }
            LOOKUP => Err(libc::ENOENT),
            GETATTR => Ok(getattr_reply(self.node)),
            OPEN => Ok(vec![0; 16]),
            RELEASE => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let mut answer = Vec::with_capacity(16 + body.len());
        answer.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        answer.extend_from_slice(&error.to_ne_bytes());
        answer.extend_from_slice(&self.unique.to_ne_bytes());
        answer.extend_from_slice(&body);
        Some(answer)
    }
}

/// `struct fuse_init_out`, 64 bytes.
fn init_reply() -> Vec<u8> {
    // major, minor, max_readahead, flags, then max_background and congestion_threshold in one word, max_write.
    let words: [u32; 6] = [7, 31, 4096, 0, (12 << 16) | 12, 4096];
    let mut reply: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    reply.resize(64, 0);
    reply
}

/// `struct fuse_entry_out`: node, generation, how long both may be cached, attributes.
fn lookup_reply() -> Vec<u8> {
    let mut reply = Vec::with_capacity(128);
    reply.extend_from_slice(&THE_FILE.to_ne_bytes());
    reply.resize(40, 0);
    reply.extend_from_slice(&attributes(THE_FILE));
    reply
}

/// `struct fuse_attr_out`: how long the attributes may be cached, attributes.
fn getattr_reply(node: u64) -> Vec<u8> {
    let mut reply = vec![0; 16];
    reply.extend_from_slice(&attributes(node));
    reply
}

/// `struct fuse_attr`, 88 bytes: six 64-bit fields, three 32-bit ones, then mode and links.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let mut attributes = node.to_ne_bytes().to_vec();
    attributes.resize(60, 0);
    attributes.extend_from_slice(&mode.to_ne_bytes());
    attributes.extend_from_slice(&1u32.to_ne_bytes());
    attributes.resize(88, 0);
    attributes
}

//! A small ext4 file system on a loop device, and freezing it.
//!
//! A task that writes to a frozen file system waits in D state until it thaws, and no signal changes that: the simplest
//! way to a stuck task that needs no special driver.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{check, mounts};

const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_CONFIGURE: u32 = 0x4c0a;
/// The device frees itself when its last user closes it, here: when the file system is unmounted.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const FIFREEZE: u32 = 0xc004_5877;
const FITHAW: u32 = 0xc004_5878;
const LOOP_MAJOR: u32 = 7;

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// `struct loop_info64` up to its flags: five 64-bit and three 32-bit fields.
    head: [u32; 13],
    flags: u32,
    /// Names, key and spare words of `struct loop_info64`, then the reserved words of `struct loop_config`.
    tail: [u64; 30],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Makes an ext4 file system in `image` and mounts it on the directory `target`.
pub fn mount_new_ext4(image: &Path, target: &Path) -> Result<()> {
    File::create(image)?.set_len(8 << 20)?;
    make_ext4(image)?;
    let scratch = image.with_extension("loop");
    let (device, keep) = attach(image, &scratch)?;
    let mounted = mounts::mount(&device.to_string_lossy(), target, "ext4", "")
        .with_context(|| format!("mounting {} on {}", device.display(), target.display()));
    drop(keep);
    mounted
}

fn make_ext4(image: &Path) -> Result<()> {
    for program in ["mkfs.ext4", "/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"] {
        match Command::new(program).args(["-q", "-F"]).arg(image).output() {
            Ok(made) if made.status.success() => return Ok(()),
            Ok(failed) => bail!("{program} failed: {}", String::from_utf8_lossy(&failed.stderr)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(program),
        }
    }
    bail!("mkfs.ext4 is not installed: install e2fsprogs")
}

/// Attaches the image to a free loop device; the device stays attached while the returned file is open.
fn attach(image: &Path, scratch: &Path) -> Result<(PathBuf, File)> {
    let backing = File::options().read(true).write(true).open(image)?;
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")
        .context("/dev/loop-control: this kernel has no loop devices, or /dev hides them")?;
    loop {
        // SAFETY: takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        let number = check(number).context("LOOP_CTL_GET_FREE")?.cast_unsigned();
        let mut path = PathBuf::from(format!("/dev/loop{number}"));
        if !path.exists() {
            let _ = std::fs::remove_file(scratch);
            mounts::make_device(scratch, libc::S_IFBLK, LOOP_MAJOR, number)?;
            path = scratch.to_path_buf();
        }
        let device = File::options().read(true).write(true).open(&path)?;
        let config = LoopConfig {
            fd: backing.as_raw_fd().cast_unsigned(),
            block_size: 0,
            head: [0; 13],
            flags: LO_FLAGS_AUTOCLEAR,
            tail: [0; 30],
        };
        // SAFETY: the struct has the layout that the kernel expects and outlives the call.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) }) {
            Ok(_) => return Ok((path, device)),
            // Somebody else took this one in the meantime.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error).context("LOOP_CONFIGURE (needs Linux 5.8)"),
        }
    }
}

/// Freezes the file system mounted at `target`: whoever writes to it waits.
pub fn freeze(target: &Path) -> Result<()> {
    frost(target, FIFREEZE).with_context(|| format!("freezing {}", target.display()))
}

/// Thaws it.
pub fn thaw(target: &Path) -> Result<()> {
    frost(target, FITHAW).with_context(|| format!("thawing {}", target.display()))
}

fn frost(target: &Path, request: u32) -> Result<()> {
    let root = File::open(target)?;
    // SAFETY: the argument is ignored by the kernel.
    check(unsafe { libc::ioctl(root.as_raw_fd(), request as _, 0) })?;
    Ok(())
}

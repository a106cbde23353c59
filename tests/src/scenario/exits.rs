//! Processes that are partly or almost gone.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::stage::{Stage, Undo};
use crate::sys::process::{self, Side};
use crate::sys::{fd, fuse, loopfs};
use crate::truth::{Counts, Holds, Truth};
use crate::worker::Order;

/// B1: three descriptors and a mapping (none with the argument `unmapped`, for devices that cannot be mapped); SIGKILL ends
/// the leader, the other thread waits for a frozen file system.
pub(super) fn frozen_thread(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let ext4 = stage.ext4()?;
    let worker = stage.worker()?;
    let fds = [worker.open(&node.path)?, worker.open(&node.path)?, worker.open(&node.path)?];
    let maps = !stage.arguments.iter().any(|word| word == "unmapped");
    if maps {
        worker.map(fds[0])?;
    }
    let thread = worker.thread()?;
    let file = thread.open_with(&ext4.join("data"), libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC)?;
    stage.freeze(&ext4)?;
    thread.order(Order::Write(file))?;
    thread.await_state("D")?;
    worker.signal(libc::SIGKILL)?;
    worker.await_state("Z")?;
    let mut holds = Holds::live(worker.pid)
        .tids(&[thread.tid])
        .states('D', 'Z')
        .why(&["thread-of-defunct", "stuck-in-kernel"])
        .device(&node.name, Counts { fds: 3, maps: u64::from(maps), files: 3, ..Counts::default() });
    holds.sigkill_pending = Some(true);
    stage.show(
        Truth::default()
            .holder(holds)
            .files(&node.name, 1, if maps { 2 } else { 1 })
            .files(&node.name, 2, 1)
            .note("the thread waits in the file system, not in the driver; SIGKILL is pending"),
    )?;

    loopfs::thaw(&ext4)?;
    worker.await_gone()?;
    stage.show_last(Truth::default().dead(worker.pid))
}

/// B2: the leader has ended by itself; two threads of it live.
pub(super) fn zombie_leader(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    worker.map(fd)?;
    let threads = [worker.thread()?, worker.thread()?];
    worker.end_thread()?;
    let holds = Holds::live(worker.pid)
        .tids(&[threads[0].tid, threads[1].tid])
        .states('S', 'Z')
        .why(&["thread-of-defunct"])
        .device(&node.name, Counts { fds: 1, maps: 1, files: 1, ..Counts::default() });
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 2))?;

    worker.signal(libc::SIGKILL)?;
    worker.await_gone()?;
    stage.show_last(Truth::default().dead(worker.pid))
}

/// B18: the fd table is already detached from the task, the device in it not yet closed.
pub(super) fn half_exited(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let (target, abort) = never_flushed(stage)?;
    let worker = stage.worker()?;
    let earlier = worker.open_with(&target.join(fuse::FILE), libc::O_RDONLY | libc::O_CLOEXEC)?;
    let device = worker.open(&node.path)?;
    if earlier > device {
        bail!("descriptor {device} would be closed before {earlier}, which is to block");
    }
    worker.signal(libc::SIGKILL)?;
    worker.await_state("D")?;
    stage.show(
        Truth::default()
            .half_exited(worker.pid)
            .files(&node.name, 1, 1)
            .note(format!("blocked in closing descriptor {earlier}; descriptor {device} is the device")),
    )?;

    fs::write(&abort, "1").with_context(|| format!("writing {}", abort.display()))?;
    worker.await_gone()?;
    stage.show_last(Truth::default().dead(worker.pid))
}

/// Mounts the file system whose FLUSH is never answered; returns its directory and what aborts it.
fn never_flushed(stage: &Stage) -> Result<(PathBuf, PathBuf)> {
    stage.need_private_mounts()?;
    let target = stage.dir().join("fuse");
    fs::create_dir(&target)?;
    let control = stage.dir().join("fusectl");
    stage.undo_later(&Undo::Unmount(control.clone()))?;
    stage.undo_later(&Undo::Unmount(target.clone()))?;
    let device = fuse::open()?;
    fuse::mount(&device, &target)?;
    serve(&device)?;
    drop(device);
    let abort = fuse::abort_file(&target, &control)?;
    stage.undo_later(&Undo::AbortFuse(abort.clone()))?;
    Ok((target, abort))
}

/// Forks the server, which keeps nothing but the FUSE device: with its end, the connection ends. The file system must be
/// mounted already, or there is nothing to serve.
fn serve(device: &fs::File) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    match process::fork()? {
        Side::Parent(_) => Ok(()),
        Side::Child => {
            let device = device.as_raw_fd();
            fd::close_all_but(device);
            fd::silence();
            let _ = process::die_with_parent(libc::SIGKILL);
            let _ = fuse::serve(device);
            process::exit_group(0)
        }
    }
}

/// The core file is to be created on a frozen file system: the dump has begun and cannot go on.
pub(super) fn dumping_core(stage: &mut Stage) -> Result<()> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    if pattern.starts_with(['|', '/', '@']) {
        bail!("core files do not go to the working directory here: kernel.core_pattern is {pattern:?}");
    }
    let node = stage.node().clone();
    let ext4 = stage.ext4()?;
    let worker = stage.worker()?;
    let fd = worker.open(&node.path)?;
    worker.map(fd)?;
    worker.order(Order::ChangeDir(ext4.clone()))?;
    stage.freeze(&ext4)?;
    worker.order(Order::DumpCore)?;
    worker.await_state("D")?;
    let holds = Holds::live(worker.pid)
        .states('D', 'D')
        .why(&["dumping-core"])
        .device(&node.name, Counts { fds: 1, maps: 1, files: 1, ..Counts::default() });
    stage.show(Truth::default().holder(holds).files(&node.name, 1, 2))?;

    loopfs::thaw(&ext4)?;
    worker.await_gone()?;
    stage.show_last(Truth::default().dead(worker.pid))
}

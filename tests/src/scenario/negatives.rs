//! B4: what looks like a holder and is none.

use anyhow::Result;

use crate::stage::Stage;
use crate::truth::Truth;

/// Opened and closed.
pub(super) fn open_close(stage: &mut Stage) -> Result<()> {
    let worker = stage.worker()?;
    let fd = worker.open(&stage.node().path)?;
    let mapping = worker.map_if_possible(fd)?;
    worker.close(fd)?;
    if let Some(mapping) = mapping {
        worker.unmap(mapping)?;
    }
    stage.show_last(Truth::default().innocent(worker.pid, "opened and closed"))
}

/// The child's exec dropped the descriptor; the parent has closed its own.
pub(super) fn exec_cloexec(stage: &mut Stage) -> Result<()> {
    let worker = stage.worker()?;
    let fd = worker.open(&stage.node().path)?;
    let child = worker.fork()?;
    child.exec()?;
    worker.close(fd)?;
    stage.show_last(
        Truth::default()
            .innocent(child.pid, "its exec closed the descriptor")
            .innocent(worker.pid, "closed its own"),
    )
}

/// The name alone means nothing.
pub(super) fn regular_file(stage: &mut Stage) -> Result<()> {
    let path = stage.dir().join(&stage.node().name);
    std::fs::write(&path, [0; 4096])?;
    let worker = stage.worker()?;
    let fd = worker.open(&path)?;
    worker.map(fd)?;
    stage.show_last(Truth::default().innocent(worker.pid, "holds a regular file"))
}

/// A process that has ended and is not reaped.
pub(super) fn zombie(stage: &mut Stage) -> Result<()> {
    let parent = stage.worker()?;
    let child = parent.fork()?;
    child.open(&stage.node().path)?;
    child.exit()?;
    stage.show_last(
        Truth::default()
            .innocent(child.pid, "a zombie, all its descriptors are closed")
            .innocent(parent.pid, "never opened anything"),
    )
}

/// A name without an open file behind it.
pub(super) fn o_path(stage: &mut Stage) -> Result<()> {
    let worker = stage.worker()?;
    worker.open_with(&stage.node().path, libc::O_PATH | libc::O_CLOEXEC)?;
    stage.show_last(Truth::default().innocent(worker.pid, "its descriptor is O_PATH"))
}

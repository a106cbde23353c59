//! Other namespaces.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth};
use crate::worker::Order;

/// Device number of a node.
pub(super) fn number(node: &Path) -> Result<(u32, u32)> {
    let rdev = std::fs::metadata(node).with_context(|| node.display().to_string())?.rdev();
    Ok((libc::major(rdev), libc::minor(rdev)))
}

/// B9: no path on the host leads to this node.
pub(super) fn other_node(stage: &mut Stage) -> Result<()> {
    stage.need_private_mounts()?;
    let node = stage.node().clone();
    let (major, minor) = number(&node.path)?;
    let root = stage.dir().join("root");
    std::fs::create_dir(&root)?;
    let worker = stage.worker()?;
    worker.order(Order::Unshare(libc::CLONE_NEWNS))?;
    worker.order(Order::MountTmpfs(root.clone()))?;
    worker.order(Order::MakeNode(root.join("card"), major, minor))?;
    worker.order(Order::ChangeRoot(root))?;
    let fd = worker.open(Path::new("/card"))?;
    worker.map(fd)?;
    let counts = Counts { fds: 1, maps: 1, files: 1, ..Counts::default() };
    let holds = Holds::live(worker.pid).device(&node.name, counts);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 2))
}

/// B10: PID 2 inside, something else outside.
pub(super) fn pid_namespace(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let maker = stage.worker()?;
    maker.order(Order::Unshare(libc::CLONE_NEWPID)).context("a PID namespace needs root")?;
    let init = maker.fork()?;
    let worker = init.fork()?;
    worker.open(&node.path)?;
    let mut holds = Holds::live(worker.pid).device(&node.name, Counts::fds(1));
    holds.pid_in_ns = Some(worker.pid_for_maker);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 1))
}

//! Who opened, who inherited, who merely looks like it.

use anyhow::{Context as _, Result};

use crate::stage::{Node, Stage};
use crate::truth::{Counts, Holds, Truth, to_hex};
use crate::worker::{Order, Spawn, Worker};

/// Children of the parent that is killed.
const CHILDREN: u32 = 50;

/// B3: a parent opens, forks, dies; its children hold until the last of them is gone.
pub(super) fn inherited(stage: &mut Stage) -> Result<()> {
    let nodes = stage.nodes().to_vec();
    let opens = stage.number(0, 8)?;
    let parent = stage.worker()?;
    for number in 0..opens {
        parent.open(&nodes[number as usize % nodes.len()].path)?;
    }
    let mut children = Vec::new();
    for number in 0..CHILDREN {
        let child = parent.fork()?;
        child.order(Order::NewSession)?;
        child.order(Order::Rename(child_name(number).into_bytes()))?;
        child.order(Order::Retitle(child_name(number).into_bytes()))?;
        children.push((number, child));
    }
    parent.kill()?;
    let mut dead = vec![parent.pid];
    loop {
        let truth = inherited_truth(&nodes, opens, &children, &dead);
        let words = stage.show(truth)?;
        let number: u32 = match words.first() {
            Some(word) => word.parse().with_context(|| format!("{word:?} is no child's number"))?,
            None => children.first().context("no child is left")?.0,
        };
        let place = children
            .iter()
            .position(|(one, _)| *one == number)
            .with_context(|| format!("child {number} is dead or was never born"))?;
        let (_, child) = children.remove(place);
        child.kill()?;
        dead.push(child.pid);
    }
}

fn child_name(number: u32) -> String {
    format!("heir-{number:02}")
}

fn inherited_truth(nodes: &[Node], opens: u32, children: &[(u32, Worker)], dead: &[u32]) -> Truth {
    let mut truth = Truth::default();
    for (place, node) in nodes.iter().enumerate() {
        let of_this = (0..opens as usize).filter(|number| number % nodes.len() == place).count() as u64;
        if of_this > 0 && !children.is_empty() {
            truth = truth.files(&node.name, of_this, children.len() as u64);
        }
    }
    for (number, child) in children {
        let mut holds = Holds::live(child.pid).states('S', 'S');
        holds.comm_hex = Some(to_hex(child_name(*number).as_bytes()));
        for file in &truth.files {
            let counts = holds.devices.entry(file.device.clone()).or_default();
            counts.fds += 1;
            counts.files += 1;
        }
        truth = truth.holder(holds);
    }
    truth.dead = dead.to_vec();
    truth
}

/// B12: whoever remembers the opener by its PID alone accuses an innocent.
pub(super) fn pid_reuse(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let opener = stage.worker()?;
    opener.open(&node.path)?;
    let heir = opener.fork()?;
    opener.kill()?;
    let maker = stage.worker()?;
    let innocent = maker.spawn(Spawn::WithPid(opener.pid)).context("giving a process a dead one's PID")?;
    let holds = Holds::live(heir.pid).device(&node.name, Counts::fds(1));
    stage.show_last(
        Truth::default()
            .holder(holds)
            .files(&node.name, 1, 1)
            .innocent(innocent.pid, "has the PID of the dead opener"),
    )
}

/// B12: an orphan's parent need not be PID 1.
pub(super) fn subreaper(stage: &mut Stage) -> Result<()> {
    let node = stage.node().clone();
    let reaper = stage.worker()?;
    reaper.order(Order::BecomeSubreaper)?;
    let opener = reaper.fork()?;
    opener.open(&node.path)?;
    let orphan = opener.fork()?;
    opener.exit()?;
    reaper.order(Order::Reap(opener.pid_for_maker))?;
    let mut holds = Holds::live(orphan.pid).device(&node.name, Counts::fds(1));
    holds.ppid = Some(reaper.pid);
    stage.show_last(
        Truth::default()
            .holder(holds)
            .files(&node.name, 1, 1)
            .dead(opener.pid)
            .innocent(reaper.pid, "only adopted the orphan"),
    )
}

/// A process of the user `nobody`, as that user's own tools may look at it.
pub(super) fn other_user(stage: &mut Stage) -> Result<()> {
    const NOBODY: u32 = 65534;
    let node = stage.node().clone();
    let worker = stage.worker()?;
    worker.order(Order::BecomeUser(NOBODY)).context("becoming another user needs root")?;
    let fd = worker.open(&node.path)?;
    let mapped = u64::from(worker.map_if_possible(fd)?.is_some());
    let counts = Counts { fds: 1, maps: mapped, files: 1, ..Counts::default() };
    let mut holds = Holds::live(worker.pid).device(&node.name, counts);
    holds.uid = Some(NOBODY);
    stage.show_last(Truth::default().holder(holds).files(&node.name, 1, 1 + mapped))
}

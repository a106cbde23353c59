//! Steps that change what is around a task and nothing of what it holds: its name, its root, its network.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::cast::Cast;
use super::model::Id;
use super::step::{Kind, Step, pick};
use crate::worker::Order;

impl Cast {
    /// Carries out such a step.
    pub(super) fn move_to(&mut self, task: Id, step: &Step) -> Result<bool> {
        let (worker, process) = (self.worker(task)?, self.model.tasks[&task].process);
        let [_, which, how] = step.choice;
        let said = match step.kind {
            Kind::Rename => {
                // Other threads have names of their own.
                if worker.tid != worker.pid {
                    return Ok(false);
                }
                let name = format!("exam {}", which % 1000);
                worker.order(Order::Rename(name.clone().into_bytes()))?;
                self.model.rename(process, &name);
                format!("takes the name {name:?}")
            }
            _ if self.rooted.contains(&process) || self.is_first(process) => return Ok(false),
            Kind::ChangeRoot => {
                let Some(directory) = self.nodes[0].0.parent() else { return Ok(false) };
                worker.order(Order::ChangeRoot(directory.to_owned()))?;
                self.rooted.insert(process);
                format!("chroot({})", directory.display())
            }
            // What it leaves behind may be kept by nothing but its sockets.
            _ if how.is_multiple_of(2) => {
                worker.order(Order::Unshare(libc::CLONE_NEWNET))?;
                "unshare(CLONE_NEWNET)".to_owned()
            }
            _ => {
                let tasks: Vec<Id> = self.model.tasks.keys().copied().collect();
                let Some(other) = pick(&tasks, which) else { return Ok(false) };
                let other = self.worker(other)?;
                let path = format!("/proc/{}/task/{}/ns/net", other.pid, other.tid);
                worker.order(Order::JoinNamespace(PathBuf::from(&path)))?;
                format!("setns({path})")
            }
        };
        self.note(task, &said);
        Ok(true)
    }

    /// The path of a node, as a task has it.
    pub(super) fn as_seen_by(&self, task: Id, path: PathBuf) -> PathBuf {
        let name = path.file_name().filter(|_| self.rooted.contains(&self.model.tasks[&task].process));
        name.map(|name| Path::new("/").join(name)).unwrap_or(path)
    }
}

//! Network namespaces: unix sockets are listed per namespace, so one has to go into each.

use std::{collections::BTreeMap, fs::File, io, os::fd::AsFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::model::Task;

/// One network namespace with a task that lives in it.
pub(super) struct NetworkNamespace {
    /// Inode number.
    pub(super) inode: u32,
    /// Processes in it, any of which leads there as long as it lives.
    members: Vec<u32>,
}

/// All namespaces that have a live task.
pub(super) fn of_tasks(tasks: &[Task]) -> Vec<NetworkNamespace> {
    const ENOUGH: usize = 8;
    let mut namespaces: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.net_ns != 0 && !task.is_dead()) {
        let members = namespaces.entry(task.net_ns).or_default();
        if members.len() < ENOUGH && members.last() != Some(&task.tid) {
            members.push(task.tid);
        }
    }
    namespaces.into_iter().map(|(inode, members)| NetworkNamespace { inode, members }).collect()
}

/// The namespace of the calling thread.
fn ours() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self/ns/net").ok()?;
    link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

impl NetworkNamespace {
    /// Moves the calling thread into it. The thread should end afterwards.
    pub(super) fn enter(&self) -> io::Result<()> {
        if Some(self.inode) == ours() {
            return Ok(());
        }
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for tid in &self.members {
            // `/proc/TID` exists for threads too, though it is not listed.
            let entered = File::open(format!("/proc/{tid}/ns/net")).and_then(|namespace| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(io::Error::from)
            });
            match entered {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

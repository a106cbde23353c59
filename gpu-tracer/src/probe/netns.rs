//! Network namespaces: unix sockets are listed per namespace, so one has to go into each.

use std::{collections::BTreeMap, fs::File, io, os::fd::AsFd};

use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

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
    /// Moves the calling thread into it, which should end afterwards. `false`: nobody lives in it any more.
    pub(super) fn enter(&self) -> io::Result<bool> {
        if Some(self.inode) == ours() {
            return Ok(true);
        }
        let gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
        };
        for tid in &self.members {
            match enter_that_of(*tid) {
                Err(error) if gone(&error) => {}
                other => return other.map(|()| true),
            }
        }
        // All of them have ended since, which is what processes of containers do. There may be others.
        for tid in self.latecomers() {
            match enter_that_of(tid) {
                Err(error) if gone(&error) => {}
                other => return other.map(|()| true),
            }
        }
        Ok(false)
    }

    /// Processes that are in it now.
    fn latecomers(&self) -> Vec<u32> {
        let link = format!("net:[{}]", self.inode);
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            std::fs::read_link(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|target| target.to_str() == Some(link.as_str()))
        })
        .collect()
    }
}

/// Moves the calling thread into the network namespace of a task.
fn enter_that_of(tid: u32) -> io::Result<()> {
    // `/proc/TID` exists for threads too, though it is not listed.
    let namespace = File::open(format!("/proc/{tid}/ns/net"))?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_whose_members_have_all_ended_is_nobodys_and_no_error() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let members = vec![child.id()];
        child.wait().expect("it ends");
        let inode = 1;
        assert!(!NetworkNamespace { inode, members }.enter().expect("nobody lives there"));
    }

    #[test]
    fn a_namespace_is_found_by_whoever_lives_in_it_now() {
        let inode = ours().expect("we live in one");
        let found = NetworkNamespace { inode, members: Vec::new() }.latecomers();
        assert!(found.contains(&std::process::id()), "{found:?}");
    }
}

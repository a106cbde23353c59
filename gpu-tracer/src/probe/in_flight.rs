//! The passes that find descriptors in flight, and who could receive them.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpu_tracer_common::snapshot::{
    FILE_SOCKET, HOLD_IN_FLIGHT, HOLD_NAMESPACE, HOLD_UNACCEPTED, HoldRecord, mode,
};

use super::{
    Iterators, ProbeError, netns, programs::Sockets, snapshot::not_followed, socket_table::chains_of,
    spares::Spare, sys,
};
use crate::model::{Missing, Task, counted};

impl Iterators {
    /// What is queued in unix sockets?
    pub(super) fn pass_sockets(
        &mut self,
        tasks: &[Task],
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
        within: Duration,
    ) -> Result<(), ProbeError> {
        match &self.sockets {
            Sockets::Iterator(each) => {
                let each = each.try_clone().map_err(ProbeError::Thread)?;
                self.pass_namespaces(each, tasks, holds, missing, within)
            }
            Sockets::Table(link, chains) => {
                let (link, chains) = (link.try_clone().map_err(ProbeError::Thread)?, chains.clone());
                self.pass_chains(&link, &chains, holds, missing)
            }
            Sockets::Unseen(why) => {
                missing.push(unseen(format!("descriptors queued in sockets cannot be seen: {why}")));
                Ok(())
            }
        }
    }

    /// In one network namespace after the other, and then in those that nobody could go into.
    fn pass_namespaces(
        &mut self,
        each: OwnedFd,
        tasks: &[Task],
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
        within: Duration,
    ) -> Result<(), ProbeError> {
        let entered = Arc::new(Mutex::new(HashSet::new()));
        let mut namespaces = netns::of_tasks(tasks).into_iter();
        let enter = {
            let entered = Arc::clone(&entered);
            move || {
                loop {
                    let namespace = namespaces.next()?;
                    match namespace.enter() {
                        Ok(true) => {
                            entered
                                .lock()
                                .unwrap_or_else(PoisonError::into_inner)
                                .insert(u64::from(namespace.inode));
                            return Some(sys::open_iterator(each.as_fd()).map_err(io::Error::other));
                        }
                        Ok(false) => {}
                        Err(error) => {
                            let why = format!("network namespace {}: {error}", namespace.inode);
                            return Some(Err(io::Error::new(error.kind(), why)));
                        }
                    }
                }
            }
        };
        self.start(mode::DEVICES, |control| control.list_namespaces = 1)?;
        let first = holds.len();
        let reading = Self::begin("unix", enter)?;
        match self.finish(reading, within, holds) {
            Ok(refused) => missing.extend(
                refused
                    .into_iter()
                    .map(|error| unseen(format!("descriptors queued in sockets cannot be seen in {error}"))),
            ),
            Err(error @ (ProbeError::Hung { .. } | ProbeError::Overflow { .. })) => {
                missing.push(unseen(error.to_string()));
            }
            Err(error) => return Err(error),
        }
        let truncated = self.truncated()?;
        if truncated > 0 {
            missing.push(unseen(not_followed(truncated, "queue of a socket", "queues of sockets")));
        }
        if !self.has_listed_namespaces()? {
            missing.push(unseen("network namespaces could not be listed, there are too many".to_owned()));
        }
        let listed: Vec<HoldRecord> =
            holds.extract_if(first.., |hold| hold.header.kind == HOLD_NAMESPACE).collect();
        let entered = entered.lock().unwrap_or_else(PoisonError::into_inner);
        self.pass_deserted(&listed, &entered, holds, missing)
    }

    /// In network namespaces that no task lives in: an open file, a mount or nothing but their sockets keeps them.
    fn pass_deserted(
        &mut self,
        listed: &[HoldRecord],
        entered: &HashSet<u64>,
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), ProbeError> {
        let is_deserted = |namespace: &&HoldRecord| !entered.contains(&namespace.by);
        let tables: HashSet<u64> =
            listed.iter().filter(is_deserted).map(|namespace| namespace.file).collect();
        if tables.is_empty() {
            return Ok(());
        }
        match self.spares.link(Spare::SocketTables) {
            Ok(program) => {
                let chains: Vec<u64> = tables.into_iter().flat_map(chains_of).collect();
                self.pass_chains(&program, &chains, holds, missing)
            }
            Err(why) => {
                missing.push(unseen(format!(
                    "descriptors queued in sockets of {} that no task lives in cannot be seen: {why}",
                    counted(tables.len(), "network namespace", "network namespaces")
                )));
                Ok(())
            }
        }
    }

    /// In these chains of a table of sockets.
    fn pass_chains(
        &mut self,
        program: &OwnedFd,
        chains: &[u64],
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), ProbeError> {
        match self.look_closer(program, chains, holds) {
            Ok(0) => {}
            Ok(truncated) => missing.push(unseen(not_followed(
                truncated,
                "list of sockets or of what is queued in one",
                "lists of sockets or of what is queued in one",
            ))),
            Err(error @ ProbeError::Overflow { .. }) => missing.push(unseen(error.to_string())),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Who has the sockets in which device files were found?
    pub(super) fn pass_carriers(
        &mut self,
        holds: &mut Vec<HoldRecord>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), ProbeError> {
        let in_flight = |hold: &&HoldRecord| matches!(hold.header.kind, HOLD_IN_FLIGHT | HOLD_UNACCEPTED);
        if !holds.iter().any(|hold| hold.header.kind == HOLD_IN_FLIGHT && hold.file_kind != FILE_SOCKET) {
            return Ok(());
        }
        let sockets: HashSet<u64> = holds.iter().filter(in_flight).map(|hold| hold.by).collect();
        let left_out = self.set_carriers(sockets.into_iter())?;
        if left_out > 0 {
            missing.push(unseen(format!(
                "owners of {} with descriptors in flight were not looked for",
                counted(left_out, "socket", "sockets")
            )));
        }
        self.start(mode::CARRIERS, |_| ())?;
        let file = sys::open_iterator(self.tasks.as_fd())?;
        self.read_pass("task", file, holds).map(drop)
    }
}

fn unseen(why: String) -> Missing {
    Missing { what: "in-flight", why }
}

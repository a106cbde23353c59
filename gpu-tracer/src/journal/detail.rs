//! What an event has beyond its columns, as JSON in `event.detail`.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::record::ProcessRecord;
use super::store::Store;
use crate::model::change::{Change, ChangeKind, Killer};
use crate::model::event::{Exit, Sender};

/// What an event has beyond its columns; processes are rows of `process`. Fields may be added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Detail {
    /// The task, where that is not the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tid: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) from: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) by: Vec<i64>,
    /// Thread-group ids of the parents before and now: nothing more is known of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parents: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) by_kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) old: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) new: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_status: Option<u8>,
    /// Other tasks of the process had yet to exit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) others_left: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    /// It had happened by then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) by_then: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_kill_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_exit_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since_ns: Option<u64>,
}

impl Detail {
    /// From the column. What a later version has added, or what is broken, is left out.
    pub(super) fn parse(text: Option<&str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

impl Store {
    /// What a change has beyond its columns.
    pub(super) fn detail(&mut self, db: &Connection, change: &Change) -> rusqlite::Result<Detail> {
        let at_ns = change.at_ns;
        let mut detail = Detail { by_then: change.kind.is_by_then(), ..Detail::default() };
        let other_task = |tid: u32| change.process.is_some_and(|process| process.tgid != tid).then_some(tid);
        match &change.kind {
            ChangeKind::Opening { task } | ChangeKind::Releasing { task } => {
                detail.tid = (!task.is_leader()).then_some(task.tid);
            }
            ChangeKind::OpenFailed { error } => detail.errno = Some(-error).filter(|errno| *errno > 0),
            ChangeKind::Inherited { from } => detail.from = vec![self.ids.process(db, *from, at_ns)?],
            ChangeKind::HandedOver { from } => {
                detail.from = from
                    .iter()
                    .map(|from| self.ids.process(db, *from, at_ns))
                    .collect::<rusqlite::Result<_>>()?;
            }
            ChangeKind::Closed { cause } => detail.cause = Some(cause.word().to_owned()),
            ChangeKind::Renamed { tid, old, new } => {
                detail.tid = other_task(*tid);
                (detail.old, detail.new) = (Some(old.to_text()), Some(new.to_text()));
            }
            ChangeKind::Execed { comm } => detail.new = Some(comm.to_text()),
            ChangeKind::Reparented { from, to } => {
                detail.parents = Some((*from, *to));
            }
            ChangeKind::Signalled { by, signal } => {
                detail.signal = Some(*signal);
                self.blame(db, &mut detail, by, at_ns)?;
            }
            ChangeKind::Killed { by } => {
                detail.signal = Some(libc::SIGKILL);
                self.blame(db, &mut detail, by, at_ns)?;
            }
            ChangeKind::Exiting { tid, group_dead, exit, by } => {
                detail.others_left = !group_dead;
                detail.tid = other_task(*tid);
                ending(&mut detail, *exit);
                if let Some(by) = by {
                    self.blame(db, &mut detail, by, at_ns)?;
                }
            }
            ChangeKind::Detached { by } => {
                detail.by = by
                    .iter()
                    .map(|task| self.ids.process(db, task.process, at_ns))
                    .collect::<rusqlite::Result<_>>()?;
            }
            ChangeKind::Released { how, after_kill_ns, after_exit_ns, .. } => {
                detail.cause = Some(how.word().to_owned());
                detail.after_kill_us = after_kill_ns.map(|ns| ns / 1000);
                detail.after_exit_us = after_exit_ns.map(|ns| ns / 1000);
            }
            ChangeKind::Gap(gap) => {
                detail.since_ns = Some(gap.from_ns);
                (detail.cause, detail.count) = (Some(gap.cause.word()), gap.cause.events());
            }
            ChangeKind::Module { name, .. } => detail.cause = Some(name.clone()),
            ChangeKind::Opened { .. }
            | ChangeKind::Mapped { .. }
            | ChangeKind::Unmapped
            | ChangeKind::DescriptorsClosed
            | ChangeKind::Queued
            | ChangeKind::Registered
            | ChangeKind::Pinned
            | ChangeKind::Found
            | ChangeKind::Exited
            | ChangeKind::Unreferenced
            | ChangeKind::Deferred => {}
        }
        Ok(detail)
    }

    fn blame(
        &mut self,
        db: &Connection,
        detail: &mut Detail,
        by: &Killer,
        at_ns: u64,
    ) -> rusqlite::Result<()> {
        match by {
            Killer::Process(Sender { task, comm, uid }) => {
                let record = ProcessRecord {
                    process: task.process,
                    at_ns,
                    comm: comm.clone(),
                    uid: Some(*uid),
                    parent: None,
                    description: None,
                };
                self.ids.describe(db, &record)?;
                detail.by = vec![self.ids.process(db, task.process, at_ns)?];
            }
            Killer::Kernel => detail.by_kernel = Some("kernel".to_owned()),
            Killer::OutOfMemory => detail.by_kernel = Some("out-of-memory".to_owned()),
        }
        Ok(())
    }
}

fn ending(detail: &mut Detail, exit: Exit) {
    (detail.signal, detail.exit_status) = (exit.signal(), exit.status());
    if exit.dumped_core() {
        detail.cause = Some("core-dump".to_owned());
    }
}

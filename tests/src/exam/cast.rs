//! Carries steps out with real workers, and tells the model what they answered.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::compare::Family;
use super::model::{Entry, Id, Mapped, Model, Object, Sharing};
use super::moment;
use super::step::{Kind, Step, pick};
use crate::harness::Device;
use crate::proc;
use crate::worker::{Order, Reply, Spawn, Worker};

const PAGE: usize = 4096;

/// Descriptors in one table, at most: tables are copied with every fork.
const MOST_ENTRIES: usize = 32;
/// Mappings in one address space, at most.
const MOST_MAPPINGS: usize = 16;
/// Messages waiting at one end, at most.
const MOST_MESSAGES: usize = 6;
/// Threads of one process, at most.
const MOST_TASKS: usize = 6;
/// Where `dup2` goes when it replaces nothing: above whatever else is open.
const HIGH: u64 = 900;

fn started(worker: &Worker) -> Result<u64> {
    proc::started(worker.pid)?.with_context(|| format!("worker {} is gone", worker.pid))
}

/// The workers and what they hold.
#[derive(Debug)]
pub struct Cast {
    /// What must be so.
    pub model: Model,
    /// Every PID there was since the last question. Those that ended before that may be anybody's by now.
    pub family: Family,
    /// What was done, in words.
    pub log: Vec<String>,
    pub(super) workers: BTreeMap<Id, Worker>,
    pub(super) nodes: Vec<(PathBuf, String)>,
    /// Processes whose root is the directory of the nodes.
    pub(super) rooted: BTreeSet<Id>,
    /// Tasks of processes that share memory: they can close and end, and no more.
    bare: BTreeSet<Id>,
    first: Id,
    most_processes: usize,
}

impl Cast {
    /// One worker that holds nothing and never ends. Forks this process.
    pub fn start(device: &Device, most_processes: usize) -> Result<Self> {
        // Workers inherit that nobody need reap their children; this process waits for its own.
        // SAFETY: these dispositions run no code.
        let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let worker = Worker::start();
        // SAFETY: as above; it is what was there before.
        unsafe { libc::signal(libc::SIGCHLD, before) };
        let worker = worker?;
        let mut model = Model::default();
        let first = model.start(worker.pid);
        Ok(Self {
            model,
            family: Family::from([(worker.pid, started(&worker)?)]),
            log: Vec::new(),
            workers: BTreeMap::from([(first, worker)]),
            nodes: device.nodes().map(|(path, name)| (path.to_owned(), name.to_owned())).collect(),
            rooted: BTreeSet::new(),
            bare: BTreeSet::new(),
            first,
            most_processes,
        })
    }

    /// A question was asked about all that is so far, and the answer was right.
    pub fn asked(&mut self) {
        self.model.asked();
        let living: BTreeSet<u32> = self.model.processes.values().map(|process| process.pid).collect();
        self.family.retain(|pid, _| living.contains(pid));
    }

    /// Ends all processes and waits until they are gone.
    pub fn end(self) -> Result<()> {
        let leaders: BTreeMap<u32, &Worker> =
            self.workers.values().map(|worker| (worker.pid, worker)).collect();
        for worker in leaders.values() {
            // One may have ended already, after a failure.
            let _ = worker.signal(libc::SIGKILL);
        }
        leaders.values().try_for_each(|worker| worker.await_gone())
    }

    /// Carries out one step. Was there anything that it could be done to?
    pub fn act(&mut self, step: &Step) -> Result<bool> {
        let tasks: Vec<Id> = self.model.tasks.keys().copied().collect();
        let task = pick(&tasks, step.choice[0]).context("the first worker never ends")?;
        self.model.next_step();
        if self.bare.contains(&task) && !matches!(step.kind, Kind::Close | Kind::Exit | Kind::Kill) {
            return Ok(false);
        }
        let done = match step.kind {
            Kind::Open | Kind::Dup | Kind::Dup2 | Kind::Close | Kind::Take => self.on_descriptors(task, step),
            Kind::Map | Kind::Unmap | Kind::Split | Kind::Remap => self.on_mappings(task, step),
            Kind::SocketPair | Kind::Send | Kind::Receive | Kind::Drop => self.on_sockets(task, step),
            Kind::Fork | Kind::ShareTable | Kind::ShareMemory | Kind::Thread => self.make(task, step),
            Kind::Rename | Kind::ChangeRoot | Kind::Namespace => self.move_to(task, step),
            Kind::Unshare | Kind::Exec | Kind::EndThread | Kind::Exit | Kind::Kill => {
                self.change(task, step.kind)
            }
        };
        done.with_context(|| format!("task {task} at {:?}", step.kind))
    }

    pub(super) fn worker(&self, task: Id) -> Result<&Worker> {
        self.workers.get(&task).with_context(|| format!("no worker plays task {task}"))
    }

    pub(super) fn note(&mut self, task: Id, what: &str) {
        let who = match self.workers.get(&task) {
            Some(worker) if worker.tid == worker.pid => format!("{}", worker.pid),
            Some(worker) => format!("{}/{}", worker.pid, worker.tid),
            None => format!("(task {task})"),
        };
        self.log.push(format!("{who} {what}"));
    }

    fn has_room(&self, task: Id) -> bool {
        self.model.table(task).len() < MOST_ENTRIES
    }

    fn devices_of(&self, task: Id) -> Vec<(c_int, Id)> {
        self.model.table(task).iter().filter_map(|(fd, entry)| Some((*fd, entry.file()?))).collect()
    }

    fn on_descriptors(&mut self, task: Id, step: &Step) -> Result<bool> {
        let all: Vec<(c_int, Entry)> =
            self.model.table(task).iter().map(|(fd, entry)| (*fd, *entry)).collect();
        let [_, which, how] = step.choice;
        let said = match step.kind {
            Kind::Open if self.has_room(task) => self.open(task, which, how)?,
            Kind::Take if self.has_room(task) => match self.take(task, which, how)? {
                Some(said) => said,
                None => return Ok(false),
            },
            Kind::Dup if self.has_room(task) => {
                let Some((from, entry)) = pick(&all, which) else { return Ok(false) };
                let to = self.worker(task)?.dup(from)?;
                self.model.put(task, to, Entry { cloexec: false, ..entry });
                format!("dup({from}) = {to}")
            }
            Kind::Dup2 => {
                let Some((from, entry)) = pick(&all, which) else { return Ok(false) };
                let to = if how.is_multiple_of(4) && self.has_room(task) {
                    (HIGH + how / 4 % 50) as c_int
                } else {
                    pick(&all, how / 4).map_or(from, |(to, _)| to)
                };
                if to == from {
                    return Ok(false);
                }
                self.worker(task)?.dup2(from, to)?;
                self.model.put(task, to, Entry { cloexec: false, ..entry });
                format!("dup2({from}, {to})")
            }
            Kind::Close => {
                let Some((fd, _)) = pick(&all, which) else { return Ok(false) };
                self.worker(task)?.close(fd)?;
                self.model.close(task, fd);
                format!("close({fd})")
            }
            _ => return Ok(false),
        };
        self.note(task, &said);
        Ok(true)
    }

    fn open(&mut self, task: Id, which: u64, how: u64) -> Result<String> {
        // Mostly the one that can be mapped.
        let (path, name) = self.nodes[if which.is_multiple_of(4) { self.nodes.len() - 1 } else { 0 }].clone();
        let path = self.as_seen_by(task, path);
        let cloexec = how.is_multiple_of(2);
        let flags = libc::O_RDWR | if cloexec { libc::O_CLOEXEC } else { 0 };
        let begun = moment::now();
        let fd = self.worker(task)?.open_with(&path, flags)?;
        self.model.open(task, fd, &name, cloexec, (begun, moment::now()));
        Ok(format!("open({name}{}) = {fd}", if cloexec { ", O_CLOEXEC" } else { "" }))
    }

    fn take(&mut self, task: Id, which: u64, how: u64) -> Result<Option<String>> {
        let tasks: Vec<Id> = self.model.tasks.keys().copied().collect();
        let Some(other) = pick(&tasks, which) else { return Ok(None) };
        let worker = self.worker(other)?;
        // pidfd_open takes processes, and what it gets at is the leader's table.
        if worker.tid != worker.pid {
            return Ok(None);
        }
        let pid = worker.pid;
        let Some((from, file)) = pick(&self.devices_of(other), how) else { return Ok(None) };
        let to = self.worker(task)?.take(pid, from)?;
        self.model.put(task, to, Entry { object: Object::File(file), cloexec: true, since: 0 });
        Ok(Some(format!("pidfd_getfd({pid}, {from}) = {to}")))
    }

    fn on_mappings(&mut self, task: Id, step: &Step) -> Result<bool> {
        let [_, which, how] = step.choice;
        let said = match step.kind {
            Kind::Map => {
                let first = self.nodes[0].1.clone();
                let mut devices = self.devices_of(task);
                devices.retain(|(_, file)| self.model.device(*file) == first);
                let Some((fd, file)) = pick(&devices, which) else { return Ok(false) };
                if self.model.memory(task).len() >= MOST_MAPPINGS {
                    return Ok(false);
                }
                let pages = if how.is_multiple_of(2) { 1 } else { 3 };
                let at = self.address(task, &Order::Map(fd, pages * PAGE))?;
                self.model.map(task, Mapped { at, pages, file, part: false, offset: 0, since: 0 });
                format!("mmap({fd}, {pages} pages) = {at:#x}")
            }
            Kind::Unmap => {
                let Some(mapped) = pick(self.model.memory(task), which) else { return Ok(false) };
                self.worker(task)?.order(Order::Unmap(mapped.at, mapped.pages * PAGE))?;
                self.model.unmap(task, mapped.at);
                format!("munmap({:#x}, {} pages)", mapped.at, mapped.pages)
            }
            Kind::Split => {
                let whole = self.whole_mappings(task, |pages| pages == 3);
                let Some(mapped) = pick(&whole, which) else { return Ok(false) };
                let middle = mapped.at + PAGE as u64;
                self.worker(task)?.order(Order::Unmap(middle, PAGE))?;
                self.model.unmap(task, mapped.at);
                for page in [0, 2] {
                    let (at, offset) = (mapped.at + page * PAGE as u64, mapped.offset + page);
                    self.model.map(task, Mapped { at, pages: 1, part: true, offset, ..mapped });
                }
                format!("munmap({middle:#x}, 1 page), the middle")
            }
            _ => {
                // What is left of a larger one may grow together with the rest again.
                let Some(mapped) = pick(&self.whole_mappings(task, |_| true), which) else {
                    return Ok(false);
                };
                let pages = (1 + how % 4) as usize;
                let order = Order::Remap(mapped.at, mapped.pages * PAGE, pages * PAGE);
                let at = self.address(task, &order)?;
                self.model.unmap(task, mapped.at);
                let offset = if at == mapped.at { mapped.offset } else { at / PAGE as u64 };
                self.model.map(task, Mapped { at, pages, offset, ..mapped });
                format!("mremap({:#x}, {} to {pages} pages) = {at:#x}", mapped.at, mapped.pages)
            }
        };
        self.note(task, &said);
        Ok(true)
    }

    fn whole_mappings(&self, task: Id, fits: fn(usize) -> bool) -> Vec<Mapped> {
        self.model.memory(task).iter().filter(|mapped| !mapped.part && fits(mapped.pages)).copied().collect()
    }

    fn address(&self, task: Id, order: &Order) -> Result<u64> {
        match self.worker(task)?.tell(order)? {
            Reply::At(at) => Ok(at),
            other => bail!("answered {other:?} to {order:?}"),
        }
    }

    fn on_sockets(&mut self, task: Id, step: &Step) -> Result<bool> {
        let [_, which, how] = step.choice;
        if step.kind == Kind::SocketPair {
            if self.model.table(task).len() + 2 > MOST_ENTRIES {
                return Ok(false);
            }
            let fds = self.worker(task)?.socket_pair()?;
            self.model.socket_pair(task, fds);
            self.note(task, &format!("socketpair() = {}, {}", fds.0, fds.1));
            return Ok(true);
        }
        let sockets = self.model.table(task).iter().filter_map(|(fd, entry)| match entry.object {
            Object::Socket(end) => Some((*fd, end)),
            Object::File(_) => None,
        });
        if step.kind == Kind::Send {
            let sockets: Vec<(c_int, Id)> = sockets.collect();
            return self.send(task, pick(&sockets, which), how);
        }
        let waiting: Vec<(c_int, Id)> = sockets.filter(|(_, end)| self.model.queued(*end) > 0).collect();
        let Some((fd, end)) = pick(&waiting, which) else { return Ok(false) };
        if step.kind == Kind::Drop {
            self.worker(task)?.order(Order::ReceiveWithoutFds(fd))?;
            let files = self.model.dequeue(end);
            self.note(task, &format!("recv({fd}), {} descriptors dropped", files.len()));
            return Ok(true);
        }
        if self.model.table(task).len() + 3 > MOST_ENTRIES {
            return Ok(false);
        }
        let fds = self.worker(task)?.receive(fd)?;
        let files = self.model.dequeue(end);
        if fds.len() != files.len() {
            bail!("received {} descriptors, sent were {}", fds.len(), files.len());
        }
        for (fd, file) in fds.iter().zip(files) {
            self.model.put(task, *fd, Entry { object: Object::File(file), cloexec: true, since: 0 });
        }
        self.note(task, &format!("recvmsg({fd}) = {fds:?}"));
        Ok(true)
    }

    fn send(&mut self, task: Id, through: Option<(c_int, Id)>, how: u64) -> Result<bool> {
        let Some((through, end)) = through else { return Ok(false) };
        let devices = self.devices_of(task);
        let Some(peer) = self.model.open_peer(end) else { return Ok(false) };
        if devices.is_empty() || self.model.queued(peer) >= MOST_MESSAGES {
            return Ok(false);
        }
        let count = 1 + how % 3;
        let sent: Vec<(c_int, Id)> = (0..count).filter_map(|n| pick(&devices, how / 3 + n * 7)).collect();
        let fds: Vec<c_int> = sent.iter().map(|(fd, _)| *fd).collect();
        self.worker(task)?.send(through, &fds)?;
        self.model.enqueue(peer, sent.iter().map(|(_, file)| *file).collect());
        self.note(task, &format!("sendmsg({through}, {fds:?})"));
        Ok(true)
    }

    fn make(&mut self, task: Id, step: &Step) -> Result<bool> {
        let process = self.model.tasks[&task].process;
        if step.kind == Kind::Thread {
            if self.model.tasks_of(process).len() >= MOST_TASKS {
                return Ok(false);
            }
            let worker = self.worker(task)?.thread()?;
            self.note(task, &format!("starts thread {}", worker.tid));
            let thread = self.model.thread(task);
            self.workers.insert(thread, worker);
            return Ok(true);
        }
        if self.model.processes.len() >= self.most_processes {
            return Ok(false);
        }
        let memory = step.kind == Kind::ShareMemory;
        let table = step.kind == Kind::ShareTable || memory && step.choice[2].is_multiple_of(2);
        let (spawn, how) = match (memory, table) {
            (true, true) => (Spawn::SharingMemory { table }, "clone(CLONE_VM | CLONE_FILES)"),
            (true, false) => (Spawn::SharingMemory { table }, "clone(CLONE_VM)"),
            (false, true) => (Spawn::SharingTable, "clone(CLONE_FILES)"),
            (false, false) => (Spawn::Process, "fork()"),
        };
        let maker = self.worker(task)?;
        // It goes on with the thread-local storage of its maker, and only a leader's stays for as long as the memory.
        if memory && maker.tid != maker.pid {
            return Ok(false);
        }
        let worker = maker.spawn(spawn)?;
        self.note(task, &format!("{how} = {}", worker.pid));
        self.family.insert(worker.pid, started(&worker)?);
        let child = self.model.fork(task, worker.pid, Sharing { table, memory });
        self.workers.insert(child, worker);
        if memory {
            self.bare.insert(child);
        }
        if self.rooted.contains(&process) {
            self.rooted.insert(self.model.tasks[&child].process);
        }
        Ok(true)
    }

    fn change(&mut self, task: Id, kind: Kind) -> Result<bool> {
        let process = self.model.tasks[&task].process;
        if self.is_first(process) {
            return Ok(false);
        }
        match kind {
            Kind::Unshare => {
                self.worker(task)?.order(Order::Unshare(libc::CLONE_FILES))?;
                self.note(task, "unshare(CLONE_FILES)");
                self.model.unshare(task);
            }
            // Below another root there is no program that could be executed.
            Kind::Exec if self.rooted.contains(&process) => return Ok(false),
            Kind::Exec => {
                self.note(task, "execve()");
                self.worker(task)?.exec()?;
                for ended in self.model.exec(task) {
                    self.workers.remove(&ended);
                }
                if let Some(worker) = self.workers.get_mut(&task) {
                    worker.tid = worker.pid;
                }
            }
            Kind::EndThread if self.model.tasks_of(process).len() > 1 => {
                self.note(task, "ends this thread");
                self.worker(task)?.end_thread()?;
                self.model.end_task(task);
                self.workers.remove(&task);
            }
            Kind::EndThread => return Ok(false),
            Kind::Exit => {
                self.note(task, "exit_group()");
                self.worker(task)?.exit()?;
                self.bury(process);
            }
            _ => {
                self.note(task, "is sent SIGKILL");
                self.worker(task)?.kill()?;
                self.bury(process);
            }
        }
        Ok(true)
    }

    /// Is it the one that all others descend from, and that never ends?
    pub(super) fn is_first(&self, process: Id) -> bool {
        self.model.tasks.get(&self.first).is_some_and(|first| first.process == process)
    }

    fn bury(&mut self, process: Id) {
        for ended in self.model.end_process(process) {
            self.workers.remove(&ended);
        }
    }
}

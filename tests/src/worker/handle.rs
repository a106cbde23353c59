//! The conductor's end of a worker.

use std::ffi::c_int;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rustix::net::SocketType;

use super::{LONGEST, Order, Reply, Spawn, bare, obey};
use crate::poll::{PATIENCE, until};
use crate::proc;
use crate::sys::{fd, process, process::Side, socket};

/// Bytes of one mapping.
const PAGE: usize = 4096;

/// A mapping in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub at: u64,
    /// Bytes.
    pub length: usize,
}

/// A process or thread that does what it is told. Dropping it ends the process (a thread takes its process along).
#[derive(Debug)]
pub struct Worker {
    channel: c_int,
    /// Thread-group id on the host.
    pub pid: u32,
    /// Thread id on the host.
    pub tid: u32,
    /// PID as its maker sees it; 0 for a thread.
    pub pid_for_maker: u32,
    bare: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = fd::close(self.channel);
    }
}

impl Worker {
    /// Forks a worker from this process, which must be single-threaded. It keeps no descriptor of this process.
    pub fn start() -> Result<Self> {
        let (ours, theirs) = channel()?;
        match process::fork().context("fork")? {
            Side::Parent(pid) => {
                fd::close(theirs)?;
                Self::greet(ours, pid, false)
            }
            Side::Child => {
                fd::close_all_but(theirs);
                fd::silence();
                obey(theirs);
                process::exit_group(0)
            }
        }
    }

    /// Tells it to make another worker.
    pub fn spawn(&self, kind: Spawn) -> Result<Self> {
        let (ours, theirs) = channel()?;
        let told = self.tell_with(&Order::Spawn(kind), &[theirs]);
        fd::close(theirs)?;
        match told? {
            Reply::Pid(pid) => Self::greet(ours, pid, matches!(kind, Spawn::SharingMemory { .. })),
            other => bail!("worker {} answered {other:?} to {kind:?}", self.pid),
        }
    }

    /// A forked child.
    pub fn fork(&self) -> Result<Self> {
        self.spawn(Spawn::Process)
    }

    /// A thread.
    pub fn thread(&self) -> Result<Self> {
        self.spawn(Spawn::Thread)
    }

    fn greet(channel: c_int, pid_for_maker: u32, bare: bool) -> Result<Self> {
        let message = socket::receive(channel, LONGEST).context("waiting for a new worker")?;
        let pid = message.sender.context("a new worker did not say who it is")?;
        match serde_json::from_slice(&message.bytes)? {
            Reply::Hello(0) => Ok(Self { channel, pid, tid: pid, pid_for_maker, bare }),
            Reply::Hello(tid) => {
                let tid = proc::host_tid(pid, tid)?;
                Ok(Self { channel, pid, tid, pid_for_maker, bare })
            }
            other => bail!("a new worker said {other:?}"),
        }
    }

    /// Gives an order and waits for the answer; a failure of the worker's is an error here.
    pub fn tell(&self, order: &Order) -> Result<Reply> {
        self.tell_with(order, &[])
    }

    /// Gives an order and waits for the answer, whatever it is.
    pub fn ask(&self, order: &Order) -> Result<Reply> {
        self.ask_with(order, &[])
    }

    fn tell_with(&self, order: &Order, fds: &[c_int]) -> Result<Reply> {
        match self.ask_with(order, fds)? {
            Reply::Failed(errno, why) => {
                bail!("worker {}, told to {order:?}: {why} (errno {errno})", self.pid)
            }
            reply => Ok(reply),
        }
    }

    fn ask_with(&self, order: &Order, fds: &[c_int]) -> Result<Reply> {
        let bytes = if self.bare { bare_order(order)? } else { serde_json::to_vec(order)? };
        socket::send(self.channel, &bytes, fds)
            .with_context(|| format!("telling worker {} to {order:?}", self.pid))?;
        let message = socket::receive(self.channel, LONGEST)?;
        if message.bytes.is_empty() {
            bail!("worker {} is gone, told to {order:?}", self.pid);
        }
        Ok(serde_json::from_slice(&message.bytes)?)
    }

    fn tell_for_fd(&self, order: &Order) -> Result<c_int> {
        match self.tell(order)? {
            Reply::Fd(fd) => Ok(fd),
            other => bail!("worker {} answered {other:?} to {order:?}", self.pid),
        }
    }

    fn tell_for_fds(&self, order: &Order) -> Result<Vec<c_int>> {
        match self.tell(order)? {
            Reply::Fds(fds) => Ok(fds),
            other => bail!("worker {} answered {other:?} to {order:?}", self.pid),
        }
    }

    fn tell_for_address(&self, order: &Order) -> Result<u64> {
        match self.tell(order)? {
            Reply::At(at) => Ok(at),
            other => bail!("worker {} answered {other:?} to {order:?}", self.pid),
        }
    }

    /// Opens a device once, for reading and writing, close-on-exec.
    pub fn open(&self, path: &Path) -> Result<c_int> {
        self.open_with(path, libc::O_RDWR | libc::O_CLOEXEC)
    }

    /// Opens with these `O_*` flags.
    pub fn open_with(&self, path: &Path, flags: c_int) -> Result<c_int> {
        let order = Order::Open { path: path.to_owned(), flags, times: 1 };
        self.tell_for_fds(&order)?.first().copied().context("no descriptor in the answer")
    }

    /// Opens a device so many times; returns nothing, for want of room.
    pub fn open_many(&self, path: &Path, times: u32) -> Result<()> {
        // An answer holds a few thousand numbers.
        const AT_ONCE: u32 = 2_000;
        for first in (0..times).step_by(AT_ONCE as usize) {
            let times = AT_ONCE.min(times - first);
            let flags = libc::O_RDWR | libc::O_CLOEXEC;
            self.tell_for_fds(&Order::Open { path: path.to_owned(), flags, times })?;
        }
        Ok(())
    }

    /// `dup(2)`.
    pub fn dup(&self, from: c_int) -> Result<c_int> {
        self.tell_for_fd(&Order::Dup(from))
    }

    /// `dup2(2)`.
    pub fn dup2(&self, from: c_int, to: c_int) -> Result<c_int> {
        self.tell_for_fd(&Order::Dup2(from, to))
    }

    /// `close(2)`.
    pub fn close(&self, it: c_int) -> Result<()> {
        self.tell(&Order::Close(it)).map(drop)
    }

    /// Maps one page.
    pub fn map(&self, from: c_int) -> Result<Mapping> {
        let at = self.tell_for_address(&Order::Map(from, PAGE))?;
        Ok(Mapping { at, length: PAGE })
    }

    /// Maps one page, or not where the device cannot be mapped.
    pub fn map_if_possible(&self, from: c_int) -> Result<Option<Mapping>> {
        match self.ask(&Order::Map(from, PAGE))? {
            Reply::At(at) => Ok(Some(Mapping { at, length: PAGE })),
            Reply::Failed(libc::ENODEV, _) => Ok(None),
            other => bail!("worker {}, told to map: {other:?}", self.pid),
        }
    }

    /// Unmaps it.
    pub fn unmap(&self, mapping: Mapping) -> Result<()> {
        self.tell(&Order::Unmap(mapping.at, mapping.length)).map(drop)
    }

    /// A connected pair of unix stream sockets.
    pub fn socket_pair(&self) -> Result<(c_int, c_int)> {
        match self.tell_for_fds(&Order::SocketPair)?[..] {
            [one, other] => Ok((one, other)),
            ref other => bail!("a pair of {} descriptors", other.len()),
        }
    }

    /// A socket that listens at this path.
    pub fn listen(&self, path: &Path) -> Result<c_int> {
        self.tell_for_fd(&Order::Listen(path.to_owned()))
    }

    /// A socket connected to this path.
    pub fn connect(&self, path: &Path) -> Result<c_int> {
        self.tell_for_fd(&Order::Connect(path.to_owned()))
    }

    /// Accepts a connection.
    pub fn accept(&self, listener: c_int) -> Result<c_int> {
        self.tell_for_fd(&Order::Accept(listener))
    }

    /// Sends descriptors through a socket, in one message.
    pub fn send(&self, through: c_int, fds: &[c_int]) -> Result<()> {
        self.tell(&Order::Send(through, fds.to_vec())).map(drop)
    }

    /// Receives one message; returns the descriptors that came with it.
    pub fn receive(&self, from: c_int) -> Result<Vec<c_int>> {
        self.tell_for_fds(&Order::Receive(from))
    }

    /// Takes a copy of another process's descriptor.
    pub fn take(&self, pid: u32, from: c_int) -> Result<c_int> {
        self.tell_for_fd(&Order::Take(pid, from))
    }

    /// Sets up an io_uring.
    pub fn ring(&self) -> Result<c_int> {
        self.tell_for_fd(&Order::Ring)
    }

    /// Maps a ring.
    pub fn map_ring(&self, ring: c_int) -> Result<u64> {
        self.tell_for_address(&Order::MapRing(ring))
    }

    /// Gives an order whose only answer is that it is done.
    pub fn order(&self, order: Order) -> Result<()> {
        match self.tell(&order)? {
            Reply::Done => Ok(()),
            other => bail!("worker {} answered {other:?} to {order:?}", self.pid),
        }
    }

    /// Replaces its program by a fresh copy.
    pub fn exec(&self) -> Result<()> {
        match self.tell(&Order::Exec)? {
            Reply::Hello(_) => Ok(()),
            other => bail!("worker {} answered {other:?} after exec", self.pid),
        }
    }

    /// Ends its thread alone, and waits until it is a zombie (a leader with living threads) or gone.
    pub fn end_thread(&self) -> Result<()> {
        self.order(Order::ExitThread)?;
        until(&format!("the end of thread {} of {}", self.tid, self.pid), PATIENCE, || {
            Ok(proc::state(self.pid, self.tid)?.is_none_or(|state| "ZX".contains(state)).then_some(()))
        })
    }

    /// Tells it to exit and waits until it is a zombie or gone.
    pub fn exit(&self) -> Result<()> {
        socket::send(self.channel, &serde_json::to_vec(&Order::Exit)?, &[])?;
        self.await_end()
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: c_int) -> Result<()> {
        process::kill(self.pid, signal).with_context(|| format!("kill({}, {signal})", self.pid))
    }

    /// Kills its process and waits until it is gone, or a zombie that its living parent does not reap.
    pub fn kill(&self) -> Result<()> {
        self.signal(libc::SIGKILL)?;
        self.await_end()
    }

    /// Waits until its process has ended with all its threads: gone, or a zombie whose parent is a worker that does not
    /// reap it.
    fn await_end(&self) -> Result<()> {
        until(&format!("the end of process {}", self.pid), PATIENCE, || {
            // Reaps it if it is this process's child; otherwise its own parent does, or does not.
            let _ = process::reap(Some(self.pid));
            Ok(match proc::tasks(self.pid)?[..] {
                [] => Some(()),
                [last] => {
                    (proc::state(self.pid, last)? == Some('Z') && self.is_a_workers_child()?).then_some(())
                }
                _ => None,
            })
        })
    }

    fn is_a_workers_child(&self) -> Result<bool> {
        let (conductor, janitor) = (std::process::id(), std::os::unix::process::parent_id());
        Ok(proc::parent(self.pid)?.is_some_and(|parent| parent != conductor && parent != janitor))
    }

    /// Waits until nothing of its process is left, reaped by whoever its parent is.
    pub fn await_gone(&self) -> Result<()> {
        until(&format!("the end of process {}", self.pid), PATIENCE, || {
            let _ = process::reap(Some(self.pid));
            Ok(proc::parent(self.pid)?.is_none().then_some(()))
        })
    }

    /// Waits until its task is in one of these states.
    pub fn await_state(&self, wanted: &str) -> Result<()> {
        proc::await_state(self.pid, self.tid, wanted)
    }
}

/// The conductor's end, which learns who sends, and the worker's.
fn channel() -> Result<(c_int, c_int)> {
    let (ours, theirs) = socket::pair(SocketType::SEQPACKET).context("socketpair")?;
    socket::ask_for_credentials(ours)?;
    Ok((ours, theirs))
}

fn bare_order(order: &Order) -> Result<Vec<u8>> {
    match order {
        Order::Close(it) => Ok(bare::encode(bare::CLOSE, u64::from(it.cast_unsigned())).to_vec()),
        other => bail!("a worker that shares memory cannot be told to {other:?}"),
    }
}

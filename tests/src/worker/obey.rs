//! The worker's end: waits for orders and carries them out.

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::{LONGEST, OBEY, Order, Reply, Spawn, bare};
use crate::sys::{self, fd, mounts, process, process::Side, socket, title, uring};

/// What follows a reply.
enum After {
    /// The next order.
    Next(Reply),
    /// Something that may never return.
    Then(Consequence),
}

enum Consequence {
    Write(c_int),
    Request(c_int, u64, Vec<u8>),
    Crash,
    EndThread,
}

/// Obeys orders from `channel` until told to end or until the conductor is gone; returns only when a thread is told to
/// end itself.
pub fn obey(channel: c_int) {
    if answer(channel, &Reply::Hello(process::gettid())).is_err() {
        process::exit_group(0);
    }
    loop {
        let message = match socket::receive(channel, LONGEST) {
            Ok(message) if !message.bytes.is_empty() => message,
            // The conductor is gone: so is everything that it made.
            _ => process::exit_group(0),
        };
        let after = match serde_json::from_slice::<Order>(&message.bytes) {
            Ok(order) => carry_out(order, channel, message.fds.first().copied()),
            Err(error) => After::Next(Reply::Failed(0, format!("not an order: {error}"))),
        };
        match after {
            After::Next(reply) => {
                let _ = answer(channel, &reply);
            }
            After::Then(consequence) => {
                let _ = answer(channel, &Reply::Done);
                match consequence {
                    Consequence::Write(fd) => drop(fd::write_page(fd)),
                    Consequence::Request(fd, request, argument) => drop(fd::request(fd, request, argument)),
                    Consequence::Crash => drop(process::crash()),
                    Consequence::EndThread => {
                        if process::gettid() == std::process::id() {
                            process::exit_thread();
                        }
                        return;
                    }
                }
            }
        }
    }
}

/// Entry of a worker that replaced its program by a fresh copy: `text` is the number of its socket.
pub fn obey_after_exec(text: &str) -> anyhow::Result<()> {
    let channel: c_int = text.parse()?;
    fd::set_cloexec(channel, true)?;
    obey(channel);
    Ok(())
}

fn answer(channel: c_int, reply: &Reply) -> io::Result<()> {
    socket::send(channel, &serde_json::to_vec(reply)?, &[])
}

fn carry_out(order: Order, channel: c_int, attached: Option<c_int>) -> After {
    let result = match order {
        Order::Write(fd) => return After::Then(Consequence::Write(fd)),
        Order::RequestForGood(fd, request, argument) => {
            return After::Then(Consequence::Request(fd, request, argument));
        }
        Order::DumpCore => match process::allow_core() {
            Ok(()) => return After::Then(Consequence::Crash),
            Err(error) => Err(error),
        },
        Order::ExitThread => return After::Then(Consequence::EndThread),
        Order::Exit => process::exit_group(0),
        Order::Spawn(kind) => match attached {
            Some(its_channel) => spawn(kind, channel, its_channel),
            None => Err(io::Error::other("no socket came with the order")),
        },
        Order::Exec => exec(channel),
        order => carry_out_on_files(order),
    };
    After::Next(
        result.unwrap_or_else(|error| Reply::Failed(error.raw_os_error().unwrap_or(0), error.to_string())),
    )
}

fn carry_out_on_files(order: Order) -> io::Result<Reply> {
    let done = |()| Reply::Done;
    match order {
        Order::Open { path, flags, times } => {
            (0..times).map(|_| fd::open(&path, flags)).collect::<io::Result<_>>().map(Reply::Fds)
        }
        Order::Dup(from) => fd::dup(from).map(Reply::Fd),
        Order::Dup2(from, to) => fd::dup2(from, to).map(Reply::Fd),
        Order::Close(it) => fd::close(it).map(done),
        Order::Map(from, length) => fd::map(from, length).map(Reply::At),
        Order::Unmap(at, length) => fd::unmap(at, length).map(done),
        Order::Remap(at, length, new) => fd::remap(at, length, new).map(Reply::At),
        Order::SocketPair => {
            socket::pair(rustix::net::SocketType::STREAM).map(|(one, other)| Reply::Fds(vec![one, other]))
        }
        Order::Listen(path) => socket::listen(&path).map(Reply::Fd),
        Order::Connect(path) => socket::connect(&path).map(Reply::Fd),
        Order::Accept(listener) => socket::accept(listener).map(Reply::Fd),
        Order::Send(through, fds) => socket::send(through, b"x", &fds).map(done),
        Order::Receive(from) => socket::receive(from, 1).map(|message| Reply::Fds(message.fds)),
        Order::ReceiveWithoutFds(from) => socket::receive_without_fds(from).map(|_| Reply::Done),
        Order::Take(pid, from) => fd::take_from(pid, from).map(Reply::Fd),
        Order::Ring => uring::setup().map(Reply::Fd),
        Order::Register(ring, fds) => uring::register(ring, &fds).map(done),
        Order::Unregister(ring) => uring::unregister(ring).map(done),
        Order::Request(fd, request, argument) => fd::request(fd, request, argument).map(done),
        Order::MapRing(ring) => uring::map(ring).map(Reply::At),
        order => carry_out_on_itself(order),
    }
}

fn carry_out_on_itself(order: Order) -> io::Result<Reply> {
    match order {
        Order::Reap(pid) => process::wait(pid)?,
        Order::Unshare(flags) if flags & libc::CLONE_NEWNS != 0 => {
            process::unshare(flags & !libc::CLONE_NEWNS)?;
            mounts::go_private()?;
        }
        Order::Unshare(flags) => process::unshare(flags)?,
        Order::JoinNamespace(path) => join_namespace(&path)?,
        Order::MountTmpfs(path) => mounts::mount("none", &path, "tmpfs", "mode=755")?,
        Order::MakeNode(path, major, minor) => mounts::make_node(&path, major, minor)?,
        Order::ChangeRoot(path) => mounts::change_root(&path)?,
        Order::ChangeDir(path) => std::env::set_current_dir(path)?,
        Order::Rename(comm) => title::rename(&comm)?,
        Order::Retitle(text) => title::retitle(&text)?,
        Order::NewSession => process::setsid()?,
        Order::BecomeSubreaper => process::become_subreaper()?,
        Order::BecomeUser(id) => process::become_user(id)?,
        other => return Err(io::Error::other(format!("nobody carries out {other:?}"))),
    }
    Ok(Reply::Done)
}

fn join_namespace(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    // SAFETY: takes numbers only.
    sys::check(unsafe { libc::setns(namespace.as_raw_fd(), 0) }).map(drop)
}

/// Makes another worker that obeys orders from `its_channel`.
fn spawn(kind: Spawn, channel: c_int, its_channel: c_int) -> io::Result<Reply> {
    let side = match kind {
        Spawn::Process => process::fork()?,
        Spawn::WithPid(pid) => process::fork_as(pid)?,
        Spawn::SharingTable => process::fork_sharing_table()?,
        Spawn::SharingMemory { table } => {
            let pid = process::spawn_sharing_memory(table, bare::obey, its_channel)?;
            if !table {
                fd::close(its_channel)?;
            }
            return Ok(Reply::Pid(pid));
        }
        Spawn::Thread => {
            let thread = std::thread::Builder::new().stack_size(256 * 1024);
            thread.spawn(move || obey(its_channel))?;
            return Ok(Reply::Pid(0));
        }
    };
    match side {
        Side::Parent(pid) => {
            if kind != Spawn::SharingTable {
                fd::close(its_channel)?;
            }
            Ok(Reply::Pid(pid))
        }
        Side::Child => {
            if kind != Spawn::SharingTable {
                fd::close(channel)?;
            }
            obey(its_channel);
            process::exit_group(0)
        }
    }
}

/// Replaces the program by a fresh copy of itself. Answers by the new program's hello.
fn exec(channel: c_int) -> io::Result<Reply> {
    fd::set_cloexec(channel, false)?;
    // Not of the process: a leader that has ended has no program any more.
    let program = std::fs::read_link("/proc/thread-self/exe")?;
    let program = CString::new(program.as_os_str().as_bytes())?;
    let number = CString::new(channel.to_string())?;
    let obey = CString::new(OBEY)?;
    let arguments = [program.as_ptr(), obey.as_ptr(), number.as_ptr(), std::ptr::null()];
    // SAFETY: a NULL-terminated array of NUL-terminated strings, all alive until the call has replaced or refused.
    sys::check(unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) })?;
    Ok(Reply::Done)
}

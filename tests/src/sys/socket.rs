//! Unix sockets, and descriptors that travel through them.

use std::ffi::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Descriptors that fit into one message; the kernel's own limit is 253.
pub const MOST_FDS: usize = 64;

/// What one message brought.
#[derive(Debug, Default)]
pub struct Message {
    /// Its bytes; empty at the end of the stream.
    pub bytes: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<c_int>,
    /// PID of the sender as this process's namespace sees it, where the socket asks for credentials.
    pub sender: Option<u32>,
}

fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: used for the length of one call, on a descriptor that the caller keeps open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A connected pair.
pub fn pair(kind: SocketType) -> io::Result<(c_int, c_int)> {
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok((one.into_raw_fd(), other.into_raw_fd()))
}

/// A stream socket that listens at `path`.
pub fn listen(path: &Path) -> io::Result<c_int> {
    let socket = stream()?;
    rustix::net::bind(borrow(socket), &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(borrow(socket), 16)?;
    Ok(socket)
}

/// A stream socket connected to `path`.
pub fn connect(path: &Path) -> io::Result<c_int> {
    let socket = stream()?;
    rustix::net::connect(borrow(socket), &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Accepts one connection.
pub fn accept(listener: c_int) -> io::Result<c_int> {
    Ok(rustix::net::accept_with(borrow(listener), SocketFlags::CLOEXEC)?.into_raw_fd())
}

fn stream() -> io::Result<c_int> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(socket.into_raw_fd())
}

/// The receiving end will say who sent each message.
pub fn ask_for_credentials(socket: c_int) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(borrow(socket), true)?)
}

/// Sends bytes with descriptors attached.
pub fn send(socket: c_int, bytes: &[u8], fds: &[c_int]) -> io::Result<()> {
    let attached: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| borrow(*fd)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !attached.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&attached)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(borrow(socket), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("message cut short")) }
}

/// Receives one message of at most `room` bytes; its descriptors become this process's.
pub fn receive(socket: c_int, room: usize) -> io::Result<Message> {
    let mut bytes = vec![0; room];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            borrow(socket),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    bytes.truncate(received.bytes);
    let mut message = Message { bytes, ..Message::default() };
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => {
                message.fds.extend(fds.map(|fd| fd.into_raw_fd()));
            }
            RecvAncillaryMessage::ScmCredentials(sender) => {
                message.sender = Some(sender.pid.as_raw_nonzero().get().cast_unsigned());
            }
            _ => {}
        }
    }
    Ok(message)
}

/// Receives one byte and leaves no room for descriptors: the kernel drops any that came with it.
pub fn receive_without_fds(socket: c_int) -> io::Result<usize> {
    let mut byte = [0u8];
    // SAFETY: the buffer is one byte long, as said.
    let received = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, 0) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

//! `iter/unix`: descriptors in flight (SCM_RIGHTS), in every socket of the reader's network namespace.
//!
//! A descriptor in flight belongs to no process. Its holder is whoever has the receiving socket open; if nobody has
//! accepted the connection yet, whoever has the listening socket.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use gpu_tracer_common::snapshot::{FILE_SOCKET, HOLD_IN_FLIGHT, HOLD_UNACCEPTED};

use crate::{
    access::{offset, read},
    holds::{Found, Full, control, emit, look_at_in_flight},
    tasks::IterMeta,
};

#[repr(C)]
struct UnixContext {
    _meta: *mut IterMeta,
    socket: *mut c_void,
    _uid: u32,
}

const TCP_LISTEN: u8 = 10;
/// Messages of one queue that are followed.
const MAX_QUEUE: u32 = 65_536;
/// `SCM_MAX_FD`.
const MAX_FILES: u32 = 253;

struct QueueWalk {
    buffer: u64,
    head: u64,
    by: u64,
    inode: u64,
    listening: u32,
    full: u32,
    done: u32,
    _padding: u32,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/unix")]
fn iter_sockets(context: *mut c_void) -> i32 {
    // SAFETY: the kernel passes `struct bpf_iter__unix`, whose layout is ABI.
    let context = unsafe { &*context.cast::<UnixContext>() };
    if context.socket.is_null() {
        return 0;
    }
    match try_iter_sockets(context.socket as u64) {
        Ok(()) => 0,
        Err(Full) => 1,
    }
}

#[inline(always)]
fn try_iter_sockets(socket: u64) -> Result<(), Full> {
    let listening = read::<u8>(socket, offset!(sock_state)) == Some(TCP_LISTEN);
    if !listening && read::<u32>(socket, offset!(unix_nr_fds)).unwrap_or(0) == 0 {
        return Ok(());
    }
    let file = read::<u64>(socket, offset!(sock_socket))
        .and_then(|end| read::<u64>(end, offset!(socket_file)))
        .unwrap_or(0);
    let inode = read::<u64>(file, offset!(file_inode))
        .and_then(|inode| read::<u64>(inode, offset!(inode_ino)))
        .unwrap_or(0);
    let mut walk = QueueWalk {
        buffer: read::<u64>(socket, offset!(sock_receive_queue_next)).unwrap_or(0),
        head: socket + u64::from(offset!(sock_receive_queue)),
        by: if file == 0 { socket } else { file },
        inode,
        listening: u32::from(listening),
        full: 0,
        done: 0,
        _padding: 0,
    };
    // SAFETY: the callback has the signature `bpf_loop` wants and the context outlives the call.
    unsafe { bpf_loop(MAX_QUEUE, walk_message as *mut c_void, (&raw mut walk).cast(), 0) };
    if walk.full != 0 {
        return Err(Full);
    }
    if walk.done == 0
        && let Some(control) = control()
    {
        control.truncated += 1;
    }
    Ok(())
}

#[inline(never)]
unsafe extern "C" fn walk_message(_: u32, walk: *mut c_void) -> i64 {
    // SAFETY: `try_iter_sockets` passes a `QueueWalk` on its stack.
    let walk = unsafe { &mut *walk.cast::<QueueWalk>() };
    let buffer = walk.buffer;
    if buffer == 0 || buffer == walk.head {
        walk.done = 1;
        return 1;
    }
    let looked =
        if walk.listening != 0 { look_at_connection(buffer, walk) } else { look_at_message(buffer, walk) };
    if looked.is_err() {
        walk.full = 1;
        return 1;
    }
    walk.buffer = read::<u64>(buffer, offset!(skb_next)).unwrap_or(0);
    0
}

/// An element of an accept queue: the half of the connection that nobody has accepted.
#[inline(always)]
fn look_at_connection(buffer: u64, walk: &QueueWalk) -> Result<(), Full> {
    let waiting = read::<u64>(buffer, offset!(skb_sk)).unwrap_or(0);
    if read::<u32>(waiting, offset!(unix_nr_fds)).unwrap_or(0) == 0 {
        return Ok(());
    }
    let found = Found { kind: HOLD_UNACCEPTED, tid: 0, by: walk.by, at: walk.inode, end: 0 };
    emit(&found, FILE_SOCKET, waiting, 0)
}

struct MessageWalk {
    buffer: u64,
    files: u64,
    count: u32,
    full: u32,
    by: u64,
    inode: u64,
}

/// A message that may carry descriptors.
#[inline(always)]
fn look_at_message(buffer: u64, walk: &QueueWalk) -> Result<(), Full> {
    let list = read::<u64>(buffer, offset!(skb_unix_fp)).unwrap_or(0);
    let count = read::<u16>(list, offset!(fp_count)).unwrap_or(0);
    if count == 0 {
        return Ok(());
    }
    let mut message = MessageWalk {
        buffer,
        files: list + u64::from(offset!(fp_files)),
        count: u32::from(count),
        full: 0,
        by: walk.by,
        inode: walk.inode,
    };
    // SAFETY: the callback has the signature `bpf_loop` wants and the context outlives the call.
    unsafe { bpf_loop(MAX_FILES, walk_files as *mut c_void, (&raw mut message).cast(), 0) };
    if message.full == 0 { Ok(()) } else { Err(Full) }
}

#[inline(never)]
unsafe extern "C" fn walk_files(index: u32, message: *mut c_void) -> i64 {
    // SAFETY: `look_at_message` passes a `MessageWalk` on its stack.
    let message = unsafe { &mut *message.cast::<MessageWalk>() };
    if index >= message.count {
        return 1;
    }
    let file = read::<u64>(message.files + u64::from(index) * 8, 0).unwrap_or(0);
    let found = Found {
        kind: HOLD_IN_FLIGHT,
        tid: 0,
        by: message.by,
        at: message.inode,
        end: message.buffer + u64::from(index),
    };
    if file != 0 && look_at_in_flight(file, &found).is_err() {
        message.full = 1;
        return 1;
    }
    0
}

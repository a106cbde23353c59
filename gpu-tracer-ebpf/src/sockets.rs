//! `iter/unix`: descriptors in flight (SCM_RIGHTS), in every socket of the reader's network namespace.
//!
//! A descriptor in flight belongs to no process. Its holder is whoever has the receiving socket open; if nobody has
//! accepted the connection yet, whoever has the listening socket.

use core::ffi::c_void;

use aya_ebpf::{helpers::generated::bpf_loop, macros::map, maps::PerCpuArray};
use gpu_tracer_common::snapshot::{FILE_SOCKET, HOLD_IN_FLIGHT, HOLD_UNACCEPTED};

use crate::{
    access::{MOST_ATTEMPTS, follow, next_in_list, offset, peek, read},
    holds::{Found, Full, control, emit, look_at_in_flight},
    namespaces,
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

/// The state of a walk; in a map and not on the stack, so that the verifier takes every round of its loops for the same.
#[repr(C)]
struct Queue {
    /// The message at hand.
    buffer: u64,
    /// The message before it, or the queue.
    before: u64,
    /// The queue itself: where its list ends.
    head: u64,
    by: u64,
    inode: u64,
    /// Descriptors of the message at hand.
    files: u64,
    count: u32,
    listening: u32,
    full: u32,
    done: u32,
    /// Times that the queue was begun again because messages were taken out of it.
    attempts: u32,
    padding: u32,
}

#[map]
static QUEUE: PerCpuArray<Queue> = PerCpuArray::with_max_entries(1, 0);

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/unix")]
fn iter_sockets(context: *mut c_void) -> i32 {
    // SAFETY: the kernel passes `struct bpf_iter__unix`, whose layout is ABI.
    let context = unsafe { &*context.cast::<UnixContext>() };
    // After the last.
    let looked = if context.socket.is_null() {
        namespaces::list_once()
    } else {
        try_iter_sockets(context.socket as u64)
    };
    match looked {
        Ok(()) => 0,
        Err(Full) => 1,
    }
}

/// One end of a connection, or a listening socket.
pub(crate) struct End {
    pub(crate) listening: bool,
    /// Its file, or if it has none (nobody has accepted the connection) the socket itself.
    pub(crate) by: u64,
    /// 0 where it has no file.
    pub(crate) inode: u64,
}

impl End {
    /// The socket, if descriptors are in its queue, or connections that may have some in theirs.
    #[inline(always)]
    pub(crate) fn of_interest(socket: u64) -> Option<Self> {
        let listening = read::<u8>(socket, offset!(sock_state)) == Some(TCP_LISTEN);
        if !listening && peek::<u32>(socket, offset!(unix_nr_fds)) == 0 {
            return None;
        }
        let file = follow(follow(socket, offset!(sock_socket)), offset!(socket_file));
        let inode = peek::<u64>(follow(file, offset!(file_inode)), offset!(inode_ino));
        Some(Self { listening, by: if file == 0 { socket } else { file }, inode })
    }
}

#[inline(always)]
fn try_iter_sockets(socket: u64) -> Result<(), Full> {
    let Some(end) = End::of_interest(socket) else { return Ok(()) };
    let Some(queue) = QUEUE.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: the only element of a per-CPU array; this program does not nest. The callback has the signature `bpf_loop`
    // wants.
    let (full, done) = unsafe {
        (*queue).head = socket + u64::from(offset!(sock_receive_queue));
        begin_queue(queue);
        (*queue).attempts = 0;
        (*queue).by = end.by;
        (*queue).inode = end.inode;
        (*queue).listening = u32::from(end.listening);
        (*queue).full = 0;
        (*queue).done = 0;
        bpf_loop(MAX_QUEUE, walk_message as *mut c_void, core::ptr::null_mut(), 0);
        ((*queue).full, (*queue).done)
    };
    if full != 0 {
        return Err(Full);
    }
    if done == 0
        && let Some(control) = control()
    {
        control.truncated += 1;
    }
    Ok(())
}

/// # Safety
/// `queue` must be the element of [`QUEUE`]; so below.
#[inline(always)]
unsafe fn begin_queue(queue: *mut Queue) {
    // SAFETY: the caller's promise.
    unsafe {
        // The pointer to the first message is the first member of a queue.
        (*queue).buffer = follow((*queue).head, 0);
        (*queue).before = (*queue).head;
    }
}

#[inline(never)]
unsafe extern "C" fn walk_message(_: u32, _: *mut c_void) -> i64 {
    let Some(queue) = QUEUE.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array.
    unsafe {
        let buffer = (*queue).buffer;
        if buffer == 0 || buffer == (*queue).head {
            (*queue).done = 1;
            return 1;
        }
        if (*queue).listening != 0 {
            if look_at_connection(buffer, (*queue).by, (*queue).inode).is_err() {
                (*queue).full = 1;
            }
        } else {
            look_at_message(queue, buffer);
        }
        if (*queue).full != 0 {
            return 1;
        }
        match next_in_list(buffer, offset!(skb_next), (*queue).before, (*queue).head) {
            Some(next) => {
                (*queue).before = buffer;
                (*queue).buffer = next;
            }
            // A receiver has taken it.
            None if (*queue).attempts < MOST_ATTEMPTS => {
                (*queue).attempts += 1;
                begin_queue(queue);
            }
            None => return 1,
        }
    }
    0
}

/// An element of an accept queue: the half of the connection that nobody has accepted.
#[inline(always)]
pub(crate) fn look_at_connection(buffer: u64, by: u64, at: u64) -> Result<(), Full> {
    let waiting = follow(buffer, offset!(skb_sk));
    if peek::<u32>(waiting, offset!(unix_nr_fds)) == 0 {
        return Ok(());
    }
    emit(&Found { kind: HOLD_UNACCEPTED, tid: 0, by, at, end: 0 }, FILE_SOCKET, waiting, 0)
}

/// A message that may carry descriptors.
///
/// # Safety
/// As [`begin_queue`].
#[inline(always)]
unsafe fn look_at_message(queue: *mut Queue, buffer: u64) {
    let list = follow(buffer, offset!(skb_unix_fp));
    let count = peek::<u16>(list, offset!(fp_count));
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise; the callback has the signature `bpf_loop` wants.
    unsafe {
        (*queue).files = list + u64::from(offset!(fp_files));
        (*queue).count = u32::from(count);
        bpf_loop(MAX_FILES, walk_files as *mut c_void, core::ptr::null_mut(), 0);
    }
}

#[inline(never)]
unsafe extern "C" fn walk_files(index: u32, _: *mut c_void) -> i64 {
    let Some(queue) = QUEUE.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only element of a per-CPU array.
    let (file, found) = unsafe {
        if index >= (*queue).count {
            return 1;
        }
        let file = follow((*queue).files + u64::from(index) * 8, 0);
        let end = (*queue).buffer + u64::from(index);
        (file, Found { kind: HOLD_IN_FLIGHT, tid: 0, by: (*queue).by, at: (*queue).inode, end })
    };
    if file != 0 && look_at_in_flight(file, &found).is_err() {
        // SAFETY: as above.
        unsafe { (*queue).full = 1 };
        return 1;
    }
    0
}

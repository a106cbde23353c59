//! Descriptors in flight where `iter/unix` does not get: on kernels that have none (before 5.17), and in network namespaces that
//! nobody can go into, as no task lives there.
//!
//! Before 6.0 one table has all unix sockets, of every network namespace; since then each namespace has its own. The user side
//! knows where it is and lists its chains in `SUBJECTS`. A chain is followed by reading pointers, without its lock. Whenever it turns out that a socket was
//! taken out of it meanwhile, or a message out of a queue, chain or queue are begun again; what changes all the time is
//! counted as not seen to its end.

use aya_ebpf::{macros::map, maps::Array};
use gpu_tracer_common::snapshot::HOLD_IN_FLIGHT;

use core::ffi::c_void;

use crate::{
    access::{MOST_ATTEMPTS, follow, next_in_list, offset, peek},
    holds::{Found, Full, control, look_at_in_flight},
    sockets::{End, look_at_connection},
    subjects::{all_subjects, next_subject, step_into, stepped},
};

/// How far the walk of a chain has come. Not per CPU: the reader may be moved between two runs.
#[repr(C)]
struct Place {
    /// The chain; 0: no walk is half done.
    chain: u64,
    /// The socket's node in it; 0 at its end.
    node: u64,
    /// The node before it, or the chain.
    before: u64,
    /// The message at hand; 0: the socket's queue has not been begun.
    buffer: u64,
    /// The message before it, or the queue.
    before_buffer: u64,
    /// The queue itself: where its list ends.
    head: u64,
    by: u64,
    inode: u64,
    /// Descriptors of the message that are done.
    files: u32,
    listening: u32,
    /// Times that the chain was begun again.
    attempts: u32,
    /// Times that the socket's queue was.
    attempts_at_queue: u32,
}

#[map]
static SOCKET_CHAIN: Array<Place> = Array::with_max_entries(1, 0);

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_socket_table(_: *mut c_void) -> i32 {
    next_subject(walk_chain)
}

/// The same in one run, where there is `bpf_loop`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
fn iter_socket_tables(_: *mut c_void) -> i32 {
    all_subjects!(step_of_next)
}

#[inline(never)]
unsafe extern "C" fn step_of_next(_: u32, _: *mut c_void) -> i64 {
    step_into(step_in_chain)
}

#[inline(always)]
fn walk_chain(chain: u64) -> Result<(), Full> {
    stepped::on(|| step_in_socket_chain(chain))
}

/// [`step_in_chain`]; one of [`stepped`].
#[unsafe(no_mangle)]
#[inline(never)]
fn step_in_socket_chain(chain: u64) -> u32 {
    stepped::from(step_in_chain(chain))
}

/// The next step of the walk of a chain: from a socket, a message or a descriptor to the next. Is that its end?
#[inline(always)]
fn step_in_chain(chain: u64) -> Result<bool, Full> {
    let Some(place) = SOCKET_CHAIN.get_ptr_mut(0) else { return Ok(true) };
    // SAFETY: the only element of an array, which this program alone uses, by one reader at a time.
    unsafe {
        if (*place).chain != chain {
            (*place).chain = chain;
            (*place).attempts = 0;
            begin_chain(place);
        }
        if (*place).node == 0 {
            (*place).chain = 0;
            return Ok(true);
        }
        if (*place).buffer == 0 {
            begin_queue(place);
        } else if (*place).buffer == (*place).head {
            next_socket(place);
        } else {
            look_at_message(place)?;
        }
    }
    Ok(false)
}

/// # Safety
/// `place` must be the element of [`SOCKET_CHAIN`]; so below.
#[inline(always)]
unsafe fn begin_chain(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe {
        (*place).node = follow((*place).chain, 0);
        (*place).before = (*place).chain;
        (*place).buffer = 0;
        (*place).attempts_at_queue = 0;
    }
}

#[inline(always)]
unsafe fn next_socket(place: *mut Place) {
    // SAFETY: the caller's promise. The pointer on is the first member of a node.
    unsafe {
        match next_in_list((*place).node, 0, (*place).before, (*place).chain) {
            Some(next) => {
                (*place).before = (*place).node;
                (*place).node = next;
                (*place).buffer = 0;
                (*place).attempts_at_queue = 0;
            }
            // It was closed, or bound and so put into another chain.
            None if (*place).attempts < MOST_ATTEMPTS => {
                (*place).attempts += 1;
                begin_chain(place);
            }
            None => {
                count_truncated();
                (*place).node = 0;
            }
        }
    }
}

#[inline(always)]
fn count_truncated() {
    if let Some(control) = control() {
        control.truncated += 1;
    }
}

/// Goes on to the first message of the socket, or to the next socket if nothing is in flight in it.
#[inline(always)]
unsafe fn begin_queue(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe {
        let socket = (*place).node.wrapping_sub(u64::from(offset!(sock_node)));
        let Some(end) = End::of_interest(socket) else { return next_socket(place) };
        (*place).head = socket + u64::from(offset!(sock_receive_queue));
        // The pointer to the first message is the first member of a queue.
        (*place).buffer = follow((*place).head, 0);
        (*place).before_buffer = (*place).head;
        (*place).by = end.by;
        (*place).inode = end.inode;
        (*place).listening = u32::from(end.listening);
        (*place).files = 0;
        if (*place).buffer == 0 {
            // Only in memory that is no socket any more.
            next_socket(place);
        }
    }
}

/// One step in the message: its next descriptor, or on to the next message.
#[inline(always)]
unsafe fn look_at_message(place: *mut Place) -> Result<(), Full> {
    // SAFETY: the caller's promise.
    unsafe {
        let (buffer, at) = ((*place).buffer, (*place).files);
        let list = follow(buffer, offset!(skb_unix_fp));
        if (*place).listening != 0 {
            look_at_connection(buffer, (*place).by, (*place).inode)?;
        } else if at < u32::from(peek::<u16>(list, offset!(fp_count))) {
            let file = follow(list + u64::from(offset!(fp_files)) + u64::from(at) * 8, 0);
            let end = buffer + u64::from(at);
            let found = Found { kind: HOLD_IN_FLIGHT, tid: 0, by: (*place).by, at: (*place).inode, end };
            if file != 0 {
                look_at_in_flight(file, &found)?;
            }
            (*place).files = at + 1;
            return Ok(());
        }
        (*place).files = 0;
        match next_in_list(buffer, offset!(skb_next), (*place).before_buffer, (*place).head) {
            Some(next) => {
                (*place).before_buffer = buffer;
                (*place).buffer = next;
            }
            // A receiver has taken it.
            None if (*place).attempts_at_queue < MOST_ATTEMPTS => {
                (*place).attempts_at_queue += 1;
                (*place).buffer = 0;
            }
            None => {
                count_truncated();
                (*place).buffer = (*place).head;
            }
        }
    }
    Ok(())
}

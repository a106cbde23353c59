//! The worker's end where memory is shared with another process.
//!
//! Such a process shares thread-local storage with its maker: it must not allocate, lock or panic. It obeys orders of
//! nine bytes: a letter and a number; anything else ends it.

use std::ffi::{c_int, c_void};

/// Closes the descriptor with this number.
pub(super) const CLOSE: u8 = b'c';

/// One order: a letter, then a number.
pub(super) fn encode(letter: u8, number: u64) -> [u8; 9] {
    let mut order = [letter; 9];
    order[1..].copy_from_slice(&number.to_ne_bytes());
    order
}

/// Obeys until the conductor is gone or says something unknown. `argument` is the number of the socket.
pub(super) extern "C" fn obey(argument: *mut c_void) -> c_int {
    let channel = argument as usize as c_int;
    say(channel, b"{\"Hello\":0}");
    loop {
        let mut order = [0u8; 9];
        // SAFETY: the buffer is as long as said; a bare system call.
        let length = unsafe { libc::recv(channel, order.as_mut_ptr().cast(), order.len(), 0) };
        let [letter, number @ ..] = order;
        if length != 9 || letter != CLOSE {
            // SAFETY: does not return; ends only this process, which shares no thread group with its maker.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: takes a number only.
        unsafe { libc::close(u64::from_ne_bytes(number) as c_int) };
        say(channel, b"\"Done\"");
    }
}

fn say(channel: c_int, reply: &[u8]) {
    // SAFETY: the buffer is as long as said; a bare system call.
    unsafe { libc::send(channel, reply.as_ptr().cast(), reply.len(), libc::MSG_NOSIGNAL) };
}

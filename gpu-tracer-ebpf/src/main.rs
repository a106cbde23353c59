//! BPF programs of gpu-tracer: thin shells that copy kernel facts into records.
//!
//! | file | family |
//! |---|---|
//! | `access.rs` | reading kernel memory at offsets resolved from BTF |
//! | `holds.rs` | one file looked at: is it a GPU device, an io_uring, a carrier; and the record of it |
//! | `tasks.rs` | `iter/task`: every task, and a walk of its fd table |
//! | `mappings.rs` | `iter/task`: a walk of each address space |
//! | `mm_lists.rs` | the same on kernels that keep mappings in lists |
//! | `sockets.rs` | `iter/unix`: descriptors in flight |
//! | `socket_table.rs` | the same on kernels without `bpf_loop` |
//! | `subjects.rs` | a closer look at files found before: what the driver or an io_uring holds |
//! | `recheck.rs` | files found before, as they are now |
//! | `events/` | what happens: device nodes asked for, and the lives of processes that hold something |
//!
//! None of them takes a reference to a file: a program that held the last one would run the driver's release itself.
#![no_std]
#![no_main]
// This target's `AtomicU64` can load and store, not add.
#![feature(asm_experimental_arch)]

mod access;
mod events;
mod holds;
mod mappings;
mod mm_lists;
mod namespaces;
mod recheck;
mod socket_table;
mod sockets;
mod subjects;
mod tasks;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

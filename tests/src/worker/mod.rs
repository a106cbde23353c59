//! Workers: processes and threads that do what they are told, one order at a time.
//!
//! A [`Worker`] is the conductor's end. The other end runs [`obey`]: it waits for an [`Order`] on a socket of its own,
//! carries it out with plain system calls and sends a [`Reply`]. A worker makes further workers by order
//! ([`Spawn`]): forks, threads, processes that share its fd table or its memory. Nothing else ever happens in a worker,
//! so what it holds is exactly what it was told to hold.
//!
//! When the conductor dies, the sockets close and every worker ends itself.

mod bare;
mod handle;
mod obey;
mod order;

pub use handle::{Mapping, Worker};
pub use obey::{obey, obey_after_exec};
pub use order::{Order, Reply, Spawn};

/// First argument of this program when a worker has replaced itself by a fresh copy ([`Order::Exec`]).
pub const OBEY: &str = "obey";

/// Longest order or reply, bytes.
const LONGEST: usize = 64 * 1024;

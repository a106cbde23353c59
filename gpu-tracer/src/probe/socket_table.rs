//! Where Linux keeps unix sockets before 6.0: in one table, to which no type and no other address leads.
//!
//! A new socket is put first into one of its chains, so what points to it there is the head of that chain, and which one it is
//! depends on the socket's address alone (`unix_sockets_unbound`). The name of the table is in `/proc/kallsyms`, but to have the kernel
//! print all of its symbols takes as long as everything else that a look does.

use std::os::fd::{AsFd as _, OwnedFd};

use gpu_tracer_common::snapshot::{UNIX_CHAINS, mode};
use rustix::net::{AddressFamily, SocketType, socket};

use super::{Iterators, ProbeError, kallsyms, programs::Sockets};

/// Pairs of sockets that are made: somebody else's may be put before ours in between.
const ATTEMPTS: u32 = 3;

/// Two kinds, for Linux 5.17 made the kind a part of what says which chain it is. It has another way to find sockets, but should the
/// table be wanted all the same, two of these never agree.
const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::DGRAM];

impl Iterators {
    /// Finds out where the chains are, if they are what is gone through.
    pub(super) fn learn_socket_table(&mut self) -> Result<(), ProbeError> {
        if !matches!(self.sockets, Sockets::Table(..)) {
            return Ok(());
        }
        let mut table = None;
        for _ in 0..ATTEMPTS {
            table = self.table_by_our_own()?;
            if table.is_some() {
                break;
            }
        }
        let table = table.or_else(|| {
            tracing::debug!("our own sockets do not tell where the table of sockets is");
            kallsyms::address_of(kallsyms::UNIX_SOCKETS)
        });
        match (table, &mut self.sockets) {
            (Some(table), Sockets::Table(_, chains)) => *chains = chains_of(table).collect(),
            _ => self.sockets = Sockets::Unseen("the kernel's table of them was not found".to_owned()),
        }
        Ok(())
    }

    /// By two sockets made for that.
    fn table_by_our_own(&mut self) -> Result<Option<u64>, ProbeError> {
        let own: Result<Vec<OwnedFd>, _> =
            KINDS.into_iter().map(|kind| socket(AddressFamily::UNIX, kind, None)).collect();
        let Ok(own) = own else { return Ok(None) };
        let mut tables = Vec::new();
        for socket in &own {
            let learnt = self.learn(mode::LEARN_SOCKET, socket.as_fd())?;
            tables.push(table_of(learnt.sock, learnt.sock_behind));
        }
        Ok(tables
            .first()
            .copied()
            .flatten()
            .filter(|table| tables.iter().all(|other| *other == Some(*table))))
    }
}

/// The table that this new socket is in if that address is the head of its chain: of the unbound, which are the second half.
fn table_of(socket: u64, head: u64) -> Option<u64> {
    let folded = socket ^ (socket >> 16);
    let folded = folded ^ (folded >> 8);
    let unbound = UNIX_CHAINS / 2;
    head.checked_sub((unbound + folded % unbound) * CHAIN).filter(|table| socket != 0 && *table != 0)
}

const CHAIN: u64 = size_of::<u64>() as u64;

/// The chains of a table of unix sockets.
pub(super) fn chains_of(table: u64) -> impl Iterator<Item = u64> {
    (0..UNIX_CHAINS).map(move |chain| table + chain * CHAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_where_a_sockets_address_says_it_begins() {
        // 0xffff_9a3c_0456_7880: folded by 16 it ends in 0x7cd6, by 8 more in 0xaa.
        let socket = 0xffff_9a3c_0456_7880;
        assert_eq!(table_of(socket, 0xffff_ffff_8300_0000 + (256 + 0xaa) * 8), Some(0xffff_ffff_8300_0000));
        // What was not seen.
        assert_eq!(table_of(0, 0xffff_ffff_8300_0000), None);
        assert_eq!(table_of(socket, 0), None);
    }

    #[test]
    fn a_table_has_a_chain_for_each_word() {
        let chains: Vec<u64> = chains_of(0x1000).collect();
        assert_eq!((chains.len(), chains[0], chains[511]), (512, 0x1000, 0x1000 + 511 * 8));
    }
}

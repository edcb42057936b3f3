//! Maglev's choice of a server (Eisenbud and others, NSDI 2016, §3.4): a table
//! of servers by hash, nearly equal shares, and few changes when a server comes
//! or goes.

use std::hash::{BuildHasher, Hasher};
use std::net::Ipv4Addr;

/// Number of slots of a table, a prime. With 100 servers, the shares differ by
/// less than 1 % (`tests/balance.rs`).
pub(super) const SLOTS: usize = 65_537;

/// A server as the table knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Its number.
    pub(super) number: u16,
    pub(super) end: (Ipv4Addr, u16),
    /// Its share, relative to the others'; 0 for none.
    pub(super) weight: u32,
}

/// The server of each slot; empty without a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(Vec<u16>);

/// Hashes with fixed keys: several boxes choose alike.
fn hash(end: (Ipv4Addr, u16), stream: u64) -> u64 {
    let state = ahash::RandomState::with_seeds(stream, 0x6d61_676c, 0x6576, 1);
    let mut hasher = state.build_hasher();
    hasher.write_u32(end.0.to_bits());
    hasher.write_u16(end.1);
    hasher.finish()
}

impl Table {
    /// Fills the table: each server in turn takes the next free slot of its own
    /// permutation, as often as its weight says.
    pub(super) fn new(servers: &[Candidate]) -> Table {
        let most = servers
            .iter()
            .map(|server| server.weight)
            .max()
            .unwrap_or(0);
        if most == 0 {
            return Table::default();
        }
        let slots = SLOTS as u64;
        let mut turns: Vec<(u64, u64, u64)> = servers
            .iter()
            .map(|server| {
                let offset = hash(server.end, 1) % slots;
                let skip = hash(server.end, 2) % (slots - 1) + 1;
                (offset, skip, 0)
            })
            .collect();
        let mut table = vec![u16::MAX; SLOTS];
        let mut left = SLOTS;
        loop {
            for (server, (at, skip, credit)) in servers.iter().zip(&mut turns) {
                *credit += u64::from(server.weight);
                if *credit < u64::from(most) {
                    continue;
                }
                *credit -= u64::from(most);
                while table[*at as usize] != u16::MAX {
                    *at = (*at + *skip) % slots;
                }
                table[*at as usize] = server.number;
                left -= 1;
                if left == 0 {
                    return Table(table);
                }
            }
        }
    }

    /// The server for a hash; `None` without one.
    pub(super) fn choose(&self, hash: u64) -> Option<u16> {
        let slot = hash % (self.0.len().max(1) as u64);
        self.0.get(slot as usize).copied()
    }
}

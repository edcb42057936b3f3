//! The local addresses of connections over IPv6: few and long, so that the table stores a number of
//! eight bytes for each in place of its sixteen.

use super::hash::KeyHash;
use super::key::{Key6, Tuple};
use std::collections::BTreeMap;

/// Number of addresses that are found without a search.
const RECENT: usize = 16;

/// The number of a local address: unique, and random to peers, who do not have the seed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InternedAddr(pub(super) u64);

impl InternedAddr {
    /// The number of an address without a connection; no other address has it.
    pub(super) const NONE: InternedAddr = InternedAddr(0);
}

type Address = [u64; 2];

/// Numbers of addresses, for as long as they have connections.
pub(super) struct AddrInterner {
    /// The last used addresses, each at the index of its bits; at first the unspecified address,
    /// without a connection.
    recent: [(Address, InternedAddr); RECENT],
    /// All addresses, with the number of connections of each.
    all: BTreeMap<Address, (InternedAddr, u32)>,
    /// Makes secret numbers of consecutive ones, one to one.
    names: KeyHash<1>,
    /// Count of assigned numbers.
    given: u64,
}

fn address(key: &Key6) -> Address {
    [key.addresses[0], key.addresses[1]]
}

/// Peers do not choose our addresses: no secret is needed.
#[inline]
fn place([high, low]: Address) -> usize {
    (high ^ low) as usize % RECENT
}

impl AddrInterner {
    pub(super) fn new(seed: u128) -> AddrInterner {
        AddrInterner {
            recent: [([0; 2], InternedAddr::NONE); RECENT],
            all: BTreeMap::new(),
            names: KeyHash::new(!seed),
            given: 0,
        }
    }

    /// The number of a key's local address: [`InternedAddr::NONE`] without a connection.
    #[inline]
    pub(super) fn get(&mut self, key: &Key6) -> InternedAddr {
        let address = address(key);
        let (known, local) = self.recent[place(address)];
        if known == address {
            local
        } else {
            self.seek(key)
        }
    }

    #[cold]
    fn seek(&mut self, key: &Key6) -> InternedAddr {
        let address = address(key);
        let known = self.all.get(&address);
        let local = known.map_or(InternedAddr::NONE, |(local, _)| *local);
        self.recent[place(address)] = (address, local);
        local
    }

    /// Counts a further connection from a key's local address.
    pub(super) fn acquire(&mut self, key: &Key6) -> InternedAddr {
        let address = address(key);
        let (given, names) = (&mut self.given, &self.names);
        let (local, held) = self.all.entry(address).or_insert_with(|| {
            *given += 1;
            let number = Tuple {
                addresses: [*given],
                ports: 0,
            };
            (InternedAddr(names.hash(&number)), 0)
        });
        *held += 1;
        self.recent[place(address)] = (address, *local);
        *local
    }

    /// Counts one less.
    pub(super) fn release(&mut self, key: &Key6) {
        let address = address(key);
        let Some((_, held)) = self.all.get_mut(&address) else {
            return;
        };
        *held -= 1;
        if *held > 0 {
            return;
        }
        self.all.remove(&address);
        let recent = &mut self.recent[place(address)];
        if recent.0 == address {
            recent.1 = InternedAddr::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::Ipv6Addr;

    fn key(local: u128) -> Key6 {
        Key6::new(
            (Ipv6Addr::from_bits(local), 80),
            (Ipv6Addr::LOCALHOST, 1024),
        )
    }

    /// More addresses than are found without a search, in rounds: each has a number of its own
    /// while it is in use, and none afterwards.
    #[test]
    fn names_are_of_one_address_at_a_time() {
        let mut locals = AddrInterner::new(3);
        for round in 0..3_u128 {
            let keys: Vec<Key6> = (0..100).map(|low| key(round * 50 + low)).collect();
            for key in keys.iter().chain(&keys) {
                locals.acquire(key);
            }
            let mut names = || -> Vec<u64> { keys.iter().map(|key| locals.get(key).0).collect() };
            let given = names();
            assert_eq!(given, names());
            let different: HashSet<u64> = given.into_iter().collect();
            assert_eq!(different.len(), 100);
            assert!(!different.contains(&InternedAddr::NONE.0));
            for key in &keys {
                locals.release(key);
                assert_ne!(locals.get(key).0, InternedAddr::NONE.0, "one is left");
            }
            for key in &keys {
                locals.release(key);
                assert_eq!(locals.get(key).0, InternedAddr::NONE.0, "none is left");
            }
        }
    }
}

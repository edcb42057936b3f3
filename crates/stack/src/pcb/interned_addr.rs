//! The local addresses of connections over IPv6. They are few, and long: so the
//! table keeps a name of eight bytes for each in place of its sixteen.

use super::hash::KeyHash;
use super::key::{Key6, Tuple};
use std::collections::BTreeMap;

/// Addresses that are found at once.
const RECENT: usize = 16;

/// The name that stands for a local address: its own, and random for who does not
/// know the seed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InternedAddr(pub(super) u64);

impl InternedAddr {
    /// Of an address without a connection: no number but 0 has this name.
    pub(super) const NONE: InternedAddr = InternedAddr(0);
}

type Address = [u64; 2];

/// Names for addresses, for as long as they have connections.
pub(super) struct AddrInterner {
    /// Those used last, each at the place of its bits; at first the unspecified
    /// address, without a connection.
    recent: [(Address, InternedAddr); RECENT],
    /// All, and how many connections each has.
    all: BTreeMap<Address, (InternedAddr, u32)>,
    /// Makes names of numbers, one to one.
    names: KeyHash<1>,
    /// Names that were given.
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

    /// What stands for a key's local address: [`InternedAddr::NONE`] if it has no
    /// connection.
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

    /// One more connection from a key's local address.
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

    /// One less.
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

    /// More addresses than are found at once, in rounds: each has a name of its
    /// own for as long as it is held, and none afterwards.
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

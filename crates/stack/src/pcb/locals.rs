//! The local addresses of connections over IPv6. They are few, and long: so the
//! table keeps a number for each in place of its sixteen bytes.

use super::key::Key6;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

/// Addresses that are found at once.
const RECENT: usize = 16;

/// What stands for a local address.
#[derive(Clone, Copy)]
pub(super) struct Local {
    pub(super) number: u64,
    /// What it adds to the hash.
    pub(super) share: u64,
}

impl Local {
    /// Of an address without a connection.
    pub(super) const NOBODY: Local = Local {
        number: u64::MAX,
        share: 0,
    };
}

type Address = [u64; 2];

/// Numbers for addresses, for as long as they have connections.
pub(super) struct Locals {
    /// Those used last, each at the place of its bits; at first the unspecified
    /// address, without a connection.
    recent: [(Address, Local); RECENT],
    /// All, and how many connections each has.
    all: BTreeMap<Address, (Local, u32)>,
    /// Numbers that were given back.
    spare: Vec<u64>,
    seed: u128,
}

fn address(key: &Key6) -> Address {
    [key.addresses[0], key.addresses[1]]
}

/// Peers do not choose our addresses: no secret is needed.
#[inline]
fn place([high, low]: Address) -> usize {
    let mixed = (high ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 60) as usize % RECENT
}

/// Of a number, random for who does not know the seed.
fn share(seed: u128, number: u64) -> u64 {
    let mut sip = DefaultHasher::new();
    sip.write_u128(seed);
    sip.write(b"local address");
    sip.write_u64(number);
    sip.finish()
}

impl Locals {
    pub(super) fn new(seed: u128) -> Locals {
        Locals {
            recent: [([0; 2], Local::NOBODY); RECENT],
            all: BTreeMap::new(),
            spare: Vec::new(),
            seed,
        }
    }

    /// What stands for a key's local address: [`Local::NOBODY`] if it has no
    /// connection.
    #[inline]
    pub(super) fn get(&mut self, key: &Key6) -> Local {
        let address = address(key);
        let (known, local) = self.recent[place(address)];
        match known == address {
            true => local,
            false => self.seek(address),
        }
    }

    #[cold]
    fn seek(&mut self, address: Address) -> Local {
        let known = self.all.get(&address);
        let local = known.map_or(Local::NOBODY, |(local, _)| *local);
        self.recent[place(address)] = (address, local);
        local
    }

    /// One more connection from a key's local address.
    pub(super) fn hold(&mut self, key: &Key6) -> Local {
        let (address, seed) = (address(key), self.seed);
        let (all, spare) = (&mut self.all, &mut self.spare);
        let next = all.len() as u64;
        let (local, held) = all.entry(address).or_insert_with(|| {
            // Without spare ones, the numbers below the count are all given.
            let number = spare.pop().unwrap_or(next);
            let share = share(seed, number);
            (Local { number, share }, 0)
        });
        *held += 1;
        self.recent[place(address)] = (address, *local);
        *local
    }

    /// One less.
    pub(super) fn release(&mut self, key: &Key6) {
        let address = address(key);
        let Some((local, held)) = self.all.get_mut(&address) else {
            return;
        };
        *held -= 1;
        if *held > 0 {
            return;
        }
        self.spare.push(local.number);
        self.all.remove(&address);
        let recent = &mut self.recent[place(address)];
        if recent.0 == address {
            recent.1 = Local::NOBODY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn key(local: u128) -> Key6 {
        Key6::new(
            (Ipv6Addr::from_bits(local), 80),
            (Ipv6Addr::LOCALHOST, 1024),
        )
    }

    /// More addresses than are found at once, in rounds: each has a number of its
    /// own for as long as it is held, and none afterwards.
    #[test]
    fn numbers_are_of_one_address_at_a_time() {
        let mut locals = Locals::new(3);
        for round in 0..3_u128 {
            let keys: Vec<Key6> = (0..100).map(|low| key(round * 50 + low)).collect();
            for key in keys.iter().chain(&keys) {
                locals.hold(key);
            }
            let mut numbers = || -> Vec<u64> {
                let numbers = keys.iter().map(|key| locals.get(key).number);
                numbers.collect()
            };
            let mut given = numbers();
            assert_eq!(given, numbers());
            given.sort_unstable();
            assert_eq!(given, (0..100).collect::<Vec<u64>>());
            for key in &keys {
                locals.release(key);
                assert_ne!(locals.get(key).number, Local::NOBODY.number, "one is left");
            }
            for key in &keys {
                locals.release(key);
                assert_eq!(locals.get(key).number, Local::NOBODY.number, "none is left");
            }
        }
    }
}

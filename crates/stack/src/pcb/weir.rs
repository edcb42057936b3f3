//! The stack's PCB table: a hash table for each IP version.

use super::hash::KeyHash;
use super::interned_addr::AddrInterner;
use super::linear_hash::{Home, LinearHash, PendingLookup};
use super::{ChunkSource, InsertError, Key, Key4, Key6, PcbId, Table};

/// Number of look-ups of a batch that are pending together.
const BATCH: usize = 64;

/// A PCB table: a keyed hash selects a cache line with four entries, whose tags are compared first.
/// About one PCB is examined, whatever the number of connections.
///
/// - Over IPv6 96 bits stand for a key: an absent key is taken for a present one with a probability
///   of at most 2^-63 for each present one (see `hash.rs`). Compare the addresses and ports of the
///   PCB where that matters.
/// - Safe against chosen keys: `hash.rs` says what is proven.
/// - Grows by one bucket at a time, so that no insert waits for others to move. The table does not
///   shrink: memory follows the largest number of connections, 43 bytes for each, half as much
///   again up to 16,384. Beyond about 49,000 connections look-ups are faster in memory that a
///   [`ChunkSource`] allocates ahead.
/// - A batch is looked up with its cache misses overlapping.
pub struct Weir {
    hash4: KeyHash<1>,
    v4: LinearHash,
    hash6: KeyHash<2>,
    interner: AddrInterner,
    v6: LinearHash,
}

impl Weir {
    /// An empty table; peers must not know the seed.
    pub fn new(seed: u128) -> Weir {
        Weir {
            hash4: KeyHash::new(seed),
            v4: LinearHash::new(),
            hash6: KeyHash::new(seed),
            interner: AddrInterner::new(seed),
            v6: LinearHash::new(),
        }
    }

    /// Takes chunks from this source from now on, if it has one ready.
    pub fn set_chunk_source(&mut self, supply: &ChunkSource) {
        self.v4.set_chunk_source(supply);
        self.v6.set_chunk_source(supply);
    }

    /// [`Table::find`] for IPv4.
    #[inline]
    pub fn find4(&mut self, key: &Key4) -> Option<PcbId> {
        match self.v4.find_home(&self.hash4.image4(key)) {
            Home::Found(pcb) => Some(pcb),
            Home::Absent => None,
            Home::MayOverflow => self.find_on4(key),
        }
    }

    /// The image is computed again: storing it would cost the look-ups that do not need it.
    #[cold]
    fn find_on4(&mut self, key: &Key4) -> Option<PcbId> {
        self.v4.find(&self.hash4.image4(key))
    }

    /// [`Table::find`] for IPv6.
    #[inline]
    pub fn find6(&mut self, key: &Key6) -> Option<PcbId> {
        let local = self.interner.get(key);
        match self.v6.find_home(&self.hash6.image6(key, local)) {
            Home::Found(pcb) => Some(pcb),
            Home::Absent => None,
            Home::MayOverflow => self.find_on6(key),
        }
    }

    #[cold]
    fn find_on6(&mut self, key: &Key6) -> Option<PcbId> {
        let local = self.interner.get(key);
        self.v6.find(&self.hash6.image6(key, local))
    }

    /// [`Table::find_batch`] where the version is known.
    ///
    /// # Panics
    /// If `found` is not as long as `keys`.
    pub fn find_batch4(&mut self, keys: &[Key4], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        if !self.v4.is_large() {
            let each = keys.iter().zip(found);
            return each.for_each(|(key, found)| *found = self.find4(key));
        }
        let here = find_at_home(keys, found, |key| self.v4.begin(self.hash4.image4(key)));
        self.v4.examined += here as u64;
        if here < keys.len() {
            find_others(keys, found, |key| self.find_on4(key));
        }
    }

    /// [`Table::find_batch`] where the version is known.
    ///
    /// # Panics
    /// If `found` is not as long as `keys`.
    pub fn find_batch6(&mut self, keys: &[Key6], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        if !self.v6.is_large() {
            let each = keys.iter().zip(found);
            return each.for_each(|(key, found)| *found = self.find6(key));
        }
        // A copy: its words need not be loaded again for each key.
        let hash = self.hash6.clone();
        let here = find_at_home(keys, found, |key| {
            let local = self.interner.get(key);
            self.v6.begin(hash.image6(key, local))
        });
        self.v6.examined += here as u64;
        if here < keys.len() {
            find_others(keys, found, |key| self.find_on6(key));
        }
    }

    /// Assigns another PCB to a connection; returns whether the connection exists.
    pub(crate) fn rename(&mut self, key: &Key, pcb: PcbId) -> bool {
        match key {
            Key::V4(key) => self.v4.rename(&self.hash4.image4(key), pcb),
            Key::V6(key) => {
                let local = self.interner.get(key);
                self.v6.rename(&self.hash6.image6(key, local), pcb)
            }
        }
    }
}

/// Looks into the home buckets of all keys; returns how many are there. The others may be
/// elsewhere.
///
/// Some look-ups first all begin, and then end: the processor fetches as many homes together as it
/// can, and the next ones while it hashes. No home is read before all are requested, since a wait
/// for memory delays all that follow.
fn find_at_home<'t, K>(
    keys: &[K],
    found: &mut [Option<PcbId>],
    mut begin: impl FnMut(&K) -> PendingLookup<'t>,
) -> usize {
    let mut here = 0;
    for (keys, found) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
        let mut looks = [PendingLookup::NONE; BATCH];
        for (look, key) in looks.iter_mut().zip(keys) {
            *look = begin(key);
        }
        for (look, found) in looks.iter().zip(found) {
            *found = look.end();
            here += usize::from(found.is_some());
        }
    }
    here
}

/// Finds the keys that are not in their homes, if they are anywhere.
#[cold]
fn find_others<K>(
    keys: &[K],
    found: &mut [Option<PcbId>],
    mut find: impl FnMut(&K) -> Option<PcbId>,
) {
    let each = keys.iter().zip(found);
    for (key, found) in each.filter(|(_, found)| found.is_none()) {
        *found = find(key);
    }
}

impl Table for Weir {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        match key {
            Key::V4(key) => self.v4.insert(&self.hash4.image4(&key), pcb),
            Key::V6(key) => {
                let local = self.interner.acquire(&key);
                let done = self.v6.insert(&self.hash6.image6(&key, local), pcb);
                if done.is_err() {
                    self.interner.release(&key);
                }
                done
            }
        }
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        match key {
            Key::V4(key) => self.v4.remove(&self.hash4.image4(key)),
            Key::V6(key) => {
                let local = self.interner.get(key);
                let pcb = self.v6.remove(&self.hash6.image6(key, local))?;
                self.interner.release(key);
                Some(pcb)
            }
        }
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        match key {
            Key::V4(key) => self.find4(key),
            Key::V6(key) => self.find6(key),
        }
    }

    fn find_batch(&mut self, keys: &[Key], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        if !self.v4.is_large() && !self.v6.is_large() {
            let each = keys.iter().zip(found);
            return each.for_each(|(key, found)| *found = self.find(key));
        }
        let here = find_at_home(keys, found, |key| match key {
            Key::V4(key) => self.v4.begin(self.hash4.image4(key)),
            Key::V6(key) => {
                let local = self.interner.get(key);
                self.v6.begin(self.hash6.image6(key, local))
            }
        });
        // Of both tables: the caller gets the sum.
        self.v4.examined += here as u64;
        if here < keys.len() {
            find_others(keys, found, |key| match key {
                Key::V4(key) => self.find_on4(key),
                Key::V6(key) => self.find_on6(key),
            });
        }
    }

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn examined(&self) -> u64 {
        self.v4.examined + self.v6.examined
    }
}

#[cfg(test)]
impl Weir {
    /// Another key that the table confuses with this one.
    pub(crate) fn twin(&self, key: &Key6) -> Key6 {
        self.hash6.twin(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn there_are_more_keys_than_images() {
        let mut table = Weir::new(5);
        let local = (Ipv6Addr::LOCALHOST, 80);
        let key = Key6::new(local, (Ipv6Addr::from_bits(0x2001_0db8 << 96 | 7), 9));
        let twin = table.twin(&key);
        assert!(twin != key && twin.local() == local);
        table.insert(Key::V6(key), PcbId(3)).unwrap();
        assert_eq!(table.find6(&twin), Some(PcbId(3)));
        let again = table.insert(Key::V6(twin), PcbId(4));
        assert_eq!(again, Err(InsertError::Exists(PcbId(3))));
        // A key that differs in anything else is another key.
        for other in [
            Key6::new((Ipv6Addr::UNSPECIFIED, 80), key.remote()),
            Key6::new((local.0, 81), key.remote()),
            Key6::new(local, (key.remote().0, 10)),
            Key6::new(local, (Ipv6Addr::from_bits(0x2001_0db8 << 96 | 8), 9)),
        ] {
            assert_eq!(table.find6(&other), None);
        }
    }
}

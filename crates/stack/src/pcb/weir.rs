//! Ours: both IP versions, each in a table of its own.

use super::flat::Flat;
use super::{InsertError, Key, Key4, Key6, PcbId, Table};

/// A keyed hash leads to one cache line with four connections: their tags, and
/// for the one whose tag agrees, what is left to compare (over IPv6, to a line
/// with the tags of eight, and from there to another). However many connections
/// there are, about one is examined.
///
/// - Safe against chosen keys: see `hash.rs` for what is proven.
/// - Grows by one bucket at a time, so that no insert waits for others to move.
///   It does not shrink: memory follows the most connections there were at
///   once, 43 bytes each over IPv4 and 92 over IPv6.
/// - A batch is looked up with its cache misses overlapping.
pub struct Weir {
    v4: Flat<1, 4, 256>,
    v6: Flat<4, 8, 64>,
}

impl Weir {
    /// A table without connections; peers must not know the seed.
    pub fn new(seed: u128) -> Weir {
        Weir {
            v4: Flat::new(seed),
            v6: Flat::new(seed),
        }
    }

    /// [`Table::find`] where the version is known.
    #[inline]
    pub fn find4(&mut self, key: &Key4) -> Option<PcbId> {
        self.v4.find(key)
    }

    /// [`Table::find`] where the version is known.
    #[inline]
    pub fn find6(&mut self, key: &Key6) -> Option<PcbId> {
        self.v6.find(key)
    }

    /// [`Table::find_batch`] where the version is known.
    ///
    /// # Panics
    /// If `found` is not as long as `keys`.
    pub fn find_batch4(&mut self, keys: &[Key4], found: &mut [Option<PcbId>]) {
        self.v4.find_batch(keys, found);
    }

    /// [`Table::find_batch`] where the version is known.
    ///
    /// # Panics
    /// If `found` is not as long as `keys`.
    pub fn find_batch6(&mut self, keys: &[Key6], found: &mut [Option<PcbId>]) {
        self.v6.find_batch(keys, found);
    }

    /// Looks up as many keys as are of one version from the start of `keys`
    /// on, at most [`BATCH`]; gives how many.
    fn find_run(&mut self, keys: &[Key], found: &mut [Option<PcbId>]) -> usize {
        let mut v4 = [Key4::UNSPECIFIED; BATCH];
        let mut v6 = [Key6::UNSPECIFIED; BATCH];
        let (mut four, mut six) = (0, 0);
        for key in keys.iter().take(BATCH) {
            match key {
                Key::V4(key) if six == 0 => {
                    v4[four] = *key;
                    four += 1;
                }
                Key::V6(key) if four == 0 => {
                    v6[six] = *key;
                    six += 1;
                }
                _ => break,
            }
        }
        if four > 0 {
            self.v4.find_batch(&v4[..four], &mut found[..four]);
        } else {
            self.v6.find_batch(&v6[..six], &mut found[..six]);
        }
        four + six
    }
}

/// Keys of one version that are handed on together.
const BATCH: usize = 32;

impl Table for Weir {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        match key {
            Key::V4(key) => self.v4.insert(&key, pcb),
            Key::V6(key) => self.v6.insert(&key, pcb),
        }
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        match key {
            Key::V4(key) => self.v4.remove(key),
            Key::V6(key) => self.v6.remove(key),
        }
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        match key {
            Key::V4(key) => self.v4.find(key),
            Key::V6(key) => self.v6.find(key),
        }
    }

    fn find_batch(&mut self, keys: &[Key], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        let mut done = 0;
        while done < keys.len() {
            done += self.find_run(&keys[done..], &mut found[done..]);
        }
    }

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn examined(&self) -> u64 {
        self.v4.examined + self.v6.examined
    }
}

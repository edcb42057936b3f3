//! The index: from the hash of a key to the number of its slot.
//!
//! ```text
//!  hash ─► tag, bucket ──► 8 cells: tag 32 │ slot + 1, or 0 32
//!            └─ bucket ^ tag × C ─► 8 cells
//! ```
//!
//! A key is in one of two buckets; each is found from the other and the tag, so that a cell can move
//! when both are full. A program that finds another key's slot (the tags are equal), or misses a cell
//! that moves at this moment, leaves the frame to the application.

use crate::bpf::{Map, MapError, MapMemory, MapSpec};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

/// Cells of a bucket: a cache line.
pub(super) const CELLS: usize = 8;
/// Cells for each entry.
const CELLS_PER_ENTRY: u32 = 2;

/// Multipliers of the hash: 2^64 divided by the golden ratio, and of MurmurHash3's finaliser.
pub(super) const MUL_A: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const MUL_B: u64 = 0xff51_afd7_ed55_8ccd;
/// The multiplier of tags: MurmurHash2's.
pub(super) const MUL_TAG: i32 = 0x5bd1_e995;

/// The parameters of an index for a program.
#[derive(Clone, Copy, Debug)]
pub(in crate::xdp) struct Geometry {
    /// A power of two.
    pub(super) buckets: u32,
    pub(super) seed: u64,
}

impl Geometry {
    /// The tag of a key and its two buckets, as the program computes them.
    fn place(&self, key: &[u8]) -> (u32, [u32; 2]) {
        let mut hash = self.seed;
        for word in super::words(key) {
            hash = (hash ^ word).wrapping_mul(MUL_A);
            hash ^= hash >> 32;
        }
        // Twice: addresses of one network differ in the upper bits of a word alone.
        for by in [MUL_B, MUL_A] {
            hash = hash.wrapping_mul(by);
            hash ^= hash >> 32;
        }
        let tag = hash as u32;
        let first = (hash >> 32) as u32 & (self.buckets - 1);
        (tag, [first, self.other(first, tag)])
    }

    fn other(&self, bucket: u32, tag: u32) -> u32 {
        (bucket ^ tag.wrapping_mul(MUL_TAG as u32)) & (self.buckets - 1)
    }
}

#[derive(Debug)]
pub(super) struct Index {
    map: Map,
    memory: MapMemory,
    geometry: Geometry,
}

impl Index {
    pub(super) fn new(entries: u32) -> Result<Index, MapError> {
        Index::with_seed(entries, RandomState::new().hash_one(0))
    }

    fn with_seed(entries: u32, seed: u64) -> Result<Index, MapError> {
        let buckets = (entries * CELLS_PER_ENTRY / CELLS as u32).max(1);
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(8 * CELLS as u32, buckets)
        };
        let map = Map::create("weir_fast_index", &spec)?;
        Ok(Index {
            memory: map.map_memory(true)?,
            map,
            geometry: Geometry { buckets, seed },
        })
    }

    pub(super) fn map(&self) -> &Map {
        &self.map
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn load(&self, bucket: u32, cell: usize) -> u64 {
        let cell = self.memory.load_u64(bucket as usize, 8 * cell);
        cell.expect("buckets are numbered below what there are")
    }

    fn store(&self, bucket: u32, cell: usize, value: u64) {
        let cell = self.memory.u64(bucket as usize, 8 * cell);
        let cell = cell.expect("buckets are numbered below what there are");
        cell.store(value, Ordering::Release);
    }

    fn find(&self, bucket: u32, which: impl Fn(u64) -> bool) -> Option<usize> {
        (0..CELLS).find(|cell| which(self.load(bucket, *cell)))
    }

    /// The slot of the first cell that has the tag of a key, as a program finds it.
    pub(super) fn slot(&self, key: &[u8]) -> Option<u32> {
        let (tag, buckets) = self.geometry.place(key);
        let has_tag = |cell: u64| cell != 0 && (cell >> 32) as u32 == tag;
        let mut buckets = buckets.into_iter();
        let (bucket, cell) =
            buckets.find_map(|bucket| Some((bucket, self.find(bucket, has_tag)?)))?;
        (self.load(bucket, cell) as u32).checked_sub(1)
    }

    /// Adds a key; `false` if there is no room.
    pub(super) fn insert(&self, key: &[u8], slot: u32) -> bool {
        // A program looks no further than the first cell with its tag.
        if self.slot(key).is_some() {
            return false;
        }
        let (tag, buckets) = self.geometry.place(key);
        let room = |bucket| self.find(bucket, |cell| cell == 0);
        let found = buckets
            .into_iter()
            .find_map(|bucket| Some((bucket, room(bucket)?)));
        let found = found.or_else(|| self.make_room(buckets[0]));
        let Some((bucket, cell)) = found else {
            return false;
        };
        self.store(bucket, cell, u64::from(tag) << 32 | u64::from(slot + 1));
        true
    }

    /// Moves a cell of a full bucket to its other one.
    fn make_room(&self, bucket: u32) -> Option<(u32, usize)> {
        (0..CELLS).find_map(|cell| {
            let value = self.load(bucket, cell);
            let other = self.geometry.other(bucket, (value >> 32) as u32);
            let vacant = self.find(other, |cell| cell == 0)?;
            self.store(other, vacant, value);
            Some((bucket, cell))
        })
    }

    pub(super) fn remove(&self, key: &[u8], slot: u32) {
        let (_, buckets) = self.geometry.place(key);
        for bucket in buckets {
            if let Some(cell) = self.find(bucket, |cell| cell as u32 == slot + 1) {
                self.store(bucket, cell, 0);
            }
        }
    }

    pub(super) fn clear(&self) {
        for bucket in 0..self.geometry.buckets {
            for cell in 0..CELLS {
                if self.load(bucket, cell) != 0 {
                    self.store(bucket, cell, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::testenv;

    fn holds_all(index: &Index, entries: u32, key: impl Fn(u32) -> [u8; 16], what: &str) {
        for slot in 0..entries {
            assert!(
                index.insert(&key(slot), slot),
                "{what}: {slot} of {entries}"
            );
        }
        for slot in 0..entries {
            let (tag, buckets) = index.geometry.place(&key(slot));
            let value = u64::from(tag) << 32 | u64::from(slot + 1);
            let is_in = |bucket: &u32| index.find(*bucket, |cell| cell == value).is_some();
            assert!(buckets.iter().any(is_in), "{what}: {slot} of {entries}");
        }
        for slot in (0..entries).step_by(2) {
            index.remove(&key(slot), slot);
        }
        for slot in (0..entries).step_by(2) {
            assert!(
                index.insert(&key(slot), slot),
                "{what}: {slot} of {entries} again"
            );
        }
        index.clear();
        let buckets = 0..index.geometry.buckets;
        let is_empty = |bucket| (0..CELLS).all(|cell| index.load(bucket, cell) == 0);
        assert!(buckets.into_iter().all(is_empty), "{what}");
    }

    #[test]
    fn an_index_holds_as_many_keys_as_it_is_made_for() {
        if !testenv::bpf() {
            return;
        }
        for seed in 0..8_u64 {
            let seed = seed.wrapping_mul(MUL_A);
            for entries in [1, 2, 8, 64, 256, 1 << 12, 1 << 16] {
                let index = Index::with_seed(entries, seed).unwrap();
                let what = format!("seed {seed:x}");
                // As network order has them: neighbours differ in the last byte, or in the first ones.
                holds_all(
                    &index,
                    entries,
                    |number| u128::from(number).to_be_bytes(),
                    &what,
                );
                holds_all(
                    &index,
                    entries,
                    |number| u128::from(number).to_le_bytes(),
                    &what,
                );
                let ports = |number: u32| (u128::from(number) << 56).to_be_bytes();
                holds_all(&index, entries, ports, &what);
            }
        }
    }
}

//! The hash table of one IP version: linear hashing (Litwin, "Linear hashing: a new tool for file
//! and table addressing", 1980) over [`Bucket`]s.
//!
//! The table grows by one bucket at a time, so that no insert waits for more than one split.
//! Buckets are split in turn: the entries of bucket *b* whose image has the next bit set move to
//! the new bucket.
//!
//! ```text
//!        0        split      size        buckets
//!        ├────────┼──────────┼───────────┤        buckets = size + split
//!        by a bit  by the      by a bit
//!        more      low bits    more               size: a power of two
//! ```
//!
//! Buckets lie in [`TableChunk`]s, so that growing copies none. An entry whose bucket is full goes
//! to the next one, also behind the last.

use super::bucket::{Bucket, PCB_END, SLOTS};
use super::chunk::{self, TableChunk};
use super::hash::HashedKey;
use super::{ChunkSource, ENTRIES_MAX, InsertError, PcbId};
use std::hint::select_unpredictable;

/// Buckets of an empty table.
const BUCKETS_MIN: usize = 16;
/// Buckets of a table that lies in the caches next to the processor: 1 MiB.
const SMALL: usize = 1 << 14;

/// A hash table that grows a bucket at a time (linear hashing).
pub(super) struct LinearHash {
    /// Empty chunks at the end may be missing.
    chunks: Vec<TableChunk>,
    /// The source of chunks allocated ahead, and the next chunk.
    chunk_source: Option<ChunkSource>,
    spare: Option<TableChunk>,
    buckets: usize,
    /// The greatest power of two up to `buckets`, minus one.
    mask: usize,
    /// The mask with one bit more.
    wide: usize,
    len: usize,
    /// The entries that a split moves.
    moving: Vec<(HashedKey, PcbId)>,
    pub(super) examined: u64,
}

/// The result of a look-up in an image's home bucket.
pub(super) enum Home {
    /// The entry is there.
    Found(PcbId),
    /// The entry is in no bucket.
    Absent,
    /// The entry may be in the buckets behind.
    MayOverflow,
}

/// A pending look-up: its home bucket is being fetched into the caches.
#[derive(Clone, Copy)]
pub(super) struct PendingLookup<'t> {
    image: HashedKey,
    /// The home bucket and the rest of its chunk; empty if the chunk was never needed.
    home: &'t [Bucket],
}

impl PendingLookup<'_> {
    pub(super) const NONE: PendingLookup<'static> = PendingLookup {
        image: HashedKey::ZERO,
        home: &[],
    };

    /// The PCB, if it is in the home bucket. If it may be in the next bucket, that one is fetched
    /// from now on.
    #[inline]
    pub(super) fn end(&self) -> Option<PcbId> {
        let [home, behind @ ..] = self.home else {
            return None;
        };
        let found = home.first(home.candidates(self.image.tag()), &self.image);
        if found.is_none()
            && home.has_overflowed()
            && let Some(next) = behind.first()
        {
            next.prefetch();
        }
        found
    }
}

/// The position of an entry.
#[derive(Clone, Copy)]
struct Found {
    bucket: usize,
    slot: usize,
    pcb: PcbId,
}

impl LinearHash {
    pub(super) fn new() -> LinearHash {
        LinearHash {
            chunks: Vec::new(),
            chunk_source: None,
            spare: None,
            buckets: BUCKETS_MIN,
            mask: BUCKETS_MIN - 1,
            wide: 2 * BUCKETS_MIN - 1,
            len: 0,
            moving: Vec::new(),
            examined: 0,
        }
    }

    pub(super) fn set_chunk_source(&mut self, supply: &ChunkSource) {
        self.chunk_source = Some(supply.clone());
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The home bucket of an image.
    #[inline]
    fn home(&self, image: &HashedKey) -> usize {
        let place = image.place() as usize;
        let home = place & self.wide;
        // Which of them is unpredictable: a branch would cost more than both.
        select_unpredictable(home < self.buckets, home, place & self.mask)
    }

    /// A bucket; `None` if its chunk was never needed, so that the bucket is empty.
    #[inline]
    fn bucket(&self, index: usize) -> Option<&Bucket> {
        let segment = self.chunks.get(index / chunk::BUCKETS)?;
        Some(&segment.buckets()[index % chunk::BUCKETS])
    }

    /// A bucket for writing.
    fn bucket_mut(&mut self, index: usize) -> &mut Bucket {
        while self.chunks.len() <= index / chunk::BUCKETS {
            self.add_chunk();
        }
        &mut self.chunks[index / chunk::BUCKETS].buckets_mut()[index % chunk::BUCKETS]
    }

    /// The first chunk is not requested ahead: most tables never fill it.
    #[cold]
    fn add_chunk(&mut self) {
        if !self.chunks.is_empty() {
            self.ask();
        }
        let mut segment = self.spare.take().unwrap_or_else(TableChunk::lazy);
        segment.step(0);
        self.chunks.push(segment);
    }

    /// Prepares the memory of the buckets that are added next.
    #[cold]
    fn step(&mut self) {
        let from = self.buckets % chunk::BUCKETS;
        if let Some(segment) = self.chunks.get_mut(self.buckets / chunk::BUCKETS) {
            segment.step(from);
        }
        if from == chunk::BUCKETS / 2 {
            // So early that a source which begins to allocate now is done in time.
            self.ask();
        }
    }

    /// Requests the next chunk, unless one is ready.
    #[cold]
    fn ask(&mut self) {
        if self.spare.is_none() {
            self.spare = self.chunk_source.as_ref().and_then(|supply| supply());
        }
    }

    /// Looks into an image's home bucket alone, which suffices for almost every look-up.
    #[inline]
    pub(super) fn find_home(&mut self, image: &HashedKey) -> Home {
        let Some(bucket) = self.bucket(self.home(image)) else {
            return Home::Absent;
        };
        let candidates = bucket.candidates(image.tag());
        match bucket.first(candidates, image) {
            Some(found) => {
                self.examined += 1;
                Home::Found(found)
            }
            None if candidates == 0 && !bucket.has_overflowed() => Home::Absent,
            None => Home::MayOverflow,
        }
    }

    /// Looks into all buckets from the home on.
    pub(super) fn find(&mut self, image: &HashedKey) -> Option<PcbId> {
        let mut examined = 0;
        let found = self.search(self.home(image), image, &mut examined);
        self.examined += examined;
        found.map(|found| found.pcb)
    }

    /// Looks into the buckets from `index` on.
    fn search(&self, mut index: usize, image: &HashedKey, examined: &mut u64) -> Option<Found> {
        loop {
            let bucket = self.bucket(index)?;
            if let Some((slot, pcb)) = bucket.examine(image, examined) {
                return Some(Found {
                    bucket: index,
                    slot,
                    pcb,
                });
            }
            if !bucket.has_overflowed() {
                return None;
            }
            index += 1;
        }
    }

    /// Whether a batch has cache misses to overlap.
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        self.buckets > SMALL
    }

    /// Begins a look-up without waiting for memory.
    #[inline]
    pub(super) fn begin(&self, image: HashedKey) -> PendingLookup<'_> {
        let index = self.home(&image);
        let Some(segment) = self.chunks.get(index / chunk::BUCKETS) else {
            return PendingLookup { image, home: &[] };
        };
        let home = &segment.buckets()[index % chunk::BUCKETS..];
        home[0].prefetch();
        PendingLookup { image, home }
    }

    pub(super) fn insert(&mut self, image: &HashedKey, pcb: PcbId) -> Result<(), InsertError> {
        if pcb.0 >= PCB_END {
            return Err(InsertError::Name(pcb));
        }
        let home = self.home(image);
        if let Some(found) = self.search(home, image, &mut 0) {
            return Err(InsertError::Exists(found.pcb));
        }
        if self.len >= ENTRIES_MAX {
            return Err(InsertError::Full);
        }
        self.put(home, image, pcb);
        self.len += 1;
        if self.is_crowded() {
            self.split();
        }
        Ok(())
    }

    /// Whether a bucket must be added: at one entry for each bucket, and at 1.5 entries once the
    /// table is large. With one, fewer entries find their home full, a branch that is unpredictable
    /// and costs most while the table is in the caches; a table beyond the caches had better be
    /// small. Buckets whose turn to be split comes last have up to twice as many entries before.
    fn is_crowded(&self) -> bool {
        if self.buckets < SMALL {
            self.len > self.buckets
        } else {
            2 * self.len > 3 * self.buckets
        }
    }

    /// Puts an entry into the first bucket with room, from its home on.
    fn put(&mut self, home: usize, image: &HashedKey, pcb: PcbId) {
        let mut index = home;
        while !self.bucket_mut(index).put(image, pcb) {
            self.bucket_mut(index).count_overflow();
            index += 1;
        }
    }

    /// Frees the slot of an entry.
    fn free(&mut self, home: usize, bucket: usize, slot: usize) {
        self.bucket_mut(bucket).free(slot);
        for passed in home..bucket {
            self.bucket_mut(passed).uncount_overflow();
        }
    }

    /// Adds a bucket: splits the one whose turn it is.
    fn split(&mut self) {
        let (mask, added) = (self.mask, self.buckets);
        let turn = added & mask;
        self.buckets += 1;
        if self.buckets.is_multiple_of(chunk::STEP) {
            self.step();
        }
        if self.buckets == 2 * (mask + 1) {
            self.mask = 2 * mask + 1;
            self.wide = 2 * self.mask + 1;
        }
        match self.bucket(turn) {
            None => {}
            Some(bucket) if bucket.has_overflowed() => self.split_passed(turn, mask),
            Some(bucket) => {
                let mut moves = bucket.slots_of(added as u32, 2 * mask as u32 + 1);
                while moves != 0 {
                    self.move_to(added, turn, moves.trailing_zeros() as usize);
                    moves &= moves - 1;
                }
            }
        }
    }

    /// Moves an entry to its home, which was just added.
    fn move_to(&mut self, home: usize, bucket: usize, slot: usize) {
        let from = self.bucket_mut(bucket);
        if let Some((image, pcb)) = from.entry(slot) {
            from.free(slot);
            self.put(home, &image, pcb);
        }
    }

    /// Splits a bucket whose entries overflowed: the ones that stay move back to where they belong.
    #[inline(never)]
    fn split_passed(&mut self, turn: usize, mask: usize) {
        let mut moving = std::mem::take(&mut self.moving);
        let mut index = turn;
        loop {
            let passed = self.bucket(index).is_some_and(Bucket::has_overflowed);
            for slot in 0..SLOTS {
                let entry = self.bucket(index).and_then(|bucket| bucket.entry(slot));
                if let Some(entry) =
                    entry.filter(|(image, _)| image.place() as usize & mask == turn)
                {
                    self.free(turn, index, slot);
                    moving.push(entry);
                }
            }
            if !passed {
                break;
            }
            index += 1;
        }
        for (image, pcb) in moving.drain(..) {
            self.put(self.home(&image), &image, pcb);
        }
        self.moving = moving;
    }

    /// Assigns another PCB to an entry; returns whether the entry exists.
    pub(super) fn rename(&mut self, image: &HashedKey, pcb: PcbId) -> bool {
        let found = self.search(self.home(image), image, &mut 0);
        if let Some(Found { bucket, slot, .. }) = found {
            self.bucket_mut(bucket).rename(slot, pcb);
        }
        found.is_some()
    }

    pub(super) fn remove(&mut self, image: &HashedKey) -> Option<PcbId> {
        let home = self.home(image);
        let Found { bucket, slot, pcb } = self.search(home, image, &mut 0)?;
        self.free(home, bucket, slot);
        self.len -= 1;
        Some(pcb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcb::hash::KeyHash;
    use crate::pcb::key::Tuple;

    type Pattern = fn(u32) -> (u32, u32);

    fn key(hash: &KeyHash<1>, remote: u32, ports: u32) -> HashedKey {
        hash.image4(&Tuple {
            addresses: [0xc000_0201 << 32 | u64::from(remote)],
            ports,
        })
    }

    /// Entries that are not in their home bucket, in thousandths.
    fn displaced(table: &LinearHash) -> usize {
        let mut displaced = 0;
        // Some overflowed behind the last bucket.
        for here in 0..table.buckets + 16 {
            let bucket = table.bucket(here);
            let entries = (0..SLOTS).filter_map(|slot| bucket?.entry(slot));
            displaced += entries
                .filter(|(image, _)| table.home(image) != here)
                .count();
        }
        displaced * 1000 / table.len
    }

    /// Consecutive keys are spread as if at random: for any secret, few entries find their bucket
    /// full, at any time from one doubling to the next but one.
    #[test]
    fn keys_that_follow_on_one_another_scatter() {
        let patterns: [Pattern; 5] = [
            |n| (n, 40_000),
            |n| (n.rotate_left(16), 1),
            |n| (n >> 16, n & 0xffff),
            |n| (n.wrapping_mul(0x0100_0193), 7),
            |n| ((n & 0xffff) | n >> 16 << 20, n & 0xffff),
        ];
        for seed in 0..40 {
            for (number, pattern) in patterns.iter().enumerate() {
                let mut table = LinearHash::new();
                let hash = KeyHash::new(seed);
                for index in 0..6200 {
                    let (remote, ports) = pattern(index);
                    table
                        .insert(&key(&hash, remote, ports), PcbId(index))
                        .unwrap();
                    // With 1,024 entries there are 1,024 buckets.
                    if index < 1024 || index % 128 > 0 {
                        continue;
                    }
                    let displaced = displaced(&table);
                    assert!(displaced < 70, "seed {seed}, {number}: {displaced}");
                }
            }
        }
    }

    /// Adds a bucket at a time; entries are back in their homes when all others are removed.
    #[test]
    fn what_goes_on_is_found_moved_and_forgotten() {
        let mut table = LinearHash::new();
        let hash = KeyHash::new(7);
        // Keys with one home while the table is small, found by trial.
        let home = |index| key(&hash, index, 9).place() as usize % BUCKETS_MIN;
        let same: Vec<u32> = (0..).filter(|index| home(*index) == 15).take(16).collect();
        for (pcb, index) in same.iter().enumerate() {
            table
                .insert(&key(&hash, *index, 9), PcbId(pcb as u32))
                .unwrap();
        }
        assert!(
            table.bucket(16).unwrap().has_overflowed(),
            "beyond the last one"
        );
        for (pcb, index) in same.iter().enumerate() {
            assert_eq!(table.find(&key(&hash, *index, 9)), Some(PcbId(pcb as u32)));
        }
        assert_eq!(table.examined, 16);
        let mut buckets = table.buckets;
        for index in 0..10_000 {
            let known = table.insert(&key(&hash, index, 10), PcbId(index));
            assert_eq!(known, Ok(()));
            assert!(table.buckets <= buckets + 1, "one at a time");
            buckets = table.buckets;
        }
        for (pcb, index) in same.iter().enumerate() {
            assert_eq!(
                table.remove(&key(&hash, *index, 9)),
                Some(PcbId(pcb as u32))
            );
        }
        for index in (0..10_000).rev() {
            assert_eq!(table.remove(&key(&hash, index, 10)), Some(PcbId(index)));
        }
        let passed = (0..table.buckets).filter_map(|index| table.bucket(index));
        assert!(
            passed.filter(|bucket| bucket.has_overflowed()).count() <= 2,
            "full counts stay"
        );
        let beyond = table.insert(&key(&hash, 1, 1), PcbId(PCB_END));
        assert_eq!(beyond, Err(InsertError::Name(PcbId(PCB_END))));
    }
}

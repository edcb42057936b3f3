//! Our table for one IP version: [`Slots`] that grow without a pause.
//!
//! When the slots are three quarters full, new ones, twice as many, are
//! reserved, and each insert from then on moves a few buckets. The home
//! bucket of a connection tells which of the two it is in:
//!
//! ```text
//!  old   ┌ moved ──────────┬ not moved yet ───────┐     home in old < moved: look in new
//!        0               moved                  size    otherwise: look in old
//!  new   ┌──────────────────────────────────────────────────────────────┐
//! ```
//!
//! The old slots' memory is then given back a piece at a time.

use super::hash::KeyHash;
use super::key::Tuple;
use super::slots::{Entry, Found, Hash, SLOTS, Slots, entry, key_of};
use super::{ENTRIES_MAX, InsertError, PcbId};

/// Buckets of an empty table.
const BUCKETS_MIN: usize = 16;
/// Look-ups of a batch that are under way together.
const BATCH: usize = 32;
/// Buckets that an insert moves while the table grows: moving is done before
/// the new slots are half as full as the old ones were.
const MOVED_EACH: usize = 4;
/// Memory of outgrown slots that an insert gives back, in bytes.
const GIVEN_BACK_EACH: usize = 16 << 10;

/// The table for keys with `A` words of addresses; `E` is `A + 1`.
pub(super) struct Flat<const A: usize, const E: usize> {
    hash: KeyHash<A>,
    slots: Slots<E>,
    /// The slots before the table grew, and how many of their buckets are
    /// still to be looked at: those from `moved` on.
    old: Slots<E>,
    moved: usize,
    /// Slots whose memory is being given back.
    outgrown: Option<Slots<E>>,
    len: usize,
    pub(super) examined: u64,
}

impl<const A: usize, const E: usize> Flat<A, E> {
    pub(super) fn new(seed: u128) -> Flat<A, E> {
        const { assert!(E == A + 1) };
        Flat {
            hash: KeyHash::new(seed),
            slots: Slots::new(BUCKETS_MIN),
            old: Slots::new(1),
            moved: 1,
            outgrown: None,
            len: 0,
            examined: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slots that a hash's connection is in.
    #[inline]
    fn slots_of(&self, hash: Hash) -> &Slots<E> {
        if hash.home & self.old.mask() < self.moved {
            &self.slots
        } else {
            &self.old
        }
    }

    fn slots_of_mut(&mut self, hash: Hash) -> &mut Slots<E> {
        if hash.home & self.old.mask() < self.moved {
            &mut self.slots
        } else {
            &mut self.old
        }
    }

    #[inline]
    pub(super) fn find(&mut self, key: &Tuple<A>) -> Option<PcbId> {
        let hash = Hash::new(self.hash.hash(key));
        let mut examined = 0;
        let found = self.slots_of(hash).find(hash, key, &mut examined);
        self.examined += examined;
        found.map(|found| found.pcb)
    }

    /// Looks a batch up in steps: in each, nothing waits for another key's
    /// cache miss, so the processor has as many under way as it can.
    pub(super) fn find_batch(&mut self, keys: &[Tuple<A>], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        for (keys, found) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
            self.find_some(keys, found);
        }
    }

    fn find_some(&mut self, keys: &[Tuple<A>], found: &mut [Option<PcbId>]) {
        let mut hashes = [Hash::default(); BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = Hash::new(self.hash.hash(key));
        }
        let hashes = &hashes[..keys.len()];
        let mut candidates = [None; BATCH];
        for (candidate, &hash) in candidates.iter_mut().zip(hashes) {
            *candidate = self.slots_of(hash).candidate(hash);
        }
        let mut examined = 0;
        for (index, (key, found)) in keys.iter().zip(found).enumerate() {
            let slots = self.slots_of(hashes[index]);
            *found = candidates[index].and_then(|entry| slots.compare(entry, key));
            if found.is_some() {
                examined += 1;
            } else {
                let again = slots.find(hashes[index], key, &mut examined);
                *found = again.map(|found| found.pcb);
            }
        }
        self.examined += examined;
    }

    pub(super) fn insert(&mut self, key: &Tuple<A>, pcb: PcbId) -> Result<(), InsertError> {
        let hash = Hash::new(self.hash.hash(key));
        if let Some(found) = self.slots_of(hash).find(hash, key, &mut 0) {
            return Err(InsertError::Exists(found.pcb));
        }
        if self.len >= ENTRIES_MAX {
            return Err(InsertError::Full);
        }
        self.slots_of_mut(hash).insert(hash, entry(key, pcb));
        self.len += 1;
        self.grow();
        Ok(())
    }

    /// Does an insert's share of growing, if there is any to do.
    fn grow(&mut self) {
        if let Some(outgrown) = &mut self.outgrown
            && outgrown.shrink(GIVEN_BACK_EACH)
        {
            self.outgrown = None;
        }
        if self.moved < self.old.buckets() {
            for _ in 0..MOVED_EACH {
                self.move_bucket();
            }
        } else if 4 * self.len > 3 * SLOTS * self.slots.buckets() {
            let new = Slots::new(2 * self.slots.buckets());
            self.old = std::mem::replace(&mut self.slots, new);
            self.moved = 0;
        }
    }

    fn move_bucket(&mut self) {
        if self.moved == self.old.buckets() {
            return;
        }
        let hash = |entry: &Entry<E>| Hash::new(self.hash.hash(&key_of::<A, E>(entry)));
        let slots = &mut self.slots;
        let each = |entry| slots.insert(hash(&entry), entry);
        self.old.drain(self.moved, |entry| hash(entry).home, each);
        self.moved += 1;
        if self.moved == self.old.buckets() {
            let moved = std::mem::replace(&mut self.old, Slots::new(1));
            self.moved = 1;
            // If there still is another, it is much smaller.
            self.outgrown = Some(moved);
        }
    }

    pub(super) fn remove(&mut self, key: &Tuple<A>) -> Option<PcbId> {
        let hash = Hash::new(self.hash.hash(key));
        let slots = self.slots_of_mut(hash);
        let Found { bucket, slot, pcb } = slots.find(hash, key, &mut 0)?;
        slots.free(hash.home, bucket, slot);
        self.len -= 1;
        Some(pcb)
    }
}

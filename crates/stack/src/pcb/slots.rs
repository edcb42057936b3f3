//! A hash table of fixed size: buckets of seven slots.
//!
//! ```text
//! bucket b:  byte 7       6     5     4     3     2     1     0
//!          ┌──────────┬─────┬─────┬─────┬─────┬─────┬─────┬─────┐
//!          │ gone on  │ tag │ tag │ tag │ tag │ tag │ tag │ tag │
//!          └──────────┴─────┴─────┴─────┴─────┴─────┴─────┴─────┘
//! entry 7·b + slot:  addresses │ ports ‖ PCB
//! ```
//!
//! A tag is one bit that says "taken" and seven of the hash; all seven tags
//! are compared at once. *Gone on* counts the entries that found this bucket
//! full and went on to the next, so that a look-up knows whether to; when it
//! is 255 it is not exact any more and stays. (The idea of such counts is
//! that of Folly's F14; with them, removing leaves no tombstones.)
//!
//! Tags lie together and take little more than a byte a connection, so they
//! stay in the caches when the entries no longer do: a look-up then waits
//! for one line, the entry's.

use super::PcbId;
use super::key::Tuple;

/// Slots of a bucket.
pub(super) const SLOTS: usize = 7;
/// Marks a tag whose slot is taken.
const TAKEN: u64 = 0x80;
/// The lowest bit of each tag.
const LOW: u64 = 0x0001_0101_0101_0101;
/// The highest bit of each tag.
const HIGH: u64 = LOW << 7;
/// One entry gone on.
const GONE_ON: u64 = 1 << 56;
/// "Gone on" as far as it counts.
const GONE_ON_MAX: u64 = 255;

/// A connection and its PCB: the key's addresses, then its ports and the PCB.
/// `E` is the number of address words and one more.
pub(super) type Entry<const E: usize> = [u64; E];

pub(super) fn entry<const A: usize, const E: usize>(key: &Tuple<A>, pcb: PcbId) -> Entry<E> {
    let mut words = [0; E];
    words[..A].copy_from_slice(&key.addresses);
    words[A] = u64::from(key.ports) << 32 | u64::from(pcb.0);
    words
}

pub(super) fn key_of<const A: usize, const E: usize>(words: &Entry<E>) -> Tuple<A> {
    let mut addresses = [0; A];
    addresses.copy_from_slice(&words[..A]);
    let ports = (words[A] >> 32) as u32;
    Tuple { addresses, ports }
}

/// Compares an entry with a key; gives its PCB.
#[inline]
fn compare<const A: usize, const E: usize>(words: &Entry<E>, key: &Tuple<A>) -> Option<PcbId> {
    let mut differ = (words[A] >> 32) ^ u64::from(key.ports);
    for (word, address) in words.iter().zip(&key.addresses) {
        differ |= word ^ address;
    }
    (differ == 0).then_some(PcbId(words[A] as u32))
}

/// A hash, taken apart.
#[derive(Clone, Copy, Default)]
pub(super) struct Hash {
    /// Tells the bucket, by its low bits.
    pub(super) home: usize,
    tag: u64,
}

impl Hash {
    #[inline]
    pub(super) fn new(hash: u64) -> Hash {
        Hash {
            home: (hash >> 25) as usize,
            tag: TAKEN | hash >> 57,
        }
    }
}

/// The slots of a bucket whose tag agrees: the highest bit of their byte.
#[inline]
fn matches(control: u64, tag: u64) -> u64 {
    let differ = control ^ (tag * LOW);
    // Above a tag that agrees, one that differs in its lowest bit passes
    // too; an empty slot never does.
    differ.wrapping_sub(LOW) & !differ & HIGH
}

/// See the module.
pub(super) struct Slots<const E: usize> {
    control: Vec<u64>,
    entries: Vec<Entry<E>>,
    /// Buckets less one; they are a power of two.
    mask: usize,
}

/// Where an entry is, and what it cost to find it.
pub(super) struct Found {
    pub(super) bucket: usize,
    pub(super) slot: usize,
    pub(super) pcb: PcbId,
}

impl<const E: usize> Slots<E> {
    /// Empty buckets, a power of two. Large tables are zeroed by the kernel
    /// page by page when they are first touched, not here.
    pub(super) fn new(buckets: usize) -> Slots<E> {
        assert!(buckets.is_power_of_two(), "{buckets} buckets");
        Slots {
            control: vec![0; buckets],
            entries: vec![[0; E]; buckets * SLOTS],
            mask: buckets - 1,
        }
    }

    #[inline]
    pub(super) fn mask(&self) -> usize {
        self.mask
    }

    pub(super) fn buckets(&self) -> usize {
        self.mask + 1
    }

    /// Looks for a key; adds to `examined` what it compares.
    #[inline]
    pub(super) fn find<const A: usize>(
        &self,
        hash: Hash,
        key: &Tuple<A>,
        examined: &mut u64,
    ) -> Option<Found> {
        let mut bucket = hash.home & self.mask;
        loop {
            let control = self.control[bucket];
            let mut matches = matches(control, hash.tag);
            while matches != 0 {
                let slot = matches.trailing_zeros() as usize / 8;
                *examined += 1;
                if let Some(pcb) = compare(&self.entries[bucket * SLOTS + slot], key) {
                    return Some(Found { bucket, slot, pcb });
                }
                matches &= matches - 1;
            }
            if control < GONE_ON {
                return None;
            }
            bucket = (bucket + 1) & self.mask;
        }
    }

    /// The first of a look-up's two steps: the entry to compare first, if
    /// there is one.
    #[inline]
    pub(super) fn candidate(&self, hash: Hash) -> Option<usize> {
        let bucket = hash.home & self.mask;
        let matches = matches(self.control[bucket], hash.tag);
        (matches != 0).then(|| bucket * SLOTS + matches.trailing_zeros() as usize / 8)
    }

    /// The second step.
    #[inline]
    pub(super) fn compare<const A: usize>(&self, entry: usize, key: &Tuple<A>) -> Option<PcbId> {
        compare(&self.entries[entry], key)
    }

    /// Puts an entry, whose key is not there, into the first free slot. At
    /// least one slot of the table must be free.
    pub(super) fn insert(&mut self, hash: Hash, entry: Entry<E>) {
        let mut bucket = hash.home & self.mask;
        loop {
            let control = &mut self.control[bucket];
            let free = !*control & HIGH;
            if free != 0 {
                let slot = free.trailing_zeros() / 8;
                *control = *control & !(0xff << (8 * slot)) | hash.tag << (8 * slot);
                self.entries[bucket * SLOTS + slot as usize] = entry;
                return;
            }
            if *control >> 56 < GONE_ON_MAX {
                *control += GONE_ON;
            }
            bucket = (bucket + 1) & self.mask;
        }
    }

    /// Frees the slot of an entry whose home is `home`.
    pub(super) fn free(&mut self, home: usize, bucket: usize, slot: usize) {
        self.control[bucket] &= !(0xff << (8 * slot));
        let mut on = home & self.mask;
        while on != bucket {
            let control = &mut self.control[on];
            if *control >> 56 < GONE_ON_MAX {
                *control -= GONE_ON;
            }
            on = (on + 1) & self.mask;
        }
    }

    /// Takes all entries out whose home is bucket `home`, as `home_of` says.
    pub(super) fn drain(
        &mut self,
        home: usize,
        home_of: impl Fn(&Entry<E>) -> usize,
        mut each: impl FnMut(Entry<E>),
    ) {
        let mut bucket = home;
        loop {
            let gone_on = self.control[bucket] >= GONE_ON;
            for slot in 0..SLOTS {
                let entry = self.entries[bucket * SLOTS + slot];
                let taken = self.control[bucket] >> (8 * slot) & TAKEN != 0;
                if taken && home_of(&entry) & self.mask == home {
                    self.free(home, bucket, slot);
                    each(entry);
                }
            }
            if !gone_on {
                return;
            }
            bucket = (bucket + 1) & self.mask;
        }
    }

    /// Gives some of the memory back, at most `bytes` or so: giving back all
    /// at once would take the kernel long. True when all is.
    pub(super) fn shrink(&mut self, bytes: usize) -> bool {
        let keep = self
            .entries
            .len()
            .saturating_sub(bytes / size_of::<Entry<E>>());
        self.entries.truncate(keep);
        self.entries.shrink_to_fit();
        let keep = self.control.len().saturating_sub(bytes / size_of::<u64>());
        self.control.truncate(keep);
        self.control.shrink_to_fit();
        self.entries.is_empty() && self.control.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries with the same home fill bucket after bucket, round the end of
    /// the table, and all can be found and taken out in any order.
    #[test]
    fn what_goes_on_is_found_and_forgotten() {
        let mut slots = Slots::<2>::new(8);
        let key = |index: u32| Tuple {
            addresses: [1],
            ports: index,
        };
        let hash = |index: u32| Hash {
            home: if index < 30 { 6 } else { 5 },
            tag: TAKEN | u64::from(index % 3),
        };
        for index in 0..40 {
            slots.insert(hash(index), entry(&key(index), PcbId(index)));
        }
        let mut examined = 0;
        for index in (0..40).rev() {
            for other in 0..=index {
                let found = slots.find(hash(other), &key(other), &mut examined);
                assert_eq!(found.map(|found| found.pcb), Some(PcbId(other)));
            }
            let found = slots.find(hash(index), &key(index), &mut examined).unwrap();
            slots.free(hash(index).home, found.bucket, found.slot);
            assert!(
                slots
                    .find(hash(index), &key(index), &mut examined)
                    .is_none()
            );
        }
        assert!(
            slots
                .control
                .iter()
                .all(|&control| control & HIGH == 0 && control < GONE_ON)
        );
    }

    #[test]
    fn counts_that_are_full_stay() {
        let mut slots = Slots::<2>::new(64);
        let key = |ports: u32| Tuple {
            addresses: [1],
            ports,
        };
        let hash = Hash {
            home: 3,
            tag: TAKEN,
        };
        for index in 0..300 {
            slots.insert(hash, entry(&key(index), PcbId(index)));
        }
        let mut examined = 0;
        for index in 0..299 {
            let found = slots.find(hash, &key(index), &mut examined).unwrap();
            slots.free(hash.home, found.bucket, found.slot);
        }
        assert!(slots.find(hash, &key(299), &mut examined).is_some());
        let mut left = Vec::new();
        slots.drain(3, |_| 3, |entry| left.push(entry));
        assert_eq!(left, [entry(&key(299), PcbId(299))]);
        assert!(!slots.shrink(1000), "a piece at a time");
        while !slots.shrink(1000) {}
    }
}

//! The contents of index and store as the control side knows them: what is
//! written there, and in which order.

use super::layout::{
    BUCKET_SLOTS, ENTRY_UNITS_MAX, LANES_MAX, UNIT_BYTES, UNIT_WORDS, bucket, entry, shape,
};

/// Which memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// Buckets: from keys to entries.
    Index,
    /// Entries, tests, guards.
    Store,
}

/// One store of 64 bits, in the host's order, at word `word` of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where.
    pub memory: Memory,
    /// Which word of 64 bits.
    pub word: u32,
    /// What.
    pub value: u64,
}

/// Buckets for each entry that fits, at first and when it grows: four keys to
/// a bucket of eight.
const KEYS_PER_BUCKET: u32 = 4;

/// How much larger memory becomes when it is full.
const GROWTH: u32 = 4;

/// Units for sieves: 128 KiB.
const SIEVE_UNITS: u32 = 1 << 11;

/// Units that are given out in one piece, at most.
pub(super) const PIECE_UNITS_MAX: usize = 128;

/// Contents, free units, and the writes since they were last taken.
pub(super) struct Image {
    index: Vec<u64>,
    store: Vec<u64>,
    pub(super) buckets: u32,
    pub(super) units: u32,
    /// Units never used.
    fresh: u32,
    /// Pieces given back, by length.
    free: [Vec<u32>; PIECE_UNITS_MAX + 1],
    /// Keys in the index.
    pub(super) keys: u32,
    writes: Vec<Write>,
}

/// A bucket: in the index, or an overflow in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bucket {
    memory: Memory,
    number: u32,
}

/// Where a key stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    bucket: Bucket,
    slot: u32,
    /// The first entry under the key.
    pub(super) unit: u32,
}

impl Image {
    /// For some `keys` keys; a power of two, at least 64.
    pub(super) fn new(keys: u32) -> Image {
        let buckets = keys / KEYS_PER_BUCKET;
        // Most entries take a unit, some two, and some bring tests along.
        let units = 1 + keys * 3 / 2 + SIEVE_UNITS;
        Image {
            index: vec![0; (buckets * UNIT_WORDS) as usize],
            store: vec![0; ((units + ENTRY_UNITS_MAX) * UNIT_WORDS) as usize],
            buckets,
            units,
            fresh: 1,
            free: std::array::from_fn(|_| Vec::new()),
            keys: 0,
            writes: Vec::new(),
        }
    }

    /// How many keys it is made for.
    pub(super) fn keys_max(&self) -> u32 {
        self.buckets * KEYS_PER_BUCKET
    }

    /// The words of a memory.
    pub(super) fn words(&self, memory: Memory) -> &[u64] {
        match memory {
            Memory::Index => &self.index,
            Memory::Store => &self.store,
        }
    }

    /// The writes since they were last taken.
    pub(super) fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Takes them.
    pub(super) fn take_writes(&mut self) -> Vec<Write> {
        std::mem::take(&mut self.writes)
    }

    /// Leaves the last of several writes to one word: those that are not taken
    /// are made twice, and a word that a program looks at by then must not go
    /// through its old values again.
    pub(super) fn write_once(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        self.writes.reverse();
        self.writes
            .retain(|write| seen.insert((write.memory == Memory::Store, write.word)));
        self.writes.reverse();
    }

    fn set(&mut self, memory: Memory, word: u32, value: u64) {
        let words = match memory {
            Memory::Index => &mut self.index,
            Memory::Store => &mut self.store,
        };
        if words[word as usize] != value {
            words[word as usize] = value;
            self.writes.push(Write {
                memory,
                word,
                value,
            });
        }
    }

    /// The word `word` behind the start of `unit`.
    pub(super) fn get(&self, unit: u32, word: u32) -> u64 {
        self.store[(unit * UNIT_WORDS + word) as usize]
    }

    /// Sets the word `word` behind the start of `unit`.
    pub(super) fn put(&mut self, unit: u32, word: u32, value: u64) {
        self.set(Memory::Store, unit * UNIT_WORDS + word, value);
    }

    /// Whether `units` more units in pieces, and `keys` more keys, fit for
    /// certain.
    pub(super) fn has_room(&self, units: u32, keys: u32) -> bool {
        // Each key may need an overflow bucket. A piece is read as if it were
        // as long as the longest.
        self.units - self.fresh >= units + keys + shape::UNITS_MAX
            && self.keys + keys <= self.buckets * KEYS_PER_BUCKET
    }

    /// A piece of `units` units; the caller has seen to it that there is
    /// room.
    pub(super) fn take(&mut self, units: u32) -> u32 {
        if let Some(unit) = self.free[units as usize].pop() {
            return unit;
        }
        let unit = self.fresh;
        assert!(unit + units <= self.units, "room was asked for before");
        self.fresh += units;
        unit
    }

    /// Gives a piece back; nothing reads it any more.
    pub(super) fn give(&mut self, unit: u32, units: u32) {
        self.free[units as usize].push(unit);
    }

    /// A larger image with the same units, and keys hashed anew.
    pub(super) fn grown(&self, hash_of: impl Fn(u32, &[u64]) -> u32) -> Image {
        let mut grown = Image::new((self.keys_max() * GROWTH).min(super::limits::KEYS_MAX));
        grown.store[..self.store.len()].copy_from_slice(&self.store);
        grown.fresh = self.fresh;
        grown.free = self.free.clone();
        for number in 0..self.buckets {
            let first = Bucket {
                memory: Memory::Index,
                number,
            };
            for bucket in self.chain(first) {
                for (_, unit) in self.occupied(bucket) {
                    let (shape, key) = self.key(unit);
                    grown.insert(hash_of(shape, &key), unit);
                }
                if bucket.memory == Memory::Store {
                    // Nothing of the old memory is read through the new.
                    grown.give(bucket.number, 1);
                }
            }
        }
        grown.writes.clear();
        grown
    }

    /// An entry's shape and key; words of the key that the shape does not
    /// have are not meant.
    pub(super) fn key(&self, unit: u32) -> (u32, [u64; LANES_MAX]) {
        let shape = (self.get(unit, entry::TESTS_SHAPE) >> 32) as u32;
        (
            shape,
            std::array::from_fn(|lane| self.get(unit, entry::KEY + lane as u32)),
        )
    }

    fn bucket_word(&self, bucket: Bucket, word: u32) -> u64 {
        self.words(bucket.memory)[(bucket.number * UNIT_WORDS + word) as usize]
    }

    fn home(&self, hash: u32) -> Bucket {
        Bucket {
            memory: Memory::Index,
            number: hash & (self.buckets - 1),
        }
    }

    /// A bucket and its overflows.
    fn chain(&self, first: Bucket) -> impl Iterator<Item = Bucket> {
        std::iter::successors(Some(first), |bucket| {
            let number = self.bucket_word(*bucket, bucket::OVERFLOW) as u32;
            let memory = Memory::Store;
            (number != 0).then_some(Bucket { memory, number })
        })
    }

    /// The slots of a bucket that hold something, and what.
    fn occupied(&self, bucket: Bucket) -> impl Iterator<Item = (u32, u32)> {
        let tags = self.bucket_word(bucket, bucket::TAGS).to_ne_bytes();
        (0..BUCKET_SLOTS).filter_map(move |slot| {
            let pair = self.bucket_word(bucket, bucket::UNITS + slot / 2);
            (tags[slot as usize] != 0).then_some((slot, (pair >> (32 * (slot % 2))) as u32))
        })
    }

    /// Where a key stands, if it does.
    pub(super) fn find(&self, hash: u32, shape: u32, key: &[u64]) -> Option<Head> {
        self.chain(self.home(hash)).find_map(|bucket| {
            let mut occupied = self.occupied(bucket);
            let found = occupied.find(|(_, unit)| {
                let (found, lanes) = self.key(*unit);
                found == shape && lanes[..key.len()] == *key
            });
            found.map(|(slot, unit)| Head { bucket, slot, unit })
        })
    }

    /// Enters a key that is not there, with its first entry.
    pub(super) fn insert(&mut self, hash: u32, unit: u32) {
        self.keys += 1;
        let mut last = self.home(hash);
        let mut place = None;
        for bucket in self.chain(last) {
            last = bucket;
            let tags = self.bucket_word(bucket, bucket::TAGS).to_ne_bytes();
            place = tags.iter().position(|tag| *tag == 0);
            if place.is_some() {
                break;
            }
        }
        let slot = place.unwrap_or_else(|| {
            let number = self.take(1);
            for word in 0..UNIT_WORDS {
                self.put(number, word, 0);
            }
            let word = last.number * UNIT_WORDS + bucket::OVERFLOW;
            self.set(last.memory, word, u64::from(number));
            last = Bucket {
                memory: Memory::Store,
                number,
            };
            0
        });
        let slot = slot as u32;
        // The tag last: a reader that sees it sees the entry.
        self.set_unit(last, slot, unit);
        self.set_tag(last, slot, tag_of(hash));
    }

    fn set_unit(&mut self, bucket: Bucket, slot: u32, unit: u32) {
        let word = bucket::UNITS + slot / 2;
        let shift = 32 * (slot % 2);
        let pair = self.bucket_word(bucket, word) & !(0xffff_ffff << shift);
        let pair = pair | u64::from(unit) << shift;
        self.set(bucket.memory, bucket.number * UNIT_WORDS + word, pair);
    }

    fn set_tag(&mut self, bucket: Bucket, slot: u32, tag: u8) {
        let mut tags = self.bucket_word(bucket, bucket::TAGS).to_ne_bytes();
        tags[slot as usize] = tag;
        let word = bucket.number * UNIT_WORDS + bucket::TAGS;
        self.set(bucket.memory, word, u64::from_ne_bytes(tags));
    }

    /// Gives a key another first entry; 0 removes the key.
    pub(super) fn set_head(&mut self, head: Head, unit: u32) {
        if unit == 0 {
            self.keys -= 1;
            self.set_tag(head.bucket, head.slot, 0);
        } else {
            self.set_unit(head.bucket, head.slot, unit);
        }
    }

    /// The entry behind `unit` under the same key; 0 if it is the last.
    pub(super) fn next(&self, unit: u32) -> u32 {
        self.get(unit, entry::NEXT_SLOT) as u32
    }

    pub(super) fn set_next(&mut self, unit: u32, next: u32) {
        let slot = self.get(unit, entry::NEXT_SLOT) >> 32;
        self.put(unit, entry::NEXT_SLOT, slot << 32 | u64::from(next));
    }
}

/// The byte that stands for a key in its bucket; never 0.
pub(super) fn tag_of(hash: u32) -> u8 {
    (hash >> 24) as u8 | 0x80
}

/// Bytes of a memory of `words` words.
pub(super) fn bytes(words: &[u64]) -> u32 {
    words.len() as u32 * (UNIT_BYTES / UNIT_WORDS)
}

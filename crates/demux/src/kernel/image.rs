//! The contents of index and store as the control side knows them: what is
//! written there, and in which order.

use super::layout::{
    LANES_MAX, REST_UNITS_MAX, TEST_BYTES, UNIT_BYTES, UNIT_WORDS, UNIT_ZERO, entry, subtable,
};
use super::table::{Size, Table};
use std::collections::BTreeMap;

/// Which memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// Entries, found by their keys.
    Index,
    /// Tests, guards, prefilters.
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

/// Units for prefilters: 128 KiB.
const PREFILTER_UNITS: u32 = 1 << 11;

/// Most units: a program reaches less than 512 MiB of a map.
const UNITS_MAX: u32 = (1 << 23) - 64;

/// Contents, free units, and the writes since they were last taken.
pub(super) struct Image {
    /// The entries.
    pub(super) table: Table,
    store: Vec<u64>,
    pub(super) units: u32,
    /// Units never used.
    fresh: u32,
    /// Pieces given back, by length.
    free: BTreeMap<u32, Vec<u32>>,
    writes: Vec<Write>,
}

impl Image {
    /// For some `keys` keys; a power of two, at least 64.
    pub(super) fn new(keys: u32) -> Image {
        // Some entries bring tests along, or a long key.
        Image::sized(Size::for_keys(keys), 1 + keys / 4 + PREFILTER_UNITS)
    }

    fn sized(size: Size, units: u32) -> Image {
        Image {
            table: Table::new(size),
            store: vec![0; ((units + REST_UNITS_MAX) * UNIT_WORDS) as usize],
            units,
            fresh: UNIT_ZERO + 1,
            free: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    /// The words of a memory.
    pub(super) fn words(&self, memory: Memory) -> &[u64] {
        match memory {
            Memory::Index => self.table.words(),
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

    /// The word `word` behind the start of `unit`.
    pub(super) fn get(&self, unit: u32, word: u32) -> u64 {
        self.store[(unit * UNIT_WORDS + word) as usize]
    }

    /// Sets the word `word` behind the start of `unit`.
    pub(super) fn put(&mut self, unit: u32, word: u32, value: u64) {
        let word = unit * UNIT_WORDS + word;
        let known = &mut self.store[word as usize];
        if *known != value {
            *known = value;
            let memory = Memory::Store;
            self.writes.push(Write {
                memory,
                word,
                value,
            });
        }
    }

    /// An entry to fill; see [`Table::take`].
    pub(super) fn take_entry(&mut self, hash: Option<u32>) -> u32 {
        let entry = self.table.take(hash);
        entry.expect("room was asked for before")
    }

    /// A word of an entry.
    pub(super) fn entry_word(&self, entry: u32, word: u32) -> u64 {
        self.table.get(entry, word)
    }

    /// Sets a word of an entry.
    pub(super) fn put_entry(&mut self, entry: u32, word: u32, value: u64) {
        self.table.put(entry, word, value, &mut self.writes);
    }

    /// Whether `units` more units in pieces, and `entries` more entries, fit for
    /// certain.
    pub(super) fn has_room(&self, units: u32, entries: u32) -> bool {
        // A piece is read as if it were as long as the longest. Each entry may
        // need a spare line.
        let size = self.table.size();
        self.units - self.fresh >= units + subtable::UNITS_MAX
            && self.table.linked + entries <= size.linked_max()
            && size.spare - self.table.spare_used() >= entries
    }

    /// A piece of `units` units; the caller has seen to it that there is
    /// room.
    pub(super) fn take(&mut self, units: u32) -> u32 {
        if let Some(unit) = self.free.get_mut(&units).and_then(Vec::pop) {
            return unit;
        }
        let unit = self.fresh;
        assert!(unit + units <= self.units, "room was asked for before");
        self.fresh += units;
        unit
    }

    /// Gives a piece back; nothing reads it any more.
    pub(super) fn give(&mut self, unit: u32, units: u32) {
        self.free.entry(units).or_default().push(unit);
    }

    /// A larger image that has room for so much more, with the same units, keys
    /// hashed anew, and, by the old entries' numbers, the new ones' (0 for those
    /// that are not linked). `apart` are entries without a key. `None` beyond the
    /// limits.
    pub(super) fn grown(
        &self,
        (units, entries): (u32, u32),
        apart: &[u32],
        hash_of: impl Fn(u32, &[u64]) -> u32,
    ) -> Option<(Image, Vec<u32>)> {
        let size = self.table.size();
        let mut size = size.grown(self.table.linked + entries)?;
        let mut all = self.units;
        while all - self.fresh < units + subtable::UNITS_MAX {
            if all == UNITS_MAX {
                return None;
            }
            all = all.saturating_mul(2).min(UNITS_MAX);
        }
        loop {
            if let Some(grown) = self.rehashed(size, all, apart, &hash_of)
                && grown.0.has_room(units, entries)
            {
                return Some(grown);
            }
            size = size.with_more_spare()?;
        }
    }

    /// The same in a table of another size; `None` if that has too few spare
    /// lines.
    fn rehashed(
        &self,
        size: Size,
        units: u32,
        apart: &[u32],
        hash_of: impl Fn(u32, &[u64]) -> u32,
    ) -> Option<(Image, Vec<u32>)> {
        let old = &self.table;
        let mut grown = Image::sized(size, units);
        grown.store[..self.store.len()].copy_from_slice(&self.store);
        grown.fresh = self.fresh;
        grown.free = self.free.clone();
        let mut moved = vec![0; old.words().len() / UNIT_WORDS as usize];
        let lines: Vec<u32> = old.lines().collect();
        let hash = |at| {
            let (subtable, key) = self.key(at);
            hash_of(subtable, &key)
        };
        for at in &lines {
            let entry = grown.table.take(Some(hash(*at)))?;
            grown.copy_entry(entry, old, *at);
            moved[*at as usize] = entry;
        }
        // From the back: spare lines are sorted, so that each comes first then.
        for at in lines.iter().rev() {
            grown.link(hash(*at), moved[*at as usize]);
        }
        for at in apart {
            let entry = grown.table.take(None)?;
            grown.copy_entry(entry, old, *at);
            moved[*at as usize] = entry;
        }
        grown.writes.clear();
        Some((grown, moved))
    }

    fn copy_entry(&mut self, entry: u32, from: &Table, at: u32) {
        for word in entry::LINKS + 1..UNIT_WORDS {
            self.put_entry(entry, word, from.get(at, word));
        }
        self.writes.clear();
    }

    /// An entry's subtable and key; words of the key that the subtable does not
    /// have are not meant.
    pub(super) fn key(&self, entry: u32) -> (u32, [u64; LANES_MAX]) {
        let rest_subtable = self.table.get(entry, entry::REST_SUBTABLE);
        let rest = rest_subtable as u32 * (TEST_BYTES / 8);
        let key = std::array::from_fn(|lane| match lane.checked_sub(entry::KEY_WORDS) {
            None => self.table.get(entry, entry::KEY + lane as u32),
            Some(lane) => self.store[rest as usize + lane],
        });
        ((rest_subtable >> 32) as u32, key)
    }

    /// The entries under a key.
    pub(super) fn entries_of(
        &self,
        hash: u32,
        subtable: u32,
        key: &[u64],
    ) -> impl Iterator<Item = u32> {
        self.table.lines_of(hash).filter(move |entry| {
            let (found, lanes) = self.key(*entry);
            found == subtable && lanes[..key.len()] == *key
        })
    }

    /// Lets frames find an entry.
    pub(super) fn link(&mut self, hash: u32, entry: u32) {
        self.table.link(hash, entry, &mut self.writes);
    }

    /// Hides it from them.
    pub(super) fn unlink(&mut self, hash: u32, entry: u32) {
        self.table.unlink(hash, entry, &mut self.writes);
    }
}

/// Bytes of a memory of `words` words.
pub(super) fn bytes(words: &[u64]) -> u32 {
    words.len() as u32 * (UNIT_BYTES / UNIT_WORDS)
}

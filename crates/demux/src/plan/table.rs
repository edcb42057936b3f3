//! The entries of one subtable, found by key.
//!
//! A look-up that hits touches a slot (8 bytes) and the entry's record. For
//! keys of up to 24 bytes the record is one cache line with all that a delivery
//! needs:
//!
//! ```text
//! word 0      1           2                  3            4        5 …
//! ┌──────┬───────────┬────────────────┬──────────────┬────────┬─────────┐
//! │ rank │ binding   │ snap, residual │ next, tag    │ target │ key     │
//! └──────┴───────────┴────────────────┴──────────────┴────────┴─────────┘
//! ```
//!
//! Entries under one key form a chain sorted by rank; a chain that grows long
//! becomes a [`Group`].

use super::group::Group;
use super::hash::{KeyHash, WordHash};
use super::residual::Residuals;
use super::slab::{Chunks, Slab};
use super::slots::{PAYLOAD_MIN, SlotRef, Slots};
use crate::binding::{BindingId, Rank, Target};

/// Number of words of a record before the key.
const KEY_WORD: usize = 5;
/// Number of words of one cache line.
const LINE_WORDS: usize = 8;
/// Number of entries under one key before they form a group.
const CHAIN_MAX: usize = 8;
/// Bit of a payload that marks a group's number.
const GROUP: u32 = 1 << 31;
/// The index of no entry.
pub(super) const NONE: u32 = u32::MAX;

/// One cache line of a record.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; LINE_WORDS]);

/// The content of an entry, without its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) rank: Rank,
    pub(super) binding: BindingId,
    /// The snap length; zero if the residual computes it.
    pub(super) snap: u32,
    /// The residual tests, as a number in [`Residuals`].
    pub(super) residual: u32,
    pub(super) next: u32,
    pub(super) tag: u32,
    pub(super) target: Target,
}

impl Entry {
    fn to_words(self) -> [u64; KEY_WORD] {
        [
            self.rank.0,
            self.binding.to_word(),
            u64::from(self.snap) << 32 | u64::from(self.residual),
            u64::from(self.next) << 32 | u64::from(self.tag),
            self.target.to_word(),
        ]
    }

    #[inline]
    fn from_words(words: &[u64; LINE_WORDS]) -> Entry {
        Entry {
            rank: Rank(words[0]),
            binding: BindingId::from_word(words[1]),
            snap: (words[2] >> 32) as u32,
            residual: words[2] as u32,
            next: (words[3] >> 32) as u32,
            tag: words[3] as u32,
            target: Target::from_word(words[4]),
        }
    }
}

/// The result of a look-up: the entries under one key.
pub(super) enum Found<'t> {
    Nothing,
    /// The first entry of a chain.
    Chain(Entry),
    Group(&'t Group<u32>),
}

pub(super) struct Table {
    hash: KeyHash,
    lanes: usize,
    /// Number of cache lines of one record.
    stride: usize,
    slots: Slots,
    lines: Chunks<Line>,
    /// Records that may be reused.
    free: Vec<u32>,
    groups: Slab<Group<u32>>,
    /// The hash of the indexes of all groups.
    group_hash: WordHash,
}

impl Table {
    /// Makes an empty table; `hash` is for keys of `lanes` words, `group_hash`
    /// for the groups' indexes.
    pub(super) fn new(hash: KeyHash, lanes: usize, group_hash: WordHash) -> Table {
        Table {
            hash,
            lanes,
            stride: (KEY_WORD + lanes).div_ceil(LINE_WORDS),
            slots: Slots::new(),
            lines: Chunks::default(),
            free: Vec::new(),
            groups: Slab::default(),
            group_hash,
        }
    }

    #[cfg(test)]
    pub(super) fn group_hash(&self) -> &WordHash {
        &self.group_hash
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.records() - self.free.len()
    }

    /// Number of records, used or free. Records stay allocated as long as the
    /// table.
    pub(super) fn records(&self) -> usize {
        self.lines.len() / self.stride
    }

    /// The rank of the entry in a record; [`Rank::LAST`] if the record is free.
    pub(super) fn rank(&self, record: usize) -> Rank {
        count_read();
        Rank(self.lines[record * self.stride].0[0])
    }

    /// The hash of a key of this table.
    #[inline]
    pub(super) fn hash(&self, key: &[u64]) -> u32 {
        self.hash.hash(key)
    }

    #[inline]
    pub(super) fn entry(&self, index: u32) -> Entry {
        count_read();
        Entry::from_words(&self.lines[index as usize * self.stride].0)
    }

    /// Word `lane` of an entry's key.
    #[inline]
    pub(super) fn key_word(&self, index: u32, lane: usize) -> u64 {
        let word = KEY_WORD + lane;
        let line = index as usize * self.stride + word / LINE_WORDS;
        self.lines[line].0[word % LINE_WORDS]
    }

    /// All records by number, free ones included; a free record has no
    /// binding's rank.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, Entry)> {
        let count = self.records() as u32;
        let all = (0..count).map(|index| (index, self.entry(index)));
        all.filter(|(_, entry)| entry.rank != Rank::LAST)
    }

    /// An entry's key.
    pub(super) fn key(&self, index: u32) -> Vec<u64> {
        (0..self.lanes)
            .map(|lane| self.key_word(index, lane))
            .collect()
    }

    #[inline]
    fn is(&self, payload: u32, key: &[u64]) -> bool {
        if payload & GROUP != 0 {
            let group = self.groups.get(payload & !GROUP);
            return group.is_some_and(|group| group.key() == key);
        }
        self.has_key(payload - PAYLOAD_MIN, key)
    }

    /// Whether an entry has this key.
    #[inline]
    pub(super) fn has_key(&self, index: u32, key: &[u64]) -> bool {
        let line = &self.lines[index as usize * self.stride].0;
        // Word by word: keys are too short for a call to compare memory.
        let mut differ = 0;
        for (known, word) in line[KEY_WORD..].iter().zip(key) {
            differ |= known ^ word;
        }
        let inline = LINE_WORDS - KEY_WORD;
        differ == 0 && (inline..key.len()).all(|lane| self.key_word(index, lane) == key[lane])
    }

    fn find(&self, key: &[u64]) -> Option<(SlotRef, u32)> {
        self.slots
            .find(self.hash(key), |payload| self.is(payload, key))
    }

    /// The entries under `key`.
    #[inline]
    pub(super) fn look_up(&self, hash: u32, key: &[u64]) -> Found<'_> {
        match self.slots.find(hash, |payload| self.is(payload, key)) {
            None => Found::Nothing,
            Some((_, payload)) if payload & GROUP == 0 => {
                Found::Chain(self.entry(payload - PAYLOAD_MIN))
            }
            Some((_, payload)) => match self.groups.get(payload & !GROUP) {
                Some(group) => Found::Group(group),
                None => Found::Nothing,
            },
        }
    }

    /// Reads the first slot that a look-up of `hash` reads.
    #[inline]
    pub(super) fn read_slot(&self, hash: u32) -> u64 {
        self.slots.first(hash)
    }

    /// Reads from each cache line of the entry that `hash` most likely leads
    /// to.
    #[inline]
    pub(super) fn read_entry(&self, hash: u32) -> u64 {
        match self.slots.find(hash, |_| true) {
            Some((_, payload)) if payload & GROUP == 0 => {
                let start = (payload - PAYLOAD_MIN) as usize * self.stride;
                (start..start + self.stride).fold(0, |sum, line| sum ^ self.lines[line].0[0])
            }
            _ => 0,
        }
    }

    /// Adds an entry; returns its number.
    pub(super) fn insert(&mut self, key: &[u64], entry: Entry, residuals: &Residuals) -> u32 {
        let index = self.store(key, entry);
        match self.find(key) {
            None => self.slots.insert(self.hash(key), index + PAYLOAD_MIN),
            Some((_, payload)) if payload & GROUP != 0 => {
                if let Some(group) = self.groups.get_mut(payload & !GROUP) {
                    group.insert(index, entry, residuals, |index| {
                        entry_of(&self.lines, self.stride, index)
                    });
                }
            }
            Some((place, payload)) => {
                let (head, length) = self.link(payload - PAYLOAD_MIN, index, entry.rank);
                if length > CHAIN_MAX {
                    self.gather(place, key, head, residuals);
                } else {
                    self.slots.replace(place, head + PAYLOAD_MIN);
                }
            }
        }
        index
    }

    fn store(&mut self, key: &[u64], entry: Entry) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            for _ in 0..self.stride {
                self.lines.push(Line([0; LINE_WORDS]));
            }
            (self.records() - 1) as u32
        });
        let words = entry.to_words();
        for (word, value) in words.iter().chain(key).enumerate() {
            let line = index as usize * self.stride + word / LINE_WORDS;
            self.lines[line].0[word % LINE_WORDS] = *value;
        }
        index
    }

    fn set_next(&mut self, index: u32, next: u32) {
        let word = &mut self.lines[index as usize * self.stride].0[3];
        *word = u64::from(next) << 32 | *word & u64::from(u32::MAX);
    }

    /// Links an entry into a chain by its rank; returns the chain's first entry
    /// and its length.
    fn link(&mut self, head: u32, index: u32, rank: Rank) -> (u32, usize) {
        let (mut before, mut at, mut length) = (NONE, head, 1);
        while at != NONE {
            let entry = self.entry(at);
            if entry.rank <= rank && at != index {
                before = at;
            }
            at = entry.next;
            length += 1;
        }
        if before == NONE {
            self.set_next(index, head);
            return (index, length);
        }
        self.set_next(index, self.entry(before).next);
        self.set_next(before, index);
        (head, length)
    }

    /// Converts a chain into a group.
    fn gather(&mut self, place: SlotRef, key: &[u64], head: u32, residuals: &Residuals) {
        let mut group = Group::new(key, self.group_hash);
        let mut at = head;
        while at != NONE {
            let entry = self.entry(at);
            group.insert(at, entry, residuals, |index| {
                entry_of(&self.lines, self.stride, index)
            });
            at = entry.next;
        }
        let number = self.groups.insert(group);
        self.slots.replace(place, number | GROUP);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, index: u32, residuals: &Residuals) {
        let key = self.key(index);
        let entry = self.entry(index);
        if let Some((place, payload)) = self.find(&key) {
            if payload & GROUP == 0 {
                self.unlink(place, payload - PAYLOAD_MIN, index, entry.next);
            } else if let Some(group) = self.groups.get_mut(payload & !GROUP) {
                group.remove(index, entry, residuals, |index| {
                    entry_of(&self.lines, self.stride, index)
                });
                if group.is_empty() {
                    self.groups.remove(payload & !GROUP);
                    self.slots.remove(place);
                }
            }
        }
        self.lines[index as usize * self.stride].0[0] = Rank::LAST.0;
        self.free.push(index);
    }

    fn unlink(&mut self, place: SlotRef, head: u32, index: u32, next: u32) {
        if head != index {
            let mut before = head;
            while self.entry(before).next != index {
                before = self.entry(before).next;
            }
            self.set_next(before, next);
        } else if next == NONE {
            self.slots.remove(place);
        } else {
            self.slots.replace(place, next + PAYLOAD_MIN);
        }
    }
}

fn entry_of(lines: &Chunks<Line>, stride: usize, index: u32) -> Option<Entry> {
    count_read();
    let line = lines.get(index as usize * stride)?;
    Some(Entry::from_words(&line.0))
}

#[cfg(test)]
thread_local! {
    /// Number of records read, for tests that bound the reads of a change.
    pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline]
fn count_read() {
    #[cfg(test)]
    READS.set(READS.get() + 1);
}

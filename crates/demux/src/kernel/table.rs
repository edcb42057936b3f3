//! A hash table in one array, which programs in the kernel read while the
//! control side changes it: lines of 64 bytes, one cache line each.
//!
//! ```text
//!  lines: 0 │ 1 … spare-1 │ spare … spare+cells-1 │ PRELOADED more
//!      none │ spare lines │ cells                 │ never used
//!
//!  line:  word 0         links of the cell, or of the spare line
//!         words 1 to 7   the user's: a key, and what belongs to it
//!
//!  links: bits 0-3, 4-7, … 28-31   tags of the cells 0 to 7 places further
//!                                  (modulo cells) that hold keys whose home
//!                                  this cell is; 0: holds none of them
//!         bits 32-63               the first spare line with such a key; of a
//!                                  spare line, the next
//! ```
//!
//! A key's *home* is the cell that its hash names. A line with the key is one of
//! the eight cells from its home on, or, where these are all in use, a spare
//! line (hopscotch hashing with chained overflow; Herlihy, Shavit and Tzafrir,
//! "Hopscotch Hashing", 2008). A *tag* is made of a key's hash, 2 to 15: a
//! look-up reads the home's line, in which the key stands mostly, and few lines
//! of other keys, as their tags differ (F14, Swiss tables). Several lines may
//! have the same key. The spare lines of a home are sorted by rank.
//!
//! *Readers and the one writer.* A reader loads the home's links, takes the
//! number of each further line from what it has loaded, and compares the whole
//! key in that line. The order of these loads follows from their addresses, on
//! every processor.
//!
//! - A line is filled while no links name it. One store of 64 bits links it, and
//!   releases what was written before; one store unlinks it. So a reader finds a
//!   line with all that belongs to it, or not at all, and no line ever moves.
//! - The contents of a line stay until it is [given back](Table::give). The
//!   caller gives it back when every reader that began before it was unlinked
//!   has ended (an RCU grace period). So a key that was compared is the key of
//!   all that is read of the line afterwards, and a reader never gets what
//!   belongs to another key.
//! - The links of a spare line, too, stay after it is unlinked: a reader at it
//!   goes on to all lines that are linked before and after.

use super::image::{Memory, Write};
use super::layout::{UNIT_WORDS, entry};

/// Cells in which a key can stand.
pub(super) const PLACES: u32 = 8;

/// Cells behind a key's home that a look-up loads together with the home, whether
/// or not it needs them: four loads of lines that are in no cache take little longer
/// than one, and a second load that depends on the first takes as long again. In a
/// full table four of five keys are in the home or in one of these cells.
pub(super) const PRELOADED: u32 = 3;

/// Bits from a place to the next in a line's links: those of a tag.
pub(super) const PLACE_BITS: u32 = 4;

/// Different tags. That of a hash is `(((hash >> 16) * TAGS) >> 16) + TAG_MIN`.
pub(super) const TAGS: u32 = 14;
/// The least: the program compares all tags of a home at once, by a subtraction
/// whose borrow may make a place look like one of the tag where the two differ
/// in the last bit alone. So no tag differs thus from 0, a place with no link.
pub(super) const TAG_MIN: u32 = 2;

/// A tag's bits.
const TAG_MASK: u64 = (1 << PLACE_BITS) - 1;

fn tag(hash: u32) -> u64 {
    u64::from((((hash >> 16) * TAGS) >> 16) + TAG_MIN)
}

/// Most cells: a program reaches less than 512 MiB of a map
/// (`BPF_MAX_VAR_OFF`), cells and spare lines.
const CELLS_MAX: u32 = 1 << 22;
/// Most spare lines.
const SPARE_MAX: u32 = (1 << 22) - 64;

/// How much larger a table becomes when it is full.
const GROWTH: u32 = 2;

/// How large a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Cells, a power of two.
    pub(super) cells: u32,
    /// Spare lines, line 0 included.
    pub(super) spare: u32,
}

impl Size {
    /// For this many lines with keys, a power of two.
    pub(super) fn for_keys(keys: u32) -> Size {
        Size {
            cells: keys.min(CELLS_MAX),
            spare: (keys / 4).max(64),
        }
    }

    /// The same, or a larger one that takes `linked` lines; `None` beyond the
    /// limits.
    pub(super) fn grown(mut self, linked: u32) -> Option<Size> {
        while self.linked_max() < linked {
            if self.cells == CELLS_MAX {
                return None;
            }
            let larger = (self.cells * GROWTH).min(CELLS_MAX);
            self = Size {
                cells: larger,
                spare: self.spare.max(Size::for_keys(larger).spare),
            };
        }
        Some(self)
    }

    /// One with more spare lines; `None` beyond the limit.
    pub(super) fn with_more_spare(self) -> Option<Size> {
        let spare = (self.spare * GROWTH).min(SPARE_MAX);
        (spare > self.spare).then_some(Size { spare, ..self })
    }

    /// Lines with keys that the table takes: as many as cells, of which a tenth
    /// are in spare lines then. With twice the cells a 250th would be, but a
    /// look-up at random costs more there: the table has twice the pages (the
    /// bench `few`).
    pub(super) fn linked_max(self) -> u32 {
        self.cells
    }

    fn lines(self) -> u32 {
        self.spare + self.cells
    }
}

/// The table as the control side knows it.
pub(super) struct Table {
    words: Vec<u64>,
    size: Size,
    /// By cell: whether it is in use, or was and is not given back.
    used: Vec<bool>,
    /// Spare lines never used.
    fresh: u32,
    /// Spare lines given back.
    free: Vec<u32>,
    /// Lines that readers find.
    pub(super) linked: u32,
}

impl Table {
    pub(super) fn new(size: Size) -> Table {
        Table {
            words: vec![0; ((size.lines() + PRELOADED) * UNIT_WORDS) as usize],
            size,
            used: vec![false; size.cells as usize],
            fresh: 1,
            free: Vec::new(),
            linked: 0,
        }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// All words.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// How many spare lines are in use, line 0 included.
    pub(super) fn spare_used(&self) -> u32 {
        self.fresh - self.free.len() as u32
    }

    pub(super) fn get(&self, line: u32, word: u32) -> u64 {
        self.words[(line * UNIT_WORDS + word) as usize]
    }

    /// Sets a word, and logs it if that changes it.
    pub(super) fn put(&mut self, line: u32, word: u32, value: u64, log: &mut Vec<Write>) {
        let word = line * UNIT_WORDS + word;
        let known = &mut self.words[word as usize];
        if *known != value {
            *known = value;
            let memory = Memory::Index;
            log.push(Write {
                memory,
                word,
                value,
            });
        }
    }

    fn home(&self, hash: u32) -> u32 {
        self.size.spare + (hash & (self.size.cells - 1))
    }

    fn cell(&self, home: u32, place: u32) -> u32 {
        let spare = self.size.spare;
        spare + ((home - spare + place) & (self.size.cells - 1))
    }

    /// Where the home's links have the tag of a line, by its lowest bit; `None`
    /// for a spare line.
    fn tag_at(&self, home: u32, line: u32) -> Option<u32> {
        let place = line.checked_sub(self.size.spare)?;
        let place = place.wrapping_sub(home - self.size.spare) & (self.size.cells - 1);
        assert!(place < PLACES, "a key stands near its home");
        Some(place * PLACE_BITS)
    }

    /// The lines of a home, as readers go through them.
    fn of_home(&self, home: u32) -> impl Iterator<Item = u32> {
        let links = self.get(home, entry::LINKS);
        let near = (0..PLACES).filter(move |place| links >> (place * PLACE_BITS) & TAG_MASK != 0);
        let follow = |line: u32| Some(next(self.get(line, entry::LINKS))).filter(|next| *next != 0);
        let spare = std::iter::successors(follow(home), move |line| follow(*line));
        near.map(move |place| self.cell(home, place)).chain(spare)
    }

    /// All lines that are linked.
    pub(super) fn lines(&self) -> impl Iterator<Item = u32> {
        let homes = self.size.spare..self.size.lines();
        homes.flat_map(|home| self.of_home(home))
    }

    /// The lines among which those of a key with this hash are.
    pub(super) fn lines_of(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.of_home(self.home(hash))
    }

    /// A line to fill for a key with this hash, near its home if possible; or a
    /// spare one, for what has no key. `None` if there is none.
    pub(super) fn take(&mut self, hash: Option<u32>) -> Option<u32> {
        if let Some(hash) = hash {
            let home = self.home(hash);
            for place in 0..PLACES {
                let line = self.cell(home, place);
                let used = &mut self.used[(line - self.size.spare) as usize];
                if !std::mem::replace(used, true) {
                    return Some(line);
                }
            }
        }
        let fresh = || (self.fresh < self.size.spare).then_some(self.fresh);
        let line = self.free.pop().or_else(fresh)?;
        self.fresh = self.fresh.max(line + 1);
        Some(line)
    }

    /// Takes a line back that was unlinked; no reader can be at it any more.
    pub(super) fn give(&mut self, line: u32) {
        match line.checked_sub(self.size.spare) {
            Some(cell) => self.used[cell as usize] = false,
            None => self.free.push(line),
        }
    }

    /// Lets readers find a line with a key of this hash.
    pub(super) fn link(&mut self, hash: u32, line: u32, log: &mut Vec<Write>) {
        self.linked += 1;
        let home = self.home(hash);
        if let Some(at) = self.tag_at(home, line) {
            let links = self.get(home, entry::LINKS);
            return self.put(home, entry::LINKS, links | tag(hash) << at, log);
        }
        let rank = self.get(line, entry::RANK);
        let before = self.spare_before(home, |other| self.get(other, entry::RANK) > rank);
        let links = self.get(before, entry::LINKS);
        self.put(line, entry::LINKS, with_next(0, next(links)), log);
        self.put(before, entry::LINKS, with_next(links, line), log);
    }

    /// Readers that begin from now on do not find the line.
    pub(super) fn unlink(&mut self, hash: u32, line: u32, log: &mut Vec<Write>) {
        self.linked -= 1;
        let home = self.home(hash);
        if let Some(at) = self.tag_at(home, line) {
            let links = self.get(home, entry::LINKS);
            return self.put(home, entry::LINKS, links & !(TAG_MASK << at), log);
        }
        let before = self.spare_before(home, |other| other == line);
        let links = self.get(before, entry::LINKS);
        let after = next(self.get(line, entry::LINKS));
        self.put(before, entry::LINKS, with_next(links, after), log);
    }

    /// The line whose links name the first spare line of a home that `is_it`,
    /// or no further one.
    fn spare_before(&self, home: u32, is_it: impl Fn(u32) -> bool) -> u32 {
        let mut before = home;
        loop {
            let line = next(self.get(before, entry::LINKS));
            if line == 0 || is_it(line) {
                return before;
            }
            before = line;
        }
    }
}

fn next(links: u64) -> u32 {
    (links >> 32) as u32
}

fn with_next(links: u64, next: u32) -> u64 {
    links & 0xffff_ffff | u64::from(next) << 32
}

#[cfg(test)]
mod tests;

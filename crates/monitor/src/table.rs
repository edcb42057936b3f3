//! Tables with a limit: what exceeds it is counted in one row.

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::Hash;

/// Frames, and their bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Number of frames.
    pub frames: u64,
    /// Bytes on the wire.
    pub bytes: u64,
}

impl Counts {
    /// Adds a frame of that many bytes.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.frames += 1;
        self.bytes += bytes;
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A row: the counts of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct Row<K> {
    /// The key.
    pub key: K,
    /// A talker's sent frames; a conversation's from `a` to `b`; all of a protocol.
    pub out: Counts,
    /// A talker's received frames; a conversation's from `b` to `a`.
    pub back: Counts,
    /// Time of the first frame, in nanoseconds since 1970; 0 without times.
    pub first_ns: i64,
    /// Time of the last frame.
    pub last_ns: i64,
    /// Bytes a second over the last interval between two ticks.
    pub rate: f64,
    /// Bytes at the last tick.
    ticked: u64,
    /// A name in a frame: a server's in TLS or HTTP.
    pub note: Option<Box<str>>,
}

impl<K> Row<K> {
    /// Both directions.
    pub fn total(&self) -> Counts {
        self.out.and(self.back)
    }
}

/// Rows by key, up to a limit.
#[derive(Debug)]
pub struct Table<K> {
    index: HashTable<u32>,
    rows: Vec<Row<K>>,
    rows_max: usize,
    overflow: Counts,
    hasher: RandomState,
}

impl<K: Copy + Eq + Hash> Table<K> {
    /// An empty table of at most `rows_max` rows. The seed keeps peers from choosing keys that
    /// collide.
    pub fn new(rows_max: usize, seed: [u64; 2]) -> Table<K> {
        let [a, b] = seed;
        Table {
            index: HashTable::new(),
            rows: Vec::new(),
            rows_max: rows_max.min(u32::MAX as usize),
            overflow: Counts::default(),
            hasher: RandomState::with_seeds(a, b, a.rotate_left(32), !b),
        }
    }

    /// The row of `key`, which is added if there is room; `None` for a new key beyond the limit,
    /// whose frame the caller passes to [`overflow_add`](Self::overflow_add).
    #[inline]
    pub fn row(&mut self, key: K, time_ns: i64) -> Option<&mut Row<K>> {
        let hash = self.hasher.hash_one(key);
        let rows = &self.rows;
        let is_full = rows.len() >= self.rows_max;
        let entry = self.index.entry(
            hash,
            |index| rows[*index as usize].key == key,
            |index| self.hasher.hash_one(rows[*index as usize].key),
        );
        let index = match entry {
            Entry::Occupied(found) => *found.get() as usize,
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(free) => {
                let index = self.rows.len();
                free.insert(index as u32);
                self.rows.push(Row {
                    key,
                    out: Counts::default(),
                    back: Counts::default(),
                    first_ns: time_ns,
                    last_ns: time_ns,
                    rate: 0.0,
                    ticked: 0,
                    note: None,
                });
                index
            }
        };
        let row = &mut self.rows[index];
        row.last_ns = row.last_ns.max(time_ns);
        Some(row)
    }

    /// Counts a frame for which there was no row.
    #[inline]
    pub fn overflow_add(&mut self, bytes: u64) {
        self.overflow.add(bytes);
    }

    /// The frames for which there was no row.
    pub fn overflow(&self) -> Counts {
        self.overflow
    }

    /// The rows, in the order of their first frames.
    pub fn rows(&self) -> &[Row<K>] {
        &self.rows
    }

    /// The row of a key.
    pub fn get(&self, key: &K) -> Option<&Row<K>> {
        let hash = self.hasher.hash_one(key);
        let found = self
            .index
            .find(hash, |index| self.rows[*index as usize].key == *key);
        found.map(|index| &self.rows[*index as usize])
    }

    /// Largest number of rows.
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Sets each row's rate to that since the last tick, `seconds` ago.
    pub fn tick(&mut self, seconds: f64) {
        for row in &mut self.rows {
            let bytes = row.out.bytes + row.back.bytes;
            row.rate = (bytes - row.ticked) as f64 / seconds;
            row.ticked = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_limit_is_counted_in_one_row() {
        let mut table = Table::new(3, [1, 2]);
        for key in [1_u32, 2, 3, 4, 5, 1] {
            match table.row(key, 0) {
                Some(row) => row.out.add(100),
                None => table.overflow_add(100),
            }
        }
        assert_eq!(table.rows().len(), 3);
        assert_eq!(table.get(&1).map(|row| row.out.frames), Some(2));
        assert_eq!(table.get(&4), None);
        assert_eq!(
            table.overflow(),
            Counts {
                frames: 2,
                bytes: 200
            }
        );
    }

    #[test]
    fn a_rate_is_that_of_the_last_interval() {
        let mut table = Table::new(3, [1, 2]);
        table.row(1_u32, 0).expect("room").out.add(1000);
        table.tick(2.0);
        assert_eq!(table.rows()[0].rate, 500.0);
        table.tick(1.0);
        assert_eq!(table.rows()[0].rate, 0.0);
    }
}

//! Readers beside the writer, a load and a store at a time.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// Words of a line, as these tests use them.
const KEY: u32 = 2;
const VALUES: [u32; 2] = [3, 6];

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32 % end
    }
}

/// Few homes, next to each other and at both ends of the cells, and few tags.
fn hash_of(key: u32) -> u32 {
    [0, 1, 2, 9, 15][key as usize % 5] | (key / 5 % 3) << 28
}

/// The near links of those places that have a key's tag, as the program
/// finds them.
fn tagged(links: u32, key: u32) -> u32 {
    let differ = links ^ (tag(hash_of(key)) as u32 * 0x1111_1111);
    (differ.wrapping_sub(0x1111_1111) & !differ & 0x8888_8888) >> (PLACE_BITS - 1)
}

/// A step of a program: a load.
#[derive(Clone, Copy)]
enum At {
    Home,
    /// These links are left, of near lines and then of spare ones.
    Links(u32, u32),
    /// At a line, with the links that are left behind it.
    Line(u32, u32, u32),
    /// Likewise: it has the key.
    Value(u32, u32, u32),
    Done,
}

struct Reader {
    key: u32,
    at: At,
    /// How many lines had been unlinked when it began.
    began: u64,
    /// The values of its key that it may find: those that were there at some
    /// time since it began.
    may: BTreeSet<u64>,
    /// Those that were there at all times since: it must find all of them.
    must: BTreeSet<u64>,
    found: BTreeSet<u64>,
    loads: u32,
}

/// The shared memory, and the writer's side.
struct Bench {
    shared: Vec<u64>,
    table: Table,
    log: Vec<Write>,
    /// The lines that readers find, by their values.
    there: BTreeMap<u64, u32>,
    retired: Vec<(u64, u32)>,
    unlinked: u64,
    values: u64,
}

fn key_of(value: u64) -> u32 {
    value as u32
}

impl Bench {
    fn load(&self, line: u32, word: u32) -> u64 {
        self.shared[(line * UNIT_WORDS + word) as usize]
    }

    fn step(&self, reader: &mut Reader) {
        let (size, key) = (self.table.size(), reader.key);
        let home = size.spare + (hash_of(key) & (size.cells - 1));
        reader.loads += 1;
        reader.at = match reader.at {
            At::Home => {
                let links = self.load(home, entry::LINKS);
                At::Links(tagged(links as u32, key), next(links))
            }
            At::Links(0, 0) => At::Done,
            At::Links(0, spare) => At::Line(spare, 0, next(self.load(spare, entry::LINKS))),
            At::Links(near, spare) => {
                let place = near.trailing_zeros() / PLACE_BITS;
                let line = size.spare + ((home - size.spare + place) & (size.cells - 1));
                At::Line(line, near & (near - 1), spare)
            }
            At::Line(line, near, spare) => {
                if self.load(line, KEY) == u64::from(key) {
                    At::Value(line, near, spare)
                } else {
                    At::Links(near, spare)
                }
            }
            At::Value(line, near, spare) => {
                let [value, other] = VALUES.map(|word| self.load(line, word));
                assert_eq!(value, other, "a torn line");
                reader.found.insert(value);
                At::Links(near, spare)
            }
            At::Done => At::Done,
        };
    }

    /// A new line for a key, filled in the writer's memory.
    fn line(&mut self, key: u32, rank: u32) -> Option<(u64, u32)> {
        let line = self.table.take(Some(hash_of(key)))?;
        self.values += 1;
        let value = self.values << 32 | u64::from(key);
        self.table
            .put(line, entry::RANK, rank.into(), &mut self.log);
        self.table.put(line, KEY, u64::from(key), &mut self.log);
        for word in VALUES {
            self.table.put(line, word, value, &mut self.log);
        }
        Some((value, line))
    }

    fn reader(&self, key: u32) -> Reader {
        let of_key = self.there.keys().filter(|value| key_of(**value) == key);
        let there: BTreeSet<u64> = of_key.copied().collect();
        Reader {
            key,
            at: At::Home,
            began: self.unlinked,
            may: there.clone(),
            must: there,
            found: BTreeSet::new(),
            loads: 0,
        }
    }
}

/// A reader's load, and what it says in the end.
fn advance(bench: &Bench, readers: &mut Vec<Reader>, at: usize, seed: u64) -> usize {
    let reader = &mut readers[at];
    bench.step(reader);
    assert!(reader.loads < 1_000, "seed {seed}: a reader goes round");
    if !matches!(reader.at, At::Done) {
        return 0;
    }
    let reader = readers.swap_remove(at);
    assert!(
        reader.found.is_subset(&reader.may),
        "seed {seed}: of others"
    );
    assert!(reader.must.is_subset(&reader.found), "seed {seed}: missed");
    reader.found.len()
}

fn run(seed: u64) -> usize {
    let table = Table::new(Size {
        cells: 16,
        spare: 32,
    });
    let mut bench = Bench {
        shared: table.words().to_vec(),
        table,
        log: Vec::new(),
        there: BTreeMap::new(),
        retired: Vec::new(),
        unlinked: 0,
        values: 0,
    };
    let mut random = Random(seed | 1);
    let mut readers: Vec<Reader> = Vec::new();
    let mut found = 0;
    for _ in 0..3_000 {
        let (key, rank) = (random.below(12), random.below(9));
        let some = bench.there.len() as u32;
        let mut gone = None;
        if random.below(30) < some {
            // Readers may find it from here on, and need not.
            let nth = random.below(some) as usize;
            gone = bench.there.iter().nth(nth).map(|(v, line)| (*v, *line));
        }
        if let Some((value, line)) = gone {
            bench.there.remove(&value);
            let hash = hash_of(key_of(value));
            bench.table.unlink(hash, line, &mut bench.log);
        } else if let Some((value, line)) = bench.line(key, rank) {
            bench.table.link(hash_of(key), line, &mut bench.log);
            bench.there.insert(value, line);
            let of_key = readers.iter_mut().filter(|reader| reader.key == key);
            of_key.for_each(|reader| _ = reader.may.insert(value));
        }
        for write in std::mem::take(&mut bench.log) {
            for _ in 0..random.below(3) {
                if readers.len() < 6 {
                    let mut reader = bench.reader(random.below(12));
                    // The change is under way: it shows, or not.
                    let new = bench.there.keys().max().copied();
                    reader
                        .must
                        .retain(|value| gone.is_some() || Some(*value) != new);
                    reader.may.extend(gone.map(|(value, _)| value));
                    reader.may.retain(|value| key_of(*value) == reader.key);
                    readers.push(reader);
                }
                let at = random.below(readers.len() as u32) as usize;
                found += advance(&bench, &mut readers, at, seed);
            }
            if let Some((value, _)) = gone {
                readers
                    .iter_mut()
                    .for_each(|reader| _ = reader.must.remove(&value));
            }
            bench.shared[write.word as usize] = write.value;
            if !readers.is_empty() {
                let at = random.below(readers.len() as u32) as usize;
                found += advance(&bench, &mut readers, at, seed);
            }
        }
        if let Some((_, line)) = gone {
            bench.unlinked += 1;
            bench.retired.push((bench.unlinked, line));
        }
        let oldest = readers.iter().map(|reader| reader.began).min();
        let through = oldest.unwrap_or(bench.unlinked);
        let retired = bench.retired.extract_if(.., |(at, _)| *at <= through);
        let retired: Vec<_> = retired.collect();
        retired.iter().for_each(|(_, line)| bench.table.give(*line));
        assert_eq!(bench.shared, bench.table.words(), "seed {seed}");
    }
    assert_eq!(bench.table.linked as usize, bench.there.len());
    found
}

#[test]
fn readers_find_what_is_there_and_nothing_of_another_key() {
    let found: usize = (1..200).map(run).sum();
    assert!(found > 10_000, "readers found {found}");
}

#[test]
fn sizes_grow_to_their_limits() {
    let mut size = Size::for_keys(64);
    assert_eq!((size.cells, size.linked_max()), (64, 64));
    size = size.grown(1_000_000).expect("it is below the limit");
    assert!(size.linked_max() >= 1_000_000);
    size = size.grown(CELLS_MAX).expect("it is the limit");
    assert_eq!(size.linked_max(), super::super::limits::KEYS_MAX);
    assert_eq!(size.grown(CELLS_MAX + 1), None);
    while let Some(more) = size.with_more_spare() {
        size = more;
    }
    assert_eq!(size.spare, SPARE_MAX);
    assert!(u64::from(size.lines()) * 64 < 1 << 29);
}

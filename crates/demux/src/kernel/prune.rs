//! Pruning: which of very many subtables may have an entry for a frame.
//!
//! ```text
//!  src & 0xffffff00 ─hash─► cell  0 1 1 0 1 …┐
//!  dst & 0xffff0000 ─hash─► cell  1 1 0 0 1 …├─ and ─► 0 1 0 0 1 …  subtables to look up,
//!  dst port         ─hash─► cell  0 1 1 1 1 …┘                      the best rank first
//! ```
//!
//! For each of the fields that many subtables ask for, the store has an array of
//! cells, and a cell has a bit for each subtable: whether an entry of it has a
//! value of this hash. Subtables that do not ask for the field have their bits in
//! all cells. This is the tuple pruning of Srinivasan, Suri and Varghese ("Packet
//! Classification using Tuple Space Search", 1999), with hashed values in place of
//! the longest prefix. A subtable may ask for more bits than the field has: those
//! of the field follow from them.
//!
//! Bits are set before an entry can be found, and cleared after it cannot, as
//! in a [prefilter](super::prefilter). Subtables have their bits by best rank, so that a
//! program is through as soon as it has found a taker that comes before all of
//! what is left.

use super::image::Image;
use super::layout::{UNIT_WORDS, subtable as words};
use super::lowered_path::coarser;
use super::plan::KernelPlan;
use super::subtable::{Field, Subtable};
use std::collections::{BTreeMap, BTreeSet};

/// With fewer subtables the tree of prefilters costs less.
const PRUNED_MIN: usize = 64;

/// Fields, at most.
pub(super) const FIELDS_MAX: usize = 16;

/// Subtables that ask for a field which is worth an array.
const SUBTABLES_PER_FIELD_MIN: usize = 8;

/// Bits of a word.
pub(super) const BITS: usize = 64;

/// Subtables with more entries have something in nearly every cell.
const ENTRIES_MAX: usize = 1 << 14;

/// Cells of a field, at least and at most; powers of two. More would have less
/// room in the processor's cache than they save look-ups (the bench `acl`).
const CELLS_MIN: u32 = 1 << 6;
const CELLS_MAX: u32 = 1 << 12;

/// Cells for each value of the subtable with the most: a subtable passes by chance for
/// one value in `CELLS_PER_VALUE`.
const CELLS_PER_VALUE: usize = 4;

/// The stream of the cells' hash; subtables have their numbers.
const CELLS_HASH: u64 = u64::MAX - 2;

/// Subtables that are pruned together.
pub(super) struct Pruning {
    /// By bit.
    pub(super) subtables: Vec<u32>,
    bits: BTreeMap<u32, usize>,
    pub(super) fields: Vec<Pruned>,
    /// A unit with the least rank of each word's subtables.
    pub(super) best: u32,
    /// A unit of bits that are to pass whatever the cells say.
    pub(super) open: u32,
}

/// A field by which subtables are pruned.
pub(super) struct Pruned {
    pub(super) field: Field,
    /// Where its cells begin.
    pub(super) unit: u32,
    pub(super) factor: u32,
    /// Bits by which a hash of 32 bits is shifted, to name a cell.
    pub(super) shift: u32,
    /// By bit, which of the subtable's fields it follows from.
    asking: Vec<Option<usize>>,
    /// The words of bits that its cells have: those with a subtable that asks for the
    /// field.
    pub(super) words: Vec<usize>,
    /// How many entries of a bit's subtable have a value of a cell.
    counts: BTreeMap<(u32, usize), u32>,
}

impl Pruned {
    /// For values of each bit's subtable, with the number of its entries.
    fn new(
        field: Field,
        asking: Vec<Option<usize>>,
        factor: u32,
        values: &BTreeMap<(usize, u32), u32>,
    ) -> Pruned {
        let of_bits: Vec<usize> = values.keys().map(|(bit, _)| *bit).collect();
        let most = of_bits.chunk_by(|a, b| a == b).map(<[usize]>::len).max();
        let wanted = most.unwrap_or(0).saturating_mul(CELLS_PER_VALUE) as u64;
        let cells = wanted.next_power_of_two();
        let cells = cells.clamp(CELLS_MIN.into(), CELLS_MAX.into());
        let mut pruned = Pruned {
            field,
            unit: 0,
            factor,
            shift: u32::BITS - cells.ilog2(),
            words: asking_words(&asking),
            asking,
            counts: BTreeMap::new(),
        };
        for ((bit, value), entries) in values {
            let cell = pruned.cell(*value);
            *pruned.counts.entry((cell, *bit)).or_insert(0) += entries;
        }
        pruned
    }

    fn cell(&self, value: u32) -> u32 {
        (value & self.field.1).wrapping_mul(self.factor) >> self.shift
    }

    /// Words of a cell, a power of two.
    fn cell_words(&self) -> u32 {
        self.words.len().next_power_of_two() as u32
    }

    pub(super) fn cell_bytes(&self) -> u32 {
        self.cell_words() * 8
    }

    fn units(&self) -> u32 {
        (1 << (u32::BITS - self.shift)) * self.cell_words() / UNIT_WORDS
    }

    /// The bits of a word's subtables that do not ask for the field. They are set in
    /// all cells.
    pub(super) fn always(&self, word: usize) -> u64 {
        let asking = self.asking.iter().skip(word * BITS).take(BITS);
        let free = asking.enumerate().filter(|(_, asks)| asks.is_none());
        free.fold(0, |bits, (bit, _)| bits | 1 << bit)
    }
}

/// The words of bits in which some subtable asks for a field.
fn asking_words(asking: &[Option<usize>]) -> Vec<usize> {
    let words = asking.chunks(BITS).enumerate();
    let asked = words.filter(|(_, bits)| bits.iter().any(Option::is_some));
    asked.map(|(word, _)| word).collect()
}

/// Units that this many fields' cells take at most, for this many subtables, and what
/// there is besides.
fn units_max(fields: usize, subtables: usize) -> u32 {
    let cell_words = subtables.div_ceil(BITS).next_power_of_two() as u32;
    fields as u32 * CELLS_MAX * cell_words / UNIT_WORDS + 2
}

impl Pruning {
    /// Words of the bits.
    pub(super) fn bit_words(&self) -> usize {
        self.subtables.len().div_ceil(64)
    }

    /// The bits of a word that stand for subtables.
    pub(super) fn all(&self, word: usize) -> u64 {
        let subtables = self.subtables.len() - word * BITS;
        u64::MAX >> BITS.saturating_sub(subtables)
    }

    pub(super) fn has(&self, subtable: u32) -> bool {
        self.bits.contains_key(&subtable)
    }

    /// An entry of a subtable is about to come.
    pub(super) fn add(
        &mut self,
        subtable: &Subtable,
        value_of: impl Fn(usize) -> u32,
        rank: u64,
        image: &mut Image,
    ) {
        let Some(bit) = self.bits.get(&subtable.number).copied() else {
            return;
        };
        for at in 0..self.fields.len() {
            if let Some(cell) = self.count(at, bit, &value_of, 1) {
                self.set(at, cell, bit, true, image);
            }
        }
        let word = bit as u32 / 64;
        if rank < image.get(self.best, word) {
            image.put(self.best, word, rank);
        }
    }

    /// An entry of a subtable is gone.
    pub(super) fn remove(
        &mut self,
        subtable: &Subtable,
        value_of: impl Fn(usize) -> u32,
        image: &mut Image,
    ) {
        let Some(bit) = self.bits.get(&subtable.number).copied() else {
            return;
        };
        for at in 0..self.fields.len() {
            if let Some(cell) = self.count(at, bit, &value_of, -1) {
                self.set(at, cell, bit, false, image);
            }
        }
    }

    /// Counts an entry in or out; gives the cell if it was the first or last
    /// one there.
    fn count(
        &mut self,
        at: usize,
        bit: usize,
        value_of: impl Fn(usize) -> u32,
        change: i32,
    ) -> Option<u32> {
        let field = &mut self.fields[at];
        let cell = field.cell(value_of(field.asking[bit]?));
        let count = field.counts.entry((cell, bit)).or_insert(0);
        let was = *count;
        *count = count.wrapping_add_signed(change);
        let is = *count;
        if is == 0 {
            field.counts.remove(&(cell, bit));
        }
        (was == 0 || is == 0).then_some(cell)
    }

    fn set(&self, at: usize, cell: u32, bit: usize, on: bool, image: &mut Image) {
        let field = &self.fields[at];
        let Ok(of_cell) = field.words.binary_search(&(bit / BITS)) else {
            return;
        };
        let unit = field.unit;
        let word = cell * field.cell_words() + of_cell as u32;
        let known = image.get(unit, word);
        let bit = 1 << (bit % 64);
        image.put(unit, word, if on { known | bit } else { known & !bit });
    }

    /// Takes pieces of the store, and writes all that was counted.
    fn allocate(&mut self, image: &mut Image) {
        let small = [&mut self.best, &mut self.open];
        for (unit, fill) in small.into_iter().zip([u64::MAX, 0]) {
            *unit = image.take(1);
            (0..UNIT_WORDS).for_each(|word| image.put(*unit, word, fill));
        }
        for at in 0..self.fields.len() {
            let field = &mut self.fields[at];
            let units = field.units();
            let unit = image.take(units);
            field.unit = unit;
            for word in 0..units * UNIT_WORDS {
                let of_cell = word & (field.cell_words() - 1);
                let all = field.words.get(of_cell as usize);
                image.put(unit, word, all.map_or(0, |word| field.always(*word)));
            }
            let set: Vec<(u32, usize)> = self.fields[at].counts.keys().copied().collect();
            for (cell, bit) in set {
                self.set(at, cell, bit, true, image);
            }
        }
    }

    /// Lets every subtable pass, for programs that still read this and get
    /// of nothing new; gives the pieces of the store.
    fn open(&self, image: &mut Image) -> Vec<(u32, u32)> {
        for (word, subtables) in (0..).zip(self.subtables.chunks(BITS)) {
            image.put(self.open, word, u64::MAX >> (BITS - subtables.len()));
            image.put(self.best, word, 0);
        }
        let small = [self.best, self.open].map(|unit| (unit, 1));
        let fields = self.fields.iter();
        let fields = fields.map(|field| (field.unit, field.units()));
        small.into_iter().chain(fields).collect()
    }
}

/// The fields that a subtable asks for, by number, each with the subtable's field
/// from which it follows: of several masks the one with the most bits.
fn fields_of(subtable: &Subtable, fields: &[Field]) -> BTreeMap<usize, usize> {
    let mut asked = BTreeMap::new();
    for (at, (expr, mask)) in subtable.signature.fields.iter().enumerate() {
        let follows = |(_, field): &(usize, &Field)| field.0 == *expr && field.1 & mask == field.1;
        let known = fields.iter().enumerate().filter(follows);
        if let Some((number, _)) = known.max_by_key(|(_, field)| field.1.count_ones()) {
            asked.entry(number).or_insert(at);
        }
    }
    asked
}

/// Whether a subtable is pruned by these fields.
fn is_pruned(subtable: &Subtable, fields: &[Field]) -> bool {
    subtable.entries <= ENTRIES_MAX && !fields_of(subtable, fields).is_empty()
}

impl KernelPlan {
    /// Units of the store that pruning this many subtables may take.
    pub(super) fn pruning_units(&self, subtables: usize) -> u32 {
        if subtables <= PRUNED_MIN {
            return 0;
        }
        units_max(FIELDS_MAX, subtables)
    }

    /// Whether a subtable is pruned, and so in no tree.
    pub(super) fn prunes(&self, subtable: u32) -> bool {
        let pruning = self.pruning.as_ref();
        pruning.is_some_and(|pruning| pruning.has(subtable))
    }

    /// Prunes subtables that have fields in common with many others, if there are
    /// very many; the others are left to the tree.
    pub(super) fn prune(&mut self) {
        let mut fields = self.common_fields();
        while self.pruned_by(&fields).len() > PRUNED_MIN && !self.has_room_for(&fields) {
            fields.pop();
        }
        let subtables = self.pruned_by(&fields);
        if let Some(pruning) = &self.pruning {
            let same = pruning
                .fields
                .iter()
                .map(|pruned| &pruned.field)
                .eq(&fields);
            if same && pruning.bits.keys().eq(subtables.iter()) {
                return;
            }
        }
        if let Some(old) = self.pruning.take() {
            for (unit, units) in old.open(&mut self.image) {
                self.retire_units(unit, units);
            }
        }
        if subtables.len() > PRUNED_MIN {
            self.pruning = Some(self.new_pruning(fields, subtables));
        }
    }

    /// The fields that most subtables ask for, the most frequent first. Prefixes are
    /// cut to whole bytes. A field with one value everywhere is left out, as it
    /// excludes no subtable.
    fn common_fields(&self) -> Vec<Field> {
        let mut counts: BTreeMap<Field, (usize, BTreeSet<u32>)> = BTreeMap::new();
        for subtable in self.subtables.values() {
            for (at, (expr, mask)) in subtable.signature.fields.iter().enumerate() {
                let mask = coarser(*mask).unwrap_or(*mask);
                if mask == 0 {
                    continue;
                }
                let known = counts.entry((expr.clone(), mask)).or_default();
                known.0 += 1;
                match subtable.small_values_at(at) {
                    Some(values) => known.1.extend(values.map(|value| value & mask)),
                    None => known.1.extend([0, 1]),
                }
            }
        }
        let mut common: Vec<(Field, usize)> = Vec::new();
        for (field, (count, values)) in counts {
            if count >= SUBTABLES_PER_FIELD_MIN && values.len() > 1 {
                common.push((field, count));
            }
        }
        common.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        common.truncate(FIELDS_MAX);
        common.into_iter().map(|(field, _)| field).collect()
    }

    fn pruned_by(&self, fields: &[Field]) -> BTreeSet<u32> {
        let pruned = self.subtables.values();
        let pruned = pruned.filter(|subtable| is_pruned(subtable, fields));
        pruned.map(|subtable| subtable.number).collect()
    }

    fn has_room_for(&self, fields: &[Field]) -> bool {
        let units = units_max(fields.len(), self.pruned_by(fields).len());
        self.image.has_room(units, 0)
    }

    fn new_pruning(&mut self, fields: Vec<Field>, subtables: BTreeSet<u32>) -> Pruning {
        let best = |number: &u32| {
            let subtable = self.subtables.get(number);
            subtable.map(|subtable| self.image.get(subtable.unit, words::BEST))
        };
        let mut subtables: Vec<u32> = subtables.into_iter().collect();
        subtables.sort_by_key(best);
        let asked = subtables
            .iter()
            .filter_map(|number| self.subtables.get(number));
        let asked: Vec<_> = asked.map(|subtable| fields_of(subtable, &fields)).collect();
        let bits: BTreeMap<u32, usize> = subtables.iter().copied().zip(0..).collect();
        let mut values = vec![BTreeMap::new(); fields.len()];
        self.for_each_entry(|plan, entry, _| {
            let (number, key) = plan.image.key(entry);
            let Some(bit) = bits.get(&number) else { return };
            let Some(subtable) = plan.subtables.get(&number) else {
                return;
            };
            for (at, field) in &asked[*bit] {
                let value = subtable.value_of(*field, &key) & fields[*at].1;
                *values[*at].entry((*bit, value)).or_insert(0) += 1;
            }
        });
        let factor = self.secret.key_hash(CELLS_HASH, 0).mix;
        let pruned = fields.into_iter().zip(&values).enumerate();
        let pruned = pruned.map(|(number, (field, values))| {
            let asking = asked.iter().map(|asks| asks.get(&number).copied());
            Pruned::new(field, asking.collect(), factor, values)
        });
        let mut pruning = Pruning {
            fields: pruned.collect(),
            bits,
            subtables,
            best: 0,
            open: 0,
        };
        pruning.allocate(&mut self.image);
        for (bit, number) in pruning.subtables.iter().enumerate() {
            let word = bit as u32 / 64;
            if let Some(subtable) = self.subtables.get(number) {
                let rank = self.image.get(subtable.unit, words::BEST);
                let least = rank.min(self.image.get(pruning.best, word));
                self.image.put(pruning.best, word, least);
            }
        }
        pruning
    }
}

#[cfg(test)]
mod tests;

//! Prefilters: for the value that a frame has in one field, which of up to eight
//! *arms* may have an entry with it. An arm is a subtable, or several that ask
//! for the same values. Most frames are done with all of them for the price
//! of one byte, before a key is put together and looked up.
//!
//! A value's bit is set before an entry with it can be found, and cleared
//! after the last one cannot: a clear bit is never wrong. It is all data, so
//! that it changes under a running program.

use super::expr::Expr;
use super::image::Image;
use super::layout::{UNIT_BYTES, UNIT_WORDS};
use super::subtable::Field;
use weir_filter::ir::{Op, Width};

/// Arms of one prefilter: bits of a byte.
pub(super) const ARMS_MAX: usize = 8;

/// Units of the largest prefilter: 8 KiB, a byte for each hash.
const UNITS_MAX: u32 = 128;

/// Bytes for each value: one value in sixteen of an arm's passes by chance.
const CELLS_PER_VALUE: usize = 16;

/// Units of a prefilter of ranges: 1,024 bytes.
const RANGE_UNITS: u32 = 16;

/// The key of a prefilter: a field of the frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum PrefilterKey {
    /// One value.
    Field(Field),
    /// A value within bounds, both included; of a byte or two.
    Range(Expr),
}

impl PrefilterKey {
    pub(super) fn expr(&self) -> &Expr {
        match self {
            PrefilterKey::Field((expr, _)) | PrefilterKey::Range(expr) => expr,
        }
    }
}

/// How many bits a loaded value has; `None` for one that is computed, or has
/// more than sixteen.
pub(super) fn range_bits(expr: &Expr) -> Option<u32> {
    match expr.ops().last()? {
        Op::Load {
            width: Width::B1, ..
        } => Some(8),
        Op::Load {
            width: Width::B2, ..
        } => Some(16),
        _ => None,
    }
}

/// How a value is turned into the number of its byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BucketIndex {
    /// Multiplied by a secret odd number, and shifted, in 32 bits.
    Hash { factor: u32, shift: u32 },
    /// Shifted: ranges stay ranges.
    Order { shift: u32 },
}

/// A prefilter's bytes.
pub(super) struct Prefilter {
    /// Where they begin.
    pub(super) unit: u32,
    pub(super) units: u32,
    pub(super) index: BucketIndex,
    /// How many entries of each arm have a value of each byte.
    counts: Vec<[u32; ARMS_MAX]>,
    values: usize,
}

impl Prefilter {
    /// How many units a prefilter for this many values takes.
    pub(super) fn units_for(prefilter_key: &PrefilterKey, values: usize) -> u32 {
        if let PrefilterKey::Range(expr) = prefilter_key {
            let cells = 1 << range_bits(expr).unwrap_or(0);
            return RANGE_UNITS.min(cells / UNIT_BYTES).max(1);
        }
        let cells = values.saturating_mul(CELLS_PER_VALUE) as u64;
        let units = cells.div_ceil(UNIT_BYTES.into()).next_power_of_two();
        u32::try_from(units).map_or(UNITS_MAX, |units| units.min(UNITS_MAX))
    }

    /// An empty one, in a piece of `units` units, a power of two.
    pub(super) fn new(
        prefilter_key: &PrefilterKey,
        unit: u32,
        units: u32,
        factor: u32,
        image: &mut Image,
    ) -> Prefilter {
        for word in 0..units * UNIT_WORDS {
            image.put(unit, word, 0);
        }
        let cells = units * UNIT_BYTES;
        let way = match prefilter_key {
            PrefilterKey::Field(_) => BucketIndex::Hash {
                factor,
                shift: u32::BITS - cells.ilog2(),
            },
            PrefilterKey::Range(expr) => BucketIndex::Order {
                shift: range_bits(expr).unwrap_or(0).saturating_sub(cells.ilog2()),
            },
        };
        Prefilter {
            unit,
            units,
            index: way,
            counts: vec![[0; ARMS_MAX]; cells as usize],
            values: 0,
        }
    }

    /// How many bytes it has.
    pub(super) fn cells(&self) -> u32 {
        self.units * UNIT_BYTES
    }

    fn cell(&self, value: u32) -> u32 {
        let cell = match self.index {
            BucketIndex::Hash { factor, shift } => value.wrapping_mul(factor) >> shift,
            BucketIndex::Order { shift } => value >> shift,
        };
        cell & (self.cells() - 1)
    }

    /// The bytes of a value, or of all from `low` to `high`.
    fn span(&self, low: u32, high: u32) -> std::ops::RangeInclusive<u32> {
        match self.index {
            BucketIndex::Hash { .. } => self.cell(low)..=self.cell(low),
            // Beyond what can be loaded is never there.
            BucketIndex::Order { shift } if low >> shift >= self.cells() => {
                std::ops::RangeInclusive::new(1, 0)
            }
            BucketIndex::Order { shift } => self.cell(low)..=(high >> shift).min(self.cells() - 1),
        }
    }

    /// Entries of an arm with these values are about to come.
    pub(super) fn add(&mut self, (low, high): Span, arm: usize, entries: u32, image: &mut Image) {
        self.values += entries as usize;
        for cell in self.span(low, high) {
            let count = &mut self.counts[cell as usize][arm];
            *count += entries;
            if *count == entries {
                self.set(cell, arm, true, image);
            }
        }
    }

    /// An entry of an arm with these values is gone.
    pub(super) fn remove(&mut self, (low, high): Span, arm: usize, image: &mut Image) {
        self.values -= 1;
        for cell in self.span(low, high) {
            let count = &mut self.counts[cell as usize][arm];
            *count -= 1;
            if *count == 0 {
                self.set(cell, arm, false, image);
            }
        }
    }

    fn set(&self, cell: u32, arm: usize, on: bool, image: &mut Image) {
        let word = cell / 8;
        let mut bytes = image.get(self.unit, word).to_ne_bytes();
        let byte = &mut bytes[cell as usize % 8];
        let bit = 1 << arm;
        *byte = if on { *byte | bit } else { *byte & !bit };
        image.put(self.unit, word, u64::from_ne_bytes(bytes));
    }

    /// Lets everything pass, for the programs that still look into it.
    pub(super) fn open(&self, image: &mut Image) {
        for word in 0..self.units * UNIT_WORDS {
            image.put(self.unit, word, u64::MAX);
        }
    }

    /// Whether too many values have come for it to be of use, and a larger
    /// one is possible.
    pub(super) fn is_crowded(&self) -> bool {
        let hashed = matches!(self.index, BucketIndex::Hash { .. });
        let wanted = self.values * CELLS_PER_VALUE;
        hashed && self.units < UNITS_MAX && wanted > 4 * self.counts.len()
    }
}

/// From a value to another, both included.
pub(super) type Span = (u32, u32);

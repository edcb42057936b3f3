//! Sieves: which values of one field some entry of a shape has, roughly. A
//! frame with another is done with the shape for the price of a bit, before
//! its key is put together and looked up.
//!
//! A value's bit is set before an entry with it can be found, and cleared
//! after the last one cannot: a clear bit is never wrong. As in a guard it is
//! all data, so that it changes under a running program.

use super::image::Image;
use super::layout::UNIT_WORDS;

/// Units of the largest sieve: 2 KiB, 16,384 bits.
const UNITS_MAX: u32 = 32;

/// Bits for each entry: about one frame in eight of another value passes.
const BITS_PER_ENTRY: usize = 8;

const BITS_PER_UNIT: u32 = UNIT_WORDS * u64::BITS;

/// One shape's.
pub(super) struct Sieve {
    /// The field of the shape whose values it knows.
    pub(super) field: usize,
    /// Where its bits begin.
    pub(super) unit: u32,
    pub(super) units: u32,
    /// Keys the hash; odd.
    pub(super) factor: u32,
    /// How many entries have a value of each bit.
    counts: Vec<u32>,
}

impl Sieve {
    /// How many units a sieve for so many entries takes; `None` if it would
    /// let most frames pass.
    pub(super) fn units_for(entries: usize) -> Option<u32> {
        let bits = entries.saturating_mul(BITS_PER_ENTRY) as u64;
        let units = bits.div_ceil(BITS_PER_UNIT.into()).next_power_of_two();
        u32::try_from(units)
            .ok()
            .filter(|units| *units <= UNITS_MAX)
    }

    /// An empty one, in a piece of `units` units.
    pub(super) fn new(
        field: usize,
        unit: u32,
        units: u32,
        factor: u32,
        image: &mut Image,
    ) -> Sieve {
        for word in 0..units * UNIT_WORDS {
            image.put(unit, word, 0);
        }
        Sieve {
            field,
            unit,
            units,
            factor,
            counts: vec![0; (units * BITS_PER_UNIT) as usize],
        }
    }

    /// How far the product is shifted to give the bit's number.
    pub(super) fn shift(&self) -> u32 {
        u32::BITS - (self.units * BITS_PER_UNIT).ilog2()
    }

    fn bit(&self, value: u32) -> u32 {
        value.wrapping_mul(self.factor) >> self.shift()
    }

    /// An entry with that value is about to come.
    pub(super) fn add(&mut self, value: u32, image: &mut Image) {
        let bit = self.bit(value);
        let count = &mut self.counts[bit as usize];
        *count += 1;
        if *count == 1 {
            let word = bit / u64::BITS;
            let old = image.get(self.unit, word);
            image.put(self.unit, word, old | 1 << (bit % u64::BITS));
        }
    }

    /// An entry with that value is gone.
    pub(super) fn remove(&mut self, value: u32, image: &mut Image) {
        let bit = self.bit(value);
        let count = &mut self.counts[bit as usize];
        *count -= 1;
        if *count == 0 {
            let word = bit / u64::BITS;
            let old = image.get(self.unit, word);
            image.put(self.unit, word, old & !(1 << (bit % u64::BITS)));
        }
    }

    /// Lets everything pass, for the programs that still look into it.
    pub(super) fn open(&self, image: &mut Image) {
        for word in 0..self.units * UNIT_WORDS {
            image.put(self.unit, word, u64::MAX);
        }
    }

    /// Whether too many entries have come for it to be of use.
    pub(super) fn is_crowded(&self, entries: usize) -> bool {
        entries * BITS_PER_ENTRY > 4 * self.counts.len()
    }
}

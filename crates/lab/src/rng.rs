//! A seeded source of numbers for generators: one printed seed replays any
//! failure, on any machine.

use std::ops::Range;
use weir_wire::rng::SplitMix64;

/// Numbers by [`SplitMix64`]. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// A number below `bound`; zero for a bound of zero.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of a 128-bit product spreads evenly enough for tests.
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number in the range, which is not empty.
    pub fn within(&mut self, range: Range<u32>) -> u32 {
        range.start + self.below(range.len()) as u32
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of the items, which are not none.
    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    /// One of the items by reference.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// An index drawn by weight; the weights are not all zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        let mut left = self.below(total as usize) as u32;
        for (index, &weight) in weights.iter().enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
        }
        unreachable!("the draw is below the sum of the weights")
    }
}

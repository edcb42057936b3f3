//! A seeded source of numbers: the same seed gives the same run everywhere.

use std::hash::{DefaultHasher, Hash, Hasher};
use weir_wire::rng::SplitMix64;

/// Numbers by [`SplitMix64`]. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`; zero for a bound of zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0.below(bound.into()) as u32
    }

    /// A number above zero and at most one.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A number from the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

/// Numbers that cannot be predicted from others: SipHash of a count and a purpose, keyed by a seed
/// that peers do not know.
#[derive(Clone, Debug)]
pub(crate) struct PrfRng {
    /// SipHash with the seed and the purpose.
    keyed: DefaultHasher,
    count: u64,
}

impl PrfRng {
    pub(crate) fn new(seed: u128, purpose: &'static str) -> PrfRng {
        let mut keyed = DefaultHasher::new();
        (seed, purpose).hash(&mut keyed);
        PrfRng { keyed, count: 0 }
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = self.keyed.clone();
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// The next 128 bits.
    pub(crate) fn wide(&mut self) -> u128 {
        u128::from(self.bits()) << 64 | u128::from(self.bits())
    }

    /// A number below `bound`; zero for a bound of zero.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u32
    }
}

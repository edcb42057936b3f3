//! A seeded pseudorandom number generator with the same sequence on every
//! machine.

use weir_wire::rng::SplitMix64;

/// [`SplitMix64`], with helpers. Not for secrets.
#[derive(Clone, Debug)]
pub(super) struct Rng(SplitMix64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// True with a probability of `ppm` parts per million.
    pub(super) fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// One of the items, of which there is at least one.
    pub(super) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills `out` with random bytes.
    pub(super) fn fill(&mut self, out: &mut [u8]) {
        for piece in out.chunks_mut(8) {
            let bytes = self.bits().to_le_bytes();
            piece.copy_from_slice(&bytes[..piece.len()]);
        }
    }
}

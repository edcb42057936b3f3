//! Keyed hashing: peers choose their addresses and transport ports, and must
//! not be able to choose collisions with them.
//!
//! The hash is multilinear (Lemire and Kaser, "Strongly universal string
//! hashing is fast", 2014): over 32-bit words *k* with secret random 64-bit
//! *m*,
//!
//! ```text
//! Σ (m[2i] + k[2i]) · (m[2i+1] + k[2i+1])   mod 2^64
//! ```
//!
//! Two different keys, chosen without knowing the secret, agree in the upper
//! 32 bits with probability 2^-32: that is proven, where the usual fast
//! hashes have only not been broken yet. By itself it maps keys that follow
//! on one another (a range of addresses, a range of ports) to an arithmetic
//! progression, which for one secret in a thousand or so would fall into few
//! buckets; so a keyed mixing, one to one on 64 bits, follows. Over IPv4 that
//! is three multiplications, two of them at once, against some hundred
//! dependent instructions of SipHash-1-3.
//!
//! The secret is drawn by SipHash from the table's seed. A peer who could
//! time single look-ups to a few nanoseconds might learn something about it;
//! across a network it cannot.

use super::key::Tuple;
use std::hash::{DefaultHasher, Hasher};

/// The hash of one table.
#[derive(Clone)]
pub(super) struct KeyHash<const A: usize> {
    start: u64,
    factors: [(u64, u64); A],
    ports: (u64, u64),
    mix: u64,
}

impl<const A: usize> KeyHash<A> {
    /// A hash of its own for each seed.
    pub(super) fn new(seed: u128) -> KeyHash<A> {
        let word = |index: u64| {
            let mut sip = DefaultHasher::new();
            sip.write_u128(seed);
            sip.write_u64(A as u64);
            sip.write_u64(index);
            sip.finish()
        };
        KeyHash {
            start: word(0),
            factors: std::array::from_fn(|lane| {
                (word(4 + 2 * lane as u64), word(5 + 2 * lane as u64))
            }),
            ports: (word(1), word(2)),
            mix: word(3) | 1,
        }
    }

    /// 64 bits, of which the upper ones are the best.
    #[inline]
    pub(super) fn hash(&self, key: &Tuple<A>) -> u64 {
        let (a, b) = self.ports;
        let ports = a.wrapping_add(u64::from(key.ports)).wrapping_mul(b);
        let mut sum = self.start.wrapping_add(ports);
        for (&(a, b), &word) in self.factors.iter().zip(&key.addresses) {
            let high = a.wrapping_add(word >> 32);
            let low = b.wrapping_add(word & 0xffff_ffff);
            sum = sum.wrapping_add(high.wrapping_mul(low));
        }
        (sum ^ sum >> 32).wrapping_mul(self.mix)
    }
}

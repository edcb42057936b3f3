//! Keyed hashing: peers choose their addresses and transport ports, and must
//! not be able to choose collisions with them.
//!
//! A key becomes an [`Image`] of as many bits, from which the key could be had
//! back: so the table keeps images, compares images, and moves them without
//! hashing again. Of the last word of addresses, *w*, the others, *k* in halves
//! of 32 bits, and the ports *p*, with secret random *m* and odd secret *f* and
//! *g*:
//!
//! ```text
//! s = w + m·p + Σ (m[2i] + k[2i]) · (m[2i+1] + k[2i+1])      mod 2^64
//! x = s·f,   x ^= x >> 32,   x = x·g,   x ^= x >> 32
//! ```
//!
//! The image is *x* and all of the key but *w*. Two different keys, chosen
//! without knowing the secret, have the same *s* with probability 2^-32 at most
//! (multilinear hashing: Lemire and Kaser, "Strongly universal string hashing is
//! fast", 2014), which is proven; what follows is one to one. It scatters keys
//! that follow on one another (a range of addresses, a range of ports): *s* runs
//! in an arithmetic progression then, and one secret factor alone would bring
//! that into few buckets for one secret in a thousand or so. That is shown by
//! trial, not proven. Over IPv4 it takes three multiplications, against some
//! hundred dependent instructions of SipHash-1-3.
//!
//! The secret is drawn by SipHash from the table's seed. A peer who could
//! time single look-ups to a few nanoseconds might learn something about it;
//! across a network it cannot.

use super::key::Tuple;
use std::hash::{DefaultHasher, Hasher};

/// What stands for a key, and tells where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Image<const A: usize> {
    /// The low half of *x*.
    pub(super) tag: u32,
    /// The high half of *x* and the ports; then the addresses but the last
    /// word.
    pub(super) rest: [u64; A],
}

impl<const A: usize> Image<A> {
    pub(super) const ZERO: Image<A> = Image {
        tag: 0,
        rest: [0; A],
    };

    /// Tells the bucket, by its low bits.
    #[inline]
    pub(super) fn home(&self) -> usize {
        (self.rest[0] >> 32) as usize
    }
}

/// The hash of one table.
#[derive(Clone)]
pub(crate) struct KeyHash<const A: usize> {
    /// Of all words of addresses but the last; the last pair is not used.
    factors: [(u64, u64); A],
    ports: u64,
    first: u64,
    second: u64,
}

impl<const A: usize> KeyHash<A> {
    /// A hash of its own for each seed.
    pub(crate) fn new(seed: u128) -> KeyHash<A> {
        let word = |index: u64| {
            let mut sip = DefaultHasher::new();
            sip.write_u128(seed);
            sip.write_u64(A as u64);
            sip.write_u64(index);
            sip.finish()
        };
        KeyHash {
            factors: std::array::from_fn(|lane| {
                (word(4 + 2 * lane as u64), word(5 + 2 * lane as u64))
            }),
            ports: word(1),
            first: word(2) | 1,
            second: word(3) | 1,
        }
    }

    /// 64 bits, of which the upper ones are the best.
    #[inline]
    pub(crate) fn hash(&self, key: &Tuple<A>) -> u64 {
        let ports = self.ports.wrapping_mul(u64::from(key.ports));
        let mut sum = key.addresses[A - 1].wrapping_add(ports);
        for (&(a, b), &word) in self.factors.iter().zip(&key.addresses[..A - 1]) {
            let high = a.wrapping_add(word >> 32);
            let low = b.wrapping_add(word & 0xffff_ffff);
            sum = sum.wrapping_add(high.wrapping_mul(low));
        }
        let mut mixed = sum.wrapping_mul(self.first);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(self.second);
        mixed ^ mixed >> 32
    }

    /// The key's image.
    #[inline]
    pub(super) fn image(&self, key: &Tuple<A>) -> Image<A> {
        let mixed = self.hash(key);
        let mut rest = [0; A];
        rest[0] = mixed >> 32 << 32 | u64::from(key.ports);
        rest[1..].copy_from_slice(&key.addresses[..A - 1]);
        Image {
            tag: mixed as u32,
            rest,
        }
    }
}

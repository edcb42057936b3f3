//! Keyed hashing: peers choose their addresses and transport ports, and must
//! not be able to choose collisions with them.
//!
//! A key becomes an [`Image`] of as many bits, from which the key could be had
//! back: so the table keeps images, compares images, and moves them without
//! hashing again. Of the last word of addresses, *w*, the others, *k* in halves
//! of 32 bits, the ports *p*, with secret random *m* and odd secret *f* and *g*:
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
//! Over IPv6 a host has few addresses of its own: each is given a number and a
//! secret random share (see `locals.rs`). *x* is then of the remote address and
//! the ports, plus the local address's share, and the image has the number in
//! place of the local address. The places of two keys of different local addresses
//! differ by the shares' difference, which is random.
//!
//! The secret is drawn by SipHash from the table's seed. A peer who could
//! time single look-ups to a few nanoseconds might learn something about it;
//! across a network it cannot.

use super::key::{Key4, Key6, Tuple};
use super::locals::Local;
use std::hash::{DefaultHasher, Hasher};

/// What stands for a key, and tells where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Image<const W: usize> {
    /// The low half of *x*.
    pub(super) tag: u32,
    /// The high half: its low bits tell the bucket.
    pub(super) place: u32,
    pub(super) ports: u32,
    /// Over IPv6, the remote address but its last word, and the local address's
    /// number.
    pub(super) rest: [u64; W],
}

impl<const W: usize> Image<W> {
    pub(super) const ZERO: Image<W> = Image {
        tag: 0,
        place: 0,
        ports: 0,
        rest: [0; W],
    };
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
}

impl KeyHash<1> {
    /// The image of a connection over IPv4.
    #[inline]
    pub(super) fn image4(&self, key: &Key4) -> Image<0> {
        let x = self.hash(key);
        Image {
            tag: x as u32,
            place: (x >> 32) as u32,
            ports: key.ports,
            rest: [],
        }
    }
}

impl KeyHash<2> {
    /// The image of a connection over IPv6 from a local address.
    #[inline]
    pub(super) fn image6(&self, key: &Key6, local: Local) -> Image<2> {
        let [_, _, first, last] = key.addresses;
        let remote = Tuple {
            addresses: [first, last],
            ports: key.ports,
        };
        let x = self.hash(&remote).wrapping_add(local.share);
        Image {
            tag: x as u32,
            place: (x >> 32) as u32,
            ports: key.ports,
            rest: [first, local.number],
        }
    }
}

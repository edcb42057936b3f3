//! Keyed hashing: peers choose their addresses and transport ports, and must
//! not be able to choose collisions with them.
//!
//! A key becomes an [`Image`] of as many bits, from which the key could be had
//! back: so the table keeps images, compares images, and moves them without
//! hashing again. Of the last word of addresses, *w*, the others, *k*, and the
//! ports *p*, with secret random *m* and *c*, of 64 and 128 bits, and odd secret *f*
//! and *g*:
//!
//! ```text
//! s = f·w + m·p + Σ (c[i]·k[i] mod 2^128) >> 64              mod 2^64
//! x = (s ^ s >> 32)·g                                        mod 2^64
//! ```
//!
//! The image is *x* and all of the key but *w*. Two different keys, chosen
//! without knowing the secret, have the same *s* with probability 2^-32 at most,
//! which is proven. Those that differ in *w* alone never have. Of a *k* that differs
//! by *d*, an odd multiple of 2^t, *c*·*d* is any multiple of 2^t below 2^128 with
//! the same probability, and t is below 64: so its upper half is any number with the
//! same probability, whatever the rest adds (the subtraction may borrow one:
//! 2^-63; Dietzfelbinger, "Universal hashing and k-wise independent random variables
//! via integer arithmetic without primes", 1996). Ports that differ by an odd
//! multiple of 2^t, t below 32, likewise: 2^-(64-t). What follows is one to one. It
//! scatters keys that follow on one another (a range of addresses, a range of ports):
//! *s* runs in an arithmetic progression then, and one secret factor alone would
//! bring that into few buckets for one secret in a thousand or so. That is shown by
//! trial, not proven. The products do not wait for each other: what counts is how
//! soon the bucket is known, for until then nothing can be fetched.
//!
//! Over IPv6 a host has few addresses of its own: each is given a secret random
//! name (see `locals.rs`). *x* is then of the remote address and the ports, plus the
//! name, and the image has the name in place of the local address. The places of two
//! keys of different local addresses differ by the names' difference, which is
//! random.
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
    /// Its low half is the tag; the low bits of its high half tell the bucket.
    pub(super) x: u64,
    pub(super) ports: u32,
    /// Over IPv6, the remote address but its last word, and the local address's
    /// name.
    pub(super) rest: [u64; W],
}

impl<const W: usize> Image<W> {
    pub(super) const ZERO: Image<W> = Image {
        x: 0,
        ports: 0,
        rest: [0; W],
    };

    #[inline]
    pub(super) fn tag(&self) -> u32 {
        self.x as u32
    }

    #[inline]
    pub(super) fn place(&self) -> u32 {
        (self.x >> 32) as u32
    }
}

/// The hash of one table.
#[derive(Clone)]
pub(crate) struct KeyHash<const A: usize> {
    /// Of all words of addresses but the last; the last one is not used.
    factors: [u128; A],
    ports: u64,
    last: u64,
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
                let lane = 2 * lane as u64;
                u128::from(word(4 + lane)) << 64 | u128::from(word(5 + lane))
            }),
            ports: word(1),
            last: word(2) | 1,
            second: word(3) | 1,
        }
    }

    /// 64 bits, of which the upper ones are the best.
    #[inline]
    pub(crate) fn hash(&self, key: &Tuple<A>) -> u64 {
        let last = key.addresses[A - 1].wrapping_mul(self.last);
        let mut sum = last.wrapping_add(self.ports.wrapping_mul(u64::from(key.ports)));
        for (factor, &word) in self.factors.iter().zip(&key.addresses[..A - 1]) {
            let product = factor.wrapping_mul(u128::from(word));
            sum = sum.wrapping_add((product >> 64) as u64);
        }
        (sum ^ sum >> 32).wrapping_mul(self.second)
    }
}

impl KeyHash<1> {
    /// The image of a connection over IPv4.
    #[inline]
    pub(super) fn image4(&self, key: &Key4) -> Image<0> {
        Image {
            x: self.hash(key),
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
        Image {
            // Last, so that nothing waits until the local address is found.
            x: self.hash(&remote).wrapping_add(local.0),
            ports: key.ports,
            rest: [first, local.0],
        }
    }
}

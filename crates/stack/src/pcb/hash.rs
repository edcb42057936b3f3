//! Keyed hashing: peers choose their addresses and transport ports, and must not be able to choose
//! collisions.
//!
//! A key becomes a [`HashedKey`], its *image*, which the table stores, compares and moves without
//! hashing again. For the last word of addresses *w*, the others *k*, and the ports *p*, with
//! secret random *m* and *c* of 64 and 128 bits, and odd secret *f* and *g*:
//!
//! ```text
//! s = f·w + m·p + Σ (c[i]·k[i] mod 2^128) >> 64              mod 2^64
//! x = (s ^ s >> 32)·g                                        mod 2^64
//! ```
//!
//! The image is *x* and *p*. Two different keys, chosen without the secret, have the same *s* with
//! a probability of at most 2^-32, which is proven. Keys that differ in *w* alone never have. If
//! *k* differs by *d*, an odd multiple of 2^t, then *c*·*d* is any multiple of 2^t below 2^128 with
//! the same probability, and t is below 64: so its upper half is any number with the same
//! probability, whatever the rest adds (the subtraction may borrow one: 2^-63; Dietzfelbinger,
//! "Universal hashing and k-wise independent random variables via integer arithmetic without
//! primes", 1996). Ports that differ by an odd multiple of 2^t, t below 32, likewise: 2^-(64-t).
//! The second step is one to one. It scatters consecutive keys (a range of addresses, a range of
//! ports): *s* is then an arithmetic progression, and one secret factor alone would put that into
//! few buckets for about one secret in a thousand. That is shown by trial, not proven. The products
//! do not depend on each other: the bucket can be fetched only when it is known.
//!
//! Over IPv4 *w* is both addresses: an image belongs to one key. Over IPv6 a host has few addresses
//! of its own: each gets a secret random number (see `interned_addr.rs`), and *x* is of the remote
//! address and the ports, plus that number. So there are more keys than images. Keys of one local
//! address that differ only in ports or *w* have different images; those that differ in *k*, the
//! upper half of the remote address, have the same with a probability of at most 2^-63, as above;
//! and those of different local addresses differ by their random numbers. With a million
//! connections and ten million segments a second of an attacker, at most one in eleven days would
//! be taken for another connection's: therefore a look-up compares the addresses and ports of the
//! PCB, which is read anyway.
//!
//! The secret is drawn by SipHash from the table's seed. A peer that could time single look-ups to
//! a few nanoseconds might learn something about it; across a network it cannot.

use super::interned_addr::InternedAddr;
use super::key::{Key4, Key6, Tuple};
use std::hash::{DefaultHasher, Hasher};

/// The hashed form of a key, which determines its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HashedKey {
    /// Its low half is the tag; the low bits of its high half select the bucket.
    pub(super) x: u64,
    pub(super) ports: u32,
}

impl HashedKey {
    pub(super) const ZERO: HashedKey = HashedKey { x: 0, ports: 0 };

    #[inline]
    pub(super) fn tag(&self) -> u32 {
        self.x as u32
    }

    #[inline]
    pub(super) fn place(&self) -> u32 {
        (self.x >> 32) as u32
    }
}

/// The keyed hash of one table, over tuples of `A` words of addresses; see
/// `hash.rs` for what is proven of it.
#[derive(Clone)]
pub struct KeyHash<const A: usize> {
    /// For all words of addresses but the last; the last factor is not used.
    factors: [u128; A],
    ports: u64,
    last: u64,
    second: u64,
}

impl<const A: usize> KeyHash<A> {
    /// The hash of a seed.
    pub fn new(seed: u128) -> KeyHash<A> {
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
    pub fn hash(&self, key: &Tuple<A>) -> u64 {
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
    pub(super) fn image4(&self, key: &Key4) -> HashedKey {
        HashedKey {
            x: self.hash(key),
            ports: key.ports,
        }
    }
}

impl KeyHash<2> {
    /// The image of a connection over IPv6 from a local address.
    #[inline]
    pub(super) fn image6(&self, key: &Key6, local: InternedAddr) -> HashedKey {
        let [_, _, first, last] = key.addresses;
        let remote = Tuple {
            addresses: [first, last],
            ports: key.ports,
        };
        HashedKey {
            // Last, so that nothing waits for the local address.
            x: self.hash(&remote).wrapping_add(local.0),
            ports: key.ports,
        }
    }
}

#[cfg(test)]
impl KeyHash<2> {
    /// Another key with the same image, which only the secret reveals.
    pub(super) fn twin(&self, key: &Key6) -> Key6 {
        let [local, low, first, last] = key.addresses;
        let upper = |word: u64| (self.factors[0].wrapping_mul(u128::from(word)) >> 64) as u64;
        // Newton's method: each step doubles the bits that are right.
        let halve = |x: u64, _| x.wrapping_mul(2_u64.wrapping_sub(self.last.wrapping_mul(x)));
        let inverse = (0..6).fold(self.last, halve);
        let difference = upper(first).wrapping_sub(upper(first + 1));
        let last = last.wrapping_add(inverse.wrapping_mul(difference));
        Tuple {
            addresses: [local, low, first + 1, last],
            ports: key.ports,
        }
    }
}

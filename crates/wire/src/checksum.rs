//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! [`Sum`] is the running sum for headers and payloads that lie apart;
//! [`internet_checksum`] is the checksum of one slice; [`update`] follows a
//! rewritten field. The private module `copy_sum` copies and sums in one pass.

mod copy_sum;

use multiversion::multiversion;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A running ones' complement sum of 16-bit words in network order.
///
/// Words are summed in the byte order of the machine. The result is swapped once at
/// the end, since the sum does not depend on byte order (RFC 1071 §2 (B)).
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    /// Sum of 32-bit words before folding. Long slices add a halved sum, so up to
    /// 2^27 additions of any length fit.
    total: u64,
    /// True after an odd number of bytes: the next byte is the second of its word.
    odd: bool,
}

impl Sum {
    /// The sum of no bytes.
    pub fn new() -> Sum {
        Sum::default()
    }

    /// Adds `bytes`; a slice may start and end in the middle of a word.
    #[inline]
    pub fn bytes(mut self, mut bytes: &[u8]) -> Sum {
        if self.odd {
            let [first, rest @ ..] = bytes else {
                return self;
            };
            self.total += u64::from(u16::from_ne_bytes([0, *first]));
            bytes = rest;
        }
        self.total += match bytes.len() {
            ..=SMALL_LEN => small(bytes),
            _ => many(bytes),
        };
        self.odd = bytes.len() % 2 == 1;
        self
    }

    /// Adds the 32-bit words of a header of constant length.
    ///
    /// # Panics
    /// If the sum covers an odd number of bytes.
    #[inline]
    pub fn words<const N: usize>(mut self, words: &[[u8; 4]; N]) -> Sum {
        assert!(!self.odd, "a word starts where a word ended");
        self.total += add(words);
        self
    }

    /// Copies `from` to `to` and adds its bytes, in one pass over memory.
    ///
    /// # Panics
    /// If `to` is not as long as `from`.
    #[inline]
    pub fn copy(mut self, from: &[u8], to: &mut [u8]) -> Sum {
        assert_eq!(from.len(), to.len(), "all of it is copied");
        if self.odd {
            to.copy_from_slice(from);
            return self.bytes(from);
        }
        self.total += match from.len() {
            ..=SMALL_LEN => copy_small(from, to),
            _ => copy_large(from, to),
        };
        self.odd = from.len() % 2 == 1;
        self
    }

    /// Adds `other`, the sum of the bytes that follow.
    ///
    /// # Panics
    /// If this sum covers an odd number of bytes.
    #[inline]
    pub fn and(mut self, other: Sum) -> Sum {
        assert!(!self.odd, "a sum starts where a word ended");
        self.total += other.total;
        self.odd = other.odd;
        self
    }

    /// Adds one 16-bit word.
    ///
    /// # Panics
    /// If the sum covers an odd number of bytes.
    #[inline]
    pub fn word(mut self, word: u16) -> Sum {
        assert!(!self.odd, "a word starts where a word ended");
        self.total += u64::from(word.to_be());
        self
    }

    /// Adds the pseudo-header of `protocol` (RFC 9293 §3.1, RFC 8200 §8.1) for
    /// `len` bytes of transport header and payload.
    #[inline]
    pub fn pseudo_header(self, addresses: AddrPair, protocol: u8, len: u32) -> Sum {
        let sum = match addresses {
            AddrPair::V4(src, dst) => self.double(src.to_bits()).double(dst.to_bits()),
            AddrPair::V6(src, dst) => self.bytes(&src.octets()).bytes(&dst.octets()),
        };
        sum.double(len).word(u16::from(protocol))
    }

    /// Adds two 16-bit words, the upper half of `words` first.
    ///
    /// # Panics
    /// If the sum covers an odd number of bytes.
    #[inline]
    pub fn double(mut self, words: u32) -> Sum {
        assert!(!self.odd, "a word starts where a word ended");
        // 2^16 is 1 modulo 2^16 - 1, so the upper word has the weight of the lower.
        self.total += u64::from(words.to_be());
        self
    }

    /// The folded sum, not complemented. A link that completes checksums expects
    /// this value of the pseudo-header in the checksum field.
    #[inline]
    pub fn partial(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// The value of the checksum field: the complement of the folded sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.partial()
    }
}

/// Longest slice summed inline, in bytes; longer ones are worth a function call.
const SMALL_LEN: usize = 64;

/// Bytes summed before the 64-bit sum is halved. [`add_many`], and each lane of
/// [`copy_sum`], can add up to 2^32 halves of 32 bits without overflow.
const FOLD_INTERVAL: usize = 1 << 30;

/// Sum of 32-bit words, inline; for short slices.
#[inline(always)]
fn add(words: &[[u8; 4]]) -> u64 {
    words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum()
}

/// Sum of 64-bit words, halved, with the widest vector registers of the machine.
///
/// The sum of whole words (`all`) may overflow, the sum of their upper halves
/// (`upper`) cannot; the sum of the lower halves is `all - (upper << 32)`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_many(pairs: &[[u8; 8]]) -> u64 {
    let (mut all, mut upper) = (0_u64, 0_u64);
    for pair in pairs {
        let pair = u64::from_ne_bytes(*pair);
        all = all.wrapping_add(pair);
        upper += pair >> 32;
    }
    halved(all.wrapping_sub(upper << 32)) + halved(upper)
}

/// Sum of a long slice that starts on a word boundary.
fn many(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    for piece in bytes.chunks(FOLD_INTERVAL) {
        let (pairs, rest) = piece.as_chunks::<8>();
        sum += add_many(pairs) + small(rest);
    }
    sum
}

/// Copies a slice longer than [`SMALL_LEN`] and returns its sum as [`many`] does.
#[inline]
fn copy_large(from: &[u8], to: &mut [u8]) -> u64 {
    if from.len() <= FOLD_INTERVAL {
        return copy_sum::copy(from, to);
    }
    let pieces = from.chunks(FOLD_INTERVAL).zip(to.chunks_mut(FOLD_INTERVAL));
    pieces
        .map(|(from, to)| match from.len() {
            ..=SMALL_LEN => copy_small(from, to),
            _ => copy_sum::copy(from, to),
        })
        .sum()
}

/// Sum of a slice of at most [`SMALL_LEN`] bytes.
#[inline]
fn small(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    add(words) + last(rest)
}

/// Copies a slice of at most [`SMALL_LEN`] bytes and returns its sum.
#[inline]
fn copy_small(from: &[u8], to: &mut [u8]) -> u64 {
    let (words, rest) = from.as_chunks::<4>();
    let (places, end) = to.as_chunks_mut::<4>();
    let mut sum = copy_last(rest, end);
    for (from, to) in words.iter().zip(places) {
        *to = *from;
        sum += u64::from(u32::from_ne_bytes(*from));
    }
    sum
}

/// The up to three bytes behind the last 32-bit word, padded with zeros to a word.
#[inline]
fn last(rest: &[u8]) -> u64 {
    let word = match *rest {
        [] => return 0,
        [a] => [a, 0, 0, 0],
        [a, b] => [a, b, 0, 0],
        [a, b, c, ..] => [a, b, c, 0],
    };
    u32::from_ne_bytes(word).into()
}

/// Copies the bytes behind the last 32-bit word and returns them as [`last`] does.
#[inline]
fn copy_last(rest: &[u8], to: &mut [u8]) -> u64 {
    for (from, to) in rest.iter().zip(to) {
        *to = *from;
    }
    last(rest)
}

/// Source and destination address of an IP packet: the addresses of the
/// pseudo-header that a transport checksum covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddrPair {
    /// IPv4 addresses.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 addresses.
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddrPair {
    /// Pairs `src` and `dst`; `None` if their IP versions differ.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<AddrPair> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(AddrPair::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(AddrPair::V6(src, dst)),
            _ => None,
        }
    }
}

/// The Internet checksum of one slice (RFC 1071).
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

/// Returns the checksum after the word `old` became `new` (RFC 1624 §3, equation 3).
/// The result equals a full computation, unless all covered data is zero.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let total = u64::from(!checksum) + u64::from(!old) + u64::from(new);
    !fold(total)
}

/// Folds the upper 32 bits in once; the result is below 2^33.
#[inline]
fn halved(total: u64) -> u64 {
    (total & 0xffff_ffff) + (total >> 32)
}

/// Folds the sum to 16 bits, adding each carry back in.
#[inline]
fn fold(total: u64) -> u16 {
    let (sum, carry) = (total as u32).overflowing_add((total >> 32) as u32);
    let sum = sum + u32::from(carry);
    let (sum, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
    sum + u16::from(carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance between the cases that run under Miri, which interprets each byte.
    const STEP: usize = if cfg!(miri) { 23 } else { 1 };

    /// Copies between any alignments write no byte outside the target.
    #[test]
    fn copies_lie_anywhere() {
        let bytes: Vec<u8> = (0..400_u32).map(|at| ((at * 37) >> 2) as u8).collect();
        for len in [63, 64, 65, 66, 127, 128, 129, 130, 191, 250] {
            let all = (0..70).flat_map(|from| (0..70).map(move |at| (from, at)));
            for (from, at) in all.step_by(STEP) {
                let bytes = &bytes[from..from + len];
                let mut copy = vec![0xa5; 400];
                let sum = Sum::new().copy(bytes, &mut copy[at..at + len]);
                assert_eq!(
                    sum.finish(),
                    internet_checksum(bytes),
                    "{len} bytes from {from} to {at}"
                );
                let (before, rest) = copy.split_at(at);
                let (there, behind) = rest.split_at(len);
                assert_eq!(there, bytes);
                assert!(before.iter().chain(behind).all(|byte| *byte == 0xa5));
            }
        }
    }

    /// Sums of any length and split equal the word-by-word sum of RFC 1071 §4.1.
    #[test]
    fn copies_and_parts_sum_as_the_whole() {
        let bytes: Vec<u8> = (0..700_u32)
            .map(|at| ((at * at) >> 3) as u8 | 0x81)
            .collect();
        for len in (0..bytes.len()).step_by(STEP) {
            let bytes = &bytes[..len];
            let words = bytes.chunks(2).map(|word| {
                let low = word.get(1).copied().unwrap_or(0);
                u64::from(u16::from_be_bytes([word[0], low]))
            });
            let right = !fold(words.sum());
            let (start, end) = bytes.split_at(len / 3);
            let mut copy = vec![0; len];
            let (to_start, to_end) = copy.split_at_mut(len / 3);
            let copied = Sum::new().copy(start, to_start).copy(end, to_end);
            assert_eq!(copied.finish(), right, "{len} bytes, copied");
            assert_eq!(copy, bytes);
            assert_eq!(
                Sum::new().bytes(start).bytes(end).finish(),
                right,
                "{len} bytes"
            );
            let whole = Sum::new().word(7).and(Sum::new().bytes(bytes));
            assert_eq!(whole.finish(), Sum::new().word(7).bytes(bytes).finish());
            assert_eq!(!whole.partial(), whole.finish());
        }
    }
}

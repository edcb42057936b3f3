//! Copy and checksum in one pass, a cache line at a time (Linux'
//! `csum_partial_copy`).

use super::{copy_last, halved};
use multiversion::multiversion;
use std::hint::black_box;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
type Line = [u8; LINE];

/// Table of byte masks: a line of ones, then a line of zeros. The line that
/// starts at byte `LINE - n` keeps the first `n` bytes.
const MASK: [u8; 2 * LINE] = {
    let mut mask = [0; 2 * LINE];
    let mut at = 0;
    while at < LINE {
        mask[at] = 0xff;
        at += 1;
    }
    mask
};

/// Eight lanes of 64-bit sums. `all`, the sum of whole words, may overflow;
/// `upper`, the sum of the upper halves, cannot, and yields the lower halves.
#[derive(Default)]
struct Lanes {
    all: [u64; 8],
    upper: [u64; 8],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, words: [u64; 8]) {
        for (lane, word) in words.into_iter().enumerate() {
            self.all[lane] = self.all[lane].wrapping_add(word);
            self.upper[lane] += word >> 32;
        }
    }

    #[inline(always)]
    fn sum(self) -> u64 {
        let all = self.all.into_iter().fold(0, u64::wrapping_add);
        let upper: u64 = self.upper.into_iter().sum();
        halved(all.wrapping_sub(upper << 32)) + halved(upper)
    }
}

#[inline(always)]
fn words(line: &Line) -> [u64; 8] {
    let (pairs, _) = line.as_chunks::<8>();
    std::array::from_fn(|lane| u64::from_ne_bytes(pairs[lane]))
}

#[inline(always)]
fn store(words: [u64; 8], line: &mut Line) {
    let (pairs, _) = line.as_chunks_mut::<8>();
    for (pair, word) in pairs.iter_mut().zip(words) {
        *pair = word.to_ne_bytes();
    }
}

/// The words of `line`, with zeros where `mask` is zero.
#[inline(always)]
fn masked(line: &Line, mask: [u64; 8]) -> [u64; 8] {
    let words = words(line);
    std::array::from_fn(|lane| words[lane] & mask[lane])
}

/// The mask that keeps the first `count` bytes of a line; `count` is at most [`LINE`].
#[inline(always)]
fn first(count: usize) -> [u64; 8] {
    let mask = MASK[LINE - count..].first_chunk();
    words(mask.expect("a line is left behind any place in the first"))
}

/// Copies `from` to `to` and returns the sum of its 16-bit words; between
/// [`LINE`] and [`super::FOLD_INTERVAL`] bytes.
///
/// A store across two cache lines takes twice as long. So the copy has three parts:
/// the first line to its unaligned place, the lines that are aligned in `to`, and the
/// last line. The parts overlap; masks count each byte once.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn copy(from: &[u8], to: &mut [u8]) -> u64 {
    // The odd last byte is the first of its word: `copy_last` adds it.
    let even = from.len() & !1;
    let (from, from_last) = from.split_at(even);
    let (to, to_last) = to.split_at_mut(even);
    let mut lanes = Lanes::default();
    // An odd skew would split the words of `from`; then the copy starts unaligned.
    let skew = match to.as_ptr().addr().wrapping_neg() % LINE {
        skew if skew.is_multiple_of(2) => skew,
        _ => 0,
    };
    let line: Line = *from.first_chunk().expect("a line at least");
    *to.first_chunk_mut().expect("as long") = line;
    lanes.add(masked(&line, first(skew)));
    let (lines, rest) = from[skew..].as_chunks::<LINE>();
    let (places, _) = to[skew..].as_chunks_mut::<LINE>();
    for (line, place) in lines.iter().zip(places) {
        // Keeps the compiler from merging iterations, which would copy word by word.
        black_box(());
        let words = words(line);
        store(words, place);
        lanes.add(words);
    }
    let line: Line = *from.last_chunk().expect("a line at least");
    *to.last_chunk_mut().expect("as long") = line;
    let others = first(LINE - rest.len());
    lanes.add(masked(&line, others.map(|mask| !mask)));
    lanes.sum() + copy_last(from_last, to_last)
}

//! Bytes that are copied and summed in one pass, a line of the cache at a time.

use super::{copy_last, halved};
use multiversion::multiversion;
use std::hint::black_box;

/// Bytes of a line of the cache.
pub(super) const LINE: usize = 64;
type Line = [u8; LINE];

/// A line of ones, then one of zeros: from `n` on, the `LINE - n` first of a
/// line's bytes.
const MASK: [u8; 2 * LINE] = {
    let mut mask = [0; 2 * LINE];
    let mut at = 0;
    while at < LINE {
        mask[at] = 0xff;
        at += 1;
    }
    mask
};

/// Sums of 64-bit words, eight side by side. Those of whole words overflow; those
/// of their upper halves, which do not, say what the lower ones come to.
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

/// A line's words; of bytes that `mask` lacks, zeros.
#[inline(always)]
fn masked(line: &Line, mask: [u64; 8]) -> [u64; 8] {
    let words = words(line);
    std::array::from_fn(|lane| words[lane] & mask[lane])
}

/// What keeps the first `count` bytes of a line, at most all.
#[inline(always)]
fn first(count: usize) -> [u64; 8] {
    let mask = MASK[LINE - count..].first_chunk();
    words(mask.expect("a line is left behind any place in the first"))
}

/// Copies [`LINE`] bytes or more, at most [`super::FOLD_INTERVAL`]; gives the sum of their
/// 16-bit words.
///
/// Stores that cross a line take twice as long. So the first line is copied where
/// it is to go, then lines that are whole in `to`, then the last one, as far as it
/// was copied already once more; of both, only what the others lack is summed.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn copy(from: &[u8], to: &mut [u8]) -> u64 {
    // An odd byte at the end is its word's first: see `copy_last`.
    let even = from.len() & !1;
    let (from, from_last) = from.split_at(even);
    let (to, to_last) = to.split_at_mut(even);
    let mut lanes = Lanes::default();
    // A word of `from` stays one: none is torn where lines begin.
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
        // Else several lines are taken at once, word by word.
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

//! Segments: the data of a message, in blocks of 512 bytes.

use std::ops::Range;

/// Length of a block, in bytes; a segment's last block may be shorter.
pub const BLOCK_LEN: usize = 512;
/// Length of the longest segment, in bytes: one block for each bit of a
/// delivery mask.
pub const SEGMENT_LEN_MAX: usize = BLOCK_LEN * 32;

/// The delivery mask of a whole segment. 0 for a segment without data.
pub const fn all_blocks(segment_len: usize) -> u32 {
    match segment_len.div_ceil(BLOCK_LEN) {
        0 => 0,
        count @ 1..=31 => (1 << count) - 1,
        _ => u32::MAX,
    }
}

/// The indices of a mask's blocks.
pub(crate) fn blocks(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (index < 32).then_some(index as usize)
    })
}

/// Where a block lies in its segment.
pub(crate) fn range(segment_len: usize, block: usize) -> Range<usize> {
    let start = block * BLOCK_LEN;
    start..segment_len.min(start + BLOCK_LEN)
}

/// Bytes of the blocks of a mask, which lie within the segment.
pub(crate) fn data_len(segment_len: usize, mask: u32) -> usize {
    let whole = mask.count_ones() as usize * BLOCK_LEN;
    let last = segment_len.div_ceil(BLOCK_LEN).wrapping_sub(1);
    let has_last = last < 32 && mask >> last & 1 == 1;
    let lacking = segment_len.next_multiple_of(BLOCK_LEN) - segment_len;
    if has_last { whole - lacking } else { whole }
}

/// Blocks of a mask that fit into one packet: the lowest ones that follow each
/// other, at most `count`.
pub(crate) fn first_blocks(mask: u32, count: usize) -> u32 {
    let start = mask.trailing_zeros();
    if start == 32 {
        return 0;
    }
    let run = (mask >> start).trailing_ones().min(count as u32);
    let bits = u32::MAX >> (32 - run);
    bits << start
}

/// A segment that arrives in packets, in any order.
#[derive(Clone, Debug)]
pub struct Assembly {
    bytes: Vec<u8>,
    /// The blocks that are there.
    received: u32,
}

impl Assembly {
    /// An empty segment of this length, at most [`SEGMENT_LEN_MAX`].
    pub fn new(segment_len: usize) -> Assembly {
        assert!(segment_len <= SEGMENT_LEN_MAX, "a segment of {segment_len}");
        Assembly {
            bytes: vec![0; segment_len],
            received: 0,
        }
    }

    /// Adds the blocks of a packet whose segment size is this one's; blocks that
    /// are there already stay as they are.
    pub fn add(&mut self, delivery: u32, mut data: &[u8]) {
        for block in blocks(delivery) {
            let range = range(self.bytes.len(), block);
            let (part, rest) = data.split_at(range.len());
            if self.received >> block & 1 == 0 {
                self.bytes[range].copy_from_slice(part);
            }
            data = rest;
        }
        self.received |= delivery;
    }

    /// Length of the whole segment, in bytes.
    pub fn segment_len(&self) -> usize {
        self.bytes.len()
    }

    /// The blocks that are there.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Whether all blocks are there.
    pub fn is_complete(&self) -> bool {
        self.received == all_blocks(self.bytes.len())
    }

    /// The segment.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_segments() {
        for (len, mask) in [
            (0, 0),
            (1, 1),
            (512, 1),
            (513, 3),
            (15_872, 0x7fff_ffff),
            (15_873, u32::MAX),
            (16_384, u32::MAX),
        ] {
            assert_eq!(all_blocks(len), mask, "{len}");
            assert_eq!(data_len(len, mask), len);
        }
        assert_eq!(data_len(1000, 1), 512);
        assert_eq!(data_len(1000, 2), 488);
        assert_eq!(first_blocks(0, 2), 0);
        assert_eq!(first_blocks(0b1110, 2), 0b110);
        assert_eq!(first_blocks(0b1010, 2), 0b10);
        assert_eq!(first_blocks(u32::MAX, 32), u32::MAX);
    }

    #[test]
    fn blocks_arrive_in_any_order() {
        let whole: Vec<u8> = (0..1300).map(|index| (index % 251) as u8).collect();
        let mut assembly = Assembly::new(whole.len());
        assembly.add(0b100, &whole[1024..]);
        assembly.add(0b100, &[0; 276]);
        assert_eq!(
            (assembly.received(), assembly.is_complete()),
            (0b100, false)
        );
        assembly.add(0b011, &whole[..1024]);
        assert!(assembly.is_complete());
        assert_eq!(assembly.into_bytes(), whole);
    }
}

//! Bytes of a stream between two positions, in a ring that grows on demand.

use weir_wire::checksum::Sum;

/// Least storage allocated, in bytes.
const CAPACITY_MIN: usize = 2048;

/// A buffer size limited to what a window can express (RFC 7323 §2.3).
pub(in crate::tcp) fn clamp(bytes: usize) -> u32 {
    bytes.min(1 << 30) as u32
}

/// Storage, in bytes, for this many bytes.
fn capacity(bytes: usize) -> usize {
    bytes.next_power_of_two().max(CAPACITY_MIN)
}

/// A queue of bytes. Bytes may also be written beyond its end, with a gap that is filled later.
#[derive(Default)]
pub(in crate::tcp) struct ByteRing {
    /// Empty, or as long as a power of two: [`clamp`] bounds what is in it.
    storage: Box<[u8]>,
    head: u32,
    len: u32,
}

impl ByteRing {
    /// Bytes in the queue.
    pub(in crate::tcp) fn len(&self) -> usize {
        self.len as usize
    }

    fn head(&self) -> usize {
        self.head as usize
    }

    /// Appends bytes.
    pub(in crate::tcp) fn push(&mut self, bytes: &[u8]) {
        self.write_behind(0, bytes);
        self.extend(bytes.len());
    }

    /// Writes bytes that start `gap` behind the end; the end does not move.
    pub(in crate::tcp) fn write_behind(&mut self, gap: usize, bytes: &[u8]) {
        let end = self.len() + gap + bytes.len();
        if end > self.storage.len() {
            self.grow(end);
        }
        if bytes.is_empty() {
            return;
        }
        let at = self.place(self.len() + gap);
        if let Some(room) = self.storage.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
            return;
        }
        let first = self.storage.len() - at;
        self.storage[at..].copy_from_slice(&bytes[..first]);
        self.storage[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    /// Moves the end over `count` bytes, all of which were written.
    pub(in crate::tcp) fn extend(&mut self, count: usize) {
        assert!(
            self.len() + count <= self.storage.len(),
            "only what was written joins"
        );
        self.len += count as u32;
    }

    /// `len` bytes from `offset` behind the start, as slices; all must be there.
    pub(in crate::tcp) fn slices(&self, offset: usize, len: usize) -> [&[u8]; 2] {
        assert!(offset + len <= self.len(), "only what is there is given");
        if len == 0 {
            return [&[]; 2];
        }
        let at = self.place(offset);
        let first = len.min(self.storage.len() - at);
        [&self.storage[at..at + first], &self.storage[..len - first]]
    }

    /// Copies bytes from `offset` behind the start; all must be there.
    pub(in crate::tcp) fn copy(&self, offset: usize, out: &mut [u8]) {
        let [start, rest] = self.slices(offset, out.len());
        out[..start.len()].copy_from_slice(start);
        out[start.len()..].copy_from_slice(rest);
    }

    /// [`ByteRing::copy`], and returns the sum of the bytes.
    #[inline]
    pub(in crate::tcp) fn copy_summed(&self, offset: usize, out: &mut [u8]) -> Sum {
        if out.is_empty() {
            return Sum::new();
        }
        assert!(
            offset + out.len() <= self.len(),
            "only what is there is given"
        );
        let at = self.place(offset);
        if let Some(from) = self.storage.get(at..at + out.len()) {
            return Sum::new().copy(from, out);
        }
        let (start, rest) = out.split_at_mut(self.storage.len() - at);
        let sum = Sum::new().copy(&self.storage[at..], start);
        sum.copy(&self.storage[..rest.len()], rest)
    }

    /// Writes bytes behind the end, which does not move, and returns their sum.
    #[inline]
    pub(in crate::tcp) fn stage(&mut self, bytes: &[u8]) -> Sum {
        if bytes.len() <= self.spare() && !bytes.is_empty() {
            let at = self.place(self.len());
            if let Some(room) = self.storage.get_mut(at..at + bytes.len()) {
                return Sum::new().copy(bytes, room);
            }
        }
        self.stage_split(bytes)
    }

    /// [`ByteRing::stage`] of bytes without room in one piece.
    #[inline(never)]
    fn stage_split(&mut self, bytes: &[u8]) -> Sum {
        let end = self.len() + bytes.len();
        if end > self.storage.len() {
            self.grow(end);
        }
        if bytes.is_empty() {
            return Sum::new();
        }
        let at = self.place(self.len());
        if let Some(room) = self.storage.get_mut(at..at + bytes.len()) {
            return Sum::new().copy(bytes, room);
        }
        let (start, rest) = bytes.split_at(self.storage.len() - at);
        let first = start.len();
        let sum = Sum::new().copy(start, &mut self.storage[at..at + first]);
        sum.copy(rest, &mut self.storage[..rest.len()])
    }

    /// The bytes that lie together at the start.
    pub(in crate::tcp) fn front(&self) -> &[u8] {
        let end = (self.head() + self.len()).min(self.storage.len());
        &self.storage[self.head()..end]
    }

    /// Drops bytes from the start.
    pub(in crate::tcp) fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "only what is there is dropped");
        if !self.storage.is_empty() {
            self.head = self.place(count) as u32;
        }
        self.len -= count as u32;
    }

    /// If the ring is empty, moves its start to the start of the storage, which is in the caches;
    /// nothing may lie behind the end.
    pub(in crate::tcp) fn rewind(&mut self) {
        if self.len == 0 {
            self.head = 0;
        }
    }

    /// Frees the storage; nothing may be in it or behind its end.
    pub(in crate::tcp) fn release(&mut self) {
        assert_eq!(self.len, 0, "only an empty ring is released");
        *self = ByteRing::default();
    }

    /// Shrinks the storage to what this many bytes need, if it holds no more; nothing may lie
    /// behind the end.
    #[inline]
    pub(in crate::tcp) fn shrink(&mut self, most: usize) {
        if capacity(most) < self.storage.len() && self.len() <= most {
            self.store_anew(capacity(most));
        }
    }

    /// Bytes of storage.
    pub(in crate::tcp) fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Bytes of storage once a byte lies `ahead` bytes behind the end.
    pub(in crate::tcp) fn capacity_for(&self, ahead: usize) -> usize {
        capacity(self.len() + ahead).max(self.storage.len())
    }

    /// Bytes that fit behind the end without more storage.
    #[inline]
    pub(in crate::tcp) fn spare(&self) -> usize {
        self.storage.len() - self.len()
    }

    /// Bytes that fit behind the end, with at most `most` bytes of storage.
    pub(in crate::tcp) fn room(&self, most: usize) -> usize {
        let largest = match most {
            CAPACITY_MIN.. => 1 << most.ilog2(),
            _ => 0,
        };
        self.storage.len().max(largest) - self.len()
    }

    #[inline]
    fn place(&self, offset: usize) -> usize {
        (self.head() + offset) & (self.storage.len() - 1)
    }

    #[inline(never)]
    fn store_anew(&mut self, capacity: usize) {
        let mut storage = vec![0; capacity].into_boxed_slice();
        self.copy(0, &mut storage[..self.len()]);
        (self.storage, self.head) = (storage, 0);
    }

    fn grow(&mut self, need: usize) {
        let mut storage = vec![0; capacity(need)].into_boxed_slice();
        // The whole old ring: bytes behind the end may count, too.
        let (end, start) = self.storage.split_at(self.head());
        storage[..start.len()].copy_from_slice(start);
        storage[start.len()..start.len() + end.len()].copy_from_slice(end);
        self.storage = storage;
        self.head = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::VecDeque;

    /// Compared with the standard library's, with bytes beyond the end.
    #[test]
    fn a_ring_is_a_queue() {
        let mut rng = Rng::new(1);
        let (mut ring, mut model) = (ByteRing::default(), VecDeque::new());
        let mut next = 0_u8;
        let mut take = |count: u32| -> Vec<u8> {
            let bytes = (0..count).map(|_| {
                next = next.wrapping_add(1);
                next
            });
            bytes.collect()
        };
        for _ in 0..200 {
            let bytes = take(rng.below(3000));
            if rng.below(2) == 0 {
                ring.push(&bytes);
            } else {
                let at = rng.below(bytes.len() as u32 + 1) as usize;
                ring.write_behind(at, &bytes[at..]);
                ring.write_behind(0, &bytes[..at]);
                ring.extend(bytes.len());
            }
            model.extend(bytes);
            let mut copy = vec![0; rng.below(ring.len() as u32 + 1) as usize];
            let offset = rng.below((ring.len() - copy.len()) as u32 + 1) as usize;
            ring.copy(offset, &mut copy);
            assert!(model.iter().skip(offset).take(copy.len()).eq(&copy));
            let mut again = vec![0; copy.len()];
            let sum = ring.copy_summed(offset, &mut again);
            assert_eq!(
                (&again, sum.finish()),
                (&copy, weir_wire::checksum::internet_checksum(&copy))
            );
            assert!(model.iter().take(ring.front().len()).eq(ring.front()));
            let gone = rng.below(ring.len() as u32 + 1) as usize;
            ring.consume(gone);
            ring.shrink(2048 << rng.below(4));
            model.drain(..gone);
            assert_eq!(ring.len(), model.len());
        }
        ring.consume(ring.len());
        ring.release();
        assert_eq!((ring.capacity(), ring.front()), (0, &[][..]));
    }
}

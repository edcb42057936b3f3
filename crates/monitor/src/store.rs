//! The last frames, in bounded memory.

use std::collections::VecDeque;
use weir_wire::LinkType;

/// Bytes of a chunk of memory, in which frames are one behind the other.
const CHUNK_LEN: usize = 1 << 20;

/// The metadata of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Bytes on the wire.
    pub len: u32,
    /// Time of capture, in nanoseconds since 1970.
    pub time_ns: Option<i64>,
    /// The link-layer header type.
    pub linktype: LinkType,
    /// The caller's number of the interface.
    pub interface: u32,
    /// Whether the host sent it; `None` if unknown.
    pub is_outgoing: Option<bool>,
    /// Number of frames that were lost since the frame before.
    pub lost_before: u32,
}

/// A frame of the store.
#[derive(Clone, Copy, Debug)]
pub struct StoredFrame<'a> {
    /// Its number, from 0, in the order of arrival.
    pub number: u64,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// The rest.
    pub meta: Meta,
}

#[derive(Debug)]
struct Place {
    start: u32,
    len: u32,
    meta: Meta,
}

#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// The last frames. When they exceed the limit, the oldest megabyte of them is given up.
#[derive(Debug)]
pub struct Store {
    chunks: VecDeque<Memory>,
    /// The number of the first frame of each chunk.
    firsts: VecDeque<u64>,
    next: u64,
    chunks_max: usize,
}

impl Store {
    /// A store of about `bytes_max` bytes of frames. With 0 it keeps none.
    pub fn new(bytes_max: usize) -> Store {
        let chunks_max = match bytes_max {
            0 => 0,
            some => some.div_ceil(CHUNK_LEN).max(2),
        };
        Store {
            chunks: VecDeque::new(),
            firsts: VecDeque::new(),
            next: 0,
            chunks_max,
        }
    }

    /// Keeps a frame; returns its number.
    pub fn keep(&mut self, bytes: &[u8], meta: Meta) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.chunks_max == 0 {
            return number;
        }
        // A description counts too: empty frames need memory.
        let is_full = self.chunks.back().is_none_or(|last| {
            let used = last.bytes.len() + last.places.len() * size_of::<Place>();
            used + bytes.len() + size_of::<Place>() > CHUNK_LEN && !last.places.is_empty()
        });
        if is_full {
            let mut fresh = if self.chunks.len() >= self.chunks_max {
                self.firsts.pop_front();
                self.chunks.pop_front().unwrap_or_default()
            } else {
                Memory::default()
            };
            fresh.bytes.clear();
            fresh.places.clear();
            self.chunks.push_back(fresh);
            self.firsts.push_back(number);
        }
        let last = self.chunks.back_mut().expect("there is one now");
        let start = last.bytes.len() as u32;
        last.bytes.extend_from_slice(bytes);
        last.places.push(Place {
            start,
            len: bytes.len() as u32,
            meta,
        });
        number
    }

    /// The number of the oldest frame that is kept, or of the next one.
    pub fn first(&self) -> u64 {
        self.firsts.front().copied().unwrap_or(self.next)
    }

    /// The number of the next frame.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// The frame of that number; `None` if it is no longer kept.
    pub fn get(&self, number: u64) -> Option<StoredFrame<'_>> {
        let chunk = self
            .firsts
            .partition_point(|first| *first <= number)
            .checked_sub(1)?;
        let memory = &self.chunks[chunk];
        let place = memory.places.get((number - self.firsts[chunk]) as usize)?;
        let start = place.start as usize;
        Some(StoredFrame {
            number,
            bytes: &memory.bytes[start..start + place.len as usize],
            meta: place.meta,
        })
    }

    /// The frames from that number on.
    pub fn from(&self, number: u64) -> impl Iterator<Item = StoredFrame<'_>> {
        let start = number.max(self.first());
        (start..self.next).map_while(|number| self.get(number))
    }

    /// Forgets all frames; numbers begin from 0 again.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.firsts.clear();
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(len: u32) -> Meta {
        Meta {
            len,
            time_ns: None,
            linktype: LinkType::EN10MB,
            interface: 0,
            is_outgoing: None,
            lost_before: 0,
        }
    }

    #[test]
    fn the_last_frames_are_there_and_memory_is_bounded() {
        let mut store = Store::new(3 << 20);
        for number in 0..20_000_u32 {
            let frame = vec![number as u8; 1000];
            assert_eq!(store.keep(&frame, meta(number)), u64::from(number));
        }
        assert_eq!(store.end(), 20_000);
        assert!(store.chunks.len() == 3 && store.first() > 16_000);
        for number in store.first()..store.end() {
            let kept = store.get(number).expect("it is kept");
            assert_eq!(u64::from(kept.meta.len), number);
            assert_eq!(kept.bytes, vec![number as u8; 1000]);
        }
        assert!(store.get(store.first() - 1).is_none());
        assert!(store.get(20_000).is_none());
        assert_eq!(store.from(0).count() as u64, 20_000 - store.first());
    }

    #[test]
    fn empty_and_huge_frames_fit() {
        let mut store = Store::new(2 << 20);
        let huge = vec![7; 5 << 20];
        for _ in 0..10 {
            store.keep(&huge, meta(0));
        }
        assert_eq!(store.from(0).count(), 2);
        for _ in 0..200_000 {
            store.keep(&[], meta(0));
        }
        assert!(store.from(0).count() < 100_000);
    }

    #[test]
    fn a_store_of_nothing_only_numbers() {
        let mut store = Store::new(0);
        assert_eq!(
            (store.keep(&[1], meta(1)), store.keep(&[1], meta(1))),
            (0, 1)
        );
        assert!(store.get(0).is_none());
        assert_eq!((store.first(), store.end()), (2, 2));
    }
}

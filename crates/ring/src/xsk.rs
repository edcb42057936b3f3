//! The four rings of an `AF_XDP` socket, mapped (`linux/if_xdp.h`).
#![allow(unsafe_code)] // The caller of `map` promises that the memory is valid.

use crate::mapping::Mapping;
use crate::queue::{Consumer, Producer, RingMemory};
use crate::umem::Umem;
use rustix::net::sockopt;
use rustix::net::xdp::XdpRingOffset;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// Where a socket's rings are mapped from.
pub(crate) const RX_RING: u64 = 0;
pub(crate) const TX_RING: u64 = 0x8000_0000;
pub(crate) const FILL_RING: u64 = 0x1_0000_0000;
pub(crate) const COMPLETION_RING: u64 = 0x1_8000_0000;

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// `XDP_PKT_CONTD`: the frame goes on in the next entry.
const CONTINUED: u32 = 1;

/// An entry of the rx or the tx ring: bytes of a chunk (`struct xdp_desc`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor {
    /// Where in the UMEM they begin.
    pub address: u64,
    /// How many there are.
    pub len: u32,
    /// `XDP_PKT_CONTD`, `XDP_TX_METADATA`.
    pub options: u32,
}

impl Descriptor {
    /// Whether the frame goes on in the next entry.
    #[inline]
    pub fn is_continued(&self) -> bool {
        self.options & CONTINUED != 0
    }

    /// The same bytes as a piece of a frame, with more behind it or not.
    #[inline]
    pub fn continued(self, more: bool) -> Descriptor {
        let options = u32::from(more) * CONTINUED;
        Descriptor { options, ..self }
    }
}

/// An entry of a ring in words of 64 bits, so that each is read and written
/// in one piece whatever the other side does.
pub trait Words: Copy {
    /// How many words.
    const COUNT: usize;
    /// From its words.
    fn from_words(words: [u64; 2]) -> Self;
    /// As its words.
    fn to_words(self) -> [u64; 2];
}

impl Words for u64 {
    const COUNT: usize = 1;
    #[inline]
    fn from_words(words: [u64; 2]) -> u64 {
        words[0]
    }
    #[inline]
    fn to_words(self) -> [u64; 2] {
        [self, 0]
    }
}

impl Words for Descriptor {
    const COUNT: usize = 2;
    #[inline]
    fn from_words([address, rest]: [u64; 2]) -> Descriptor {
        let [a, b, c, d, e, f, g, h] = rest.to_ne_bytes();
        Descriptor {
            address,
            len: u32::from_ne_bytes([a, b, c, d]),
            options: u32::from_ne_bytes([e, f, g, h]),
        }
    }
    #[inline]
    fn to_words(self) -> [u64; 2] {
        let ([a, b, c, d], [e, f, g, h]) = (self.len.to_ne_bytes(), self.options.to_ne_bytes());
        [self.address, u64::from_ne_bytes([a, b, c, d, e, f, g, h])]
    }
}

/// A ring of a socket.
#[derive(Debug)]
pub struct MappedRing<E> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    first: usize,
    entries: u32,
    kind: std::marker::PhantomData<E>,
}

impl<E: Words> MappedRing<E> {
    /// Maps a ring of that many entries, a power of two.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        at: u64,
        offset: &XdpRingOffset,
        entries: u32,
    ) -> io::Result<MappedRing<E>> {
        let first = offset.desc as usize;
        let bytes = first + entries as usize * 8 * E::COUNT;
        Ok(MappedRing {
            mapping: Mapping::new(socket, at, bytes)?,
            producer: offset.producer as usize,
            consumer: offset.consumer as usize,
            flags: offset.flags.map(|at| at as usize),
            first,
            entries,
            kind: std::marker::PhantomData,
        })
    }

    #[inline]
    fn place(&self, place: u32) -> usize {
        self.first + place as usize * 8 * E::COUNT
    }
}

impl<E: Words> RingMemory for MappedRing<E> {
    type Entry = E;

    fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    fn producer(&self) -> u32 {
        self.mapping
            .atomic_u32(self.producer)
            .load(Ordering::Acquire)
    }

    #[inline]
    fn consumer(&self) -> u32 {
        self.mapping
            .atomic_u32(self.consumer)
            .load(Ordering::Acquire)
    }

    #[inline]
    fn set_producer(&self, position: u32) {
        self.mapping.write_u32(self.producer, position);
    }

    #[inline]
    fn set_consumer(&self, position: u32) {
        self.mapping.write_u32(self.consumer, position);
    }

    #[inline]
    fn load(&self, place: u32) -> E {
        let at = self.place(place);
        let mut words = [0; 2];
        for (index, word) in words.iter_mut().enumerate().take(E::COUNT) {
            *word = self
                .mapping
                .atomic_u64(at + 8 * index)
                .load(Ordering::Relaxed);
        }
        E::from_words(words)
    }

    #[inline]
    fn store(&self, place: u32, entry: E) {
        let at = self.place(place);
        for (index, word) in entry.to_words().iter().enumerate().take(E::COUNT) {
            self.mapping.write_u64(at + 8 * index, *word);
        }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        let flags = self.flags.map(|at| self.mapping.atomic_u32(at));
        flags.is_none_or(|word| word.load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }
}

#[cfg(test)]
impl<E: Words> MappedRing<E> {
    /// A ring in a file of a test's.
    pub(crate) fn of_file(file: BorrowedFd<'_>, at: u64, entries: u32) -> MappedRing<E> {
        let offset = XdpRingOffset {
            producer: 0,
            consumer: 64,
            desc: 128,
            flags: None,
        };
        MappedRing::map(file, at, &offset, entries).expect("a test's file is long enough")
    }
}

/// How many entries each ring of a socket has: powers of two, at most
/// [`XskRings::ENTRIES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSizes {
    /// Chunks that the kernel may fill.
    pub fill: u32,
    /// Frames received.
    pub rx: u32,
    /// Frames to send.
    pub tx: u32,
    /// Chunks whose frames were sent.
    pub completion: u32,
}

/// The rings of a socket.
#[derive(Debug)]
pub struct XskRings {
    /// Chunks for the kernel to fill.
    pub(crate) fill: Producer<MappedRing<u64>>,
    /// Frames received.
    pub(crate) rx: Consumer<MappedRing<Descriptor>>,
    /// Frames to send.
    pub(crate) tx: Producer<MappedRing<Descriptor>>,
    /// Chunks whose frames were sent.
    pub(crate) completion: Consumer<MappedRing<u64>>,
    /// Where the memory is that its addresses are of.
    pub(crate) memory: u64,
}

impl XskRings {
    /// Most entries of one ring.
    pub const ENTRIES_MAX: u32 = 1 << 16;

    /// Maps the rings of a socket with this memory, which were made with these
    /// sizes.
    ///
    /// # Safety
    /// The socket is bound with this memory. No other process and no other value
    /// of this one uses its rings, but for those with which they are
    /// [shared](crate::XskQueue::share).
    ///
    /// # Errors
    /// If they were not, or the descriptor is not such a socket's.
    pub unsafe fn map(socket: impl AsFd, sizes: RingSizes, umem: &Umem) -> io::Result<XskRings> {
        let all = [sizes.fill, sizes.rx, sizes.tx, sizes.completion];
        let fits = |entries: u32| entries.is_power_of_two() && entries <= XskRings::ENTRIES_MAX;
        if !all.into_iter().all(fits) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = socket.as_fd();
        let at = sockopt::xdp_mmap_offsets(socket)?;
        Ok(XskRings {
            fill: Producer::new(MappedRing::map(socket, FILL_RING, &at.fr, sizes.fill)?),
            rx: Consumer::new(MappedRing::map(socket, RX_RING, &at.rx, sizes.rx)?),
            tx: Producer::new(MappedRing::map(socket, TX_RING, &at.tx, sizes.tx)?),
            completion: Consumer::new(MappedRing::map(
                socket,
                COMPLETION_RING,
                &at.cr,
                sizes.completion,
            )?),
            memory: umem.registered().0,
        })
    }
}

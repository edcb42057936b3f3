//! The memory that frames lie in: shared by all links of a program, and by
//! all programs of a tap.
//!
//! ```text
//!  memfd
//!  0              header: what is where (below)
//!  HEADER_BYTES   owner words, one of 32 bits for each chunk
//!  chunks_at      chunks, each chunk_bytes long: this part is the UMEM
//!                   ├ headroom, metadata ┤ frame … ┤ rest ┤
//!
//!  header: u64 magic │ u32 chunk_bytes │ u32 chunks
//!          at 64:   for each process a u32, how often its number was given
//!          at 2048: for each link a u32, which processes hold it, by bit
//!  queue:  u32 lock of rx and fill │ u32 journal of fill
//!          u32 lock of tx and completion │ u32 journal of tx
//! ```
//!
//! # Who owns a chunk
//!
//! Its owner word says so, and is written before the chunk leaves a ring or
//! enters one (§5 of the NetTap paper, where it is the mbuf's `pid` field).
//! So whoever looks after a process has died finds each chunk that it held.
//!
//! ```text
//!        alloc             put, submit               completion
//!  FREE ───────► process n ───────────► TX of link l ──────────► process n
//!   ▲  ◄───────      │  ▲                                            │
//!   │    free        │  └──────────────── rx ◄── FILL of link l ◄────┘
//! ```
//!
//! Where several processes share the memory, each keeps some free chunks to
//! itself (`CACHED`, for process n); `FREE` ones are whoever's changes the word
//! first.
#![allow(unsafe_code)] // Mapped memory.

use crate::mapping::Mapping;
use crate::robust_lock::{AtomicWord, OWNERS_MAX};
use crate::xsk::Descriptor;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// `weirumem`, as a number.
const MAGIC: u64 = u64::from_be_bytes(*b"weirumem");

/// Most queues, of all links together.
pub const QUEUES_MAX: u16 = 512;

/// Most links that processes can hold.
pub const LINKS_MAX: u16 = 256;

/// Bytes before the owner words.
pub const HEADER_BYTES: usize = QUEUES_AT + QUEUES_MAX as usize * QUEUE_BYTES;

const GENERATIONS_AT: usize = 64;
const LINKS_AT: usize = 2048;
const QUEUES_AT: usize = 4096;
const QUEUE_BYTES: usize = 16;

/// Chunk sizes that the kernel takes.
pub const CHUNK_BYTES: [u32; 2] = [2048, 4096];

/// Most chunks: 1 GiB in chunks of 4 KiB.
pub const CHUNKS_MAX: u32 = 1 << 18;

/// What the kernel keeps free at the start of each chunk (`XDP_PACKET_HEADROOM`).
pub const HEADROOM_BYTES: u32 = 256;

/// Who owns a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// Nobody: it can be had.
    Free,
    /// The process of that number, from 1.
    Process(u16),
    /// The process of that number, which keeps it ready for its next frame.
    Cached(u16),
    /// The kernel, to fill it with a frame of that link.
    Fill(u16),
    /// The kernel, to send it on that link.
    Tx(u16),
}

const KIND_SHIFT: u32 = 16;
const PROCESS: u32 = 0;
const FILL: u32 = 1;
const TX: u32 = 2;
const CACHED: u32 = 3;

impl Owner {
    #[inline]
    fn word(self) -> u32 {
        match self {
            Owner::Free => 0,
            Owner::Process(number) => PROCESS << KIND_SHIFT | u32::from(number),
            Owner::Cached(number) => CACHED << KIND_SHIFT | u32::from(number),
            Owner::Fill(link) => FILL << KIND_SHIFT | u32::from(link),
            Owner::Tx(link) => TX << KIND_SHIFT | u32::from(link),
        }
    }

    /// What no process writes counts as nobody's.
    fn from_word(word: u32) -> Owner {
        let number = word as u16;
        match word >> KIND_SHIFT {
            PROCESS if number != 0 => Owner::Process(number),
            CACHED if number != 0 => Owner::Cached(number),
            FILL => Owner::Fill(number),
            TX => Owner::Tx(number),
            _ => Owner::Free,
        }
    }
}

/// How many chunks whom have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChunkCounts {
    /// Nobody, or ready for a process's next frame.
    pub free: u32,
    /// Processes.
    pub process: u32,
    /// The kernel, to fill.
    pub fill: u32,
    /// The kernel, to send.
    pub tx: u32,
}

impl ChunkCounts {
    /// All of them.
    pub fn total(&self) -> u32 {
        self.free + self.process + self.fill + self.tx
    }
}

/// Why there is no such memory.
#[derive(Debug, thiserror::Error)]
pub enum UmemError {
    /// Sizes that cannot be.
    #[error(
        "{chunks} chunks of {chunk_bytes} bytes: 1 to {CHUNKS_MAX} of 2048 or 4096 are possible"
    )]
    Size {
        /// How many.
        chunks: u32,
        /// Of how many bytes.
        chunk_bytes: u32,
    },
    /// A file of something else.
    #[error("the descriptor is not that of a weir UMEM")]
    NotOurs,
    /// No memory.
    #[error("no memory for frames, {bytes} bytes ({source}); lower the number of chunks")]
    System {
        /// How many bytes were asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// The memory of a tap, mapped. All access to chunks is through the numbers
/// that rings carry, each compared with what there is.
#[derive(Debug)]
pub struct Umem {
    mapping: Mapping,
    file: OwnedFd,
    chunks: u32,
    chunk_shift: u32,
    chunks_at: usize,
    /// Whether this process has made it.
    is_new: bool,
}

/// Where the chunks begin.
fn chunks_at(chunks: u32) -> usize {
    (HEADER_BYTES + 4 * chunks as usize).next_multiple_of(4096)
}

fn sized(chunks: u32, chunk_bytes: u32) -> Result<usize, UmemError> {
    let fine = (1..=CHUNKS_MAX).contains(&chunks) && CHUNK_BYTES.contains(&chunk_bytes);
    if fine {
        Ok(chunks_at(chunks) + chunks as usize * chunk_bytes as usize)
    } else {
        Err(UmemError::Size {
            chunks,
            chunk_bytes,
        })
    }
}

impl Umem {
    /// New memory, all of it free.
    ///
    /// # Errors
    /// See [`UmemError`].
    pub fn create(chunks: u32, chunk_bytes: u32) -> Result<Umem, UmemError> {
        let bytes = sized(chunks, chunk_bytes)?;
        let failed = |source: io::Error| UmemError::System { bytes, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("weir-umem", flags).map_err(|e| failed(e.into()))?;
        ftruncate(&file, bytes as u64).map_err(|e| failed(e.into()))?;
        // Nobody can take away pages that others have mapped.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|e| failed(e.into()))?;
        let mapping = Mapping::new(file.as_fd(), 0, bytes).map_err(failed)?;
        mapping.atomic_u32(8).store(chunk_bytes, Ordering::Relaxed);
        mapping.atomic_u32(12).store(chunks, Ordering::Relaxed);
        mapping.atomic_u64(0).store(MAGIC, Ordering::Release);
        Ok(Umem::over(mapping, file, (chunks, chunk_bytes), true))
    }

    /// Memory that another process has made.
    ///
    /// # Safety
    /// Every process that has the memory uses it as this crate does: by a
    /// pool of its own, with a number of its own, which was
    /// [joined](crate::Pool::join) or is [shared](crate::Pool::share). No
    /// other writes or reads the bytes of a chunk that it does not own. The
    /// members of a tap trust each other so far: what one of them writes where
    /// it must not changes bytes that others look at. No member can have a
    /// pool of this process give out a chunk twice.
    ///
    /// # Errors
    /// See [`UmemError`].
    pub unsafe fn open(file: OwnedFd) -> Result<Umem, UmemError> {
        let not_ours = |_| UmemError::NotOurs;
        let stat = rustix::fs::fstat(&file).map_err(|_| UmemError::NotOurs)?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| UmemError::NotOurs)?;
        let held = usize::try_from(stat.st_size).map_err(not_ours)?;
        // A file that can shrink could take our pages away.
        if held < HEADER_BYTES || !seals.contains(SealFlags::SHRINK) {
            return Err(UmemError::NotOurs);
        }
        let failed = |source| UmemError::System {
            bytes: held,
            source,
        };
        let mapping = Mapping::new(file.as_fd(), 0, held).map_err(failed)?;
        if mapping.atomic_u64(0).load(Ordering::Acquire) != MAGIC {
            return Err(UmemError::NotOurs);
        }
        let chunk_bytes = mapping.atomic_u32(8).load(Ordering::Relaxed);
        let chunks = mapping.atomic_u32(12).load(Ordering::Relaxed);
        if sized(chunks, chunk_bytes)? != held {
            return Err(UmemError::NotOurs);
        }
        Ok(Umem::over(mapping, file, (chunks, chunk_bytes), false))
    }

    fn over(
        mapping: Mapping,
        file: OwnedFd,
        (chunks, chunk_bytes): (u32, u32),
        is_new: bool,
    ) -> Umem {
        Umem {
            mapping,
            file,
            is_new,
            chunks,
            chunk_shift: chunk_bytes.trailing_zeros(),
            chunks_at: chunks_at(chunks),
        }
    }

    /// Whether this process has made it.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// Most bytes of a frame that the kernel puts into one chunk.
    pub fn frame_bytes_max(&self) -> u32 {
        self.chunk_bytes() - HEADROOM_BYTES
    }

    /// Where the chunks are in this process, and their bytes together: what
    /// the kernel wants to know (`XDP_UMEM_REG`). The address is this
    /// process's own; rings count from there.
    pub fn registered(&self) -> (u64, u64) {
        let start = self.mapping.start().addr() + self.chunks_at;
        let bytes = u64::from(self.chunks) << self.chunk_shift;
        (start as u64, bytes)
    }

    /// The chunk that an address lies in, if it lies in any.
    #[inline]
    pub fn chunk(&self, address: u64) -> Option<u32> {
        let chunk = address >> self.chunk_shift;
        (chunk < u64::from(self.chunks)).then_some(chunk as u32)
    }

    /// The address where a chunk begins.
    #[inline]
    pub fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) << self.chunk_shift
    }

    /// Whether a piece lies inside of one chunk.
    #[inline]
    pub fn holds(&self, piece: &Descriptor) -> bool {
        let chunk_bytes = 1_u64 << self.chunk_shift;
        let inside = (piece.address & (chunk_bytes - 1)) + u64::from(piece.len);
        self.chunk(piece.address).is_some() && inside <= chunk_bytes
    }

    /// Who owns a chunk.
    pub fn owner(&self, chunk: u32) -> Owner {
        Owner::from_word(self.owner_word(chunk).load(Ordering::Acquire))
    }

    /// Says who owns a chunk.
    #[inline]
    pub fn set_owner(&self, chunk: u32, owner: Owner) {
        self.mapping.write_u32(self.owner_at(chunk), owner.word());
    }

    /// Changes who owns a chunk, if it is who we think.
    pub fn change_owner(&self, chunk: u32, from: Owner, to: Owner) -> bool {
        let at = self.owner_at(chunk);
        self.mapping
            .compare_exchange_u32(at, from.word(), to.word())
    }

    #[inline]
    fn owner_at(&self, chunk: u32) -> usize {
        assert!(chunk < self.chunks, "a chunk's number is compared first");
        HEADER_BYTES + 4 * chunk as usize
    }

    #[inline]
    fn owner_word(&self, chunk: u32) -> &AtomicU32 {
        self.mapping.atomic_u32(self.owner_at(chunk))
    }

    /// Counts who owns how many.
    pub fn chunk_counts(&self) -> ChunkCounts {
        let mut census = ChunkCounts::default();
        for chunk in 0..self.chunks {
            match self.owner(chunk) {
                Owner::Free | Owner::Cached(_) => census.free += 1,
                Owner::Process(_) => census.process += 1,
                Owner::Fill(_) => census.fill += 1,
                Owner::Tx(_) => census.tx += 1,
            }
        }
        census
    }

    /// Notes that a process's number is given anew: which of that number it
    /// is.
    ///
    /// # Panics
    /// For a number beyond [`OWNERS_MAX`].
    pub fn next_generation(&self, number: u16) -> u32 {
        assert!(number <= OWNERS_MAX, "processes are numbered up to 255");
        let at = GENERATIONS_AT + 4 * usize::from(number);
        let next = self
            .mapping
            .atomic_u32(at)
            .load(Ordering::Relaxed)
            .wrapping_add(1);
        self.mapping.write_u32(at, next);
        next
    }

    /// Which processes hold a link: bit 0 is that of process 1.
    ///
    /// # Panics
    /// Beyond [`LINKS_MAX`].
    pub fn link_holders(&self, link: u16) -> &AtomicU32 {
        assert!(link < LINKS_MAX, "links are numbered below 256");
        self.mapping.atomic_u32(LINKS_AT + 4 * usize::from(link))
    }

    /// A word of a queue's.
    #[inline]
    pub(crate) fn queue_word(&self, queue: u16, word: QueueWord) -> SharedWord<'_> {
        assert!(queue < QUEUES_MAX, "queues are numbered below 512");
        SharedWord {
            mapping: &self.mapping,
            at: QUEUES_AT + usize::from(queue) * QUEUE_BYTES + word as usize,
        }
    }

    /// The bytes of a piece.
    ///
    /// # Safety
    /// The chunk is the caller's: its owner word names the caller's process,
    /// and the caller holds it once. As long as the result lives it stays so,
    /// and no other reference to these bytes exists.
    ///
    /// # Panics
    /// If the piece is not [inside of a chunk](Self::holds).
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller owns the chunk")]
    pub unsafe fn bytes(&self, piece: &Descriptor) -> &mut [u8] {
        let at = self.place(piece);
        // SAFETY: inside of the mapping, as just compared; that nobody else
        // reads or writes there is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start().add(at), piece.len as usize) }
    }

    /// Where a piece begins in the mapping.
    ///
    /// # Panics
    /// If the piece is not [inside of a chunk](Self::holds).
    #[inline]
    fn place(&self, piece: &Descriptor) -> usize {
        assert!(self.holds(piece), "a piece lies inside of a chunk");
        self.chunks_at + piece.address as usize
    }

    /// Copies a piece behind what is in `to`.
    pub(crate) fn copy_to(&self, piece: &Descriptor, to: &mut Vec<u8>) {
        self.mapping.read(self.place(piece), piece.len as usize, to);
    }

    /// Copies `bytes` to where a piece begins; the piece is at least as long.
    pub(crate) fn copy_from(&self, piece: &Descriptor, bytes: &[u8]) {
        assert!(bytes.len() <= piece.len as usize, "it fits");
        self.mapping.write(self.place(piece), bytes);
    }

    /// Has the processor fetch the bytes at an address, wherever that is: they
    /// will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) {
        let at = self.mapping.start().wrapping_add(self.chunks_at);
        fetch(at.wrapping_add(address as usize));
    }

    /// The number of 64 bits right before a piece, where a program in the
    /// kernel may have left one (`data_meta`); `None` if the piece begins so
    /// near to its chunk's start that there is none.
    #[inline]
    pub fn meta(&self, piece: &Descriptor) -> Option<u64> {
        let chunk_bytes = 1_u64 << self.chunk_shift;
        let inside = piece.address & (chunk_bytes - 1);
        if inside < 8 || self.chunk(piece.address).is_none() {
            return None;
        }
        let at = self.chunks_at + piece.address as usize - 8;
        if at.is_multiple_of(8) {
            Some(self.mapping.atomic_u64(at).load(Ordering::Relaxed))
        } else {
            None
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which reads nothing and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// Elsewhere the compiler has no stable way to say so.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(_: *const u8) {}

/// What processes that share a queue write about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueWord {
    /// Who has the rx and the fill ring.
    RxLock = 0,
    /// How far entries of the fill ring were written.
    FillJournal = 4,
    /// Who has the tx and the completion ring.
    TxLock = 8,
    /// How far entries of the tx ring were written.
    TxJournal = 12,
}

/// A word in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedWord<'a> {
    mapping: &'a Mapping,
    at: usize,
}

impl AtomicWord for SharedWord<'_> {
    #[inline]
    fn load(&self) -> u32 {
        self.mapping.atomic_u32(self.at).load(Ordering::Acquire)
    }

    #[inline]
    fn change(&self, from: u32, to: u32) -> bool {
        self.mapping.compare_exchange_u32(self.at, from, to)
    }

    #[inline]
    fn store(&self, value: u32) {
        self.mapping.write_u32(self.at, value);
    }
}

impl AsFd for Umem {
    /// The file, to give to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

//! [`Umem`]: the memory of frames, shared by all links of a process and by all processes of a
//! tap.
//!
//! ```text
//!  memfd
//!  0              header: sizes and words (below)
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
//! # Owners of chunks
//!
//! A chunk's owner word names its owner. A process writes the word before the chunk leaves a
//! ring or enters one (§5 of the NetTap paper, where the word is the mbuf's `pid` field).
//! Therefore a process that cleans up after a dead one finds each chunk that the dead process
//! held.
//!
//! ```text
//!        alloc             put, submit               completion
//!  FREE ───────► process n ───────────► TX of link l ──────────► process n
//!   ▲  ◄───────      │  ▲                                            │
//!   │    free        │  └──────────────── rx ◄── FILL of link l ◄────┘
//! ```
//!
//! If several processes share the memory, each reserves some free chunks for itself (`CACHED`,
//! for process n). A `FREE` chunk goes to the process that changes the word first.
#![allow(unsafe_code)] // Mapped memory.

use crate::mapping::Mapping;
use crate::robust_lock::{AtomicWord, OWNERS_MAX};
use crate::xsk::Descriptor;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// The bytes `weirumem` as a number.
const MAGIC: u64 = u64::from_be_bytes(*b"weirumem");

/// Limit on queues, of all links together.
pub const QUEUES_MAX: u16 = 512;

/// Limit on links that processes can hold.
pub const LINKS_MAX: u16 = 256;

/// Length of the header in bytes, before the owner words.
pub const HEADER_BYTES: usize = QUEUES_AT + QUEUES_MAX as usize * QUEUE_BYTES;

const GENERATIONS_AT: usize = 64;
const LINKS_AT: usize = 2048;
const QUEUES_AT: usize = 4096;
const QUEUE_BYTES: usize = 16;

/// Chunk sizes, in bytes, that the kernel accepts.
pub const CHUNK_BYTES: [u32; 2] = [2048, 4096];

/// Limit on chunks: 1 GiB in chunks of 4 KiB.
pub const CHUNKS_MAX: u32 = 1 << 18;

/// Bytes that the kernel leaves free at the start of each chunk (`XDP_PACKET_HEADROOM`).
pub const HEADROOM_BYTES: u32 = 256;

/// The owner of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// No owner: any process may take the chunk.
    Free,
    /// The process of this number, counted from 1.
    Process(u16),
    /// The process of this number, which has the chunk in its cache for its next frame.
    Cached(u16),
    /// The kernel, to fill the chunk with a frame of this link.
    Fill(u16),
    /// The kernel, to send the chunk on this link.
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

    /// The owner in a word; a word that no process writes counts as free.
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

/// Number of chunks by owner.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChunkCounts {
    /// Free chunks, including those in caches of processes.
    pub free: u32,
    /// Chunks of processes.
    pub process: u32,
    /// Chunks that the kernel has to fill.
    pub fill: u32,
    /// Chunks that the kernel has to send.
    pub tx: u32,
}

impl ChunkCounts {
    /// All chunks.
    pub fn total(&self) -> u32 {
        self.free + self.process + self.fill + self.tx
    }
}

/// Why the memory cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum UmemError {
    /// Impossible sizes.
    #[error(
        "{chunks} chunks of {chunk_bytes} bytes: 1 to {CHUNKS_MAX} of 2048 or 4096 are possible"
    )]
    Size {
        /// Number of chunks.
        chunks: u32,
        /// Length of a chunk in bytes.
        chunk_bytes: u32,
    },
    /// The file is not a UMEM of this crate.
    #[error("the descriptor is not that of a weir UMEM")]
    NotOurs,
    /// The system provides no memory.
    #[error("no memory for frames, {bytes} bytes ({source}); lower the number of chunks")]
    System {
        /// Bytes requested.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
}

/// A mapped UMEM. All access to chunks is by the numbers in the rings, each of which is
/// checked against the number of chunks.
#[derive(Debug)]
pub struct Umem {
    mapping: Mapping,
    file: OwnedFd,
    chunks: u32,
    chunk_shift: u32,
    chunks_at: usize,
    /// Whether this process has created the memory.
    is_new: bool,
}

/// Offset of the chunks.
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
    /// Creates memory whose chunks are all free.
    ///
    /// # Errors
    /// See [`UmemError`].
    pub fn create(chunks: u32, chunk_bytes: u32) -> Result<Umem, UmemError> {
        let bytes = sized(chunks, chunk_bytes)?;
        let failed = |source: io::Error| UmemError::System { bytes, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("weir-umem", flags).map_err(|e| failed(e.into()))?;
        ftruncate(&file, bytes as u64).map_err(|e| failed(e.into()))?;
        // The seal prevents any process from removing pages that others have mapped.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|e| failed(e.into()))?;
        let mapping = Mapping::new(file.as_fd(), 0, bytes).map_err(failed)?;
        mapping.atomic_u32(8).store(chunk_bytes, Ordering::Relaxed);
        mapping.atomic_u32(12).store(chunks, Ordering::Relaxed);
        mapping.atomic_u64(0).store(MAGIC, Ordering::Release);
        Ok(Umem::over(mapping, file, (chunks, chunk_bytes), true))
    }

    /// Opens memory that another process has created.
    ///
    /// # Safety
    /// Every process with the memory must use it as this crate does: by its own pool, with its
    /// own number, which was [joined](crate::Pool::join) or is
    /// [shared](crate::Pool::share). No process may write or read the bytes of a chunk that it
    /// does not own. The members of a tap trust each other to this extent: a member that
    /// writes elsewhere changes bytes that others read. No member can make a pool of this
    /// process give out a chunk twice.
    ///
    /// # Errors
    /// See [`UmemError`].
    pub unsafe fn open(file: OwnedFd) -> Result<Umem, UmemError> {
        let not_ours = |_| UmemError::NotOurs;
        let stat = rustix::fs::fstat(&file).map_err(|_| UmemError::NotOurs)?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| UmemError::NotOurs)?;
        let held = usize::try_from(stat.st_size).map_err(not_ours)?;
        // A file that can shrink could lose pages that this process has mapped.
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

    /// Whether this process has created the memory.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Length of a chunk in bytes.
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// Longest frame, in bytes, that the kernel puts into one chunk.
    pub fn frame_bytes_max(&self) -> u32 {
        self.chunk_bytes() - HEADROOM_BYTES
    }

    /// Address and total length of the chunks in this process, as `XDP_UMEM_REG` takes them.
    /// The address holds for this process only; rings count from it.
    pub fn registered(&self) -> (u64, u64) {
        let start = self.mapping.start().addr() + self.chunks_at;
        let bytes = u64::from(self.chunks) << self.chunk_shift;
        (start as u64, bytes)
    }

    /// The chunk that contains an address; `None` if no chunk does.
    #[inline]
    pub fn chunk(&self, address: u64) -> Option<u32> {
        let chunk = address >> self.chunk_shift;
        (chunk < u64::from(self.chunks)).then_some(chunk as u32)
    }

    /// The address of a chunk.
    #[inline]
    pub fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) << self.chunk_shift
    }

    /// Whether a fragment lies inside of one chunk.
    #[inline]
    pub fn holds(&self, piece: &Descriptor) -> bool {
        let chunk_bytes = 1_u64 << self.chunk_shift;
        let inside = (piece.address & (chunk_bytes - 1)) + u64::from(piece.len);
        self.chunk(piece.address).is_some() && inside <= chunk_bytes
    }

    /// The owner of a chunk.
    pub fn owner(&self, chunk: u32) -> Owner {
        Owner::from_word(self.owner_word(chunk).load(Ordering::Acquire))
    }

    /// Sets the owner of a chunk.
    #[inline]
    pub fn set_owner(&self, chunk: u32, owner: Owner) {
        self.mapping.write_u32(self.owner_at(chunk), owner.word());
    }

    /// Changes the owner of a chunk from `from` to `to`; false if `from` is not the owner.
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

    /// Counts the chunks by owner.
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

    /// Records that a process number is assigned again; returns its generation.
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

    /// The processes that hold a link, one bit each: bit 0 is process 1.
    ///
    /// # Panics
    /// Beyond [`LINKS_MAX`].
    pub fn link_holders(&self, link: u16) -> &AtomicU32 {
        assert!(link < LINKS_MAX, "links are numbered below 256");
        self.mapping.atomic_u32(LINKS_AT + 4 * usize::from(link))
    }

    /// A word of a queue.
    #[inline]
    pub(crate) fn queue_word(&self, queue: u16, word: QueueWord) -> SharedWord<'_> {
        assert!(queue < QUEUES_MAX, "queues are numbered below 512");
        SharedWord {
            mapping: &self.mapping,
            at: QUEUES_AT + usize::from(queue) * QUEUE_BYTES + word as usize,
        }
    }

    /// The bytes of a fragment.
    ///
    /// # Safety
    /// The chunk must be the caller's: its owner word names the caller's process, and the
    /// caller holds it once. This must hold as long as the result exists, and no other
    /// reference to these bytes may exist.
    ///
    /// # Panics
    /// If the fragment is not [inside of a chunk](Self::holds).
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller owns the chunk")]
    pub unsafe fn bytes(&self, piece: &Descriptor) -> &mut [u8] {
        let at = self.place(piece);
        // SAFETY: inside of the mapping, as just compared; the caller promises that no other
        // code reads or writes there.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start().add(at), piece.len as usize) }
    }

    /// Offset of a fragment in the mapping.
    ///
    /// # Panics
    /// If the fragment is not [inside of a chunk](Self::holds).
    #[inline]
    fn place(&self, piece: &Descriptor) -> usize {
        assert!(self.holds(piece), "a piece lies inside of a chunk");
        self.chunks_at + piece.address as usize
    }

    /// Appends a fragment's bytes to `to`.
    pub(crate) fn copy_to(&self, piece: &Descriptor, to: &mut Vec<u8>) {
        self.mapping.read(self.place(piece), piece.len as usize, to);
    }

    /// Copies `bytes` to the start of a fragment, which is at least as long.
    pub(crate) fn copy_from(&self, piece: &Descriptor, bytes: &[u8]) {
        assert!(bytes.len() <= piece.len as usize, "it fits");
        self.mapping.write(self.place(piece), bytes);
    }

    /// Prefetches the bytes at an address, which need not be valid: they will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) {
        let at = self.mapping.start().wrapping_add(self.chunks_at);
        fetch(at.wrapping_add(address as usize));
    }

    /// The 64-bit number right before a fragment, where a program in the kernel may have left
    /// one (`data_meta`). `None` if the fragment begins too near to its chunk's start.
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
    // SAFETY: a hint, which does not access memory and does not fault at any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// No prefetch: other architectures have no stable intrinsic.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(_: *const u8) {}

/// Words that processes which share a queue write about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueWord {
    /// Lock of the rx and the fill ring.
    RxLock = 0,
    /// Journal of the fill ring: how far its entries were written.
    FillJournal = 4,
    /// Lock of the tx and the completion ring.
    TxLock = 8,
    /// Journal of the tx ring: how far its entries were written.
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
    /// The file, to be passed to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

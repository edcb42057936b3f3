//! [`Pool`] and [`Frame`]: the chunks of a UMEM that one process holds, free or in frames.
//!
//! A [`Frame`] moves by value, and only its owner reads and writes its bytes. Dropping the
//! frame frees its chunks. Sending the frame puts its chunks into a ring, without copying.
//!
//! Processes that share the memory each have their own pool, with a few chunks in it. The
//! other free chunks have no owner, and any process may take them.
#![allow(unsafe_code)] // Bytes of chunks.

use crate::umem::{ChunkCounts, Owner, Umem};
use crate::xsk::Descriptor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Limit on the chunks of one frame: 64 KiB in chunks of 2 KiB.
pub const FRAGS_MAX: usize = 40;

/// Limit on the free chunks that one of several processes holds, in addition to those reserved
/// for [`Pool::alloc`].
const CACHE_MAX: usize = 512;

/// The same limit as a fraction of all chunks: 1/32.
const CACHE_DIVISOR: usize = 32;

/// Limit on the owner words that one search for free chunks reads while frames are handled.
const SCAN_MAX: u32 = 256;

/// The free chunks of a process.
#[derive(Debug)]
pub struct Pool {
    umem: Umem,
    me: u16,
    /// Free chunks. The chunk freed last is used first, since it is still in the CPU's cache.
    free: RefCell<Vec<u32>>,
    /// The chunks of this pool: in `free`, or in a frame.
    held: OwnedChunks,
    /// Number of chunks reserved for [`alloc`](Self::alloc).
    reserved: u32,
    /// Whether other processes have the memory, too.
    is_shared: Cell<bool>,
    /// Where the next search for a chunk without owner begins.
    next: Cell<u32>,
}

impl Pool {
    /// A pool with all chunks of new memory, for process number `me` (not 0). It never gives
    /// the last `kept` free chunks to the kernel to be filled.
    ///
    /// # Panics
    /// For process 0, and for memory that was [opened](Umem::open), whose chunks belong to
    /// another pool.
    pub fn new(umem: Umem, me: u16, kept: u32) -> Rc<Pool> {
        assert!(umem.is_new(), "memory of another process is joined");
        let pool = Pool::empty(umem, me, kept);
        let chunks = pool.umem.chunks();
        (0..chunks).for_each(|chunk| pool.held.set(chunk));
        pool.free.borrow_mut().extend((0..chunks).rev());
        Rc::new(pool)
    }

    /// A pool without chunks, of memory that other processes have too, for process number
    /// `me` (not 0): see [`ready`](Self::ready).
    ///
    /// # Panics
    /// For process 0.
    pub fn join(umem: Umem, me: u16, kept: u32) -> Rc<Pool> {
        let pool = Pool::empty(umem, me, kept);
        pool.is_shared.set(true);
        // Each process begins elsewhere, so that they do not compete for the same chunks.
        pool.next.set(u32::from(me) * 1021 % pool.umem.chunks());
        Rc::new(pool)
    }

    fn empty(umem: Umem, me: u16, kept: u32) -> Pool {
        assert!(me != 0, "processes count from 1");
        Pool {
            held: OwnedChunks::new(umem.chunks()),
            umem,
            me,
            free: RefCell::new(Vec::new()),
            reserved: kept,
            is_shared: Cell::new(false),
            next: Cell::new(0),
        }
    }

    /// Shares the memory with other processes from now on: all free chunks but a few lose
    /// their owner.
    pub fn share(&self) {
        if !self.is_shared.replace(true) {
            let mut free = self.free.borrow_mut();
            let beyond = free.len().saturating_sub(self.cache_max());
            free.drain(..beyond)
                .for_each(|chunk| self.held.clear(chunk));
            let ready = Owner::Cached(self.me);
            free.iter()
                .for_each(|chunk| self.umem.set_owner(*chunk, ready));
        }
    }

    fn cache_max(&self) -> usize {
        let part = self.umem.chunks() as usize / CACHE_DIVISOR;
        part.min(CACHE_MAX) + self.reserved as usize
    }

    /// The UMEM.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The number of this process.
    pub fn me(&self) -> u16 {
        self.me
    }

    /// Number of chunks that are free in this pool.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }

    /// The chunks that are free in this pool.
    #[cfg(test)]
    pub(crate) fn free_chunks(&self) -> Vec<u32> {
        self.free.borrow().clone()
    }

    /// Takes chunks without owner until `count` are free in this pool; false if there are not
    /// enough.
    pub fn ready(&self, count: u32) -> bool {
        let missing = (count as usize).saturating_sub(self.free());
        self.refill_cache(missing as u32, self.umem.chunks());
        self.free() >= count as usize
    }

    /// Takes up to `want` chunks without owner, reading at most `looks` owner words.
    fn refill_cache(&self, want: u32, looks: u32) {
        if !self.is_shared.get() || want == 0 {
            return;
        }
        let mut free = self.free.borrow_mut();
        let (end, mut at) = (free.len() + want as usize, self.next.get());
        for _ in 0..looks.min(self.umem.chunks()) {
            let ready = Owner::Cached(self.me);
            // An owner word that calls a chunk of this pool free was written wrongly.
            if self.umem.owner(at) == Owner::Free
                && !self.held.has(at)
                && self.umem.change_owner(at, Owner::Free, ready)
            {
                self.held.set(at);
                free.push(at);
            }
            at = if at + 1 < self.umem.chunks() {
                at + 1
            } else {
                0
            };
            if free.len() == end {
                break;
            }
        }
        self.next.set(at);
    }

    /// An empty frame of one chunk; `None` if no chunk is free.
    pub fn alloc(self: &Rc<Pool>) -> Option<Frame> {
        let chunk = self.alloc_chunk()?;
        let headroom = u64::from(crate::umem::HEADROOM_BYTES);
        let address = self.umem.address(chunk) + headroom;
        let first = Descriptor {
            address,
            len: 0,
            options: 0,
        };
        Some(Frame::new(first, self))
    }

    /// Counts the chunks by owner.
    pub fn chunk_counts(&self) -> ChunkCounts {
        self.umem.chunk_counts()
    }

    /// Number of chunks that may be given to a fill ring with room for `room`.
    #[inline]
    pub(crate) fn fill_quota(&self, room: u32) -> u32 {
        let spare = || self.free().saturating_sub(self.reserved as usize) as u32;
        let missing = room.saturating_sub(spare());
        self.refill_cache(missing, SCAN_MAX);
        room.min(spare())
    }

    /// Takes a free chunk for the fill ring; the caller sets its owner word.
    #[inline]
    pub(crate) fn give_to_fill(&self) -> Option<u32> {
        let chunk = self.free.borrow_mut().pop()?;
        self.held.clear(chunk);
        Some(chunk)
    }

    #[inline]
    fn alloc_chunk(&self) -> Option<u32> {
        let pop = || self.free.borrow_mut().pop();
        let chunk = pop().or_else(|| {
            self.refill_cache(1, self.umem.chunks());
            pop()
        })?;
        self.umem.set_owner(chunk, Owner::Process(self.me));
        Some(chunk)
    }

    /// Takes a chunk that a ring names as a frame's. False if this pool already has the chunk,
    /// so that the ring is wrong.
    #[inline]
    pub(crate) fn take(&self, chunk: u32) -> bool {
        let is_new = !self.held.has(chunk);
        if is_new {
            self.held.set(chunk);
            self.umem.set_owner(chunk, Owner::Process(self.me));
        }
        is_new
    }

    /// Takes a chunk back from a ring and frees it. False if this pool already has the chunk,
    /// so that the ring is wrong.
    #[inline]
    pub(crate) fn take_back(&self, chunk: u32) -> bool {
        let is_new = !self.held.has(chunk);
        if is_new {
            self.held.set(chunk);
            self.release(chunk);
        }
        is_new
    }

    /// Gives a frame's chunk to a ring; the caller sets its owner word and does not use the
    /// frame again.
    #[inline]
    pub(crate) fn give(&self, chunk: u32) {
        self.held.clear(chunk);
    }

    /// Frees a chunk of this pool that is no longer in a frame.
    #[inline]
    fn release(&self, chunk: u32) {
        if !self.is_shared.get() {
            self.umem.set_owner(chunk, Owner::Free);
            self.free.borrow_mut().push(chunk);
            return;
        }
        self.umem.set_owner(chunk, Owner::Cached(self.me));
        let mut free = self.free.borrow_mut();
        free.push(chunk);
        if free.len() > self.cache_max() {
            let half = free.len() / 2;
            let freed = free.drain(..half);
            freed.for_each(|chunk| {
                self.held.clear(chunk);
                self.umem.set_owner(chunk, Owner::Free);
            });
        }
    }

    /// The bytes of a fragment that was put into a ring and not yet submitted: until the
    /// submission or the chunk's release nothing else accesses them. `None` for a chunk that
    /// is in a frame of this pool or free in it, so that the ring is wrong.
    #[inline]
    pub(crate) fn bytes_of(&self, piece: &Descriptor) -> Option<&[u8]> {
        let chunk = self.umem.chunk(piece.address)?;
        // SAFETY: the frame's value is gone, and no other frame of this pool has its chunk, as
        // just compared; the pool gets the chunk back by a call with a mutable reference to
        // the queue, which is borrowed as long as these bytes. The caller that opened the
        // memory has promised that no other process has the chunk.
        (!self.held.has(chunk)).then(|| unsafe { &*self.umem.bytes(piece) })
    }

    #[inline]
    fn release_frag(&self, piece: &Descriptor) {
        let chunk = self.umem.chunk(piece.address);
        self.release(chunk.expect("a frame's pieces were compared when it came"));
    }
}

/// One bit for each chunk, in memory of this process alone. Other processes can write owner
/// words and rings; the pool relies on these bits instead, so that a chunk is never in two
/// frames of one pool.
#[derive(Debug)]
struct OwnedChunks(Box<[Cell<u64>]>);

impl OwnedChunks {
    fn new(chunks: u32) -> OwnedChunks {
        OwnedChunks(vec![Cell::new(0); chunks.div_ceil(64) as usize].into())
    }

    #[inline]
    fn word(&self, chunk: u32) -> (&Cell<u64>, u64) {
        (&self.0[chunk as usize / 64], 1 << (chunk % 64))
    }

    #[inline]
    fn has(&self, chunk: u32) -> bool {
        let (word, bit) = self.word(chunk);
        word.get() & bit != 0
    }

    #[inline]
    fn set(&self, chunk: u32) {
        let (word, bit) = self.word(chunk);
        word.set(word.get() | bit);
    }

    #[inline]
    fn clear(&self, chunk: u32) {
        let (word, bit) = self.word(chunk);
        word.set(word.get() & !bit);
    }
}

/// A frame, which owns the chunks that hold it.
#[derive(Debug)]
pub struct Frame {
    first: Descriptor,
    /// The further fragments, mostly none.
    rest: Vec<Descriptor>,
    pool: Rc<Pool>,
}

impl Frame {
    /// A frame that begins with this fragment, whose chunk is this process's.
    #[inline]
    pub(crate) fn new(first: Descriptor, pool: &Rc<Pool>) -> Frame {
        Frame {
            first,
            rest: Vec::new(),
            pool: Rc::clone(pool),
        }
    }

    /// Appends this fragment, whose chunk is this process's.
    pub(crate) fn push_frag(&mut self, piece: Descriptor) {
        self.rest.push(piece);
    }

    /// Whether the frame belongs to this pool.
    #[inline]
    pub(crate) fn is_of(&self, pool: &Rc<Pool>) -> bool {
        Rc::ptr_eq(&self.pool, pool)
    }

    /// The descriptor of a fragment, counted from 0.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Descriptor {
        match index {
            0 => self.first,
            _ => self.rest[index - 1],
        }
    }

    /// Leaves the frame's chunks to a ring and drops only the value.
    #[inline]
    pub(crate) fn into_ring(self) {
        let mut frame = std::mem::ManuallyDrop::new(self);
        // SAFETY: neither is used again, since the frame is not dropped.
        unsafe {
            std::ptr::drop_in_place(&raw mut frame.rest);
            std::ptr::drop_in_place(&raw mut frame.pool);
        }
    }

    /// Length of the whole frame in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes")]
    pub fn len(&self) -> usize {
        let rest = self.rest.iter().map(|piece| piece.len as usize);
        self.first.len as usize + rest.sum::<usize>()
    }

    /// The bytes of the first fragment, which is the whole frame unless it is longer than a
    /// chunk.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this value owns the chunk: by the pool's own bits no other frame of the pool
        // has it, and the caller that opened the memory has promised that no other process
        // has it. The value is borrowed as long as the bytes.
        unsafe { self.pool.umem.bytes(&self.first) }
    }

    /// As [`bytes`](Self::bytes), mutable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { self.pool.umem.bytes(&self.first) }
    }

    /// Number of fragments.
    #[inline]
    pub fn frags(&self) -> usize {
        1 + self.rest.len()
    }

    /// The bytes of a fragment, counted from 0; `None` beyond the last.
    pub fn frag(&self, index: usize) -> Option<&[u8]> {
        let piece = match index {
            0 => &self.first,
            _ => self.rest.get(index - 1)?,
        };
        // SAFETY: as above.
        Some(unsafe { self.pool.umem.bytes(piece) })
    }

    /// As [`frag`](Self::frag), mutable.
    pub fn frag_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let piece = match index {
            0 => &self.first,
            _ => self.rest.get(index - 1)?,
        };
        // SAFETY: as above, and borrowed for writing.
        Some(unsafe { self.pool.umem.bytes(piece) })
    }

    /// Appends the whole frame to `to`.
    pub fn copy_to(&self, to: &mut Vec<u8>) {
        (0..self.frags()).for_each(|index| self.pool.umem.copy_to(&self.at(index), to));
    }

    /// Replaces the frame's content by `bytes`, in as many chunks as necessary. False, with
    /// the frame unchanged, if that many chunks are not free or exceed the limit.
    pub fn set(&mut self, bytes: &[u8]) -> bool {
        let room = self.pool.umem.frame_bytes_max() as usize;
        let pieces = bytes.len().div_ceil(room).max(1);
        let more = (pieces - 1).saturating_sub(self.rest.len());
        if pieces > FRAGS_MAX || !self.pool.ready(more as u32) {
            return false;
        }
        let headroom = u64::from(crate::umem::HEADROOM_BYTES);
        while self.rest.len() > pieces - 1 {
            let piece = self.rest.pop().expect("as just compared");
            self.pool.release_frag(&piece);
        }
        while self.rest.len() < pieces - 1 {
            let chunk = self.pool.alloc_chunk().expect("as just compared");
            self.rest.push(Descriptor {
                address: self.pool.umem.address(chunk),
                len: 0,
                options: 0,
            });
        }
        let umem = &self.pool.umem;
        let mut left = bytes;
        for piece in std::iter::once(&mut self.first).chain(&mut self.rest) {
            let (now, later) = left.split_at(left.len().min(room));
            let chunk = umem
                .chunk(piece.address)
                .expect("a frame's pieces are valid");
            piece.address = umem.address(chunk) + headroom;
            piece.len = now.len() as u32;
            umem.copy_from(piece, now);
            left = later;
        }
        true
    }

    /// Shortens a frame of one fragment, or extends it by bytes of undefined value. False if
    /// the chunk has no room or the frame has more fragments.
    pub fn set_len(&mut self, len: usize) -> bool {
        let Ok(len) = u32::try_from(len) else {
            return false;
        };
        let piece = Descriptor { len, ..self.first };
        let fits = self.rest.is_empty() && self.pool.umem.holds(&piece);
        if fits {
            self.first = piece;
        }
        fits
    }

    /// The number that a program in the kernel has written right before the frame
    /// (`data_meta`).
    #[inline]
    pub fn meta(&self) -> Option<u64> {
        self.pool.umem.meta(&self.first)
    }
}

impl AsMut<[u8]> for Frame {
    /// The bytes of the first fragment, mutable.
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        self.pool.release_frag(&self.first);
        for piece in &self.rest {
            self.pool.release_frag(piece);
        }
    }
}

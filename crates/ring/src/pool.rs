//! Chunks of a UMEM as a process holds them: a pool of free ones, frames, and
//! a queue of a link that frames come from and go to.
//!
//! A [`Frame`] moves by value; who has it may read and write its bytes, and
//! nobody else. Dropped, its chunks are free again. Sending it puts its
//! chunks into a ring: no byte is copied.
//!
//! What rings say is compared with the owner words: a chunk that the kernel
//! was not given comes from a wild writer, and is never taken.
#![allow(unsafe_code)] // Bytes of chunks.

use crate::queue::Corrupt;
use crate::umem::{Census, Owner, Umem};
use crate::xsk::{Descriptor, XskRings};
use std::cell::RefCell;
use std::rc::Rc;

/// Most chunks of one frame: 64 KiB in chunks of 2 KiB.
pub const PIECES_MAX: usize = 40;

/// The free chunks of a process.
#[derive(Debug)]
pub struct Pool {
    umem: Umem,
    me: u16,
    /// The last one freed is the first to be had: it is in the cache.
    free: RefCell<Vec<u32>>,
    /// As many are kept for [`alloc`](Self::alloc).
    kept: u32,
}

impl Pool {
    /// All chunks of new memory, for process number `me` (not 0). `kept` of
    /// them are never lent to the kernel to be filled.
    ///
    /// # Panics
    /// For process 0.
    pub fn new(umem: Umem, me: u16, kept: u32) -> Rc<Pool> {
        assert!(me != 0, "processes count from 1");
        let free: Vec<u32> = (0..umem.chunks()).rev().collect();
        Rc::new(Pool {
            umem,
            me,
            free: RefCell::new(free),
            kept,
        })
    }

    /// The memory.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// How many chunks are free.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }

    /// An empty frame of one chunk; `None` if no chunk is free.
    pub fn alloc(self: &Rc<Pool>) -> Option<Frame> {
        let chunk = self.grab()?;
        let headroom = u64::from(crate::umem::HEADROOM_BYTES);
        let address = self.umem.address(chunk) + headroom;
        Some(Frame {
            first: Descriptor {
                address,
                len: 0,
                options: 0,
            },
            rest: Vec::new(),
            pool: Rc::clone(self),
        })
    }

    /// Who owns how many.
    pub fn census(&self) -> Census {
        self.umem.census()
    }

    #[inline]
    fn grab(&self) -> Option<u32> {
        let chunk = self.free.borrow_mut().pop()?;
        self.umem.set_owner(chunk, Owner::Process(self.me));
        Some(chunk)
    }

    #[inline]
    fn release(&self, chunk: u32) {
        self.umem.set_owner(chunk, Owner::Free);
        self.free.borrow_mut().push(chunk);
    }

    #[inline]
    fn release_piece(&self, piece: &Descriptor) {
        let chunk = self.umem.chunk(piece.address);
        self.release(chunk.expect("a frame's pieces were compared when it came"));
    }
}

/// A frame, and the chunks that it lies in: this value owns them.
#[derive(Debug)]
pub struct Frame {
    first: Descriptor,
    /// The pieces behind it, mostly none.
    rest: Vec<Descriptor>,
    pool: Rc<Pool>,
}

impl Frame {
    /// Bytes of the whole frame.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes")]
    pub fn len(&self) -> usize {
        let rest = self.rest.iter().map(|piece| piece.len as usize);
        self.first.len as usize + rest.sum::<usize>()
    }

    /// The bytes of the first piece: all of them, unless the frame is longer
    /// than a chunk.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this value owns the chunk, which the owner word says, and
        // only this value refers to it; it is borrowed as long as the bytes.
        unsafe { self.pool.umem.bytes(&self.first) }
    }

    /// The same, to write.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { self.pool.umem.bytes(&self.first) }
    }

    /// How many pieces it has.
    #[inline]
    pub fn pieces(&self) -> usize {
        1 + self.rest.len()
    }

    /// The bytes of a piece, from 0.
    pub fn piece(&self, index: usize) -> Option<&[u8]> {
        let piece = match index {
            0 => &self.first,
            _ => self.rest.get(index - 1)?,
        };
        // SAFETY: as above.
        Some(unsafe { self.pool.umem.bytes(piece) })
    }

    /// The same, to write.
    pub fn piece_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let piece = match index {
            0 => &self.first,
            _ => self.rest.get(index - 1)?,
        };
        // SAFETY: as above, and borrowed for writing.
        Some(unsafe { self.pool.umem.bytes(piece) })
    }

    /// Copies the whole frame behind what is in `to`.
    pub fn copy_to(&self, to: &mut Vec<u8>) {
        (0..self.pieces())
            .filter_map(|index| self.piece(index))
            .for_each(|bytes| to.extend_from_slice(bytes));
    }

    /// Makes it these bytes, in as many chunks as they need; `false`, and the
    /// frame as it was, if so many are not free or not possible.
    pub fn set(&mut self, bytes: &[u8]) -> bool {
        let room = self.pool.umem.room() as usize;
        let pieces = bytes.len().div_ceil(room).max(1);
        if pieces > PIECES_MAX || pieces - 1 > self.rest.len() + self.pool.free() {
            return false;
        }
        let headroom = u64::from(crate::umem::HEADROOM_BYTES);
        while self.rest.len() > pieces - 1 {
            let piece = self.rest.pop().expect("as just compared");
            self.pool.release_piece(&piece);
        }
        while self.rest.len() < pieces - 1 {
            let chunk = self.pool.grab().expect("as just compared");
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
            // SAFETY: as above, and borrowed for writing.
            unsafe { umem.bytes(piece) }.copy_from_slice(now);
            left = later;
        }
        true
    }

    /// Cuts bytes off the end of a frame of one piece, or adds some of no
    /// particular value; `false` if the chunk has no room or there are more
    /// pieces.
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

    /// What a program in the kernel has written right before the frame.
    #[inline]
    pub fn meta(&self) -> Option<u64> {
        self.pool.umem.meta(&self.first)
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        self.pool.release_piece(&self.first);
        for piece in &self.rest {
            self.pool.release_piece(piece);
        }
    }
}

/// What a queue has met that should not be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Oddities {
    /// Entries that name no chunk, or one that the kernel did not have.
    pub invalid: u64,
    /// Frames of too many pieces, dropped.
    pub too_long: u64,
}

/// One queue of a link: its rings, and the pool that they draw on.
#[derive(Debug)]
pub struct LinkQueue {
    rings: XskRings,
    pool: Rc<Pool>,
    link: u16,
    oddities: Oddities,
}

impl LinkQueue {
    /// Over the rings of a socket on the pool's memory.
    pub fn new(rings: XskRings, pool: &Rc<Pool>, link: u16) -> LinkQueue {
        LinkQueue {
            rings,
            pool: Rc::clone(pool),
            link,
            oddities: Oddities::default(),
        }
    }

    /// Gives the kernel chunks to fill, as many as there are and it takes;
    /// tells how many.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn refill(&mut self) -> Result<u32, Corrupt> {
        let fill = &mut self.rings.fill;
        let free = self.pool.free().saturating_sub(self.pool.kept as usize);
        let room = fill.reserve(fill.entries())?;
        let count = room.min(free as u32);
        for _ in 0..count {
            let chunk = self.pool.free.borrow_mut().pop();
            let Some(chunk) = chunk else { break };
            self.pool.umem.set_owner(chunk, Owner::Fill(self.link));
            fill.put(self.pool.umem.address(chunk));
        }
        fill.submit();
        Ok(count)
    }

    /// Takes back chunks whose frames were sent; tells how many.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn reap(&mut self) -> Result<u32, Corrupt> {
        let completion = &mut self.rings.completion;
        let count = completion.peek(completion.entries())?;
        for _ in 0..count {
            let address = completion.take();
            let umem = &self.pool.umem;
            match umem.chunk(address) {
                Some(chunk) if umem.owner(chunk) == Owner::Tx(self.link) => {
                    self.pool.release(chunk);
                }
                _ => self.oddities.invalid += 1,
            }
        }
        completion.release();
        Ok(count)
    }

    /// How many entries of the rx ring are there to take, `want` at most.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn ready(&mut self, want: u32) -> Result<u32, Corrupt> {
        self.rings.rx.peek(want)
    }

    /// The next frame; its place in the ring is the kernel's again after
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Frame>, Corrupt> {
        loop {
            if self.rings.rx.peek(1)? == 0 {
                return Ok(None);
            }
            let first = self.rings.rx.get(0);
            if first.is_continued() {
                match self.take_pieces()? {
                    Taken::Frame(frame) => return Ok(Some(frame)),
                    Taken::Nothing => continue,
                    Taken::Unfinished => return Ok(None),
                }
            }
            let is_ours = self.own(&first);
            self.rings.rx.take();
            if is_ours {
                return Ok(Some(Frame {
                    first,
                    rest: Vec::new(),
                    pool: Rc::clone(&self.pool),
                }));
            }
        }
    }

    /// A frame of several pieces: its entries come together.
    #[cold]
    fn take_pieces(&mut self) -> Result<Taken, Corrupt> {
        let there = self.rings.rx.peek(self.rings.rx.entries())?;
        let mut count = 0;
        loop {
            if count == there {
                match there == self.rings.rx.entries() {
                    // It will never end.
                    true => break,
                    false => return Ok(Taken::Unfinished),
                }
            }
            count += 1;
            if !self.rings.rx.get(count - 1).is_continued() {
                break;
            }
        }
        let mut frame: Option<Frame> = None;
        let mut whole = true;
        for _ in 0..count {
            let piece = self.rings.rx.get(0);
            let is_ours = self.own(&piece);
            self.rings.rx.take();
            whole &= is_ours;
            match &mut frame {
                _ if !is_ours => {}
                Some(frame) => frame.rest.push(piece),
                None => {
                    frame = Some(Frame {
                        first: piece,
                        rest: Vec::new(),
                        pool: Rc::clone(&self.pool),
                    });
                }
            }
        }
        let too_long = count as usize > PIECES_MAX;
        self.oddities.too_long += u64::from(too_long);
        match frame {
            Some(frame) if whole && !too_long => Ok(Taken::Frame(frame)),
            // What there is of it is freed.
            _ => Ok(Taken::Nothing),
        }
    }

    /// Makes a received piece ours, before its entry is released.
    #[inline]
    fn own(&mut self, piece: &Descriptor) -> bool {
        let umem = &self.pool.umem;
        if let Some(chunk) = umem.chunk(piece.address)
            && umem.holds(piece)
            && umem.owner(chunk) == Owner::Fill(self.link)
        {
            umem.set_owner(chunk, Owner::Process(self.pool.me));
            return true;
        }
        self.oddities.invalid += 1;
        false
    }

    /// Gives the places of taken entries back.
    #[inline]
    pub fn release(&mut self) {
        self.rings.rx.release();
    }

    /// How many entries fit into the tx ring now, `want` at most.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn room(&mut self, want: u32) -> Result<u32, Corrupt> {
        self.rings.tx.reserve(want)
    }

    /// Puts a frame into the tx ring, to be sent after
    /// [`submit`](Self::submit); gives it back where there is no room, or it
    /// is of another pool.
    ///
    /// # Errors
    /// [`Corrupt`], which drops the frame.
    #[inline]
    pub fn put(&mut self, frame: Frame) -> Result<Option<Frame>, Corrupt> {
        let pieces = frame.pieces() as u32;
        let is_ours = Rc::ptr_eq(&frame.pool, &self.pool);
        if !is_ours || self.rings.tx.reserve(pieces)? < pieces {
            return Ok(Some(frame));
        }
        let last = pieces as usize - 1;
        for index in 0..pieces as usize {
            let piece = match index {
                0 => frame.first,
                _ => frame.rest[index - 1],
            };
            let chunk = self.pool.umem.chunk(piece.address);
            let chunk = chunk.expect("a frame's pieces were compared when it came");
            self.pool.umem.set_owner(chunk, Owner::Tx(self.link));
            self.rings.tx.put(piece.continued(index < last));
        }
        // Its chunks are the ring's now; its pool goes on without it.
        let mut frame = std::mem::ManuallyDrop::new(frame);
        // SAFETY: neither is used again, since the frame is not dropped.
        unsafe {
            std::ptr::drop_in_place(&raw mut frame.rest);
            std::ptr::drop_in_place(&raw mut frame.pool);
        }
        Ok(None)
    }

    /// Shows the kernel what was put into the tx ring.
    #[inline]
    pub fn submit(&mut self) {
        self.rings.tx.submit();
    }

    /// How many entries of the tx ring the kernel has not taken.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn unsent(&mut self) -> Result<u32, Corrupt> {
        self.rings.tx.held()
    }

    /// Takes back and frees what the kernel has not sent; tells how many
    /// entries. Only in copy mode, where it sends in our own calls alone.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn take_back(&mut self) -> Result<u32, Corrupt> {
        let entries = self.rings.tx.take_back()?;
        for piece in &entries {
            self.pool.release_piece(piece);
        }
        Ok(entries.len() as u32)
    }

    /// Frees what the kernel still had, after its socket was closed.
    pub fn end(self) -> Oddities {
        let umem = &self.pool.umem;
        for chunk in 0..umem.chunks() {
            let owner = umem.owner(chunk);
            if owner == Owner::Fill(self.link) || owner == Owner::Tx(self.link) {
                self.pool.release(chunk);
            }
        }
        self.oddities
    }

    /// Whether the kernel wants to be called to send.
    #[inline]
    pub fn wants_tx_kick(&self) -> bool {
        self.rings.tx.needs_wakeup()
    }

    /// Whether the kernel wants to be called to receive.
    #[inline]
    pub fn wants_rx_kick(&self) -> bool {
        self.rings.fill.needs_wakeup()
    }

    /// What should not have been.
    pub fn oddities(&self) -> Oddities {
        self.oddities
    }
}

enum Taken {
    Frame(Frame),
    Nothing,
    Unfinished,
}

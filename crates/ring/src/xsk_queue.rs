//! [`XskQueue`]: frames in and out of one queue of a link, by the four rings of its socket.
//!
//! The queue checks entries of rings against the owner words. A chunk that the kernel was not
//! given can only come from a faulty writer, and is never taken.

use crate::pool::{FRAGS_MAX, Frame, Pool};
use crate::queue::Corrupt;
use crate::robust_lock::AtomicWord;
use crate::robust_lock::LockOwner;
use crate::umem::{Owner, QueueWord};
use crate::xsk::{Descriptor, XskRings};
use std::rc::Rc;

/// Errors that a queue has found in its rings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RingErrors {
    /// Entries that name no chunk, or a chunk that the kernel did not have.
    pub invalid: u64,
    /// Frames of too many fragments, which were dropped.
    pub too_long: u64,
}

/// How many frames in advance the first bytes of a frame are prefetched: mostly another CPU
/// has written them.
const PREFETCH_DISTANCE: u32 = 6;

/// Number of fragments that arrive before the fill ring is refilled.
const REFILL_MIN: u32 = 32;

/// One queue of a link: its rings, and the pool of their chunks.
#[derive(Debug)]
pub struct XskQueue {
    pub(crate) rings: XskRings,
    pub(crate) pool: Rc<Pool>,
    pub(crate) link: u16,
    /// This process among those that share the queue.
    pub(crate) sharer: Option<LockOwner>,
    /// Limit on the chunks that this queue gives to the kernel.
    share: u32,
    /// Fragments received since the fill ring was last refilled.
    came: u32,
    ring_errors: RingErrors,
}

impl XskQueue {
    /// A queue over the rings of a socket on the pool's memory; `link` is the number of this
    /// queue among those of all links.
    ///
    /// # Panics
    /// For a number beyond [`QUEUES_MAX`](crate::umem::QUEUES_MAX), and for rings of another
    /// memory than the pool's.
    pub fn new(rings: XskRings, pool: &Rc<Pool>, link: u16) -> XskQueue {
        assert!(
            link < crate::umem::QUEUES_MAX,
            "queues are numbered below 512"
        );
        let memory = pool.umem().registered().0;
        assert!(rings.memory == memory, "rings are of the pool's memory");
        XskQueue {
            rings,
            pool: Rc::clone(pool),
            link,
            sharer: None,
            share: u32::MAX,
            came: 0,
            ring_errors: RingErrors::default(),
        }
    }

    /// Limits the chunks that this queue gives to the kernel to fill, so that chunks remain
    /// for other queues.
    pub fn set_share(&mut self, chunks: u32) {
        self.share = chunks;
    }

    /// As [`refill`](Self::refill), but only after some frames, when it is worth the cache line
    /// that the kernel writes on another CPU. An idle process calls `refill` instead.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn refill_some(&mut self) -> Result<u32, Corrupt> {
        if self.came >= REFILL_MIN.min(self.rings.fill.entries() / 8) {
            self.refill()
        } else {
            Ok(0)
        }
    }

    /// Gives the kernel chunks to fill, as many as are free and the ring takes; returns how
    /// many.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn refill(&mut self) -> Result<u32, Corrupt> {
        let fill = &mut self.rings.fill;
        let (pool, umem) = (&self.pool, self.pool.umem());
        let journal = umem.queue_word(self.link, QueueWord::FillJournal);
        let free = fill.reserve(fill.entries())?;
        let lent = fill.entries() - free;
        let room = free.min(self.share.saturating_sub(lent));
        let count = pool.fill_quota(room);
        for _ in 0..count {
            let Some(chunk) = pool.give_to_fill() else {
                break;
            };
            fill.put(umem.address(chunk));
            // The order matters: see `shared_queue`.
            if self.sharer.is_some() {
                journal.store(fill.position());
            }
            umem.set_owner(chunk, Owner::Fill(self.link));
        }
        fill.submit();
        // If chunks are lacking, the next call tries again.
        self.came = room - count;
        Ok(count)
    }

    /// Takes back the chunks of sent frames; returns how many.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn reap(&mut self) -> Result<u32, Corrupt> {
        let completion = &mut self.rings.completion;
        let count = completion.peek(completion.entries())?;
        for _ in 0..count {
            let address = completion.take();
            let umem = self.pool.umem();
            match umem.chunk(address) {
                Some(chunk)
                    if umem.owner(chunk) == Owner::Tx(self.link) && self.pool.take_back(chunk) => {}
                _ => self.ring_errors.invalid += 1,
            }
        }
        completion.release();
        Ok(count)
    }

    /// Number of entries in the rx ring that can be taken, at most `want`.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn ready(&mut self, want: u32) -> Result<u32, Corrupt> {
        self.rings.rx.peek(want)
    }

    /// Takes the next frame. The kernel may reuse its slots after [`release`](Self::release).
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
                match self.take_frags()? {
                    RxResult::Frame(frame) => return Ok(Some(frame)),
                    RxResult::Empty => continue,
                    RxResult::Partial => return Ok(None),
                }
            }
            let is_ours = self.own(&first);
            self.rings.rx.take();
            if let Some(later) = self.rings.rx.ahead(PREFETCH_DISTANCE) {
                self.pool.umem().prefetch(later.address);
            }
            if is_ours {
                return Ok(Some(Frame::new(first, &self.pool)));
            }
        }
    }

    /// Takes a frame of several fragments, whose entries are consecutive.
    #[cold]
    fn take_frags(&mut self) -> Result<RxResult, Corrupt> {
        let there = self.rings.rx.peek(self.rings.rx.entries())?;
        let mut count = 0;
        loop {
            if count == there {
                if there == self.rings.rx.entries() {
                    // The frame's last fragment will never arrive.
                    break;
                } else {
                    return Ok(RxResult::Partial);
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
                Some(frame) => frame.push_frag(piece),
                None => frame = Some(Frame::new(piece, &self.pool)),
            }
        }
        let too_long = count as usize > FRAGS_MAX;
        self.ring_errors.too_long += u64::from(too_long);
        match frame {
            Some(frame) if whole && !too_long => Ok(RxResult::Frame(frame)),
            // The fragments received so far are freed.
            _ => Ok(RxResult::Empty),
        }
    }

    /// Makes this process the owner of a received fragment, before its entry is released.
    #[inline]
    fn own(&mut self, piece: &Descriptor) -> bool {
        let umem = self.pool.umem();
        if let Some(chunk) = umem.chunk(piece.address)
            && umem.holds(piece)
            && umem.owner(chunk) == Owner::Fill(self.link)
            && self.pool.take(chunk)
        {
            self.came += 1;
            return true;
        }
        self.ring_errors.invalid += 1;
        false
    }

    /// Returns the slots of taken entries to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.rings.rx.release();
    }

    /// Number of entries that fit into the tx ring now, at most `want`.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn room(&mut self, want: u32) -> Result<u32, Corrupt> {
        self.rings.tx.reserve(want)
    }

    /// Puts a frame into the tx ring, to be sent after [`submit`](Self::submit). Returns the
    /// frame if there is no room, or if the frame belongs to another pool.
    ///
    /// # Errors
    /// [`Corrupt`], which drops the frame.
    #[inline]
    pub fn put(&mut self, frame: Frame) -> Result<Option<Frame>, Corrupt> {
        let pieces = frame.frags() as u32;
        if !frame.is_of(&self.pool) || self.rings.tx.reserve(pieces)? < pieces {
            return Ok(Some(frame));
        }
        let umem = self.pool.umem();
        let journal = umem.queue_word(self.link, QueueWord::TxJournal);
        for index in 0..pieces {
            let piece = frame.at(index as usize);
            let chunk = umem.chunk(piece.address);
            let chunk = chunk.expect("a frame's pieces were compared when it came");
            self.rings.tx.put(piece.continued(index + 1 < pieces));
            // The order matters: see `shared_queue`.
            if self.sharer.is_some() {
                journal.store(self.rings.tx.position());
            }
            self.pool.give(chunk);
            umem.set_owner(chunk, Owner::Tx(self.link));
        }
        frame.into_ring();
        Ok(None)
    }

    /// Number of entries that were put into the tx ring and not yet submitted; 0 while the
    /// kernel still has earlier entries.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn unsubmitted_len(&mut self) -> Result<u32, Corrupt> {
        let kept = self.rings.tx.unsubmitted_len();
        if self.rings.tx.held()? == kept {
            Ok(kept)
        } else {
            Ok(0)
        }
    }

    /// The bytes of an unsubmitted entry, 0 being the oldest; `None` for a fragment of a longer
    /// frame.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn unsubmitted_at(&self, index: u32) -> Option<&[u8]> {
        let piece = self.rings.tx.unsubmitted_at(index);
        let umem = self.pool.umem();
        let chunk = umem.chunk(piece.address)?;
        let is_whole = !piece.is_continued() && umem.holds(&piece);
        if !is_whole || umem.owner(chunk) != Owner::Tx(self.link) {
            return None;
        }
        self.pool.bytes_of(&piece)
    }

    /// Removes the oldest unsubmitted entries and frees their chunks: their frames were sent
    /// in another way.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn pop_unsubmitted(&mut self, count: u32) {
        for index in 0..count {
            let piece = self.rings.tx.unsubmitted_at(index);
            self.reclaim_frag(&piece);
        }
        self.rings.tx.pop_unsubmitted(count);
    }

    /// Submits the entries of the tx ring to the kernel.
    #[inline]
    pub fn submit(&mut self) {
        self.rings.tx.submit();
    }

    /// Number of entries of the tx ring that the kernel has not taken.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn unsent(&mut self) -> Result<u32, Corrupt> {
        self.rings.tx.held()
    }

    /// Takes back and frees the entries that the kernel has not sent; returns how many. Allowed
    /// only in copy mode, in which the kernel sends only within this process's calls.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn reclaim_unsent(&mut self) -> Result<u32, Corrupt> {
        let entries = self.rings.tx.reclaim_unsent()?;
        for piece in &entries {
            self.reclaim_frag(piece);
        }
        Ok(entries.len() as u32)
    }

    /// Frees a fragment that was in the tx ring.
    fn reclaim_frag(&mut self, piece: &Descriptor) {
        let chunk = self.pool.umem().chunk(piece.address);
        if !chunk.is_some_and(|chunk| self.pool.take_back(chunk)) {
            self.ring_errors.invalid += 1;
        }
    }

    /// Frees the chunks that the kernel still had, after its socket was closed.
    pub fn end(self) -> RingErrors {
        let umem = self.pool.umem();
        for chunk in 0..umem.chunks() {
            let owner = umem.owner(chunk);
            if owner == Owner::Fill(self.link) || owner == Owner::Tx(self.link) {
                self.pool.take_back(chunk);
            }
        }
        self.ring_errors
    }

    /// Whether the kernel needs a system call to send.
    #[inline]
    pub fn wants_tx_kick(&self) -> bool {
        self.rings.tx.needs_wakeup()
    }

    /// Whether the kernel needs a system call to receive.
    #[inline]
    pub fn wants_rx_kick(&self) -> bool {
        self.rings.fill.needs_wakeup()
    }

    /// The errors found so far.
    pub fn ring_errors(&self) -> RingErrors {
        self.ring_errors
    }
}

enum RxResult {
    Frame(Frame),
    Empty,
    Partial,
}

//! A queue of a link: frames come from its rings, and go into them.
//!
//! What rings say is compared with the owner words: a chunk that the kernel
//! was not given comes from a wild writer, and is never taken.

use crate::pool::{FRAGS_MAX, Frame, Pool};
use crate::queue::Corrupt;
use crate::robust_lock::AtomicWord;
use crate::robust_lock::LockOwner;
use crate::umem::{Owner, QueueWord};
use crate::xsk::{Descriptor, XskRings};
use std::rc::Rc;

/// What a queue has met that should not be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RingErrors {
    /// Entries that name no chunk, or one that the kernel did not have.
    pub invalid: u64,
    /// Frames of too many pieces, dropped.
    pub too_long: u64,
}

/// How many frames before it is taken a frame's first bytes are fetched: the
/// kernel has written them on another CPU, mostly.
const PREFETCH_DISTANCE: u32 = 6;

/// So many pieces come before the fill ring is looked at.
const REFILL_MIN: u32 = 32;

/// One queue of a link: its rings, and the pool that they draw on.
#[derive(Debug)]
pub struct XskQueue {
    pub(crate) rings: XskRings,
    pub(crate) pool: Rc<Pool>,
    pub(crate) link: u16,
    /// Who we are among those that share it.
    pub(crate) sharer: Option<LockOwner>,
    /// As many chunks are lent by it at most.
    share: u32,
    /// Pieces that came since the fill ring was filled.
    came: u32,
    ring_errors: RingErrors,
}

impl XskQueue {
    /// Over the rings of a socket on the pool's memory; `link` is the number
    /// of this queue among those of all links.
    ///
    /// # Panics
    /// For a number beyond [`QUEUES_MAX`](crate::umem::QUEUES_MAX), and for
    /// rings of other memory than the pool's.
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

    /// Lends the kernel so many chunks to fill at most from now on, so that there are
    /// some for other queues, too.
    pub fn set_share(&mut self, chunks: u32) {
        self.share = chunks;
    }

    /// As [`refill`](Self::refill), but only where that is worth the cache line
    /// which the kernel writes on another CPU: after some frames. Who is idle
    /// refills.
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

    /// Gives the kernel chunks to fill, as many as there are and it takes;
    /// tells how many.
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
            // In this order, see `sharing`.
            if self.sharer.is_some() {
                journal.store(fill.position());
            }
            umem.set_owner(chunk, Owner::Fill(self.link));
        }
        fill.submit();
        // Where chunks are wanting, it is tried again.
        self.came = room - count;
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

    /// A frame of several pieces: its entries come together.
    #[cold]
    fn take_frags(&mut self) -> Result<RxResult, Corrupt> {
        let there = self.rings.rx.peek(self.rings.rx.entries())?;
        let mut count = 0;
        loop {
            if count == there {
                if there == self.rings.rx.entries() {
                    // It will never end.
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
            // What there is of it is freed.
            _ => Ok(RxResult::Empty),
        }
    }

    /// Makes a received piece ours, before its entry is released.
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
            // In this order, see `sharing`.
            if self.sharer.is_some() {
                journal.store(self.rings.tx.position());
            }
            self.pool.give(chunk);
            umem.set_owner(chunk, Owner::Tx(self.link));
        }
        frame.into_ring();
        Ok(None)
    }

    /// How many entries were put into the tx ring, which the kernel does not
    /// know of yet; 0 where it has still some of before.
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

    /// The bytes of one of these, the oldest is 0; `None` for one that is a
    /// piece of a frame.
    ///
    /// # Panics
    /// Where there are not so many.
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

    /// Takes the oldest of these out again, and frees them: they were sent in
    /// another way.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn pop_unsubmitted(&mut self, count: u32) {
        for index in 0..count {
            let piece = self.rings.tx.unsubmitted_at(index);
            self.reclaim_frag(&piece);
        }
        self.rings.tx.pop_unsubmitted(count);
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
    pub fn reclaim_unsent(&mut self) -> Result<u32, Corrupt> {
        let entries = self.rings.tx.reclaim_unsent()?;
        for piece in &entries {
            self.reclaim_frag(piece);
        }
        Ok(entries.len() as u32)
    }

    /// Frees what was in the tx ring.
    fn reclaim_frag(&mut self, piece: &Descriptor) {
        let chunk = self.pool.umem().chunk(piece.address);
        if !chunk.is_some_and(|chunk| self.pool.take_back(chunk)) {
            self.ring_errors.invalid += 1;
        }
    }

    /// Frees what the kernel still had, after its socket was closed.
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
    pub fn ring_errors(&self) -> RingErrors {
        self.ring_errors
    }
}

enum RxResult {
    Frame(Frame),
    Empty,
    Partial,
}

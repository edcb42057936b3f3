//! Several processes on the same rings, each of which may die at any instruction.
//!
//! At any time one process has the rx side of a queue (rx and fill ring), and one the tx side
//! (tx and completion ring). Each side has a [lock](crate::robust_lock) that names its holder. A process that finds
//! the holder dead takes the lock over, and first brings the rings into a consistent state:
//!
//! | the process died while it | state of the rings | recovery |
//! |---|---|---|
//! | took frames | the first entries of the rx ring are the process's by their owner words, and not released | they are skipped, with the rest of a frame that is partly taken |
//! | gave chunks to be filled | entries of the fill ring were written and not submitted, up to its *journal* | their chunks are freed |
//! | put frames | entries of the tx ring were written and not submitted, up to its *journal* | their chunks are freed, and the frames are lost |
//! | took back sent chunks | the first entries of the completion ring are the process's, and not released | they are skipped |
//!
//! A process writes the entry first, then the journal, then the owner word, and last the ring's
//! position. Therefore an owner word that names the ring is true up to the position, and the
//! journal covers the entries after it. Each step of the recovery can be repeated, so the
//! recovering process may die as well.
//!
//! Then [`reclaim`] frees the chunks that the dead process held. The order matters: an entry must
//! be gone from the rings before another process gets its chunk.

use crate::queue::Corrupt;
use crate::robust_lock::{self, AtomicWord, LockOwner, TryLock};
use crate::umem::{Owner, QueueWord, Umem};
use crate::xsk_queue::XskQueue;

type Step = fn(&mut XskQueue) -> Result<(), Corrupt>;

impl XskQueue {
    /// Shares the rings with other processes from now on: each side may be used only while its
    /// lock is held.
    pub fn share(&mut self, me: LockOwner) {
        self.sharer = Some(me);
    }

    /// Takes the lock of the rx side, if the rings are shared; false if another live process
    /// holds it. Until [`unlock_rx`](Self::unlock_rx) the process may take and release frames
    /// and give chunks to be filled.
    /// chunks lent.
    ///
    /// [`Corrupt`]; the lock is then not held.
    /// [`Corrupt`]; then it is not locked.
    #[inline]
    pub fn lock_rx(&mut self, is_alive: impl Fn(u16) -> bool) -> Result<bool, Corrupt> {
        self.lock_side(
            QueueWord::RxLock,
            is_alive,
            XskQueue::resync_rx,
            XskQueue::recover_rx,
        )
    }

    /// Releases the lock of the rx side.
    #[inline]
    pub fn unlock_rx(&mut self) {
        self.unlock(QueueWord::RxLock);
    }

    /// Takes the lock of the tx side, as [`lock_rx`](Self::lock_rx). Until
    /// [`unlock_tx`](Self::unlock_tx) the process may put, submit and take back frames, and
    /// make the kernel send.
    ///
    /// # Errors
    /// [`Corrupt`]; the lock is then not held.
    #[inline]
    pub fn lock_tx(&mut self, is_alive: impl Fn(u16) -> bool) -> Result<bool, Corrupt> {
        self.lock_side(
            QueueWord::TxLock,
            is_alive,
            XskQueue::resync_tx,
            XskQueue::recover_tx,
        )
    }

    /// Releases the lock of the tx side.
    #[inline]
    pub fn unlock_tx(&mut self) {
        self.unlock(QueueWord::TxLock);
    }

    /// Takes the lock of a side and runs `resync`, and then `recover` if the holder has died;
    /// false if a live process holds the lock.
    #[inline]
    fn lock_side(
        &mut self,
        word: QueueWord,
        is_alive: impl Fn(u16) -> bool,
        resync: Step,
        recover: Step,
    ) -> Result<bool, Corrupt> {
        let ready = match self.try_lock(word, is_alive) {
            None => return Ok(true),
            Some(TryLock::Busy) => return Ok(false),
            Some(TryLock::Acquired) => resync(self),
            Some(TryLock::OwnerDied) => resync(self).and_then(|()| recover(self)),
        };
        ready.inspect_err(|_| self.unlock(word)).map(|()| true)
    }

    #[inline]
    fn try_lock(&self, word: QueueWord, is_alive: impl Fn(u16) -> bool) -> Option<TryLock> {
        let me = self.sharer?;
        let word = self.pool.umem().queue_word(self.link, word);
        Some(robust_lock::try_lock(&word, me, is_alive))
    }

    #[inline]
    fn unlock(&self, word: QueueWord) {
        if self.sharer.is_some() {
            robust_lock::unlock(&self.pool.umem().queue_word(self.link, word));
        }
    }

    /// The position of the rx ring's next entry and whether an entry is there; needs no lock.
    #[inline]
    pub fn peek_position(&self) -> (u32, bool) {
        self.rings.rx.peek_position()
    }

    #[inline]
    fn resync_rx(&mut self) -> Result<(), Corrupt> {
        self.rings.rx.resync();
        self.rings.fill.resync()
    }

    #[inline]
    fn resync_tx(&mut self) -> Result<(), Corrupt> {
        self.rings.completion.resync();
        self.rings.tx.resync()
    }

    #[cold]
    fn recover_rx(&mut self) -> Result<(), Corrupt> {
        let lent = Owner::Fill(self.link);
        let umem = self.pool.umem();
        let journal = umem.queue_word(self.link, QueueWord::FillJournal).load();
        for address in self.rings.fill.unsubmitted(journal) {
            free_if(umem, umem.chunk(address), lent);
        }
        let rx = &mut self.rings.rx;
        let there = rx.peek(rx.entries())?;
        let mut goes_on = false;
        for _ in 0..there {
            let piece = rx.get(0);
            let chunk = umem.chunk(piece.address);
            let is_lent = chunk.is_some_and(|chunk| umem.owner(chunk) == lent);
            if is_lent && !goes_on {
                break;
            }
            free_if(umem, chunk, lent);
            goes_on = piece.is_continued();
            rx.take();
        }
        rx.release();
        Ok(())
    }

    #[cold]
    fn recover_tx(&mut self) -> Result<(), Corrupt> {
        let sent = Owner::Tx(self.link);
        let umem = self.pool.umem();
        let journal = umem.queue_word(self.link, QueueWord::TxJournal).load();
        for piece in self.rings.tx.unsubmitted(journal) {
            free_if(umem, umem.chunk(piece.address), sent);
        }
        let completion = &mut self.rings.completion;
        let there = completion.peek(completion.entries())?;
        for _ in 0..there {
            let chunk = umem.chunk(completion.get(0));
            if chunk.is_some_and(|chunk| umem.owner(chunk) == sent) {
                break;
            }
            completion.take();
        }
        completion.release();
        Ok(())
    }

    /// Completes what a dead process has begun in this queue.
    fn recover_from(&mut self, dead: u16, is_alive: impl Fn(u16) -> bool) -> Result<(), Corrupt> {
        let umem = self.pool.umem();
        let holds = |word| robust_lock::owner(&umem.queue_word(self.link, word)) == Some(dead);
        let (rx, tx) = (holds(QueueWord::RxLock), holds(QueueWord::TxLock));
        // Another process may have recovered the queue already.
        if rx && self.lock_rx(&is_alive)? {
            self.unlock_rx();
        }
        if tx && self.lock_tx(&is_alive)? {
            self.unlock_tx();
        }
        Ok(())
    }
}

fn free_if(umem: &Umem, chunk: Option<u32>, owner: Owner) {
    if let Some(chunk) = chunk {
        umem.change_owner(chunk, owner, Owner::Free);
    }
}

/// Completes what a dead process has begun in any of the queues, and frees the chunks that it
/// held; returns how many. No other process may do so for the same dead process at the same
/// time, nor have its number.
///
/// # Errors
/// [`Corrupt`]; the chunks are freed nevertheless.
pub fn reclaim<'a>(
    umem: &Umem,
    dead: u16,
    queues: impl IntoIterator<Item = &'a mut XskQueue>,
    is_alive: impl Fn(u16) -> bool,
) -> Result<u32, Corrupt> {
    let mut first = Ok(());
    for queue in queues {
        let is_alive = |number| number != dead && is_alive(number);
        first = first.and(queue.recover_from(dead, is_alive));
    }
    let mut freed = 0;
    for chunk in 0..umem.chunks() {
        for owner in [Owner::Process(dead), Owner::Cached(dead)] {
            freed += u32::from(umem.change_owner(chunk, owner, Owner::Free));
        }
    }
    first.map(|()| freed)
}

#[cfg(test)]
mod tests;

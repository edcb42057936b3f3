//! Several processes on the same rings, any of which may die at any
//! instruction.
//!
//! One process at a time has the rx side of a queue (rx and fill ring), and
//! one its tx side (tx and completion ring): each has a [lock]
//! whose holder is known. Who finds the holder dead takes the lock over, and
//! first brings the rings into a state that could have been:
//!
//! | it died while it | what it left | what becomes of it |
//! |---|---|---|
//! | took frames | the first entries of the rx ring are its own by their owner words, and not released | they are skipped, with the rest of a frame it had a part of |
//! | lent chunks | entries of the fill ring that were written and not submitted: up to its *journal* | their chunks are free |
//! | put frames | the same in the tx ring | the same: the frames are lost with it |
//! | took back what was sent | the first entries of the completion ring are its own, and not released | they are skipped |
//!
//! An entry is written first, then the journal, then the owner word, and the
//! ring's position last. So an owner word that says the ring has a chunk is
//! true up to the position, and behind it the journal tells. Whatever was done
//! can be done again: who recovers may die over it.
//!
//! Then the chunks that it held ([`reclaim`]) are free again. In this order:
//! an entry must be gone from the rings before its chunk is somebody else's.

use crate::queue::Corrupt;
use crate::robust_lock::{self, AtomicWord, LockOwner, TryLock};
use crate::umem::{Owner, QueueWord, Umem};
use crate::xsk_queue::XskQueue;

type Step = fn(&mut XskQueue) -> Result<(), Corrupt>;

impl XskQueue {
    /// Has other processes on the rings from now on: before anything is taken
    /// or put, the side's lock is to be had.
    pub fn share(&mut self, me: LockOwner) {
        self.sharer = Some(me);
    }

    /// Takes the lock of the rx side, if its rings are shared: `false` if
    /// another process that lives has it. Between this and
    /// [`unlock_rx`](Self::unlock_rx) frames may be taken and released, and
    /// chunks lent.
    ///
    /// # Errors
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

    /// Lets it go.
    #[inline]
    pub fn unlock_rx(&mut self) {
        self.unlock(QueueWord::RxLock);
    }

    /// The same for the tx side: frames may be put, submitted and taken back
    /// meanwhile, and the kernel be asked to send.
    ///
    /// # Errors
    /// [`Corrupt`]; then it is not locked.
    #[inline]
    pub fn lock_tx(&mut self, is_alive: impl Fn(u16) -> bool) -> Result<bool, Corrupt> {
        self.lock_side(
            QueueWord::TxLock,
            is_alive,
            XskQueue::resync_tx,
            XskQueue::recover_tx,
        )
    }

    /// Lets it go.
    #[inline]
    pub fn unlock_tx(&mut self) {
        self.unlock(QueueWord::TxLock);
    }

    /// Takes the lock of a side; what is to be done before its rings are used,
    /// and before that, where its holder has died.
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

    /// The position of the rx ring's next entry, and whether there is one, by
    /// a look that needs no lock.
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

    /// Recovers what a process that has died was about here.
    fn recover_from(&mut self, dead: u16, is_alive: impl Fn(u16) -> bool) -> Result<(), Corrupt> {
        let umem = self.pool.umem();
        let holds = |word| robust_lock::owner(&umem.queue_word(self.link, word)) == Some(dead);
        let (rx, tx) = (holds(QueueWord::RxLock), holds(QueueWord::TxLock));
        // Another may have been quicker.
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

/// Ends what a process that has died was about in any of the queues, and frees
/// the chunks that it held; tells how many. Nobody else may do the same for
/// this process meanwhile, nor have its number.
///
/// # Errors
/// [`Corrupt`]; its chunks are free all the same.
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

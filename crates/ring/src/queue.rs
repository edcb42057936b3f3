//! The protocol of the four rings of an `AF_XDP` socket, on any [`RingMemory`], so that tests
//! can run it on a model.
//!
//! ```text
//!            consumer            producer
//!               ▼                   ▼
//!  … │ free │ ready │ ready │ ready │ free │ …    index = position mod entries
//! ```
//!
//! Positions are 32 bits, only grow, and wrap. The producer writes entries, then its position
//! (release). The consumer reads that position (acquire), then the entries, and then writes
//! its own position (release), which the producer reads (acquire) before it reuses a slot.
//! `tests/loom_queue.rs` explores all orders.
//!
//! The other side's position is never trusted: an impossible position gives [`Corrupt`], and
//! no entry is accessed.

/// The memory that both sides of a ring share.
pub trait RingMemory {
    /// The type of the ring's entries.
    type Entry: Copy;
    /// Number of slots, a power of two.
    fn entries(&self) -> u32;
    /// The producer's position; acquires what was written before it.
    fn producer(&self) -> u32;
    /// The consumer's position; acquires what was read before it.
    fn consumer(&self) -> u32;
    /// Writes the producer's position; releases the entries before it.
    fn set_producer(&self, position: u32);
    /// Writes the consumer's position; releases the reads before it.
    fn set_consumer(&self, position: u32);
    /// Reads the entry at an index below `entries`.
    fn load(&self, place: u32) -> Self::Entry;
    /// Writes the entry at an index below `entries`.
    fn store(&self, place: u32, entry: Self::Entry);
    /// Whether the other side sleeps and must be called (`XDP_RING_NEED_WAKEUP`).
    fn needs_wakeup(&self) -> bool;
}

/// An impossible position: another writer has changed the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ring of {entries} entries says that it holds {held}: another process has written to it")]
pub struct Corrupt {
    /// Number of slots.
    pub entries: u32,
    /// Number of entries that the positions would imply.
    pub held: u32,
}

/// The producer side, of the fill and the tx ring.
#[derive(Debug)]
pub struct Producer<C: RingMemory> {
    cells: C,
    entries: u32,
    /// Position after the last entry written.
    next: u32,
    /// The position that was last published.
    submitted: u32,
    /// The consumer's position when it was last read.
    consumer: u32,
}

impl<C: RingMemory> Producer<C> {
    /// Continues at the ring's present position.
    pub fn new(cells: C) -> Producer<C> {
        let next = cells.producer();
        Producer {
            entries: cells.entries(),
            next,
            submitted: next,
            consumer: cells.consumer(),
            cells,
        }
    }

    /// Number of entries that may be put now, at most `want`.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn reserve(&mut self, want: u32) -> Result<u32, Corrupt> {
        let mut held = self.next.wrapping_sub(self.consumer);
        if self.entries - held < want {
            self.consumer = self.cells.consumer();
            held = self.next.wrapping_sub(self.consumer);
            if held > self.entries {
                self.consumer = self.next.wrapping_sub(self.entries);
                let entries = self.entries;
                return Err(Corrupt { entries, held });
            }
        }
        Ok((self.entries - held).min(want))
    }

    /// Writes an entry. The other side sees the entry after [`submit`](Self::submit).
    ///
    /// # Panics
    /// Without room that was [reserved](Self::reserve).
    #[inline]
    pub fn put(&mut self, entry: C::Entry) {
        assert!(
            self.next.wrapping_sub(self.consumer) < self.entries,
            "room is reserved first"
        );
        self.cells.store(self.next & (self.entries - 1), entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the entries that were put.
    #[inline]
    pub fn submit(&mut self) {
        if self.submitted != self.next {
            self.submitted = self.next;
            self.cells.set_producer(self.next);
        }
    }

    /// Number of entries that the other side has not yet taken.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn held(&mut self) -> Result<u32, Corrupt> {
        self.consumer = self.cells.consumer();
        let held = self.next.wrapping_sub(self.consumer);
        if held > self.entries {
            self.consumer = self.next.wrapping_sub(self.entries);
            let entries = self.entries;
            return Err(Corrupt { entries, held });
        }
        Ok(held)
    }

    /// Takes back the entries that the other side has not taken, the last first. The caller
    /// must make sure that the other side takes none meanwhile.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn reclaim_unsent(&mut self) -> Result<Vec<C::Entry>, Corrupt> {
        let held = self.held()?;
        let mut entries = Vec::with_capacity(held as usize);
        for _ in 0..held {
            self.next = self.next.wrapping_sub(1);
            entries.push(self.cells.load(self.next & (self.entries - 1)));
        }
        self.submit();
        Ok(entries)
    }

    /// Number of entries that were put and not yet [submitted](Self::submit).
    #[inline]
    pub fn unsubmitted_len(&self) -> u32 {
        self.next.wrapping_sub(self.submitted)
    }

    /// An unsubmitted entry; 0 is the oldest.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn unsubmitted_at(&self, index: u32) -> C::Entry {
        assert!(index < self.unsubmitted_len(), "entries are counted first");
        let place = self.submitted.wrapping_add(index);
        self.cells.load(place & (self.entries - 1))
    }

    /// Removes the oldest `count` unsubmitted entries; the rest move up.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn pop_unsubmitted(&mut self, count: u32) {
        let left = self.unsubmitted_len().checked_sub(count);
        let left = left.expect("entries are counted first");
        for index in 0..left {
            let entry = self.unsubmitted_at(count + index);
            let place = self.submitted.wrapping_add(index);
            self.cells.store(place & (self.entries - 1), entry);
        }
        self.next = self.submitted.wrapping_add(left);
    }

    /// Continues where another process, which had this side before, has stopped.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn resync(&mut self) -> Result<(), Corrupt> {
        self.next = self.cells.producer();
        self.submitted = self.next;
        self.held().map(|_| ())
    }

    /// Position after the last entry written, which is that of the next.
    #[inline]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// The entries up to position `end` that a dead process wrote and did not publish; none if
    /// `end` is impossible.
    pub fn unsubmitted(&self, end: u32) -> Vec<C::Entry> {
        let start = self.cells.producer();
        let count = match end.wrapping_sub(start) {
            count if count <= self.entries => count,
            _ => 0,
        };
        let place = |ahead| start.wrapping_add(ahead) & (self.entries - 1);
        (0..count).map(|n| self.cells.load(place(n))).collect()
    }

    /// Whether the other side sleeps and must be called.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.cells.needs_wakeup()
    }

    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.entries
    }
}

/// The consumer side, of the rx and the completion ring.
#[derive(Debug)]
pub struct Consumer<C: RingMemory> {
    cells: C,
    entries: u32,
    /// Position of the first entry that was not taken.
    next: u32,
    /// The position that was last published.
    released: u32,
    /// The producer's position when it was last read.
    producer: u32,
}

impl<C: RingMemory> Consumer<C> {
    /// Continues at the ring's present position.
    pub fn new(cells: C) -> Consumer<C> {
        let next = cells.consumer();
        Consumer {
            entries: cells.entries(),
            next,
            released: next,
            producer: next,
            cells,
        }
    }

    /// Continues where another process, which had this side before, has stopped. The next
    /// [`peek`](Self::peek) reports an impossible position.
    #[inline]
    pub fn resync(&mut self) {
        self.next = self.cells.consumer();
        self.released = self.next;
        self.producer = self.next;
    }

    /// The consumer's position in shared memory and whether an entry is there, whichever
    /// process takes it.
    #[inline]
    pub fn peek_position(&self) -> (u32, bool) {
        let consumer = self.cells.consumer();
        (consumer, self.cells.producer() != consumer)
    }

    /// Number of entries that can be taken now, at most `want`.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn peek(&mut self, want: u32) -> Result<u32, Corrupt> {
        let mut held = self.producer.wrapping_sub(self.next);
        if held < want {
            self.producer = self.cells.producer();
            held = self.producer.wrapping_sub(self.next);
            // Entries that were taken and not released count, too.
            if self.producer.wrapping_sub(self.released) > self.entries {
                self.producer = self.next;
                let entries = self.entries;
                return Err(Corrupt { entries, held });
            }
        }
        Ok(held.min(want))
    }

    /// The entry that is `ahead` entries after the next one, without taking it.
    ///
    /// # Panics
    /// If [`peek`](Self::peek) has not found that many.
    #[inline]
    pub fn get(&self, ahead: u32) -> C::Entry {
        assert!(
            ahead < self.producer.wrapping_sub(self.next),
            "entries are found first"
        );
        let place = self.next.wrapping_add(ahead) & (self.entries - 1);
        self.cells.load(place)
    }

    /// As [`get`](Self::get), among the entries already found; `None` beyond them.
    #[inline]
    pub fn ahead(&self, ahead: u32) -> Option<C::Entry> {
        let found = ahead < self.producer.wrapping_sub(self.next);
        found.then(|| self.get(ahead))
    }

    /// Takes the next entry. The other side may reuse its slot after
    /// [`release`](Self::release).
    ///
    /// # Panics
    /// If [`peek`](Self::peek) has found none.
    #[inline]
    pub fn take(&mut self) -> C::Entry {
        let entry = self.get(0);
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Returns the slots of taken entries to the other side.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            self.cells.set_consumer(self.next);
        }
    }

    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.entries
    }
}

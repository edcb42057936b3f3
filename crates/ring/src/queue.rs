//! The protocol of the four rings of an `AF_XDP` socket, on any memory: so
//! that it can be tested on a model.
//!
//! ```text
//!            consumer            producer
//!               ▼                   ▼
//!  … │ free │ ready │ ready │ ready │ free │ …    place = position mod entries
//! ```
//!
//! Positions are 32 bits, only grow, and wrap. The producer writes entries,
//! then its position (release); the consumer reads that position (acquire),
//! then the entries, then writes its own (release), which the producer reads
//! (acquire) before it writes a place again. `tests/loom_queue.rs` walks
//! through all orders.
//!
//! The other side's position is never trusted: one that cannot be is
//! [`Corrupt`], and no entry is touched.

/// What both sides of a ring share.
pub trait RingMemory {
    /// What a ring holds.
    type Entry: Copy;
    /// How many entries there are, a power of two.
    fn entries(&self) -> u32;
    /// The producer's position; acquires what was written before it.
    fn producer(&self) -> u32;
    /// The consumer's position; acquires what was read before it.
    fn consumer(&self) -> u32;
    /// Writes the producer's position; releases the entries before it.
    fn set_producer(&self, position: u32);
    /// Writes the consumer's position; releases the reads before it.
    fn set_consumer(&self, position: u32);
    /// Reads the entry of a place, which is less than `entries`.
    fn load(&self, place: u32) -> Self::Entry;
    /// Writes the entry of a place, which is less than `entries`.
    fn store(&self, place: u32, entry: Self::Entry);
    /// Whether the other side sleeps and wants to be called.
    fn needs_wakeup(&self) -> bool;
}

/// A position that cannot be: somebody else writes into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ring of {entries} entries says that it holds {held}: somebody else has written to it")]
pub struct Corrupt {
    /// How many there are.
    pub entries: u32,
    /// How many there would be.
    pub held: u32,
}

/// The side that puts entries in: of the fill and the tx ring.
#[derive(Debug)]
pub struct Producer<C: RingMemory> {
    cells: C,
    entries: u32,
    /// Behind the last entry written.
    next: u32,
    /// What the other side was told.
    submitted: u32,
    /// How far the other side was when we last looked.
    consumer: u32,
}

impl<C: RingMemory> Producer<C> {
    /// Goes on where the ring is.
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

    /// How many entries may be put in now, `want` at most.
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

    /// Puts an entry in. The other side sees it after
    /// [`submit`](Self::submit).
    ///
    /// # Panics
    /// Where no room was [reserved](Self::reserve).
    #[inline]
    pub fn put(&mut self, entry: C::Entry) {
        assert!(
            self.next.wrapping_sub(self.consumer) < self.entries,
            "room is reserved first"
        );
        self.cells.store(self.next & (self.entries - 1), entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the other side what was put in.
    #[inline]
    pub fn submit(&mut self) {
        if self.submitted != self.next {
            self.submitted = self.next;
            self.cells.set_producer(self.next);
        }
    }

    /// How many entries the other side has not taken yet.
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

    /// Takes back what the other side has not taken, the last first; nothing
    /// else may let it take any in the meantime.
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

    /// How many entries were put in that the other side was not
    /// [told](Self::submit) of.
    #[inline]
    pub fn unsubmitted_len(&self) -> u32 {
        self.next.wrapping_sub(self.submitted)
    }

    /// One of those, the oldest is 0.
    ///
    /// # Panics
    /// Where there are not so many.
    #[inline]
    pub fn unsubmitted_at(&self, index: u32) -> C::Entry {
        assert!(index < self.unsubmitted_len(), "entries are counted first");
        let place = self.submitted.wrapping_add(index);
        self.cells.load(place & (self.entries - 1))
    }

    /// Takes the oldest of those out again; the others move up.
    ///
    /// # Panics
    /// Where there are not so many.
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

    /// Goes on where another process that has this side has left it.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn resync(&mut self) -> Result<(), Corrupt> {
        self.next = self.cells.producer();
        self.submitted = self.next;
        self.held().map(|_| ())
    }

    /// Behind the last entry written: the position of the next.
    #[inline]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// The entries that were written up to position `end` and never shown to
    /// the other side, by a process that died; none if that cannot be.
    pub fn unsubmitted(&self, end: u32) -> Vec<C::Entry> {
        let start = self.cells.producer();
        let count = match end.wrapping_sub(start) {
            count if count <= self.entries => count,
            _ => 0,
        };
        let place = |ahead| start.wrapping_add(ahead) & (self.entries - 1);
        (0..count).map(|n| self.cells.load(place(n))).collect()
    }

    /// Whether the other side sleeps and wants to be called.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.cells.needs_wakeup()
    }

    /// How many entries there is room for.
    pub fn entries(&self) -> u32 {
        self.entries
    }
}

/// The side that takes entries out: of the rx and the completion ring.
#[derive(Debug)]
pub struct Consumer<C: RingMemory> {
    cells: C,
    entries: u32,
    /// The first entry that was not taken.
    next: u32,
    /// What the other side was told.
    released: u32,
    /// How far the other side was when we last looked.
    producer: u32,
}

impl<C: RingMemory> Consumer<C> {
    /// Goes on where the ring is.
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

    /// Goes on where another process that has this side has left it. What
    /// cannot be shows with the next [`peek`](Self::peek).
    #[inline]
    pub fn resync(&mut self) {
        self.next = self.cells.consumer();
        self.released = self.next;
        self.producer = self.next;
    }

    /// The position of the next entry in shared memory, and whether there is
    /// one: whichever process takes it.
    #[inline]
    pub fn peek_position(&self) -> (u32, bool) {
        let consumer = self.cells.consumer();
        (consumer, self.cells.producer() != consumer)
    }

    /// How many entries can be taken now, `want` at most.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn peek(&mut self, want: u32) -> Result<u32, Corrupt> {
        let mut held = self.producer.wrapping_sub(self.next);
        if held < want {
            self.producer = self.cells.producer();
            held = self.producer.wrapping_sub(self.next);
            // Those that were taken and not released count, too.
            if self.producer.wrapping_sub(self.released) > self.entries {
                self.producer = self.next;
                let entries = self.entries;
                return Err(Corrupt { entries, held });
            }
        }
        Ok(held.min(want))
    }

    /// The entry `ahead` of the next one, without taking it.
    ///
    /// # Panics
    /// Where so many were not [found](Self::peek).
    #[inline]
    pub fn get(&self, ahead: u32) -> C::Entry {
        assert!(
            ahead < self.producer.wrapping_sub(self.next),
            "entries are found first"
        );
        let place = self.next.wrapping_add(ahead) & (self.entries - 1);
        self.cells.load(place)
    }

    /// As [`get`](Self::get), of those that were found already; `None` beyond
    /// them.
    #[inline]
    pub fn ahead(&self, ahead: u32) -> Option<C::Entry> {
        let found = ahead < self.producer.wrapping_sub(self.next);
        found.then(|| self.get(ahead))
    }

    /// Takes the next entry. Its place is the other side's again after
    /// [`release`](Self::release).
    ///
    /// # Panics
    /// Where none was [found](Self::peek).
    #[inline]
    pub fn take(&mut self) -> C::Entry {
        let entry = self.get(0);
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Gives the places of what was taken back.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            self.cells.set_consumer(self.next);
        }
    }

    /// How many entries there is room for.
    pub fn entries(&self) -> u32 {
        self.entries
    }
}

//! The protocol between the kernel and the reader of a BPF ring buffer, on any [`Memory`], so
//! that tests can run it on a model.
//!
//! The invariant: a record that is committed after the reader has decided to sleep wakes the
//! reader. The reader writes its position, then reads the header of the next record; the
//! kernel writes the header, then reads the position. With a full barrier between the two
//! steps on each side, at least one side sees the other's write. `tests/loom.rs` explores all
//! orders.

/// Bit 31 of a header: the record is reserved and not yet committed.
pub const BUSY: u32 = 1 << 31;

/// Bit 30 of a header: the record is discarded, so that the reader skips it.
pub const DISCARDED: u32 = 1 << 30;

/// Bytes of a record's header.
pub const HEADER_BYTES: u64 = 8;

/// The memory that the reader shares with the kernel.
pub trait Memory {
    /// Bytes of the ring, a power of two.
    fn bytes(&self) -> u64;
    /// The producer's position; acquires what was written before it.
    fn producer(&self) -> u64;
    /// The first word of the record at that position; acquires the record.
    fn header(&self, position: u64) -> u32;
    /// Writes the consumer's position; releases the reader's earlier reads.
    fn publish(&self, position: u64);
    /// Saves the reader's position for the next reader of this ring.
    fn note(&self, position: u64);
    /// A full barrier: earlier writes and later reads keep their order.
    fn barrier(&self);
}

/// Consecutive committed records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Position of the first record.
    pub start: u64,
    /// Position after the last record.
    pub end: u64,
    /// Number of records, without discarded ones.
    pub records: usize,
}

/// A header that the kernel cannot have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// Position of the header.
    pub position: u64,
    /// Value of the header.
    pub header: u32,
}

/// The position of a reader.
#[derive(Debug)]
pub struct Cursor {
    /// The first record that was not released.
    next: u64,
    /// The position that was last published to the kernel.
    published: u64,
}

impl Cursor {
    /// Continues where the ring's last reader has released: at `noted`, or at `published` if
    /// that is further, because the last reader was another program. If neither position is
    /// possible, skips all records.
    pub fn resume(memory: &impl Memory, published: u64, noted: u64) -> Cursor {
        let producer = memory.producer();
        let possible = |position: u64| {
            let ahead = producer.checked_sub(position);
            position.is_multiple_of(8) && ahead.is_some_and(|ahead| ahead <= memory.bytes())
        };
        let left = [published, noted].into_iter().filter(|p| possible(*p));
        Cursor {
            next: left.max().unwrap_or(producer),
            published,
        }
    }

    /// Position of the first record that was not released.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether the next record is committed (it may be a discarded one).
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        memory.producer() != self.next && memory.header(self.next) & BUSY == 0
    }

    /// The records that can be read now: up to the first record that is still being written,
    /// at most `records_max`, and at most `bytes_max` bytes, except that the first record may
    /// have any length.
    ///
    /// # Errors
    /// If a header leads outside of the produced bytes.
    pub fn scan(
        &self,
        memory: &impl Memory,
        records_max: usize,
        bytes_max: u64,
    ) -> Result<Span, Corrupt> {
        let producer = memory.producer();
        let mut span = Span {
            start: self.next,
            end: self.next,
            records: 0,
        };
        while span.end != producer && span.records < records_max {
            let position = span.end;
            let header = memory.header(position);
            if header & BUSY != 0 {
                break;
            }
            let end = position + record_bytes(header);
            if end > producer || end - position > memory.bytes() {
                return Err(Corrupt { position, header });
            }
            if span.records > 0 && end - span.start > bytes_max {
                break;
            }
            span.end = end;
            span.records += usize::from(header & DISCARDED == 0);
        }
        Ok(span)
    }

    /// Releases everything before `end`. Publishes a position 8 bytes short of `end`, so that
    /// the kernel sends no wake-up.
    pub fn release(&mut self, memory: &impl Memory, end: u64) {
        if end == self.next {
            return;
        }
        self.next = end;
        // In this order, because `resume` takes the further position.
        memory.note(end);
        self.published = end - HEADER_BYTES;
        memory.publish(self.published);
    }

    /// Publishes the exact position, so that the next commit wakes the reader, and checks once
    /// more. Returns true if there is no record: the caller may sleep until woken.
    pub fn arm(&mut self, memory: &impl Memory) -> bool {
        if self.published != self.next {
            self.published = self.next;
            memory.publish(self.published);
        }
        memory.barrier();
        !self.is_ready(memory)
    }
}

/// Bytes from the start of a record to the start of the next.
pub fn record_bytes(header: u32) -> u64 {
    let len = header & !(BUSY | DISCARDED);
    u64::from(len).next_multiple_of(8) + HEADER_BYTES
}

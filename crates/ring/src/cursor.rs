//! The protocol between the kernel and the reader, on any memory: so that it
//! can be tested on a model of both.
//!
//! What must hold: a record that is committed after the reader has decided
//! to sleep wakes it. The reader writes its position, then reads the header
//! of the next record; the kernel writes the header, then reads the position.
//! With a full barrier between the two on each side, one of them sees the
//! other's. `tests/loom.rs` walks through all orders.

/// Bit 31 of a header: reserved, not committed.
pub const BUSY: u32 = 1 << 31;

/// Bit 30 of a header: to be skipped.
pub const DISCARDED: u32 = 1 << 30;

/// Bytes of a record's header.
pub const HEADER_BYTES: u64 = 8;

/// What the reader shares with the kernel.
pub trait Memory {
    /// Bytes of the ring, a power of two.
    fn bytes(&self) -> u64;
    /// The producer's position; acquires what was written before it.
    fn producer(&self) -> u64;
    /// The first word of the record at that position; acquires the record.
    fn header(&self, position: u64) -> u32;
    /// Writes the consumer's position; releases our reads before it.
    fn publish(&self, position: u64);
    /// Notes where the reader is, for the next reader of this ring.
    fn note(&self, position: u64);
    /// A full barrier: writes before it and reads behind it keep their order.
    fn barrier(&self);
}

/// Committed records, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Position of the first.
    pub start: u64,
    /// Position behind the last.
    pub end: u64,
    /// How many, discarded ones not counted.
    pub records: usize,
}

/// A header that no kernel writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// Its position.
    pub position: u64,
    /// What is there.
    pub header: u32,
}

/// Where the reader is.
#[derive(Debug)]
pub struct Cursor {
    /// The first record that was not released.
    next: u64,
    /// What the kernel was told last.
    published: u64,
}

impl Cursor {
    /// Goes on where the last reader of the ring released: at `noted`, or at
    /// `published` where that is further, since the reader was none of ours.
    /// Where neither can be, skips what is there.
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

    /// Whether a record is to be read (or skipped).
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        memory.producer() != self.next && memory.header(self.next) & BUSY == 0
    }

    /// What can be read now: up to the first record that is still being
    /// written, and up to a number of records and of bytes, but for the first
    /// record, which may be of any length.
    ///
    /// # Errors
    /// On a header that leads outside of what was produced.
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

    /// Gives everything before `end` back to the kernel. It is told 8 bytes
    /// less, so that it wakes nobody.
    pub fn release(&mut self, memory: &impl Memory, end: u64) {
        if end == self.next {
            return;
        }
        self.next = end;
        // In this order: whoever resumes takes the further one.
        memory.note(end);
        self.published = end - HEADER_BYTES;
        memory.publish(self.published);
    }

    /// Says exactly where we are, so that the next commit wakes; then looks
    /// once more. `true`: nothing is there, the caller may sleep until woken.
    pub fn arm(&mut self, memory: &impl Memory) -> bool {
        if self.published != self.next {
            self.published = self.next;
            memory.publish(self.published);
        }
        memory.barrier();
        !self.is_ready(memory)
    }
}

/// Bytes from a record to the next.
pub fn record_bytes(header: u32) -> u64 {
    let len = header & !(BUSY | DISCARDED);
    u64::from(len).next_multiple_of(8) + HEADER_BYTES
}

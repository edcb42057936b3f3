//! The protocol of one ring of frames between two processes, on any [`Memory`], so that tests can
//! run it on a model.
//!
//! ```text
//!            consumer                 producer
//!               ▼                        ▼
//!  … │  free  │ length │ frame │ length │ frame │  free  │ …     index = position mod bytes
//! ```
//!
//! Positions count bytes, only grow, and are multiples of 8; so is what a frame takes, with the
//! length before it. The producer writes frames, then its position (release). The consumer reads
//! that position (acquire), copies the frame, and then writes its own position (release), which
//! the producer reads (acquire) before it writes there again.
//!
//! A consumer that is about to sleep says so, and then looks once more for frames; a producer
//! writes its position, and then looks whether the consumer sleeps. With a full barrier between
//! the two steps on each side, at least one side sees the other's write. So do a producer that
//! waits for room and the consumer that makes room. `tests/loom_frame_ring.rs` explores all orders.
//!
//! The other side is never trusted: a position or a length that cannot be empties the ring.

/// Longest frame in bytes: the longest IPv6 packet and a VLAN-tagged Ethernet header.
pub const FRAME_LEN_MAX: usize = 40 + 65_535 + 18;

/// Bytes before a frame: its length.
const LENGTH_BYTES: u64 = 8;

/// The memory that both sides of a ring share.
pub trait Memory {
    /// Bytes of the ring, a power of two.
    fn bytes(&self) -> u64;
    /// The producer's position, a multiple of 8; acquires what was written before it.
    fn producer(&self) -> u64;
    /// The consumer's position; acquires what was read before it.
    fn consumer(&self) -> u64;
    /// Writes the producer's position; releases the frames before it.
    fn set_producer(&self, position: u64);
    /// Writes the consumer's position; releases the reads before it.
    fn set_consumer(&self, position: u64);
    /// The word at a position, a multiple of 8.
    fn load(&self, position: u64) -> u64;
    /// Writes the word at a position, a multiple of 8.
    fn store(&self, position: u64, word: u64);
    /// Copies the bytes from a position on.
    fn read(&self, position: u64, to: &mut [u8]);
    /// Copies bytes to a position and those after it.
    fn write(&self, position: u64, from: &[u8]);
    /// A full barrier: earlier writes and later reads keep their order.
    fn barrier(&self);
    /// Says whether the consumer sleeps.
    fn set_asleep(&self, asleep: bool);
    /// Whether the consumer said that it sleeps; the caller wakes it, and no other process does.
    fn take_asleep(&self) -> bool;
    /// Says whether the producer waits for room.
    fn set_waiting(&self, waiting: bool);
    /// Whether the producer said that it waits; the caller wakes it.
    fn take_waiting(&self) -> bool;
}

/// Bytes of the ring that a frame takes.
fn taken_by(len: usize) -> u64 {
    LENGTH_BYTES + (len as u64).next_multiple_of(8)
}

/// The side that puts frames.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    /// Position after the last frame put, and the position that was last published.
    next: u64,
    submitted: u64,
    /// The consumer's position when it was last read.
    consumer: u64,
}

impl<M: Memory> Producer<M> {
    /// Continues at the ring's present position.
    pub fn new(memory: M) -> Producer<M> {
        let next = memory.producer();
        Producer {
            next,
            submitted: next,
            consumer: memory.consumer(),
            memory,
        }
    }

    fn fits(&self, consumer: u64, len: usize) -> bool {
        let held = self.next.wrapping_sub(consumer);
        let room = self.memory.bytes().checked_sub(held);
        room.is_some_and(|room| room >= taken_by(len))
    }

    /// Reads the consumer's position. One that cannot be follows from a position of this side that another
    /// process has written: this side writes its own again, and the consumer skips to there.
    fn look(&mut self) {
        self.consumer = self.memory.consumer();
        if self.next.wrapping_sub(self.consumer) > self.memory.bytes() {
            self.memory.set_producer(self.submitted);
        }
    }

    /// Puts a frame, which the consumer sees after [`submit`](Self::submit); false without room, or
    /// if it is longer than [`FRAME_LEN_MAX`].
    pub fn put(&mut self, parts: &[&[u8]]) -> bool {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > FRAME_LEN_MAX {
            return false;
        }
        if !self.fits(self.consumer, len) {
            self.look();
            if !self.fits(self.consumer, len) {
                return false;
            }
        }
        self.memory.store(self.next, len as u64);
        let mut at = self.next.wrapping_add(LENGTH_BYTES);
        for part in parts {
            self.memory.write(at, part);
            at = at.wrapping_add(part.len() as u64);
        }
        self.next = self.next.wrapping_add(taken_by(len));
        true
    }

    /// Bytes that were put and not submitted.
    pub fn unsubmitted(&self) -> u64 {
        self.next.wrapping_sub(self.submitted)
    }

    /// Publishes the frames that were put; returns whether the caller must wake the consumer.
    pub fn submit(&mut self) -> bool {
        if self.unsubmitted() == 0 {
            return false;
        }
        self.submitted = self.next;
        self.memory.set_producer(self.next);
        self.memory.barrier();
        self.memory.take_asleep()
    }

    /// The position up to which the consumer has taken frames.
    pub fn taken(&self) -> u64 {
        self.memory.consumer()
    }

    /// Asks the consumer to wake this side once it makes room; false if there is room for a frame
    /// of `len` bytes.
    pub fn wait_for_room(&mut self, len: usize) -> bool {
        self.memory.set_waiting(true);
        self.memory.barrier();
        self.look();
        let fits = self.fits(self.consumer, len);
        if fits {
            self.memory.set_waiting(false);
        }
        !fits
    }
}

/// The side that takes frames.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    next: u64,
}

impl<M: Memory> Consumer<M> {
    /// Begins with the frames that are put from now on.
    pub fn new(memory: M) -> Consumer<M> {
        let mut consumer = Consumer { next: 0, memory };
        consumer.skip();
        consumer
    }

    fn skip(&mut self) {
        self.next = self.memory.producer();
        self.memory.set_consumer(self.next);
    }

    /// The length of the next frame; `None` if there is none. A ring that cannot be is emptied.
    pub fn peek(&mut self) -> Option<usize> {
        let held = self.memory.producer().wrapping_sub(self.next);
        if held == 0 {
            return None;
        }
        let is_sound = held <= self.memory.bytes();
        let len = is_sound.then(|| self.memory.load(self.next));
        let len = len.and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|len| *len <= FRAME_LEN_MAX && taken_by(*len) <= held);
        if len.is_none() {
            self.skip();
        }
        len
    }

    /// Copies bytes of the next frame, from this one on; the rest of `to` is undefined if the frame
    /// is shorter.
    pub fn read(&self, from: usize, to: &mut [u8]) {
        let at = self.next.wrapping_add(LENGTH_BYTES + from as u64);
        self.memory.read(at, to);
    }

    /// Takes the next frame, which has this length, out of the ring.
    pub fn take(&mut self, len: usize) {
        self.next = self.next.wrapping_add(taken_by(len));
        self.memory.set_consumer(self.next);
    }

    /// To be called after frames were taken: returns whether the caller must wake the producer.
    pub fn has_taken(&self) -> bool {
        self.memory.barrier();
        self.memory.take_waiting()
    }

    /// Whether there is a frame.
    pub fn is_ready(&self) -> bool {
        self.memory.producer() != self.next
    }

    /// Writes the position again if another process has changed it.
    fn restate(&self) {
        if self.memory.consumer() != self.next {
            self.memory.set_consumer(self.next);
        }
    }
}

/// Says that the process which takes from these rings is about to sleep; false if there are frames,
/// or no rings. The rings have one such word together.
pub fn arm<M: Memory>(rings: &[Consumer<M>]) -> bool {
    let Some(first) = rings.first() else {
        return false;
    };
    first.memory.set_asleep(true);
    first.memory.barrier();
    let mut none = true;
    for ring in rings {
        ring.restate();
        none &= !ring.is_ready();
    }
    if !none {
        first.memory.set_asleep(false);
    }
    none
}

/// Says that the process which takes from these rings is awake.
pub fn disarm<M: Memory>(rings: &[Consumer<M>]) {
    if let Some(first) = rings.first() {
        first.memory.set_asleep(false);
    }
}

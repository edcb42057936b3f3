//! In-memory links with two ends and seeded, repeatable impairments.
//!
//! ```text
//!  send ─► too long? ─► queue ─► line ─► lost? ─► changed? ─► doubled? ─► delay ─► receive
//!                       limit    rate                                     jitter
//! ```
//!
//! The caller passes the time, in nanoseconds from any origin: the link has no clock. The same
//! seed, settings and calls give the same frames at the same times. Each frame draws the same
//! number of random numbers whatever the settings are, so that changing one probability does not
//! change which frames the others affect.
//!
//! For each dropped frame the sender gets a [`DropReason`], and a counter counts it. [`traffic`]
//! generates frames to send.

mod direction;
mod rng;
pub mod traffic;

pub use direction::{Counters, DropReason, Impairments, InvalidImpairments};

use direction::Direction;

/// One of a link's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The first end.
    A,
    /// The second end.
    B,
}

/// A received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The frame's bytes, possibly corrupted.
    pub bytes: Vec<u8>,
    /// When it was sent, in nanoseconds.
    pub sent_ns: u64,
    /// Arrival time, in nanoseconds; may be before the call that received the frame.
    pub arrived_ns: u64,
}

/// A link between two ends in one program.
#[derive(Debug)]
pub struct MemLink {
    a_to_b: Direction,
    b_to_a: Direction,
}

impl MemLink {
    /// A link with impairments for each direction.
    ///
    /// # Errors
    /// If a probability exceeds 1,000,000 ppm, or a rate is zero.
    pub fn new(
        a_to_b: Impairments,
        b_to_a: Impairments,
        seed: u64,
    ) -> Result<MemLink, InvalidImpairments> {
        Ok(MemLink {
            a_to_b: Direction::new(a_to_b, seed)?,
            b_to_a: Direction::new(b_to_a, !seed)?,
        })
    }

    /// A link that delivers every frame at once and in order.
    pub fn perfect() -> MemLink {
        let perfect = Impairments::default();
        MemLink::new(perfect, perfect, 0).expect("nothing is impaired")
    }

    /// Sends a frame from one end at `now_ns`. An earlier `now_ns` than a previous one of this
    /// direction counts as the previous one.
    ///
    /// # Errors
    /// The reason why the frame will not arrive; a real sender would not learn of a loss.
    pub fn send(&mut self, from: End, now_ns: u64, bytes: &[u8]) -> Result<(), DropReason> {
        match from {
            End::A => self.a_to_b.send(now_ns, bytes),
            End::B => self.b_to_a.send(now_ns, bytes),
        }
    }

    /// The next frame that has arrived at `at` by `now_ns`; `None` if there is none.
    pub fn receive(&mut self, at: End, now_ns: u64) -> Option<Received> {
        match at {
            End::A => self.b_to_a.receive(now_ns),
            End::B => self.a_to_b.receive(now_ns),
        }
    }

    /// Arrival time of the next frame at `at`, which may be in the past: the time to call
    /// [`MemLink::receive`] again. `None` if no frame is in flight.
    pub fn next_arrival_ns(&self, at: End) -> Option<u64> {
        match at {
            End::A => self.b_to_a.next_arrival_ns(),
            End::B => self.a_to_b.next_arrival_ns(),
        }
    }

    /// The counters of the frames sent from one end.
    pub fn counters(&self, from: End) -> Counters {
        match from {
            End::A => self.a_to_b.counters(),
            End::B => self.b_to_a.counters(),
        }
    }
}

//! The in-memory link: two ends, and between them what real links do to
//! frames, seeded and repeatable.
//!
//! ```text
//!  send ─► too long? ─► queue ─► line ─► lost? ─► changed? ─► doubled? ─► delay ─► receive
//!                       limit    rate                                     jitter
//! ```
//!
//! Time is passed in, in nanoseconds from any start: the link has no clock. The
//! same seed, settings and calls give the same frames at the same times; each
//! frame draws as many numbers whatever the settings are, so that changing one
//! chance leaves the others' victims as they were.
//!
//! Every frame that is not carried has a [`DropReason`], told to the sender and
//! counted. [`traffic`] makes frames to send.

mod direction;
mod rng;
pub mod traffic;

pub use direction::{Counters, DropReason, Impairments, InvalidImpairments};

use direction::Direction;

/// One of a link's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The one.
    A,
    /// The other.
    B,
}

/// A frame that has come through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its bytes, perhaps changed on the way.
    pub bytes: Vec<u8>,
    /// When it was sent, in nanoseconds.
    pub sent_ns: u64,
    /// When it came, which may be before it was asked for, in nanoseconds.
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
    /// If a chance is above a million in a million, or a rate is zero.
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

    /// A link that carries everything at once and in order.
    pub fn perfect() -> MemLink {
        let perfect = Impairments::default();
        MemLink::new(perfect, perfect, 0).expect("nothing is impaired")
    }

    /// Sends a frame from one end at `now_ns`. Time never goes back: an earlier
    /// `now_ns` counts as the latest of this direction.
    ///
    /// # Errors
    /// Why it will not arrive. A real sender would not learn of a loss.
    pub fn send(&mut self, from: End, now_ns: u64, bytes: &[u8]) -> Result<(), DropReason> {
        match from {
            End::A => self.a_to_b.send(now_ns, bytes),
            End::B => self.b_to_a.send(now_ns, bytes),
        }
    }

    /// The next frame that has come to `at` by `now_ns`.
    pub fn receive(&mut self, at: End, now_ns: u64) -> Option<Received> {
        match at {
            End::A => self.b_to_a.receive(now_ns),
            End::B => self.a_to_b.receive(now_ns),
        }
    }

    /// When the next frame comes to `at`, or came: the time to call
    /// [`MemLink::receive`] again.
    pub fn next_arrival_ns(&self, at: End) -> Option<u64> {
        match at {
            End::A => self.b_to_a.next_arrival_ns(),
            End::B => self.a_to_b.next_arrival_ns(),
        }
    }

    /// What became of the frames sent from one end.
    pub fn counters(&self, from: End) -> Counters {
        match from {
            End::A => self.a_to_b.counters(),
            End::B => self.b_to_a.counters(),
        }
    }
}

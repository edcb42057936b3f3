//! The trait of a stage.

use crate::batch::{Batch, Output};
use crate::flow::{Direction, Endpoints};

/// What a stage has gone on with, see [`Stage::restore`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// Sessions.
    pub sessions: u64,
    /// Sessions that the configuration no longer allows, or whose time is over.
    pub left_out: u64,
}

/// The reason why a stage does not go on from a saved state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// It is of another version, or cut short.
    #[error("it is damaged, or of another version of weir")]
    Damaged,
    /// The size of blocks is another one.
    #[error("block was {was}, and is {is}")]
    Block {
        /// The earlier size.
        was: u32,
        /// The size that is configured.
        is: u32,
    },
    /// The stage has sessions of its own already.
    #[error("the stage has begun sessions before")]
    Late,
    /// The stage keeps no state.
    #[error("a stage of this kind keeps no state")]
    None,
}

/// A network function between the inside and the outside. It is pure: the time
/// is passed in, in ns of a clock that does not go back.
///
/// A stage sees each frame that the kernel does not forward by an entry. What
/// it does to a packet it does by edits or by raw access, see [`Packet`](crate::Packet);
/// the chain makes entries of the edits. A stage without state needs
/// [`outward`](Self::outward) and [`inward`](Self::inward) alone.
pub trait Stage: Send {
    /// The kind of the stage, as in the configuration: `"nat"`.
    fn kind(&self) -> &'static str;

    /// Processes packets on their way out. May send further frames.
    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output);

    /// Processes packets on their way in.
    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output);

    /// Whether the stage's filter selects the packets of this direction; if not,
    /// the stage gets all. A stage that translates needs the replies to what its
    /// filter selected, whose addresses the filter does not know.
    fn filters(&self, _direction: Direction) -> bool {
        true
    }

    /// Whether a packet from the inside goes out through the chain and in again,
    /// before the base sees it: hairpinning (RFC 4787 §6).
    fn turns(&self, _endpoints: &Endpoints) -> bool {
        false
    }

    /// Processes what is due; called at [`next_deadline`](Self::next_deadline), and more often.
    fn poll(&mut self, _now: u64, _output: &mut Output) {}

    /// The next time for [`poll`](Self::poll); `None` if nothing is due.
    fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// An entry that carries this cookie (see [`Packet::remember`](crate::Packet::remember)) last
    /// forwarded a frame at `used`. Returns whether the entry still holds; each
    /// entry is asked about once a second.
    fn used(&mut self, _cookie: u64, _direction: Direction, _used: u64) -> bool {
        true
    }

    /// The next cookie whose entries no longer hold: the caller ends them before
    /// it processes another frame. `None` if there is none.
    fn withdrawn(&mut self) -> Option<u64> {
        None
    }

    /// The next line of the stage's log, without its end; `None` if there is
    /// none. The time of a line is the `now` of the call that caused it.
    fn next_line(&mut self) -> Option<String> {
        None
    }

    /// The state that a later stage of the kind goes on from, as bytes; `None` if there
    /// is none. What the kernel has by entries is not in it.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Goes on from the state that an earlier stage has saved, before the first
    /// packet. Its clock went on: `now` is not before the earlier stage's.
    ///
    /// # Errors
    /// If the state cannot be taken; then nothing changes.
    fn restore(&mut self, _now: u64, _saved: &[u8]) -> Result<Restored, RestoreError> {
        Err(RestoreError::None)
    }

    /// The stage's own counters, by name.
    fn counters(&self, _each: &mut dyn FnMut(&'static str, u64)) {}

    /// Whether frames may pass without this stage when the process has died
    /// (bypass `wire`). Not those of a translator or a firewall.
    fn may_bypass(&self) -> bool {
        true
    }
}

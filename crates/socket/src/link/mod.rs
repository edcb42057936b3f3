//! What a [`Net`](crate::Net) is on.

mod mem;
mod tap;

pub use mem::{Mem, mem, mem_with};
pub use tap::Tap;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use weir_stack::Outlet;

/// Frames that [`Link::receive`] hands over at most in one call: then the
/// stack sends what it has to, and programs have their turn.
pub const BATCH: usize = 64;

/// A device that a host sends and receives frames on: whole Ethernet frames
/// without check sequence.
///
/// Its [`Outlet`] takes what is sent. A frame it has no room for stays with
/// the stack, which tries again when the link says so.
pub trait Link: Outlet + Send {
    /// Readable when frames wait to be received; writable when frames can be
    /// sent again after the outlet gave no room.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Hands over frames that have come, [`BATCH`] at most; whether there may
    /// be more.
    ///
    /// # Errors
    /// If no more will ever come: the device is gone.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<bool>;

    /// Whether the outlet has given no room, and waits to be writable.
    fn is_full(&self) -> bool {
        false
    }

    /// Before [`Link::fd`] is waited for: false if there are frames already.
    fn arm(&mut self) -> bool {
        true
    }

    /// How long until a frame comes that the descriptor does not tell of.
    fn next_arrival(&self) -> Option<Duration> {
        None
    }
}

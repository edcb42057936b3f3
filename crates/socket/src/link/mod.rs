//! What a [`Net`](crate::Net) is on.

mod mem;
mod port;
mod tap;

pub use mem::{Mem, mem, mem_with};
pub use port::{Port, PortOptions};
pub use tap::Tap;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use weir_stack::TxSink;
use weir_stack::iface::{Offload, RxMeta};

/// Frames that [`Link::receive`] hands over at most in one call: then the
/// stack sends what it has to, and programs have their turn.
pub const BATCH: usize = 64;

/// What takes frames from a link.
pub type RxSink<'a> = dyn FnMut(&[u8], RxMeta) + 'a;

/// Who takes frames and waits to read what the next one of them brings.
pub trait DirectReceiver {
    /// How many bytes of the next frame are headers, if it is as hoped for, and where
    /// what follows them is to be put; the latter is empty if nothing is hoped for.
    /// Asked again before anything was taken, it is the same: bytes of another frame
    /// may have been put there meanwhile, and stay.
    fn buffer(&mut self) -> (usize, &mut [u8]);

    /// A frame has come, of which `count` bytes were put there, behind `head`, and no
    /// more follow; false if it is another than was hoped for: then it comes whole.
    fn placed(&mut self, head: &[u8], count: usize, received: RxMeta) -> bool;

    /// A frame has come.
    fn receive(&mut self, frame: &[u8], received: RxMeta);
}

/// A device that a host sends and receives frames on: whole Ethernet frames
/// without check sequence.
///
/// Its [`TxSink`] takes what is sent. A frame it has no room for stays with
/// the stack, which tries again when the link says so.
pub trait Link: TxSink + Send {
    /// Readable when frames wait to be received; writable when frames can be
    /// sent again after the outlet gave no room.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What the link does with frames that are sent.
    fn offload(&self) -> Offload {
        Offload::default()
    }

    /// Hands over frames that have come, about [`BATCH`] at most, with what the
    /// link knows of each; whether there may be more.
    ///
    /// # Errors
    /// If no more will ever come: the device is gone.
    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool>;

    /// As [`Link::receive`], where the bytes of a frame may go to who reads them at
    /// once, by a link that can.
    ///
    /// # Errors
    /// As there.
    fn receive_to(&mut self, reader: &mut dyn DirectReceiver) -> io::Result<bool> {
        self.receive(&mut |frame, received| reader.receive(frame, received))
    }

    /// The stack has sent what it had to: what the link has gathered goes out.
    fn flush(&mut self) {}

    /// Whether the outlet has given no room, and waits to be writable.
    fn is_full(&self) -> bool {
        false
    }

    /// Before [`Link::fd`] is waited for: false if there are frames already.
    fn arm(&mut self) -> bool {
        true
    }

    /// How long until there is something that the descriptor does not tell of: a
    /// frame, or that the device is gone.
    fn next_arrival(&self) -> Option<Duration> {
        None
    }
}

//! [`Link`]: the device that a [`Net`](crate::Net) sends and receives frames on.

mod claim;
mod hairpin;
mod mem;
mod port;
mod shm;
mod tap;

pub use hairpin::Hairpin;
pub use mem::{Mem, mem, mem_with};
pub use port::{Port, PortOptions};
pub use shm::{SHM_MTU, Shm, is_of_shared_link};
pub use tap::Tap;
/// Entries of the io_uring(7) that a [`Tap`] sends with.
pub use weir_link::net::RING_ENTRIES;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use weir_stack::TxSink;
use weir_stack::iface::{Offload, RxMeta};

/// Largest number of frames that one call of [`Link::receive`] hands over. The limit lets the
/// stack send, and applications run, in between.
pub const BATCH: usize = 64;

/// The callback that takes received frames.
pub type RxSink<'a> = dyn FnMut(&[u8], RxMeta) + 'a;

/// A receiver that can take the payload of the next frame straight into its own buffer.
pub trait DirectReceiver {
    /// The number of header bytes of the expected frame, and the buffer for the payload that
    /// follows them; the buffer is empty if no frame is expected. A second call before any
    /// frame was taken returns the same. The link may already have written bytes of another
    /// frame to the buffer, which stay.
    fn buffer(&mut self) -> (usize, &mut [u8]);

    /// Takes a frame of which `head` are the headers and `count` bytes were written to the
    /// buffer; no bytes follow. Returns false if the frame is not the expected one: the link
    /// then passes the whole frame to [`DirectReceiver::receive`].
    fn placed(&mut self, head: &[u8], count: usize, received: RxMeta) -> bool;

    /// Takes a whole frame.
    fn receive(&mut self, frame: &[u8], received: RxMeta);
}

/// A device that a host sends and receives frames on: whole Ethernet frames without frame
/// check sequence.
///
/// Its [`TxSink`] takes the frames that are sent. A frame without room stays with the stack,
/// which tries again when the link is writable.
pub trait Link: TxSink + Send {
    /// A descriptor that is readable when received frames wait, and writable when the link
    /// takes frames again after it was full.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The offloads that the link does for sent frames.
    fn offload(&self) -> Offload {
        Offload::default()
    }

    /// Hands over received frames, about [`BATCH`] at most, with what the link knows of each.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// If no more frames can arrive, because the device is gone.
    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool>;

    /// As [`Link::receive`]; a link that can do so writes a frame's payload straight into the
    /// reader's buffer.
    ///
    /// # Errors
    /// As [`Link::receive`].
    fn receive_to(&mut self, reader: &mut dyn DirectReceiver) -> io::Result<bool> {
        self.receive(&mut |frame, received| reader.receive(frame, received))
    }

    /// Hands over frames that the host has sent to itself; returns whether there were any. See
    /// [`Hairpin`].
    fn receive_looped(&mut self, _take: &mut RxSink<'_>) -> bool {
        false
    }

    /// Sends the frames that the link has gathered; called when the stack has sent all it had.
    fn flush(&mut self) {}

    /// Whether the link was full and waits to be writable.
    fn is_full(&self) -> bool {
        false
    }

    /// Prepares waiting for [`Link::fd`]; false if frames are already there.
    fn arm(&mut self) -> bool {
        true
    }

    /// Leaves what other processes share with this one, as the process ends; the link is not used any more.
    fn leave(&mut self) {}

    /// Time until an event that the descriptor does not signal: a frame, or the device's
    /// removal. `None` if there is no such event.
    fn next_arrival(&self) -> Option<Duration> {
        None
    }
}

//! Rings in memory that is shared with the kernel.
//!
//! [`Reader`] takes the records out of a BPF ring buffer, in batches and
//! without copies. It needs nothing but a descriptor of the ring: no
//! privilege, no bpf(2), nothing else of ours. [`XskTx`] sends through
//! an `AF_XDP` socket that it is given. [`umem`] is the memory of frames that
//! are passed by pointer, [`XskRings`] the four rings that pass them, [`Zeroed`] is memory
//! of this process alone, and
//! [`queue`] the protocol of these. Several processes may have one memory and
//! its rings: see [`shared_queue`].
//!
//! ```text
//!  offset        what                              we may
//!  0             consumer page: u64 position       read and write
//!                  (at 64: u64, where a reader got to; ours, see Reader)
//!  page          producer page: u64 position       read
//!  2 × page      records                           read
//!  … + bytes     the same records once more, so    read
//!                that each lies in one piece
//!
//!  record, on a multiple of 8:
//!  u32 len │ bit 31 busy: not committed yet, bit 30 discarded
//!  u32 (the kernel's)
//!  len bytes, padded to a multiple of 8
//! ```
//!
//! Positions only grow; modulo the size they are places. The kernel appends
//! at the producer's and never touches a record again, from its commit until
//! the consumer's position has passed it.
//!
//! # Wake-ups
//!
//! The kernel wakes the reader when it commits the very record that the
//! consumer's position points to. A reader that keeps up would so be woken
//! for each record, which costs more than the record. Therefore, while awake
//! it publishes a position 8 bytes short of where it is: no record will ever
//! begin there. Before it sleeps it publishes exactly, and looks once more:
//! see [`cursor`]. After a burst it may first nap for some microseconds, so
//! that a steady load is served in batches without any wake-up: see
//! [`Mode`].

mod coalesce;
pub mod cursor;
#[cfg(test)]
mod fault_injection;
mod fork;
mod mapping;
pub mod pool;
pub mod queue;
mod ringbuf;
mod ringbuf_map;
pub mod robust_lock;
pub mod shared_queue;
pub mod umem;
mod xsk;
mod xsk_queue;
mod xsk_tx;
mod zeroed;

pub use pool::{Frame, Pool};
pub use ringbuf::{Batch, Error, Mode, Reader, Records, Woke};
pub use umem::Umem;
pub use xsk::{Descriptor, MappedRing, RingSizes, Words, XskRings};
pub use xsk_queue::{RingErrors, XskQueue};
pub use xsk_tx::{SendError, XskTx};
pub use zeroed::Zeroed;

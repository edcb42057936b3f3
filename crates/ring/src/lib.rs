//! Rings and frame memory that processes share with the kernel: BPF ring buffers,
//! `AF_XDP` rings and the UMEM behind them.
//!
//! The other crates use this one so that shared memory, and the unchecked code that it
//! needs, stays in one place. In reading order:
//!
//! | module or type | what |
//! |---|---|
//! | [`cursor`] | a reader's position in a BPF ring buffer, without memory mapping |
//! | [`Reader`] | takes the records out of a BPF ring buffer, in batches and without copies |
//! | [`queue`] | the protocol of one `AF_XDP` ring: reserve and submit, peek and release |
//! | [`umem`] | the memory of frames, in chunks; an owner word for each chunk |
//! | [`Pool`], [`Frame`] | one process's chunks of a UMEM, and a frame that lies in them |
//! | [`XskRings`], [`XskQueue`] | the four rings of an `AF_XDP` socket; frames in and out of them |
//! | [`XskTx`] | sends through an `AF_XDP` socket that another process opened |
//! | [`robust_lock`], [`shared_queue`] | several processes on the same rings; any may die |
//! | [`frame_ring`] | the protocol of a ring of frames between two processes |
//! | [`SharedLink`] | the memory of a link between processes: such a ring for each pair |
//! | [`Zeroed`] | zeroed memory of this process alone |
//!
//! ```no_run
//! use weir_ring::{Error, Reader};
//!
//! /// Waits for records; returns how many bytes one batch of them has.
//! fn read_batch(reader: &mut Reader) -> Result<usize, Error> {
//!     reader.wait(None)?;
//!     let batch = reader.peek()?;
//!     let bytes = batch.iter().map(<[u8]>::len).sum();
//!     let count = batch.len();
//!     batch.release(count);
//!     Ok(bytes)
//! }
//! ```
//!
//! # Limits
//!
//! A UMEM has at most [`umem::CHUNKS_MAX`] chunks of [`umem::CHUNK_BYTES`] bytes,
//! [`umem::QUEUES_MAX`] queues, [`umem::LINKS_MAX`] links and
//! [`robust_lock::OWNERS_MAX`] processes. A frame has at most [`pool::FRAGS_MAX`]
//! fragments.
//!
//! # Invariants
//!
//! - A [`Reader`] needs only the descriptor of its ring: no privilege and no bpf(2).
//! - A process writes a chunk's owner word before the chunk enters or leaves a ring, so
//!   that the chunks of a dead process can be found.
//! - Positions and lengths in shared memory are checked before use: another process may
//!   have written them.
//!
//! # Layout of a BPF ring buffer
//!
//! ```text
//!  offset        what                              access
//!  0             consumer page: u64 position       read and write
//!                  (at 64: u64, next record to read; weir's own, see Reader)
//!  page          producer page: u64 position       read
//!  2 × page      records                           read
//!  … + bytes     the same records once more, so    read
//!                that each is contiguous
//!
//!  record, on a multiple of 8:
//!  u32 len │ bit 31 busy: not committed yet, bit 30 discarded
//!  u32 (the kernel's)
//!  len bytes, padded to a multiple of 8
//! ```
//!
//! Positions only grow; a position modulo the ring's size is an offset. The kernel appends
//! records at the producer position. From a record's commit until the consumer position
//! has passed the record, the kernel does not write to it.
//!
//! # Wake-ups
//!
//! The kernel wakes the reader when it commits the record that the consumer position
//! points to. A reader that keeps up would be woken for each record, which costs more than
//! the record. Therefore an awake reader publishes a position 8 bytes short of its own:
//! no record begins there. Before the reader sleeps, it publishes its exact position and
//! checks once more for records: see [`cursor`]. After a burst the reader may first pause
//! for some microseconds, so that it serves a steady load in batches without any wake-up:
//! see [`Mode`].

mod coalesce;
pub mod cursor;
#[cfg(test)]
mod fault_injection;
mod fork;
pub mod frame_ring;
mod mapping;
pub mod pool;
pub mod queue;
mod ringbuf;
mod ringbuf_map;
pub mod robust_lock;
pub mod shared_link;
pub mod shared_queue;
pub mod umem;
mod xsk;
mod xsk_queue;
mod xsk_tx;
mod zeroed;

pub use pool::{Frame, Pool};
pub use ringbuf::{Batch, Error, Mode, Reader, Records, Woke};
pub use shared_link::SharedLink;
pub use umem::Umem;
pub use xsk::{Descriptor, MappedRing, RingSizes, Words, XskRings};
pub use xsk_queue::{RingErrors, XskQueue};
pub use xsk_tx::{SendError, XskTx};
pub use zeroed::Zeroed;

//! [`XskTx`]: sends through an `AF_XDP` socket that another process has created and bound.
//! This needs the socket and its memory, and no privilege.
//!
//! ```text
//!  memory (UMEM): chunks of 2 or 4 KiB        tx ring            completion ring
//!  ┌────────┬────────┬────────┬───            ┌──────────────┐   ┌──────┐
//!  │ free   │ frame  │ frame  │ …         ◄───┤ chunk, len   │   │ chunk│
//!  └────────┴────────┴────────┴───            └──────────────┘   └──────┘
//!  a chunk's cycle: free ─► filled ─► in the tx ring ─► the kernel copies it and puts it
//!  into the completion ring ─► free
//! ```

use crate::mapping::Mapping;
use crate::xsk::{COMPLETION_RING, TX_RING};
use rustix::net::xdp::XdpRingOffset;
use rustix::net::{SendFlags, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Largest chunk in bytes: a page.
const CHUNK_BYTES_MAX: usize = 4096;

/// Limit on chunks: a ring of 2^16 entries, far more than a batch needs.
const CHUNKS_MAX: usize = 1 << 16;

/// Limit on the system calls that make the kernel take the ring's entries, for each batch of
/// frames. The kernel takes 32 at a time, or all if it is configured so.
const KICKS_MAX: usize = 4096;

/// Why no frame was sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The socket and its memory do not match the caller's description.
    #[error("the socket cannot be used to send ({reason})")]
    NotASocket {
        /// The difference.
        reason: String,
    },
    /// A frame that does not fit into a chunk.
    #[error("a frame of {len} bytes cannot be sent here, at most {max}")]
    TooLong {
        /// Length of the frame.
        len: usize,
        /// Length of the longest possible frame.
        max: usize,
    },
    /// The path to the interface is gone or down.
    #[error("the interface to send on is gone or down ({source})")]
    Down {
        /// The system's error.
        source: io::Error,
    },
    /// Another error.
    #[error("the kernel did not send ({source})")]
    System {
        /// The system's error.
        source: io::Error,
    },
}

/// Sends frames from shared memory. The process that created the socket decides which frames
/// the kernel lets through.
#[derive(Debug)]
pub struct XskTx {
    socket: OwnedFd,
    memory: Mapping,
    chunk_bytes: usize,
    tx: Ring,
    completion: Ring,
    /// Chunks that the kernel does not have.
    free: Vec<u32>,
    /// The chunks that the kernel has.
    in_kernel: Vec<bool>,
}

impl XskTx {
    /// Maps a socket's memory and its rings, which have one entry for each chunk.
    ///
    /// # Errors
    /// If the socket, its rings and the memory do not match.
    pub fn open(
        socket: OwnedFd,
        memory: OwnedFd,
        memory_bytes: usize,
        chunk_bytes: usize,
    ) -> Result<XskTx, SendError> {
        let not = |reason: String| SendError::NotASocket { reason };
        let chunks = memory_bytes / chunk_bytes.max(1);
        let fits = chunk_bytes.is_power_of_two()
            && chunk_bytes <= CHUNK_BYTES_MAX
            && chunks.is_power_of_two()
            && chunks <= CHUNKS_MAX
            && chunks * chunk_bytes == memory_bytes;
        if !fits {
            return Err(not(format!(
                "{memory_bytes} bytes in chunks of {chunk_bytes}"
            )));
        }
        let held = rustix::fs::fstat(&memory).map_err(|error| not(error.to_string()))?;
        if usize::try_from(held.st_size).ok() != Some(memory_bytes) {
            return Err(not(format!(
                "memory of {} bytes, not {memory_bytes}",
                held.st_size
            )));
        }
        let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(|e| not(e.to_string()))?;
        let ring = |at, offset: &XdpRingOffset, entry_bytes| {
            Ring::map(socket.as_fd(), at, offset, entry_bytes, chunks)
        };
        let tx = ring(TX_RING, &offsets.tx, TX_BYTES);
        let completion = ring(COMPLETION_RING, &offsets.cr, COMPLETION_BYTES);
        let memory = Mapping::new(memory.as_fd(), 0, memory_bytes);
        let map = |error: io::Error| not(format!("cannot be mapped: {error}"));
        Ok(XskTx {
            tx: tx.map_err(map)?,
            completion: completion.map_err(map)?,
            memory: memory.map_err(map)?,
            socket,
            chunk_bytes,
            free: (0..chunks as u32).rev().collect(),
            in_kernel: vec![false; chunks],
        })
    }

    /// Length of the longest frame in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.chunk_bytes
    }

    /// Sends frames and returns how many, counted from the first: fewer than all if the kernel
    /// has not yet returned enough chunks.
    ///
    /// # Errors
    /// If not even the first frame was sent.
    pub fn send_batch(&mut self, frames: &[&[u8]]) -> Result<usize, SendError> {
        let max = self.chunk_bytes;
        let fit = frames.iter().take_while(|frame| frame.len() <= max).count();
        if let (0, Some(first)) = (fit, frames.first()) {
            let len = first.len();
            return Err(SendError::TooLong { len, max });
        }
        self.reap();
        let mut position = self.tx.producer();
        let mut sent = 0;
        while sent < fit {
            let Some(chunk) = self.free.pop() else { break };
            let frame = frames[sent];
            let address = chunk as usize * self.chunk_bytes;
            self.memory.write(address, frame);
            self.tx.put_tx(position, address as u64, frame.len() as u32);
            self.in_kernel[chunk as usize] = true;
            position = position.wrapping_add(1);
            sent += 1;
        }
        self.tx.publish(position);
        self.kick(position)?;
        Ok(sent)
    }

    /// Takes back the chunks that the kernel has finished with.
    fn reap(&mut self) {
        let mut position = self.completion.consumer();
        let end = self.completion.producer();
        let mut left = self.in_kernel.len();
        while position != end && left > 0 {
            let address = self.completion.completed(position);
            let chunk = (address / self.chunk_bytes as u64) as usize;
            // A chunk that this process has not sent was given by another holder of the socket.
            if self.in_kernel.get(chunk).copied().unwrap_or(false) {
                self.in_kernel[chunk] = false;
                self.free.push(chunk as u32);
            }
            position = position.wrapping_add(1);
            left -= 1;
        }
        self.completion.release(position);
    }

    /// Makes the kernel take the ring's entries up to `end`.
    fn kick(&mut self, end: u32) -> Result<(), SendError> {
        for _ in 0..KICKS_MAX {
            if self.tx.consumer() == end {
                return Ok(());
            }
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => {}
                // The kernel took a part, or the completion ring is full.
                Err(
                    rustix::io::Errno::AGAIN
                    | rustix::io::Errno::BUSY
                    | rustix::io::Errno::NOBUFS
                    | rustix::io::Errno::INTR,
                ) => self.reap(),
                Err(error @ (rustix::io::Errno::NETDOWN | rustix::io::Errno::NXIO)) => {
                    let source = error.into();
                    return Err(SendError::Down { source });
                }
                Err(error) => {
                    let source = error.into();
                    return Err(SendError::System { source });
                }
            }
        }
        // Remaining entries go with the next batch.
        Ok(())
    }
}

impl AsFd for XskTx {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Length of `struct xdp_desc` in bytes.
const TX_BYTES: usize = 16;
/// Length of an address in bytes.
const COMPLETION_BYTES: usize = 8;

/// A ring of a socket: positions of 32 bits, and entries.
#[derive(Debug)]
struct Ring {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    mask: u32,
}

impl Ring {
    fn map(
        socket: BorrowedFd<'_>,
        at: u64,
        offset: &XdpRingOffset,
        entry_bytes: usize,
        entries: usize,
    ) -> io::Result<Ring> {
        let first = offset.desc as usize;
        Ok(Ring {
            mapping: Mapping::new(socket, at, first + entries * entry_bytes)?,
            producer: offset.producer as usize,
            consumer: offset.consumer as usize,
            entries: first,
            mask: entries as u32 - 1,
        })
    }

    fn producer(&self) -> u32 {
        self.mapping
            .atomic_u32(self.producer)
            .load(Ordering::Acquire)
    }

    fn consumer(&self) -> u32 {
        self.mapping
            .atomic_u32(self.consumer)
            .load(Ordering::Acquire)
    }

    fn publish(&self, position: u32) {
        self.mapping
            .atomic_u32(self.producer)
            .store(position, Ordering::Release);
    }

    fn release(&self, position: u32) {
        self.mapping
            .atomic_u32(self.consumer)
            .store(position, Ordering::Release);
    }

    fn put_tx(&self, position: u32, address: u64, len: u32) {
        let at = self.entries + (position & self.mask) as usize * TX_BYTES;
        let [first, second] = halves(address);
        let words = [first, second, len, 0];
        for (index, word) in words.into_iter().enumerate() {
            self.mapping
                .atomic_u32(at + 4 * index)
                .store(word, Ordering::Relaxed);
        }
    }

    fn completed(&self, position: u32) -> u64 {
        let at = self.entries + (position & self.mask) as usize * COMPLETION_BYTES;
        let half = |index: usize| {
            self.mapping
                .atomic_u32(at + 4 * index)
                .load(Ordering::Relaxed)
        };
        let [a, b] = [half(0), half(1)].map(u32::to_ne_bytes);
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }
}

/// A 64-bit number as the two words that represent it in memory.
fn halves(number: u64) -> [u32; 2] {
    let b = number.to_ne_bytes();
    [[b[0], b[1], b[2], b[3]], [b[4], b[5], b[6], b[7]]].map(u32::from_ne_bytes)
}

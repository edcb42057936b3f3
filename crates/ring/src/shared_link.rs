//! The memory of a link that several processes of one user share: an Ethernet whose stations are
//! processes, with a [ring of frames](crate::frame_ring) from each station to each other.
//!
//! ```text
//!  offset   what                                                     written by
//!  0        u64 what this is, and its layout ([`MAGIC`])             the process that made it
//!  64       u64 for each station: its MAC address, 0 if absent       the station
//!  256      64 bytes for each station: u32, whether it sleeps        the station; who wakes it
//!  4096     128 bytes for each ring, those to a station together
//!             u64 producer's position, u32 whether it waits          the sender
//!             at 64: u64 consumer's position                         the receiver
//!  36864    RING_BYTES for each ring, in the same order              the sender
//! ```
//!
//! A ring gets its pages before its first frame ([`SharedLink::allocate`]), so that rings which no
//! frame has been through take no memory. Any process that has the file may write anything: offsets
//! come from constants and from masked positions alone, frames are copied out before they are parsed,
//! and [`crate::frame_ring`] checks positions and lengths.

use crate::frame_ring::{self, Consumer, Memory, Producer};
use crate::mapping::Mapping;
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// Stations of a link at most.
pub const STATIONS_MAX: usize = 16;
/// Bytes of a ring, a power of two: seven of the longest frames, so that both sides work at the same time.
pub const RING_BYTES: usize = 512 << 10;
/// Bytes of the whole file.
pub const FILE_BYTES: usize = DATA + STATIONS_MAX * STATIONS_MAX * RING_BYTES;

/// `WEIRLNK` and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"WEIRLNK\x01");
const ADDRESSES: usize = 64;
const SLEEPS: usize = 256;
const CONTROLS: usize = 4096;
const CONTROL_BYTES: usize = 128;
const WAITING: usize = 8;
const CONSUMER: usize = 64;
const DATA: usize = CONTROLS + STATIONS_MAX * STATIONS_MAX * CONTROL_BYTES;

/// The mapped memory.
#[derive(Clone, Debug)]
pub struct SharedLink {
    mapping: Arc<Mapping>,
    file: Arc<OwnedFd>,
}

/// The memory of one ring.
#[derive(Debug)]
pub struct Ring {
    mapping: Arc<Mapping>,
    control: usize,
    data: usize,
    asleep: usize,
}

impl SharedLink {
    /// Maps the file, which this process has made or found; a new one, which is empty, gets its
    /// length.
    ///
    /// # Errors
    /// If it has another length, or the layout of another version, or there is no room for it.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<SharedLink> {
        let len = fstat(file)?.st_size;
        if len == 0 {
            ftruncate(file, FILE_BYTES as u64)?;
        } else if usize::try_from(len) != Ok(FILE_BYTES) {
            return Err(other_layout());
        }
        allocate(file, 0, DATA)?;
        let link = SharedLink {
            mapping: Arc::new(Mapping::lazy(file, FILE_BYTES)?),
            file: Arc::new(file.try_clone_to_owned()?),
        };
        let magic = link.mapping.atomic_u64(0);
        let found = magic.compare_exchange(0, MAGIC, SeqCst, SeqCst);
        match found {
            Ok(_) | Err(MAGIC) => Ok(link),
            Err(_) => Err(other_layout()),
        }
    }

    /// The MAC address of a station as a number; 0 if there is no station.
    #[inline]
    pub fn address(&self, station: usize) -> u64 {
        self.mapping.atomic_u64(at_address(station)).load(Acquire)
    }

    /// Sets the address of a station.
    pub fn set_address(&self, station: usize, address: u64) {
        self.mapping
            .atomic_u64(at_address(station))
            .store(address, Release);
    }

    /// Gives the ring from a station to another its memory, which must be there before the first frame is
    /// put.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn allocate(&self, from: usize, to: usize) -> io::Result<()> {
        allocate(self.file.as_fd(), self.ring(from, to).data, RING_BYTES)
    }

    /// The ring from a station to another.
    fn ring(&self, from: usize, to: usize) -> Ring {
        assert!(
            from < STATIONS_MAX && to < STATIONS_MAX,
            "stations are counted"
        );
        let at = to * STATIONS_MAX + from;
        Ring {
            mapping: Arc::clone(&self.mapping),
            control: CONTROLS + at * CONTROL_BYTES,
            data: DATA + at * RING_BYTES,
            asleep: SLEEPS + to * 64,
        }
    }

    /// The rings to a station, by sender, without frames. At most one process may have them.
    pub fn consumers(&self, station: usize) -> Vec<Consumer<Ring>> {
        let from = 0..STATIONS_MAX;
        let rings: Vec<_> = from
            .map(|from| Consumer::new(self.ring(from, station)))
            .collect();
        frame_ring::disarm(&rings);
        rings
    }

    /// The rings from a station, by receiver. At most one process may have them.
    pub fn producers(&self, station: usize) -> Vec<Producer<Ring>> {
        let to = 0..STATIONS_MAX;
        to.map(|to| Producer::new(self.ring(station, to))).collect()
    }
}

/// Has the file system give bytes their pages now. If it had none when they are written, the system would
/// end the process (SIGBUS).
fn allocate(file: BorrowedFd<'_>, start: usize, len: usize) -> io::Result<()> {
    let (flags, start, len) = (FallocateFlags::empty(), start as u64, len as u64);
    match retry_on_intr(|| fallocate(file, flags, start, len)) {
        // A file system without this call gives them when they are written.
        Err(Errno::OPNOTSUPP) => Ok(()),
        allocated => Ok(allocated?),
    }
}

fn other_layout() -> io::Error {
    let why = "the link's memory is of another version of weir: end the programs that use it";
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn at_address(station: usize) -> usize {
    assert!(station < STATIONS_MAX, "stations are counted");
    ADDRESSES + station * 8
}

impl Ring {
    /// Offset in the file, and how many bytes follow before the ring begins again.
    fn at(&self, position: u64) -> (usize, usize) {
        let index = position as usize & (RING_BYTES - 1);
        (self.data + index, RING_BYTES - index)
    }
}

impl Memory for Ring {
    fn bytes(&self) -> u64 {
        RING_BYTES as u64
    }

    #[inline]
    fn producer(&self) -> u64 {
        self.mapping.atomic_u64(self.control).load(Acquire) & !7
    }

    #[inline]
    fn consumer(&self) -> u64 {
        let at = self.control + CONSUMER;
        self.mapping.atomic_u64(at).load(Acquire)
    }

    fn set_producer(&self, position: u64) {
        let word = self.mapping.atomic_u64(self.control);
        word.store(position, Release);
    }

    fn set_consumer(&self, position: u64) {
        let word = self.mapping.atomic_u64(self.control + CONSUMER);
        word.store(position, Release);
    }

    fn load(&self, position: u64) -> u64 {
        self.mapping.atomic_u64(self.at(position).0).load(Relaxed)
    }

    fn store(&self, position: u64, word: u64) {
        let to = self.mapping.atomic_u64(self.at(position).0);
        to.store(word, Relaxed);
    }

    fn read(&self, position: u64, to: &mut [u8]) {
        let (at, left) = self.at(position);
        let (first, rest) = to.split_at_mut(left.min(to.len()));
        self.mapping.read_to(at, first);
        self.mapping.read_to(self.data, rest);
    }

    fn write(&self, position: u64, from: &[u8]) {
        let (at, left) = self.at(position);
        let (first, rest) = from.split_at(left.min(from.len()));
        self.mapping.write(at, first);
        self.mapping.write(self.data, rest);
    }

    #[inline]
    fn barrier(&self) {
        fence(SeqCst);
    }

    // Both sides write these words by exchanges, whose order is one for all, also in the model of the test.
    fn set_asleep(&self, asleep: bool) {
        let word = self.mapping.atomic_u32(self.asleep);
        word.swap(u32::from(asleep), Relaxed);
    }

    #[inline]
    fn take_asleep(&self) -> bool {
        let word = self.mapping.atomic_u32(self.asleep);
        word.load(Relaxed) != 0 && word.swap(0, Relaxed) != 0
    }

    fn set_waiting(&self, waiting: bool) {
        let word = self.mapping.atomic_u32(self.control + WAITING);
        word.swap(u32::from(waiting), Relaxed);
    }

    #[inline]
    fn take_waiting(&self) -> bool {
        let word = self.mapping.atomic_u32(self.control + WAITING);
        word.load(Relaxed) != 0 && word.swap(0, Relaxed) != 0
    }
}

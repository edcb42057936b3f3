//! The reader.
#![allow(unsafe_code)] // Views of shared memory.

use crate::coalesce::sleep_precisely;
use crate::cursor::{BUSY, Corrupt, Cursor, DISCARDED, Memory, Span, record_bytes};
use crate::fork::Fork;
use crate::ringbuf_map::RingbufMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most records of one batch.
const BATCH_RECORDS_MAX: usize = 256;

/// A batch is at most this part of the ring (or one record), so that the
/// kernel has room again before the reader is through with a full one.
const BATCH_DIVISOR: u64 = 4;

/// How long a ring's reader naps after a burst: at a million records a second
/// 25 come meanwhile, and a ring of 64 KiB holds the shortest of them.
const COALESCE: Duration = Duration::from_micros(25);

/// How long it naps at most. A nap takes some 7 µs of the thread's own time:
/// where many records come, longer ones are less of it for each.
const COALESCE_MAX: Duration = Duration::from_micros(200);

/// The next nap is twice as long if so many records have come since the last
/// one, and half as long if less than half as many have, or more bytes than
/// this part of the ring.
const COALESCE_RECORDS: usize = 32;
const COALESCE_DIVISOR: u64 = 8;

/// How to wait for records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// After a burst nap for 25 µs before sleeping, and up to 200 µs while
    /// more than a million records come in a second: under load the kernel
    /// wakes nobody and the reader finds batches. The most records a second;
    /// the first after a pause is as quick as in the other mode, those within
    /// a burst up to the nap later.
    #[default]
    Throughput,
    /// Sleep at once: the kernel wakes for the first record of each burst.
    Latency,
}

/// Why a ring cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptor is that of something else.
    #[error("the descriptor is not that of a BPF ring buffer ({reason})")]
    NotARing {
        /// What it is instead.
        reason: String,
    },
    /// It could not be mapped.
    #[error("the ring of {bytes} bytes cannot be mapped ({source})")]
    Map {
        /// Bytes of the ring.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The ring has a record that no kernel writes.
    #[error(
        "the ring is corrupt at position {position}: a header of {header:#010x}; was another reader on it?"
    )]
    Corrupt {
        /// Where.
        position: u64,
        /// The first word there.
        header: u32,
    },
    /// This process was forked from the one that opened the reader.
    #[error("the ring is read by the process that this one was forked from")]
    Forked,
    /// Waiting failed.
    #[error("waiting for the ring failed ({source})")]
    Wait {
        /// What the system said.
        source: io::Error,
    },
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Error {
        Error::Corrupt {
            position: corrupt.position,
            header: corrupt.header,
        }
    }
}

/// Why [`Reader::wait`] came back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Woke {
    /// There is something to read.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// The one reader of a BPF ring buffer.
///
/// ```no_run
/// # fn run(fd: std::os::fd::OwnedFd) -> Result<(), weir_ring::Error> {
/// // SAFETY: the ring was made for this program, which opens it once.
/// let mut reader = unsafe { weir_ring::Reader::open(fd)? };
/// loop {
///     reader.wait(None)?;
///     for record in &reader.peek()? {
///         println!("{} bytes", record.len());
///     } // dropped: the kernel gets the space back
/// }
/// # }
/// ```
///
/// A reader that ends or is killed leaves the ring as it is, and the next one
/// goes on behind the last batch that was released.
///
/// In a process that was forked from the reader's the reader is of no use:
/// calls say [`Error::Forked`], and nothing is released.
#[derive(Debug)]
pub struct Reader {
    fd: OwnedFd,
    memory: RingbufMap,
    cursor: Cursor,
    fork: Fork,
    mode: Mode,
    /// Records and bytes that were read since the last nap.
    burst: (usize, u64),
    /// How long the next one is.
    coalesce_time: Duration,
    /// The end of what [`Reader::records`] gave and is not released.
    held: Option<u64>,
}

impl Reader {
    /// Maps the ring; needs no privilege.
    ///
    /// # Safety
    /// As long as the reader lives no other reads the ring: neither this
    /// process by another descriptor of it, nor another process. The kernel
    /// writes over records that any of them has released, and this reader's
    /// are slices of that memory. With two readers records are nonsense and
    /// may change while they are looked at; none leads outside of the ring.
    ///
    /// # Errors
    /// Where the descriptor is none of a ring (its size is read in
    /// `/proc/self/fdinfo`), or memory is missing.
    pub unsafe fn open(ring: OwnedFd) -> Result<Reader, Error> {
        let bytes = ring_bytes(ring.as_fd())?;
        let memory = RingbufMap::new(ring.as_fd(), bytes);
        let memory = memory.map_err(|source| Error::Map { bytes, source })?;
        let fork = Fork::new().map_err(|source| Error::Map { bytes, source })?;
        let (published, noted) = memory.left_at();
        Ok(Reader {
            cursor: Cursor::resume(&memory, published, noted),
            fd: ring,
            memory,
            fork,
            mode: Mode::default(),
            burst: (0, 0),
            coalesce_time: COALESCE,
            held: None,
        })
    }

    /// Waits in another mode from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Bytes of the ring.
    pub fn bytes(&self) -> usize {
        self.memory.bytes() as usize
    }

    /// Bytes of the ring that are in use: records, and those being written.
    pub fn used_bytes(&self) -> usize {
        let used = self.memory.producer().saturating_sub(self.cursor.next());
        used.min(self.memory.bytes()) as usize
    }

    /// The records that are there, without waiting: none, one or many.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn peek(&mut self) -> Result<Batch<'_>, Error> {
        self.peek_at_most(BATCH_RECORDS_MAX)
    }

    /// As [`peek`](Self::peek), with so many records at most.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn peek_at_most(&mut self, records: usize) -> Result<Batch<'_>, Error> {
        self.release_held();
        let bytes_max = self.memory.bytes() / BATCH_DIVISOR;
        let records_max = records.min(BATCH_RECORDS_MAX);
        let span = self.scan(records_max, bytes_max)?;
        Ok(Batch { reader: self, span })
    }

    /// As [`peek`](Self::peek), but the records stay until the reader is used
    /// again, or dropped: for callers that cannot keep a batch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn records(&mut self) -> Result<Records<'_>, Error> {
        self.release_held();
        let bytes_max = self.memory.bytes() / BATCH_DIVISOR;
        let span = self.scan(BATCH_RECORDS_MAX, bytes_max)?;
        self.held = Some(span.end);
        Ok(Records {
            memory: &self.memory,
            position: span.start,
            end: span.end,
            left: span.records,
        })
    }

    fn scan(&mut self, records_max: usize, bytes_max: u64) -> Result<Span, Error> {
        if self.fork.is_child() {
            return Err(Error::Forked);
        }
        let span = self.cursor.scan(&self.memory, records_max, bytes_max)?;
        self.burst.0 += span.records;
        self.burst.1 += span.end - span.start;
        Ok(span)
    }

    /// Naps, if there was a burst, as long as it asks for, but not beyond
    /// `time_max`.
    fn coalesce(&mut self, time_max: Option<Duration>) {
        let (records, bytes) = std::mem::take(&mut self.burst);
        if records < COALESCE_RECORDS / 2 || bytes > self.memory.bytes() / COALESCE_DIVISOR {
            self.coalesce_time = (self.coalesce_time / 2).max(COALESCE);
        } else if records >= COALESCE_RECORDS {
            self.coalesce_time = (self.coalesce_time * 2).min(COALESCE_MAX);
        }
        if records > 0 && time_max.is_none_or(|time| time > self.coalesce_time) {
            sleep_precisely(self.coalesce_time);
        }
    }

    fn release_held(&mut self) {
        if let Some(end) = self.held.take() {
            self.release(end);
        }
    }

    /// Gives everything before `end` back, if this is the reader's process.
    fn release(&mut self, end: u64) {
        if !self.fork.is_child() {
            self.cursor.release(&self.memory, end);
        }
    }

    /// Waits until there is something to read, for `time_max` at most, or
    /// for good. May come back with nothing but discarded records.
    ///
    /// # Errors
    /// [`Error::Wait`] only.
    pub fn wait(&mut self, time_max: Option<Duration>) -> Result<Woke, Error> {
        self.release_held();
        if self.fork.is_child() {
            return Err(Error::Forked);
        }
        if self.cursor.is_ready(&self.memory) {
            return Ok(Woke::Ready);
        }
        let deadline = time_max.and_then(|time| Instant::now().checked_add(time));
        if self.mode == Mode::Throughput {
            self.coalesce(time_max);
            if self.cursor.is_ready(&self.memory) {
                return Ok(Woke::Ready);
            }
        }
        while self.arm() {
            // A nap is part of the time.
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if let Some(woke) = self.sleep(left)? {
                return Ok(woke);
            }
        }
        Ok(Woke::Ready)
    }

    /// Before waiting elsewhere (`epoll`, `tokio`) for [`as_fd`](Self::as_fd)
    /// to be readable: makes the kernel wake for the next record, and looks
    /// once more. Wait only if it says `true`; else there is something to
    /// read. The descriptor counts as readable also while a record is being
    /// written, so that [`peek`](Self::peek) may then give nothing yet. In a
    /// forked process it says `false`, and `peek` the error.
    pub fn arm(&mut self) -> bool {
        self.release_held();
        !self.fork.is_child() && self.cursor.arm(&self.memory)
    }

    /// Sleeps until woken; `None` for no reason, or a record that is still
    /// being written.
    fn sleep(&self, time_max: Option<Duration>) -> Result<Option<Woke>, Error> {
        let time_max = time_max.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, time_max.as_ref()) {
            Ok(0) => Ok(Some(Woke::TimedOut)),
            Ok(_) => Ok(None),
            Err(rustix::io::Errno::INTR) => Ok(Some(Woke::Interrupted)),
            Err(error) => Err(Error::Wait {
                source: error.into(),
            }),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.release_held();
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Records as they lie in the ring. The kernel gets their space back when
/// the batch is dropped, or [`released`](Self::release) in part.
pub struct Batch<'a> {
    reader: &'a mut Reader,
    span: Span,
}

impl Batch<'_> {
    /// How many records.
    pub fn len(&self) -> usize {
        self.span.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.span.records == 0
    }

    /// The records, in the order they were reserved.
    pub fn iter(&self) -> Records<'_> {
        Records {
            memory: &self.reader.memory,
            position: self.span.start,
            end: self.span.end,
            left: self.span.records,
        }
    }

    /// Gives back the first `records` only; the others come again.
    pub fn release(mut self, records: usize) {
        let mut kept = self.iter();
        kept.by_ref().take(records).for_each(drop);
        self.span.end = kept.position;
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span.fmt(f)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.reader.release(self.span.end);
    }
}

impl<'a> IntoIterator for &'a Batch<'_> {
    type Item = &'a [u8];
    type IntoIter = Records<'a>;

    fn into_iter(self) -> Records<'a> {
        self.iter()
    }
}

/// The records of a batch.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    memory: &'a RingbufMap,
    position: u64,
    /// The end of what was scanned.
    end: u64,
    left: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0 {
            // The one copy of the header that is looked at: if another reader
            // has released the record, it is not what the scan has seen.
            let (position, header) = (self.position, self.memory.header(self.position));
            let behind = position + record_bytes(header);
            if header & BUSY != 0 || behind > self.end {
                (self.position, self.left) = (self.end, 0);
                break;
            }
            self.position = behind;
            if header & DISCARDED != 0 {
                continue;
            }
            self.left -= 1;
            let len = (header & !(BUSY | DISCARDED)) as usize;
            // SAFETY: by this copy of its header the record ends before the
            // scan's end, which is no further than the producer and the ring
            // are long. The batch, or the reader, is borrowed and publishes no
            // position beyond; no other reader does, as who opened this one
            // has promised.
            return Some(unsafe { self.memory.record(position, len) });
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Records<'_> {}

/// The size of a ring, as the kernel says it to whoever holds it.
fn ring_bytes(ring: BorrowedFd<'_>) -> Result<usize, Error> {
    const RING_BUF: &str = "27";
    let not = |reason: String| Error::NotARing { reason };
    let path = format!("/proc/self/fdinfo/{}", ring.as_raw_fd());
    let text = std::fs::read_to_string(&path).map_err(|error| not(format!("{path}: {error}")))?;
    let field = |name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map(str::trim)
    };
    match field("map_type:") {
        Some(RING_BUF) => {}
        Some(other) => return Err(not(format!("a BPF map of type {other}"))),
        None => return Err(not("no BPF map".into())),
    }
    let bytes = field("max_entries:").and_then(|value| value.parse::<usize>().ok());
    let bytes = bytes.filter(|bytes| bytes.is_power_of_two());
    bytes.ok_or_else(|| not("the kernel does not say its size".into()))
}

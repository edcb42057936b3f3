//! [`Reader`]: takes records out of a BPF ring buffer.
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

/// Largest number of records in one batch.
const BATCH_RECORDS_MAX: usize = 256;

/// A batch takes at most 1/4 of the ring, or one record, so that the kernel has room again
/// before the reader has finished with a full ring.
const BATCH_DIVISOR: u64 = 4;

/// Shortest pause of a reader after a burst. At a million records a second 25 records arrive
/// meanwhile; a ring of 64 KiB holds 25 of the shortest.
const COALESCE: Duration = Duration::from_micros(25);

/// Longest pause. A pause costs about 7 µs of the thread's own time: with many records a
/// longer pause costs less for each of them.
const COALESCE_MAX: Duration = Duration::from_micros(200);

/// The next pause is twice as long if this many records arrived since the last one. The next
/// pause is half as long if less than half as many arrived, or more bytes than 1/8 of the
/// ring (`COALESCE_DIVISOR`).
const COALESCE_RECORDS: usize = 32;
const COALESCE_DIVISOR: u64 = 8;

/// How to wait for records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// After a burst, pause for 25 µs before sleeping, and for up to 200 µs while more than a
    /// million records arrive in a second. Under load the kernel sends no wake-ups and the
    /// reader finds batches, which gives the most records a second. The first record after a
    /// quiet period is as early as in the other mode; records within a burst are delayed by up
    /// to the pause.
    #[default]
    Throughput,
    /// Sleep at once: the kernel wakes for the first record of each burst.
    Latency,
}

/// Why a ring cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptor is not that of a BPF ring buffer.
    #[error("the descriptor is not that of a BPF ring buffer ({reason})")]
    NotARing {
        /// The reason.
        reason: String,
    },
    /// The ring could not be mapped.
    #[error("the ring of {bytes} bytes cannot be mapped ({source})")]
    Map {
        /// Bytes of the ring.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The ring has a record that the kernel cannot have written.
    #[error(
        "the ring is corrupt at position {position}: a header of {header:#010x}; was another reader on it?"
    )]
    Corrupt {
        /// Position of the record.
        position: u64,
        /// First word of the record.
        header: u32,
    },
    /// This process was forked from the process that opened the reader.
    #[error("the ring is read by the process that this one was forked from")]
    Forked,
    /// Waiting failed.
    #[error("waiting for the ring failed ({source})")]
    Wait {
        /// The system's error.
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

/// Why [`Reader::wait`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Woke {
    /// Records can be read.
    Ready,
    /// The time has passed.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

/// The only reader of a BPF ring buffer.
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
/// A reader that ends or is killed leaves the ring as it is. The next reader continues after
/// the last batch that was released.
///
/// In a child process forked from the reader's, the reader does not work: its calls return
/// [`Error::Forked`] and release nothing.
#[derive(Debug)]
pub struct Reader {
    fd: OwnedFd,
    memory: RingbufMap,
    cursor: Cursor,
    fork: Fork,
    mode: Mode,
    /// Records and bytes read since the last pause.
    burst: (usize, u64),
    /// Length of the next pause.
    coalesce_time: Duration,
    /// End of the records that [`Reader::records`] gave and that are not released.
    held: Option<u64>,
    busy_poll: BusyPoll,
}

impl Reader {
    /// Maps the ring, which needs no privilege.
    ///
    /// # Safety
    /// While the reader exists, there must be no other reader of the ring, neither in this
    /// process by another descriptor nor in another process. The kernel overwrites records
    /// that any reader has released, and this reader's records are slices of that memory. With
    /// two readers, records are nonsense and may change while they are read; no record leads
    /// outside of the ring.
    ///
    /// # Errors
    /// If the descriptor is not that of a ring (its size is read from `/proc/self/fdinfo`), or
    /// memory is missing.
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
            busy_poll: BusyPoll::default(),
        })
    }

    /// Sets how the reader waits from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Sets how long the reader looks for records before it sleeps; zero by default. It does so
    /// only while records come within that time, and yields its processor to other threads
    /// meanwhile. For a reader whose peer answers at once: waking up takes longer than the answer.
    ///
    /// Linux has the same for sockets (`SO_BUSY_POLL`), and for virtual machines under the same
    /// condition (`halt_poll_ns`).
    pub fn set_busy_poll(&mut self, time: Duration) {
        self.busy_poll = BusyPoll {
            time,
            was_brief: false,
        };
    }

    /// Bytes of the ring.
    pub fn bytes(&self) -> usize {
        self.memory.bytes() as usize
    }

    /// Bytes of the ring in use by records, including those still being written.
    pub fn used_bytes(&self) -> usize {
        let used = self.memory.producer().saturating_sub(self.cursor.next());
        used.min(self.memory.bytes()) as usize
    }

    /// The records that are in the ring, without waiting; there may be none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn peek(&mut self) -> Result<Batch<'_>, Error> {
        self.peek_at_most(BATCH_RECORDS_MAX)
    }

    /// As [`peek`](Self::peek), with at most this many records.
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

    /// As [`peek`](Self::peek), but the records stay until the reader is used again or
    /// dropped, for callers that cannot hold a batch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn records(&mut self) -> Result<Records<'_>, Error> {
        self.records_at_most(BATCH_RECORDS_MAX)
    }

    /// As [`records`](Self::records), with at most this many records.
    ///
    /// # Errors
    /// [`Error::Corrupt`] only.
    pub fn records_at_most(&mut self, records: usize) -> Result<Records<'_>, Error> {
        self.release_held();
        let bytes_max = self.memory.bytes() / BATCH_DIVISOR;
        let span = self.scan(records.min(BATCH_RECORDS_MAX), bytes_max)?;
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

    /// Pauses after a burst, for a time that depends on the burst, unless that exceeds
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

    /// Releases everything before `end`, if this is the reader's process.
    fn release(&mut self, end: u64) {
        if !self.fork.is_child() {
            self.cursor.release(&self.memory, end);
        }
    }

    /// Waits until there is a record to read, for at most `time_max`, or without limit. May
    /// return for records that are all discarded.
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
        let began = Instant::now();
        let deadline = time_max.and_then(|time| began.checked_add(time));
        if self.mode == Mode::Throughput {
            self.coalesce(time_max);
            if self.cursor.is_ready(&self.memory) {
                return Ok(Woke::Ready);
            }
        }
        while self.busy_poll.goes_on(began.elapsed(), time_max) {
            if self.cursor.is_ready(&self.memory) {
                return Ok(Woke::Ready);
            }
            std::thread::yield_now();
        }
        let woke = self.wait_asleep(deadline)?;
        self.busy_poll.note(woke, began.elapsed());
        Ok(woke)
    }

    fn wait_asleep(&mut self, deadline: Option<Instant>) -> Result<Woke, Error> {
        while self.arm() {
            // The pause counts towards the time.
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if let Some(woke) = self.sleep(left)? {
                return Ok(woke);
            }
        }
        Ok(Woke::Ready)
    }

    /// Prepares waiting elsewhere (`epoll`, `tokio`) for [`as_fd`](Self::as_fd) to be readable:
    /// makes the kernel wake the reader for the next record, and checks once more for records.
    /// Returns whether to wait; false means that there are records. The descriptor is readable
    /// also while a record is being written, so that [`peek`](Self::peek) may return nothing
    /// yet. In a forked process `arm` returns false and `peek` the error.
    pub fn arm(&mut self) -> bool {
        self.release_held();
        !self.fork.is_child() && self.cursor.arm(&self.memory)
    }

    /// Sleeps until woken; `None` if woken without reason, or for a record that is still being
    /// written.
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

/// Whether to look for records before sleeping.
#[derive(Debug, Default)]
struct BusyPoll {
    time: Duration,
    /// Whether the last record came within that time.
    was_brief: bool,
}

impl BusyPoll {
    /// Whether to look once more, after waiting for `waited` of at most `time_max`.
    fn goes_on(&self, waited: Duration, time_max: Option<Duration>) -> bool {
        self.was_brief && waited < self.time && time_max.is_none_or(|time| waited < time)
    }

    /// Notes how a wait ended that went on asleep.
    fn note(&mut self, woke: Woke, waited: Duration) {
        self.was_brief = woke == Woke::Ready && waited < self.time;
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

/// Records, in place in the ring. Dropping the batch returns their space to the kernel;
/// [`release`](Self::release) returns a part of it.
pub struct Batch<'a> {
    reader: &'a mut Reader,
    span: Span,
}

impl Batch<'_> {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.span.records
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.span.records == 0
    }

    /// The records, in the order in which they were reserved.
    pub fn iter(&self) -> Records<'_> {
        Records {
            memory: &self.reader.memory,
            position: self.span.start,
            end: self.span.end,
            left: self.span.records,
        }
    }

    /// Releases only the first `records`; the remaining ones are read again.
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
    /// The end of the scanned records.
    end: u64,
    left: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0 {
            // The header is read once here: if another reader has released the record, the
            // header may differ from the scanned one.
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
            // SAFETY: by this copy of its header the record ends before the scan's end, which
            // is not beyond the producer position, and the record is not longer than the ring.
            // The batch, or the reader, is borrowed and publishes no later position; no other
            // reader does, as the caller of `open` has promised.
            return Some(unsafe { self.memory.record(position, len) });
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Records<'_> {}

/// The size of a ring, as the kernel states it in `/proc/self/fdinfo`.
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

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(50);

    #[test]
    fn polling_begins_with_a_record_that_came_soon_and_ends_with_one_that_did_not() {
        let mut poll = BusyPoll {
            time: TIME,
            was_brief: false,
        };
        let starts = |poll: &BusyPoll| poll.goes_on(Duration::ZERO, None);
        assert!(!starts(&poll));
        poll.note(Woke::Ready, TIME / 2);
        assert!(starts(&poll));
        assert!(!poll.goes_on(TIME, None), "not for longer");
        poll.note(Woke::Ready, TIME * 2);
        assert!(!starts(&poll));
    }

    #[test]
    fn a_wait_that_ends_without_a_record_starts_no_polling() {
        for woke in [Woke::TimedOut, Woke::Interrupted] {
            let mut poll = BusyPoll {
                time: TIME,
                was_brief: true,
            };
            poll.note(woke, Duration::ZERO);
            assert!(!poll.goes_on(Duration::ZERO, None), "{woke:?}");
        }
    }

    #[test]
    fn polling_ends_with_the_time_to_wait() {
        let poll = BusyPoll {
            time: TIME,
            was_brief: true,
        };
        assert!(poll.goes_on(Duration::ZERO, Some(TIME / 5)));
        assert!(!poll.goes_on(TIME / 5, Some(TIME / 5)));
        assert!(!poll.goes_on(Duration::ZERO, Some(Duration::ZERO)));
    }

    #[test]
    fn without_a_time_there_is_no_polling() {
        let mut poll = BusyPoll::default();
        poll.note(Woke::Ready, Duration::ZERO);
        assert!(!poll.goes_on(Duration::ZERO, None));
    }
}

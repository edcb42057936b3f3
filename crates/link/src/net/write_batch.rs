//! Several writes in one system call, by io_uring(7).
//!
//! A process that writes frames to a TAP interface one by one is usually preempted after each
//! write: the kernel wakes the reader and runs it at once. With one call for several writes, the
//! reader wakes when all frames are queued.
#![allow(unsafe_code)] // The kernel gets addresses of bytes.

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Largest number of writes in one call.
const WRITES_MAX: usize = 8;
/// Number of entries that is asked for: one that no other program asks for, so that a filter of
/// system calls can distinguish this ring from a program's own.
pub const RING_ENTRIES: u32 = 11;
/// Buffers of each write.
const IOVECS_PER_WRITE: usize = 3;

/// An io_uring for batches of writes.
pub struct WriteBatch {
    /// `None` once the system has refused the ring.
    ring: Option<IoUring>,
}

impl WriteBatch {
    /// # Errors
    /// If the system has no io_uring(7), or does not permit it to this process.
    pub fn new() -> io::Result<WriteBatch> {
        // A child process that shared the ring would submit this process's entries.
        let ring = IoUring::builder().dontfork().build(RING_ENTRIES)?;
        Ok(WriteBatch { ring: Some(ring) })
    }

    /// Writes these buffers to a descriptor in order, without blocking, at most eight; returns how
    /// many were written, not necessarily the first ones.
    ///
    /// # Errors
    /// If the system refuses the ring, now or earlier; then no buffer is written.
    pub fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        writes: &[[IoSlice<'_>; IOVECS_PER_WRITE]],
    ) -> io::Result<usize> {
        let ring = self.ring.as_mut().ok_or(Errno::PERM)?;
        let writes = &writes[..writes.len().min(WRITES_MAX)];
        let fd = types::Fd(fd.as_raw_fd());
        for parts in writes {
            // An `IoSlice` is a `struct iovec`.
            let write = opcode::Writev::new(fd, parts.as_ptr().cast(), IOVECS_PER_WRITE as u32);
            let entry = write.rw_flags(libc::RWF_NOWAIT).build();
            // SAFETY: the descriptor, the buffers and their contents are borrowed until this
            // function returns, which is after the kernel has completed all entries that it
            // accepted; if that is impossible, the process aborts.
            let pushed = unsafe { ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the queue is empty and has room for all");
        }
        let (mut left, mut taken, mut failed) = (writes.len(), 0, None);
        while left > 0 {
            match ring.submit_and_wait(left) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if left == writes.len() && ring.submission().len() == left => {
                    // No entry was accepted, and none will be.
                    self.ring = None;
                    return Err(error);
                }
                Err(error) if is_one_of(&error, &PASSING) => {}
                // Operations that the kernel has begun cannot be cancelled.
                Err(_) => std::process::abort(),
            }
            for answer in ring.completion() {
                left -= 1;
                match answer.result() {
                    1.. => taken += 1,
                    errno => _ = failed.get_or_insert(io::Error::from_raw_os_error(-errno)),
                }
            }
        }
        match failed {
            // A driver that does not support such writes returns this error each time.
            Some(error) if taken == 0 && !is_one_of(&error, &OF_DRIVER) => {
                self.ring = None;
                Err(error)
            }
            _ => Ok(taken),
        }
    }
}

/// Temporary shortage of a resource.
const PASSING: [Errno; 3] = [Errno::AGAIN, Errno::BUSY, Errno::NOMEM];
/// The driver accepts no writes any more, or none now.
const OF_DRIVER: [Errno; 5] = [
    Errno::AGAIN,
    Errno::NOMEM,
    Errno::NOBUFS,
    Errno::IO,
    Errno::BADFD,
];

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    let number = error.raw_os_error();
    errnos
        .iter()
        .any(|errno| number == Some(errno.raw_os_error()))
}

impl std::fmt::Debug for WriteBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Run")
    }
}

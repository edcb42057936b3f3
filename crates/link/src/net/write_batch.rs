//! Several writes in one system call, by io_uring(7).
//!
//! Who writes frames to a TAP interface one by one is interrupted after each: the
//! kernel wakes who reads them, and as a rule has that run at once. Written in one
//! call, all of them wait for the reader when it does.
#![allow(unsafe_code)] // The kernel is told where bytes lie.

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most writes at once.
const WRITES_MAX: usize = 8;
/// Buffers of each write.
const IOVECS_PER_WRITE: usize = 3;

/// See the module.
pub struct WriteBatch {
    /// None once the system has refused it.
    ring: Option<IoUring>,
}

impl WriteBatch {
    /// # Errors
    /// If the system has no io_uring(7), or does not let this program use it.
    pub fn new() -> io::Result<WriteBatch> {
        // A child that shared it would submit what is ours.
        let ring = IoUring::builder().dontfork().build(WRITES_MAX as u32)?;
        Ok(WriteBatch { ring: Some(ring) })
    }

    /// Writes these to a descriptor, one after the other, without waiting; gives how many
    /// were taken, which may be any of them. At most eight are tried.
    ///
    /// # Errors
    /// If the system lets this program do so no more, now or before; nothing is
    /// written then.
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
            // SAFETY: the descriptor, the parts and what they point to are borrowed until
            // this returns, which it does not before the kernel has answered all that it
            // took: rather than leave one behind, it ends the process.
            let pushed = unsafe { ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the queue is empty and has room for all");
        }
        let (mut left, mut taken, mut failed) = (writes.len(), 0, None);
        while left > 0 {
            match ring.submit_and_wait(left) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if left == writes.len() && ring.submission().len() == left => {
                    // None was taken, nor will be.
                    self.ring = None;
                    return Err(error);
                }
                Err(error) if is_one_of(&error, &PASSING) => {}
                // What the kernel has begun with cannot be called back.
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
            // A driver that cannot write so says it each time.
            Some(error) if taken == 0 && !is_one_of(&error, &OF_DRIVER) => {
                self.ring = None;
                Err(error)
            }
            _ => Ok(taken),
        }
    }
}

/// The system lacks something for a moment.
const PASSING: [Errno; 3] = [Errno::AGAIN, Errno::BUSY, Errno::NOMEM];
/// The driver takes a write no more, or not now.
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

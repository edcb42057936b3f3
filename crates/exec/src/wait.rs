//! Waits of calls that block.

use crate::cancel::{self, State};
use crate::sock::{MOVED, Sock, errno};
use crate::{real, signals};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_socket::{Net, ReadyList};

/// The side of a socket that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Receiving and accepting.
    Receive,
    /// Sending and connecting.
    Send,
}

/// The wait of one call.
pub(crate) struct Wait<'a> {
    sock: &'a Sock,
    side: Side,
    /// Whether the call may wait at all.
    blocks: bool,
    /// The thread's interruptions when the call began.
    interrupts: u64,
    deadline: Option<Instant>,
    /// Whether the last wait ended by `POLLERR` alone.
    is_erroneous: bool,
}

/// Pause between attempts on a datagram socket whose queue of ICMP errors is not read: the socket's
/// descriptor is in `POLLERR`, and shows nothing else to wait for.
const ERRONEOUS_PAUSE: Duration = Duration::from_millis(10);

impl<'a> Wait<'a> {
    /// The wait of a call with these `MSG_` flags.
    pub(crate) fn new(sock: &'a Sock, side: Side, flags: c_int) -> Wait<'a> {
        let blocks = flags & libc::MSG_DONTWAIT == 0 && !sock.nonblocking.load(Relaxed);
        Wait {
            sock,
            side,
            blocks,
            interrupts: signals::interrupts(),
            deadline: None,
            is_erroneous: false,
        }
    }

    /// A wait, whatever the socket's flags are.
    pub(crate) fn blocking(sock: &'a Sock, side: Side) -> Wait<'a> {
        Wait {
            blocks: true,
            ..Wait::new(sock, side, 0)
        }
    }

    /// Whether the call may wait.
    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }

    /// Repeats `attempt` until it does not fail with `EAGAIN`, and waits in between if the call
    /// blocks.
    ///
    /// # Errors
    /// `EAGAIN` if the call does not block, or after the socket's time limit; `EINTR` after a
    /// signal whose handler was not installed with `SA_RESTART`.
    pub(crate) fn until<T>(
        &mut self,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Result<T, c_int> {
        loop {
            match self.once(&mut attempt) {
                Err(error) if self.blocks && errno(&error) == libc::EAGAIN => self.rest(true)?,
                done => return done.map_err(|error| errno(&error)),
            }
        }
    }

    /// An attempt, unless the socket has moved to another process's use: then the error is
    /// [`MOVED`].
    pub(crate) fn once<T>(&self, attempt: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let moving = self.sock.moving.read();
        let _stays = moving.unwrap_or_else(PoisonError::into_inner);
        if self.sock.has_moved() {
            return Err(io::Error::from_raw_os_error(MOVED));
        }
        attempt()
    }

    /// Waits until the socket is ready.
    ///
    /// # Errors
    /// As [`Wait::until`].
    pub(crate) fn wait(&mut self) -> Result<(), c_int> {
        self.rest(false)
    }

    /// As [`Wait::wait`]; `tries` says that an attempt follows.
    fn rest(&mut self, tries: bool) -> Result<(), c_int> {
        // Another call may drive the net: then the kernel wakes this one.
        crate::ready_sets::leave(self.sock);
        let receives = self.side == Side::Receive;
        let limit = self.sock.timeout(receives);
        let deadline = match (self.deadline, limit) {
            (Some(deadline), _) => Some(deadline),
            (None, Some(limit)) => Instant::now().checked_add(limit),
            (None, None) => None,
        };
        self.deadline = deadline;
        let flags = if receives {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        let net = crate::host::running().ok_or(libc::ENETDOWN)?;
        let read = if tries && receives {
            self.sock.stream().ok()
        } else {
            None
        };
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(libc::EAGAIN);
            }
            let polled = self.sock.with_ready_fd(|fd| {
                // SAFETY: the descriptor lives as long as the socket, which this wait borrows.
                let fd = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
                let mut fds = vec![PollFd::from_borrowed_fd(fd, flags)];
                let driven = match &read {
                    Some(stream) => {
                        let mut wait = interruptible(self.interrupts, null());
                        result(stream.poll_to_read(&mut fds, deadline, &mut wait))
                    }
                    None => drive(&net, None, &mut fds, deadline, self.interrupts, null()),
                };
                driven.map(|()| fds[0].revents().contains(PollFlags::ERR))
            })?;
            match polled {
                // The attempt finds out whether it is ready.
                Ok(is_erroneous) => {
                    if is_erroneous && self.is_erroneous {
                        signals::outside(|_| std::thread::sleep(ERRONEOUS_PAUSE));
                    }
                    self.is_erroneous = is_erroneous;
                    return Ok(());
                }
                // A wait with a time limit ends in any case, as the kernel's (signal(7)).
                Err(Errno::INTR) if signals::interrupts() == self.interrupts && limit.is_none() => {
                }
                Err(error) => return Err(error.raw_os_error()),
            }
        }
    }
}

/// Waits for descriptors, or until a connection is in `list`, and drives the host meanwhile
/// ([`Net::poll`]), with the signal mask `mask` unless it is null: a call by number gives the kernel's, which is
/// shorter than the C library's type. `interrupts` is the number of the thread's
/// interruptions when its call began.
///
/// # Errors
/// `EINTR` after a signal.
pub(crate) fn drive<'a>(
    net: &'a Net,
    list: Option<&ReadyList>,
    fds: &mut Vec<PollFd<'a>>,
    deadline: Option<Instant>,
    interrupts: u64,
    mask: *const libc::sigset_t,
) -> Result<(), Errno> {
    let mut wait = interruptible(interrupts, mask);
    result(match list {
        Some(list) => net.poll_listed(list, fds, deadline, &mut wait),
        None => net.poll(fds, deadline, &mut wait),
    })
}

fn result(polled: io::Result<()>) -> Result<(), Errno> {
    polled.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// `ppoll(2)`, outside the library; `EINTR` also after an interruption since the call began, and
/// [`CANCELLED`](cancel::CANCELLED) in a cancelled thread.
fn interruptible(
    interrupts: u64,
    mask: *const libc::sigset_t,
) -> impl FnMut(&mut [PollFd<'_>], Option<&Timespec>) -> Result<usize, Errno> {
    move |fds, time| {
        signals::outside(|state| {
            if signals::interrupts() != interrupts {
                return Err(Errno::INTR);
            }
            kernel_poll(state, fds, time, mask)
        })
    }
}

/// `ppoll(2)`, in which the thread may be cancelled.
fn kernel_poll(
    state: State,
    fds: &mut [PollFd<'_>],
    time: Option<&Timespec>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let time = time.map(|time| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_nsec,
    });
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let count = fds.len() as libc::nfds_t;
    let fds = fds.as_mut_ptr().cast();
    let ready = cancel::point(
        state,
        (fds, count, time, mask),
        |(fds, count, time, mask)| {
            // SAFETY: rustix' type is the kernel's structure; the pointers are null or valid.
            unsafe { real::ppoll(fds, count, time, mask) as isize }
        },
    );
    usize::try_from(ready).map_err(|_| Errno::from_raw_os_error(crate::sock::last_errno()))
}

//! Descriptors that end a wait for frames early when they become readable.
//!
//! A sleeping tap polls them beside its sockets. A busy tap polls them once in
//! [`POLL_INTERVAL_NS`], by one system call without waiting.

use crate::tap::Tap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Interval in ns at which a busy tap polls the descriptors: a call of about
/// 0.5 µs each time.
const POLL_INTERVAL_NS: u64 = 1_000_000;

/// The descriptors, and the result of the last poll.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    fds: Vec<OwnedFd>,
    due_ns: u64,
    /// A descriptor was readable during the last pull.
    pub(crate) is_woken: bool,
}

impl Wakes {
    /// Adds a descriptor.
    pub(crate) fn add(&mut self, fd: OwnedFd) {
        self.fds.push(fd);
        self.poll_soon();
    }

    /// Makes the next poll due at once.
    pub(crate) fn poll_soon(&mut self) {
        self.due_ns = 0;
    }

    /// Whether a poll is due.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.due_ns
    }

    /// All descriptors, to sleep on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    /// Polls without waiting; returns whether `own` is readable, which is not
    /// among the descriptors.
    #[cold]
    pub(crate) fn poll(&mut self, own: Option<BorrowedFd<'_>>, now: u64) -> bool {
        self.due_ns = now + POLL_INTERVAL_NS;
        let fds = own.into_iter().chain(self.fds());
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // After an error no descriptor counts as readable; another poll
        // follows.
        let found = poll(&mut fds, Some(&Timespec::default())).unwrap_or(0);
        let is_readable = |fd: &PollFd<'_>| found > 0 && !fd.revents().is_empty();
        let (ours, others) = fds.split_at(usize::from(own.is_some()));
        let is_own = ours.iter().any(is_readable);
        let is_woken = others.iter().any(is_readable);
        self.is_woken |= is_woken;
        is_own
    }
}

impl Tap {
    /// Ends a [`pull`](Self::pull) of a frame early while this descriptor is
    /// readable, see [`is_woken`](Self::is_woken).
    pub fn wake_on(&mut self, fd: OwnedFd) {
        self.wakes.add(fd);
    }

    /// Whether the last [`pull`](Self::pull) of a frame found a descriptor of
    /// [`wake_on`](Self::wake_on) readable, or noticed a change of a link: at
    /// once while sleeping, and within 1 ms while frames arrive.
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.wakes.is_woken
    }
}

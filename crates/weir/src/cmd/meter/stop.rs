//! The request to a thread to end.

use crate::error::CliError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request to end; its descriptor becomes readable with it.
#[derive(Debug)]
pub(super) struct Stop {
    requested: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    pub(super) fn new() -> Result<Stop, CliError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Stop {
            requested: AtomicBool::new(false),
            event: event.map_err(CliError::run)?,
        })
    }

    pub(super) fn request(&self) {
        self.requested.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Waits so long, or until it is requested.
    pub(super) fn wait(&self, time: Duration) {
        let time = Timespec::try_from(time).unwrap_or_default();
        // A signal ends the wait.
        let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&time));
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

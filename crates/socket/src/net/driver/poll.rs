//! The third driver: a call that waits for descriptors, as `poll(2)`, and drives the net meanwhile.
//!
//! ```text
//!  wait for the descriptors, the links and wake-ups
//!    ├─ a frame, a timer or a wake-up   receive and settle
//!    └─ a descriptor is ready, or settling has changed one: the call returns
//! ```
//!
//! The readiness of a socket's descriptor changes in `settle`, on this thread, so that the
//! application's wait costs no wake-up from another processor.

use super::{Leading, StackDriver, unlock};
use crate::net::driver::state::NetState;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// `poll(2)`, as the application calls it.
pub type PollWait<'w> =
    dyn FnMut(&mut [PollFd<'_>], Option<&Timespec>) -> rustix::io::Result<usize> + 'w;

/// The time until `deadline`.
fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|at| at.saturating_duration_since(Instant::now()))
}

impl StackDriver {
    /// See [`Net::poll`](crate::Net::poll).
    pub(in crate::net) fn poll<'a>(
        &'a self,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> rustix::io::Result<()> {
        let mut state = self.lock();
        if !state.begin_poll() {
            self.hand_over(&mut state);
            unlock(state);
            // The driver makes the descriptors ready.
            let time = left(deadline).and_then(|left| Timespec::try_from(left).ok());
            return wait(fds, time.as_ref()).map(|_| ());
        }
        let leading = Leading(self);
        let own = fds.len();
        let (polled, mut state) = self.poll_and_drive(state, fds, deadline, wait);
        fds.truncate(own);
        std::mem::forget(leading);
        let rouse = state.leadership.end_poll(self.now_ns());
        self.note_poll(&state);
        self.wake_thread(rouse);
        unlock(state);
        polled
    }

    /// Leads until a descriptor is ready or may be, the deadline, or an interruption.
    fn poll_and_drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, NetState>,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> (rustix::io::Result<()>, MutexGuard<'a, NetState>) {
        let own = fds.len();
        loop {
            let before = state.fd_changes;
            let rest = state.rest(self.now_ns());
            // The driver's part of the descriptors.
            fds.truncate(own);
            fds.push(PollFd::new(&self.wake_call, PollFlags::IN));
            let waits = state.links().waits().zip(&self.links);
            fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
            unlock(state);
            let rest = rest.unwrap_or(Duration::ZERO);
            let rest = left(deadline).map_or(rest, |left| left.min(rest));
            let time = Timespec::try_from(rest).ok();
            let polled = wait(fds, time.as_ref());
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let ours = fds[..own].iter().any(is_ready);
            let drivers = fds[own..].iter().any(is_ready);
            if is_ready(&fds[own]) {
                let _ = rustix::io::read(&self.wake_call, &mut [0; 8]);
            }
            state = self.lock();
            if let Err(error) = polled {
                return (Err(error), state);
            }
            if drivers || !ours {
                state.receive(self.now_ns());
                state.settle(self.now_ns());
            }
            let is_over = left(deadline) == Some(Duration::ZERO) || state.is_failed();
            if ours || is_over || state.fd_changes != before || state.has_tasks() {
                return (Ok(()), state);
            }
        }
    }
}

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
//!
//! A blocking read waits here, too. It takes the bytes that it awaits at once, so that the descriptor
//! of its socket does not show them; nor do the other sockets' events end the wait.

use super::{Leading, StackDriver, unlock};
use crate::net::driver::state::{Id, NetState};
use crate::net::sock::readiness::Interest;
use crate::net::sock::ready_list::ReadyList;
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
    /// See [`Net::poll`](crate::Net::poll). A call that waits for a socket and then carries out what
    /// it waits for gives that as `awaited`; one that takes readable sockets from a list gives that.
    pub(in crate::net) fn poll<'a>(
        &'a self,
        awaited: Option<(Id, Interest)>,
        list: Option<&ReadyList>,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> rustix::io::Result<()> {
        let mut state = self.lock();
        if !state.begin_poll() {
            if let Some(list) = list {
                state.end_list(list);
            }
            self.hand_over(&mut state);
            unlock(state);
            // The driver makes the descriptors ready.
            let time = left(deadline).and_then(|left| Timespec::try_from(left).ok());
            return wait(fds, time.as_ref()).map(|_| ());
        }
        let leading = Leading(self);
        let own = fds.len();
        let (polled, mut state) = if list.is_some_and(|list| !list.is_empty()) {
            (Ok(()), state)
        } else {
            self.poll_and_drive(state, awaited, fds, deadline, wait)
        };
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
        awaited: Option<(Id, Interest)>,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> (rustix::io::Result<()>, MutexGuard<'a, NetState>) {
        let own = fds.len();
        let mut rest = state.rest(self.now_ns());
        // Frames that the last call has left are received without asking for them.
        if rest.is_none() {
            if self.receive_for(&mut state, awaited) || state.has_tasks() {
                return (Ok(()), state);
            }
            rest = state.rest(self.now_ns());
        }
        loop {
            // The driver's part of the descriptors.
            fds.truncate(own);
            fds.push(PollFd::new(&self.wake_call, PollFlags::IN));
            let waits = state.links().waits().zip(&self.links);
            fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
            let before = state.fd_changes;
            unlock(state);
            let time = rest.unwrap_or(Duration::ZERO);
            let time = left(deadline).map_or(time, |left| left.min(time));
            let time = Timespec::try_from(time).ok();
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
            let mut is_met = awaited.is_none() && state.fd_changes != before;
            if drivers || !ours {
                is_met |= self.receive_for(&mut state, awaited);
            }
            let is_over = left(deadline) == Some(Duration::ZERO) || state.is_failed();
            if ours || is_met || is_over || state.has_tasks() {
                return (Ok(()), state);
            }
            rest = state.rest(self.now_ns());
        }
    }

    /// Receives and settles. Returns whether what is awaited has happened, or, if nothing is, whether
    /// a descriptor has changed.
    fn receive_for(&self, state: &mut NetState, awaited: Option<(Id, Interest)>) -> bool {
        let before = state.fd_changes;
        state.awaited = awaited;
        state.receive(self.now_ns());
        state.settle(self.now_ns());
        state.awaited = None;
        match awaited {
            Some((id, side)) => state.readiness(id).is(side),
            None => state.fd_changes != before,
        }
    }
}

//! One stack, the thread that drives it, and the lock between that and calls.

use super::core::Side;
use super::lead::Lead;
use super::state::{Id, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the thread yields to calls that wait, before it goes on.
const YIELDS_MAX: usize = 100;

pub(crate) struct Shared {
    pub(super) state: Mutex<State>,
    /// Calls that wait for the lock.
    pub(super) waiting: AtomicUsize,
    /// Wakes the thread, and the call that leads.
    pub(super) wake: OwnedFd,
    pub(super) wake_call: OwnedFd,
    pub(super) start: Instant,
    /// What is waited for at the links.
    pub(super) links: Vec<OwnedFd>,
    pub(super) lead: Lead,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        state
    }

    /// Lets calls have the lock that wait for it: the thread, which takes it
    /// again at once while frames come, would leave them none.
    fn give_way(&self) {
        for _ in 0..YIELDS_MAX {
            if self.waiting.load(Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Wakes who waits for the links: a call, or the thread, or both for a moment.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        if self.lead.is_led() {
            let _ = rustix::io::write(&self.wake_call, &1_u64.to_ne_bytes());
        }
    }

    /// After a call on the stack: sends what it led to, and tells whom it
    /// concerns.
    pub(crate) fn after(&self, state: &mut State) {
        let mut woken = state.settle(self.now_ns());
        // What one poll leaves is the next one's: the thread's, if it drives.
        while self.lead.is_between_calls() && state.is_due(self.now_ns()) {
            state.receive(self.now_ns());
            woken |= state.settle(self.now_ns());
        }
        if woken {
            self.wake();
        }
    }

    /// As [`Shared::after`], and gives the lock back.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, State>) {
        self.after(&mut state);
        unlock(state);
    }

    /// The thread's work, until the net ends.
    pub(super) fn drive(&self) {
        loop {
            self.lead.stand_by(|| self.now_ns());
            let mut state = self.lock();
            state.is_led = false;
            state.gather_no_more();
            state.receive(self.now_ns());
            if state.settle(self.now_ns()) {
                self.wake();
            }
            // Not before: what just came may be what was waited for.
            if state.is_over() {
                state.leave(self.now_ns());
                return;
            }
            let rest = state.rest(self.now_ns());
            self.rest(state, rest, &self.wake);
        }
    }

    /// Gives the lock back, and waits so long at most for the links, or to be woken;
    /// not at all if there is work.
    fn rest(&self, state: MutexGuard<'_, State>, time: Option<Duration>, wake: &OwnedFd) {
        let Some(time) = time else {
            unlock(state);
            return self.give_way();
        };
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        let waits = state.links().waits().zip(&self.links);
        fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
        unlock(state);
        if woken(&mut fds, time) {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    /// Whether a call that may wait is to look first for what has come.
    pub(super) fn is_to_look(&self, eager: bool) -> bool {
        self.lead.is_to_look(eager, || self.now_ns())
    }

    /// Waits for a side of a socket by driving the net, until `deadline` at most;
    /// gives the lock back untouched if that is not for this call to do. `receive`
    /// takes what has come, and says whether it is waited for.
    pub(super) fn lead<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        (id, side): (Id, Side),
        deadline: Option<Instant>,
        mut receive: impl FnMut(&mut State, u64) -> bool,
    ) -> Result<MutexGuard<'s, State>, MutexGuard<'s, State>> {
        if side != Side::Write {
            state.gather_no_more();
        }
        if !state.may_be_led(id, self.now_ns()) || !self.lead.begin(self.now_ns()) {
            self.lead.hand_over();
            return Err(state);
        }
        state.is_led = true;
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let rest = state.rest(self.now_ns());
            let rest = rest.map(|rest| left.map_or(rest, |left| rest.min(left)));
            state.leader = Some((id, side));
            self.rest(state, rest, &self.wake_call);
            state = self.lock();
            state.leader = None;
            let done = receive(&mut state, self.now_ns());
            // What it leads to is sent when that is done for which it waits.
            if done || state.readiness(id).is(side) {
                break;
            }
            state.settle(self.now_ns());
            // A time that was over may be what ends it.
            if state.readiness(id).is(side) {
                break;
            }
        }
        self.lead.end(self.now_ns());
        Ok(state)
    }
}

/// Waits for one of these, or `time`; whether it was the first.
fn woken(fds: &mut [PollFd<'_>], time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    match poll(fds, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // Out of memory, which passes: not at full speed.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
    !fds[0].revents().is_empty()
}

/// Gives the lock back, and then wakes the tasks that are to be: they may do
/// whatever they like at once.
pub(super) fn unlock(mut state: MutexGuard<'_, State>) {
    let tasks = state.take_tasks();
    drop(state);
    for task in tasks {
        task.wake();
    }
}

/// Gives the lock back until the condition is told, for so long at most.
pub(super) fn wait<'s>(
    condition: &Condvar,
    state: MutexGuard<'s, State>,
    left: Option<Duration>,
) -> MutexGuard<'s, State> {
    match left {
        None => condition
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            let waited = condition.wait_timeout(state, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

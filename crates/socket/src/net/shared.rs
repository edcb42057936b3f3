//! One stack, the thread that drives it, and the lock between that and calls.

use super::state::State;
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
    /// Wakes the thread.
    pub(super) wake: OwnedFd,
    pub(super) start: Instant,
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

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// After a call on the stack: sends what it led to, and tells whom it
    /// concerns.
    pub(crate) fn after(&self, state: &mut State) {
        if state.settle(self.now_ns()) {
            self.wake();
        }
    }

    /// As [`Shared::after`], and gives the lock back.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, State>) {
        self.after(&mut state);
        unlock(state);
    }

    /// The thread's work, until the net ends.
    pub(super) fn drive(&self, links: &[OwnedFd]) {
        let mut fds = Vec::with_capacity(1 + links.len());
        loop {
            let mut state = self.lock();
            state.receive(self.now_ns());
            state.settle(self.now_ns());
            // Not before: what just came may be what was waited for.
            if state.is_over() {
                state.leave(self.now_ns());
                return;
            }
            let rest = state.rest(self.now_ns());
            fds.clear();
            fds.push(PollFd::new(&self.wake, PollFlags::IN));
            let waits = state.links().waits().zip(links);
            fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
            unlock(state);
            let Some(wait) = rest else {
                self.give_way();
                continue;
            };
            if woken(&mut fds, wait) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
        }
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

//! [`StackDriver`]: one stack, the thread that drives it, and the lock that calls share with
//! the thread.

pub(super) mod leader;
pub(super) mod park;
mod poll;
pub(super) mod state;

pub use poll::PollWait;

use super::sock::readiness::Interest;
use leader::WakeVia;
use park::Parker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use state::{Id, NetState};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often in a row the thread yields the lock to waiting calls before it goes on.
const YIELDS_MAX: usize = 100;

/// How often a call that finds the lock taken yields its processor before it waits for the lock. It is
/// worth more than 5 % where threads share a processor: an unmodified echo (bench `exec`, "echo, 16
/// connections").
const LOCK_YIELDS_MAX: usize = 10;

/// How often one call polls the stack at most; what is then due remains for the thread.
const POLLS_MAX: usize = 8;

pub(crate) struct StackDriver {
    pub(super) state: Mutex<NetState>,
    /// Number of calls that wait for the lock.
    pub(super) waiting: AtomicUsize,
    /// Eventfds that wake the thread (`wake`) and the call that leads (`wake_call`).
    pub(super) wake: OwnedFd,
    pub(super) wake_call: OwnedFd,
    pub(super) start: Instant,
    /// Where the thread waits while calls drive the net.
    pub(super) parker: Parker,
    /// The links' descriptors, to be polled.
    pub(super) links: Vec<OwnedFd>,
}

impl StackDriver {
    pub(crate) fn lock(&self) -> MutexGuard<'_, NetState> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Relaxed);
        let state = self.lock_soon();
        let state =
            state.unwrap_or_else(|| self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Relaxed);
        state
    }

    /// The lock, if it becomes free while this thread lets others run. The thread that has the lock has
    /// often just woken this one, and runs on the same processor.
    fn lock_soon(&self) -> Option<MutexGuard<'_, NetState>> {
        (0..LOCK_YIELDS_MAX).find_map(|_| {
            std::thread::yield_now();
            self.state.try_lock().ok()
        })
    }

    /// Lets waiting calls take the lock. Without this the thread, which takes the lock again
    /// at once while frames arrive, would starve the calls.
    fn yield_lock(&self) {
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

    /// Wakes the driver that waits for the links: a call, or the thread.
    pub(super) fn wake(&self, state: &NetState) {
        let fd = if state.leadership.is_led() {
            &self.wake_call
        } else {
            &self.wake
        };
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }

    /// Wakes the thread by this means.
    fn wake_thread(&self, rouse: Option<WakeVia>) {
        match rouse {
            None => {}
            Some(WakeVia::Poll) => _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()),
            Some(WakeVia::Unpark) => self.parker.unpark(),
        }
    }

    /// Makes the thread drive, unless a call leads: the calling thread is about to wait and
    /// cannot drive the net.
    pub(super) fn hand_over(&self, state: &mut NetState) {
        self.wake_thread(state.leadership.hand_over());
    }

    /// As [`StackDriver::hand_over`], unless the application polls descriptors, and so drives the
    /// net itself.
    pub(super) fn would_block(&self, state: &mut NetState) {
        self.wake_thread(state.leadership.would_block());
    }

    /// Whether a call should receive frames before it does its work.
    pub(super) fn should_poll(&self, state: &mut NetState, id: Id, eager: bool) -> bool {
        let (looks, rouse) = state.should_poll(id, eager, self.now_ns());
        self.note_poll(state);
        self.wake_thread(rouse);
        looks
    }

    /// Records for the parked thread that calls poll the links.
    fn note_poll(&self, state: &NetState) {
        if let Some(at_ns) = state.leadership.polled_ns() {
            self.parker.note_poll(at_ns);
        }
    }

    /// Completes a call on the stack: sends the resulting frames and notifies waiters.
    pub(crate) fn after_call(&self, state: &mut NetState) {
        self.works(state, |state| self.send_due(state));
    }

    /// Runs `work` on the stack. If `work` panics, the host fails.
    pub(crate) fn works<T>(
        &self,
        state: &mut NetState,
        work: impl FnOnce(&mut NetState) -> T,
    ) -> T {
        match catch_unwind(AssertUnwindSafe(|| work(state))) {
            Ok(done) => done,
            Err(panic) => {
                self.fail(state);
                resume_unwind(panic)
            }
        }
    }

    fn send_due(&self, state: &mut NetState) {
        let mut woken = state.settle(self.now_ns());
        if state.leadership.is_between_calls() {
            // Output that one poll leaves is for the next poll: the thread's, if it drives.
            for _ in 0..POLLS_MAX {
                if !state.is_due(self.now_ns()) {
                    break;
                }
                state.receive(self.now_ns());
                woken |= state.settle(self.now_ns());
            }
            // So is output beyond this call's share, and output for a full link.
            if state.is_due(self.now_ns()) || state.links().is_any_full() {
                self.hand_over(state);
            }
        }
        if woken {
            self.wake(state);
        }
    }

    /// As [`StackDriver::after_call`], and releases the lock.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, NetState>) {
        self.after_call(&mut state);
        unlock(state);
    }

    /// The thread's loop, until the net ends. If the thread panics, or a call that drives the
    /// stack, all waiting calls on the sockets of all the host's stacks end.
    pub(super) fn drive_among(&self, all: &[Arc<StackDriver>]) {
        let failing = Failing(all);
        self.drive();
        if !self.lock().is_failed() {
            std::mem::forget(failing);
        }
    }

    /// Marks the host as failed: every blocking call on a socket ends, now and from now on.
    fn fail(&self, state: &mut NetState) {
        state.fail();
        self.wake(state);
        let rouse = state.leadership.fail();
        self.wake_thread(rouse);
        self.parker.unpark();
    }

    fn drive(&self) {
        let mut state = self.lock();
        loop {
            while let Some(left) = state.leadership.park(self.now_ns()) {
                unlock(state);
                self.parker.wait(left, || self.now_ns());
                state = self.lock();
            }
            if state.is_failed() {
                return unlock(state);
            }
            state.receive(self.now_ns());
            state.settle(self.now_ns());
            // Not earlier: the frames received last may be what the calls wait for.
            if state.is_over() {
                state.shut_down(self.now_ns());
                return;
            }
            let rest = state.rest(self.now_ns());
            state.leadership.thread_works(rest.is_none());
            self.rest(state, rest, &self.wake);
            state = self.lock();
            state.leadership.thread_works(true);
        }
    }

    /// Releases the lock and waits up to `time` for the links or a wake-up; returns at once
    /// if `time` is `None`.
    fn rest(&self, state: MutexGuard<'_, NetState>, time: Option<Duration>, wake: &OwnedFd) {
        let Some(time) = time else {
            unlock(state);
            return self.yield_lock();
        };
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        let waits = state.links().waits().zip(&self.links);
        fds.extend(waits.filter_map(|(wait, fd)| Some(PollFd::new(fd, wait?))));
        unlock(state);
        if woken(&mut fds, time) {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    /// Waits for a side of a socket by driving the net, up to `deadline`. Releases nothing
    /// and returns the lock if this call must not lead. `receive` takes arrived frames and
    /// returns whether the awaited bytes are there.
    pub(super) fn lead<'s>(
        &'s self,
        mut state: MutexGuard<'s, NetState>,
        waits: (Id, Interest),
        deadline: Option<Instant>,
        receive: impl FnMut(&mut NetState, u64) -> bool,
    ) -> Result<MutexGuard<'s, NetState>, MutexGuard<'s, NetState>> {
        if !state.begin_lead(waits.0, self.now_ns()) {
            self.hand_over(&mut state);
            return Err(state);
        }
        let leading = Leading(self);
        let mut state = self.drive_until(state, waits, deadline, receive);
        std::mem::forget(leading);
        let rouse = state.leadership.end(self.now_ns());
        self.note_poll(&state);
        self.wake_thread(rouse);
        Ok(state)
    }

    /// Drives the net until the awaited event has happened, or until there is work that a
    /// leading call cannot do.
    fn drive_until<'s>(
        &'s self,
        mut state: MutexGuard<'s, NetState>,
        (id, side): (Id, Interest),
        deadline: Option<Instant>,
        mut receive: impl FnMut(&mut NetState, u64) -> bool,
    ) -> MutexGuard<'s, NetState> {
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return state;
            }
            let rest = state.rest(self.now_ns());
            let rest = rest.map(|rest| left.map_or(rest, |left| rest.min(left)));
            state.leader = Some((id, side));
            self.rest(state, rest, &self.wake_call);
            state = self.lock();
            state.leader = None;
            // The resulting frames are sent after the awaited work.
            if receive(&mut state, self.now_ns()) || state.readiness(id).is(side) {
                return state;
            }
            state.settle(self.now_ns());
            // The deadline may end the wait. Woken tasks may do anything, so that no call may
            // lead meanwhile.
            if state.readiness(id).is(side) || state.has_tasks() {
                return state;
            }
        }
    }
}

/// Guard of a thread that drives one of these stacks: its drop in a panic fails the host.
struct Failing<'a>(&'a [Arc<StackDriver>]);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        for shared in self.0 {
            let mut state = shared.lock();
            shared.fail(&mut state);
            unlock(state);
        }
    }
}

/// Guard of a call that leads: its drop in a panic fails the host.
struct Leading<'a>(&'a StackDriver);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        self.0.fail(&mut state);
        unlock(state);
    }
}

/// Waits for these descriptors, up to `time`; returns whether the first is ready.
fn woken(fds: &mut [PollFd<'_>], time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    match poll(fds, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // `poll` is out of memory, which passes: do not retry at full speed.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
    !fds[0].revents().is_empty()
}

/// Releases the lock, and then wakes the pending tasks, which may do anything at once.
pub(super) fn unlock(mut state: MutexGuard<'_, NetState>) {
    let tasks = state.take_tasks();
    drop(state);
    for task in tasks {
        // A waker belongs to the application. If it panics, which the panic hook has
        // reported, the remaining tasks are still woken.
        let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
    }
}

/// Releases a lock until the condition is notified, or for at most `left`.
pub(super) fn wait<'l, T>(
    condition: &Condvar,
    lock: MutexGuard<'l, T>,
    left: Option<Duration>,
) -> MutexGuard<'l, T> {
    match left {
        None => condition.wait(lock).unwrap_or_else(PoisonError::into_inner),
        Some(left) => {
            let waited = condition.wait_timeout(lock, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

//! [`StackDriver`]: one stack, the thread that drives it, and the lock that calls share with
//! the thread.

pub(super) mod leader;
pub(super) mod park;
pub(super) mod state;

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

/// How often the thread yields to calls that wait, before it goes on.
const YIELDS_MAX: usize = 100;

/// How often a call between others has the stack send, at most, before it leaves
/// what there is yet to the thread.
const POLLS_MAX: usize = 8;

pub(crate) struct StackDriver {
    pub(super) state: Mutex<NetState>,
    /// Calls that wait for the lock.
    pub(super) waiting: AtomicUsize,
    /// Wakes the thread, and the call that leads.
    pub(super) wake: OwnedFd,
    pub(super) wake_call: OwnedFd,
    pub(super) start: Instant,
    /// The thread waits here while calls drive the net.
    pub(super) parker: Parker,
    /// What is waited for at the links.
    pub(super) links: Vec<OwnedFd>,
}

impl StackDriver {
    pub(crate) fn lock(&self) -> MutexGuard<'_, NetState> {
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

    /// Wakes who waits for the links: a call, or the thread.
    pub(super) fn wake(&self, state: &NetState) {
        let fd = if state.leadership.is_led() {
            &self.wake_call
        } else {
            &self.wake
        };
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }

    /// Lets the thread know that it is wanted.
    fn wake_thread(&self, rouse: Option<WakeVia>) {
        match rouse {
            None => {}
            Some(WakeVia::Poll) => _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()),
            Some(WakeVia::Unpark) => self.parker.unpark(),
        }
    }

    /// Somebody is about to wait who cannot drive the net: unless a call leads, the
    /// thread does.
    pub(super) fn hand_over(&self, state: &mut NetState) {
        self.wake_thread(state.leadership.hand_over());
    }

    /// Whether a call is to look for what has come before it does what it is to.
    pub(super) fn should_poll(&self, state: &mut NetState, id: Id, eager: bool) -> bool {
        let (looks, rouse) = state.should_poll(id, eager, self.now_ns());
        self.note_poll(state);
        self.wake_thread(rouse);
        looks
    }

    /// The thread, while it stands by, is to know that calls look.
    fn note_poll(&self, state: &NetState) {
        if let Some(at_ns) = state.leadership.polled_ns() {
            self.parker.note_poll(at_ns);
        }
    }

    /// After a call on the stack: sends what it led to, and tells whom it
    /// concerns.
    pub(crate) fn after_call(&self, state: &mut NetState) {
        self.works(state, |state| self.send_due(state));
    }

    /// Does work on the stack. Should that panic, the host is out of order.
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
            // What one poll leaves is the next one's: the thread's, if it drives.
            for _ in 0..POLLS_MAX {
                if !state.is_due(self.now_ns()) {
                    break;
                }
                state.receive(self.now_ns());
                woken |= state.settle(self.now_ns());
            }
            // So is what this call has no time for, and when a full link takes frames.
            if state.is_due(self.now_ns()) || state.links().is_any_full() {
                self.hand_over(state);
            }
        }
        if woken {
            self.wake(state);
        }
    }

    /// As [`StackDriver::after_call`], and gives the lock back.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, NetState>) {
        self.after_call(&mut state);
        unlock(state);
    }

    /// The thread's work, until the net ends. Should the thread panic, or a call
    /// that drove the stack, no call on a socket of any of the host's stacks waits
    /// any longer.
    pub(super) fn drive_among(&self, all: &[Arc<StackDriver>]) {
        let failing = Failing(all);
        self.drive();
        if !self.lock().is_failed() {
            std::mem::forget(failing);
        }
    }

    /// The host is out of order: every call on a socket that may wait ends, now
    /// and from now on.
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
            // Not before: what just came may be what was waited for.
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

    /// Gives the lock back, and waits so long at most for the links, or to be woken;
    /// not at all if there is work.
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

    /// Waits for a side of a socket by driving the net, until `deadline` at most;
    /// gives the lock back untouched if that is not for this call to do. `receive`
    /// takes what has come, and says whether it is waited for.
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

    /// Drives the net until there is what is waited for, or something that this
    /// call cannot do while it leads.
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
            // What it leads to is sent when that is done for which it waits.
            if receive(&mut state, self.now_ns()) || state.readiness(id).is(side) {
                return state;
            }
            state.settle(self.now_ns());
            // A time that was over may be what ends it. Tasks do what they like when
            // they are woken, so that nobody may lead meanwhile.
            if state.readiness(id).is(side) || state.has_tasks() {
                return state;
            }
        }
    }
}

/// A thread that drives one of these stacks, until this is forgotten.
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

/// A call that leads, until this is forgotten.
struct Leading<'a>(&'a StackDriver);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        self.0.fail(&mut state);
        unlock(state);
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
pub(super) fn unlock(mut state: MutexGuard<'_, NetState>) {
    let tasks = state.take_tasks();
    drop(state);
    for task in tasks {
        // A waker is the application's: its panic, which the panic hook has
        // reported, leaves no other task asleep.
        let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
    }
}

/// Gives a lock back until the condition is told, for so long at most.
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

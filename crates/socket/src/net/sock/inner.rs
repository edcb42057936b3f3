//! [`SocketInner`]: the base of all sockets, and how their calls wait.

use super::readiness::Interest;
use super::ready_list::ReadyList;
use crate::net::driver::{PollWait, StackDriver};
use crate::net::{Id, Net, NetState};
use rustix::event::PollFd;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use weir_stack::tcp::{self, TcpId};

/// The work of a call, which is tried until it need not wait.
pub(crate) trait Operation<T> {
    /// Before the call waits, or while it drives the net: receives frames and returns
    /// whether the awaited bytes have arrived.
    fn receive(&mut self, state: &mut NetState, now_ns: u64) -> bool {
        state.receive(now_ns);
        false
    }

    /// Whether the call should poll the links even if another call has just done so.
    fn should_poll_now(&self, _state: &mut NetState) -> bool {
        false
    }

    /// Tries the call; fails with [`Errno::AGAIN`] if it must wait.
    fn try_once(&mut self, state: &mut NetState, now_ns: u64) -> Result<T, Errno>;
}

/// The result of a call on a host that has not failed.
fn tried<T>(
    state: &mut NetState,
    act: impl FnOnce(&mut NetState) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if state.is_failed() {
        Err(Errno::NETDOWN)
    } else {
        act(state)
    }
}

/// An operation that receives frames as the net's thread does.
struct Standard<F>(F);

impl<T, F: FnMut(&mut NetState, u64) -> Result<T, Errno>> Operation<T> for Standard<F> {
    fn try_once(&mut self, state: &mut NetState, now_ns: u64) -> Result<T, Errno> {
        self.0(state, now_ns)
    }
}

/// The value of `linger_ns` for a close that does not wait.
const NO_LINGER: u64 = u64::MAX;

/// A socket, which closes when it is dropped.
pub(crate) struct SocketInner {
    pub(crate) net: Net,
    /// The number of the stack that has the socket.
    pub(crate) shard: usize,
    pub(crate) id: Id,
    nonblocking: AtomicBool,
    /// Tasks have waited for the socket: its drop must not block their runtime.
    by_tasks: AtomicBool,
    /// Longest time that closing waits before the connection is reset, in nanoseconds.
    linger_ns: AtomicU64,
    /// Time-outs of reads and writes in nanoseconds; 0 is no limit.
    read_timeout_ns: AtomicU64,
    write_timeout_ns: AtomicU64,
    ready: OnceLock<Arc<OwnedFd>>,
}

impl SocketInner {
    /// Wraps socket `id` of stack `shard`, whose waiters are already registered.
    pub(crate) fn new(net: &Net, shard: usize, id: Id) -> SocketInner {
        SocketInner {
            net: net.clone(),
            shard,
            id,
            nonblocking: AtomicBool::new(false),
            by_tasks: AtomicBool::new(false),
            linger_ns: AtomicU64::new(NO_LINGER),
            read_timeout_ns: AtomicU64::new(0),
            write_timeout_ns: AtomicU64::new(0),
            ready: OnceLock::new(),
        }
    }

    fn shared(&self) -> &StackDriver {
        self.net.shard(self.shard)
    }

    /// Runs a call that does not wait; `act` gets the state and the time.
    pub(crate) fn call<T>(&self, act: impl FnOnce(&mut NetState, u64) -> T) -> T {
        let shared = self.shared();
        let mut state = shared.lock();
        let result = act(&mut state, shared.now_ns());
        state.refresh(self.id);
        shared.finish(state);
        result
    }

    /// Runs a call that only reads the state.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut NetState) -> T) -> T {
        look(&mut self.shared().lock())
    }

    /// Runs a call that waits as the socket is configured: repeats `try_once` until it does
    /// not fail with [`Errno::AGAIN`].
    pub(crate) fn wait<T>(
        &self,
        side: Interest,
        act: impl FnMut(&mut NetState, u64) -> Result<T, Errno>,
    ) -> io::Result<T> {
        self.wait_for(side, Standard(act))
    }

    /// As [`SocketInner::wait`], up to `deadline`.
    pub(crate) fn wait_until<T>(
        &self,
        side: Interest,
        deadline: Option<Instant>,
        act: impl FnMut(&mut NetState, u64) -> Result<T, Errno>,
    ) -> io::Result<T> {
        self.run_operation(side, deadline, Standard(act))
    }

    /// As [`SocketInner::wait`].
    pub(crate) fn wait_for<T>(
        &self,
        side: Interest,
        mut attempt: impl Operation<T>,
    ) -> io::Result<T> {
        if self.nonblocking.load(Relaxed) {
            let shared = self.shared();
            let result = self.call(|state, now_ns| {
                let result = tried(state, |state| attempt.try_once(state, now_ns));
                if matches!(result, Err(Errno::AGAIN)) {
                    shared.would_block(state);
                }
                result
            });
            return result.map_err(io::Error::from);
        }
        let timeout_ns = self.timeout(side).load(Relaxed);
        let deadline = match timeout_ns {
            0 => None,
            _ => Instant::now().checked_add(Duration::from_nanos(timeout_ns)),
        };
        self.run_operation(side, deadline, attempt)
    }

    fn run_operation<T>(
        &self,
        side: Interest,
        deadline: Option<Instant>,
        mut attempt: impl Operation<T>,
    ) -> io::Result<T> {
        let shared = self.shared();
        let mut state = shared.lock();
        let eager = attempt.should_poll_now(&mut state);
        if shared.should_poll(&mut state, self.id, eager) {
            shared.works(&mut state, |state| attempt.receive(state, shared.now_ns()));
        }
        loop {
            let result = tried(&mut state, |state| attempt.try_once(state, shared.now_ns()));
            state.refresh(self.id);
            if !matches!(result, Err(Errno::AGAIN)) {
                shared.finish(state);
                return result.map_err(io::Error::from);
            }
            shared.after_call(&mut state);
            if state.has_tasks() || state.readiness(self.id).is(side) {
                crate::net::unlock(state);
                state = shared.lock();
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Errno::AGAIN.into());
            }
            state = match shared.lead(state, (self.id, side), deadline, |state, now_ns| {
                attempt.receive(state, now_ns)
            }) {
                Ok(state) => state,
                Err(state) => self.park_on_condition(state, side, left),
            };
        }
    }

    /// Waits until the driver, the thread or another call, notifies this socket.
    fn park_on_condition<'s>(
        &self,
        mut state: MutexGuard<'s, NetState>,
        side: Interest,
        left: Option<Duration>,
    ) -> MutexGuard<'s, NetState> {
        let condition = state.socket_waiters(self.id).waiters(side).enter();
        state = crate::net::wait(&condition, state, left);
        state.socket_waiters(self.id).waiters(side).leave();
        state
    }

    /// As [`SocketInner::wait`], for a task, which is woken when another try is worthwhile.
    pub(crate) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        side: Interest,
        act: impl FnOnce(&mut NetState, u64) -> Result<T, Errno>,
    ) -> Poll<io::Result<T>> {
        self.by_tasks.store(true, Relaxed);
        let shared = self.shared();
        let mut state = shared.lock();
        let result = tried(&mut state, |state| act(state, shared.now_ns()));
        if matches!(result, Err(Errno::AGAIN)) {
            let waiters = state.socket_waiters(self.id).waiters(side);
            waiters.task(context.waker());
            shared.hand_over(&mut state);
        }
        state.refresh(self.id);
        shared.finish(state);
        match result {
            Err(Errno::AGAIN) => Poll::Pending,
            other => Poll::Ready(other.map_err(io::Error::from)),
        }
    }

    fn timeout(&self, side: Interest) -> &AtomicU64 {
        match side {
            Interest::Read => &self.read_timeout_ns,
            Interest::Write | Interest::AllAcked => &self.write_timeout_ns,
        }
    }

    /// # Errors
    /// If the time is zero, as in `std`.
    pub(crate) fn set_timeout(&self, side: Interest, timeout: Option<Duration>) -> io::Result<()> {
        let ns = match timeout {
            Some(Duration::ZERO) => return Err(Errno::INVAL.into()),
            Some(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            None => 0,
        };
        self.timeout(side).store(ns, Relaxed);
        Ok(())
    }

    pub(crate) fn get_timeout(&self, side: Interest) -> Option<Duration> {
        let ns = self.timeout(side).load(Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) {
        let ns = linger.map_or(NO_LINGER, |time| {
            u64::try_from(time.as_nanos()).map_or(NO_LINGER - 1, |ns| ns.min(NO_LINGER - 1))
        });
        self.linger_ns.store(ns, Relaxed);
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        let ns = self.linger_ns.load(Relaxed);
        (ns != NO_LINGER).then(|| Duration::from_nanos(ns))
    }

    /// Shuts a connection down and waits up to its linger time; returns the rest of that
    /// time. Does not wait where waiting is forbidden.
    fn wait_to_close(&self, id: TcpId, linger: Duration) -> Duration {
        let stays = self.nonblocking.load(Relaxed) || self.by_tasks.load(Relaxed);
        let failed = self.look(|state| state.is_failed());
        if failed
            || linger.is_zero()
            || stays
            || std::thread::panicking()
            || self.net.is_own_thread()
        {
            return linger;
        }
        let shut = self.call(|state, now_ns| {
            // The drop resets a connection that has unread bytes or is not open.
            let opening = state.stack.tcp_state(id) == Some(tcp::State::SynSent);
            let unread = state
                .stack
                .tcp_readable_slice(id)
                .is_ok_and(|bytes| !bytes.is_empty());
            !opening && !unread && state.stack.tcp_shutdown(now_ns, id).is_ok()
        });
        let began = Instant::now();
        if shut {
            // An error means that the time is over or that the connection failed.
            let _ = self.wait_until(Interest::AllAcked, began.checked_add(linger), |state, _| {
                if state.is_gone() || state.stack.tcp_all_acked(id) {
                    Ok(())
                } else {
                    Err(Errno::AGAIN)
                }
            });
        }
        linger.saturating_sub(began.elapsed())
    }

    /// As [`Net::poll`], until a call on this side would not wait; the caller then makes the call,
    /// which shows on the readiness descriptor what is left.
    pub(crate) fn poll_to<'a>(
        &'a self,
        side: Interest,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> io::Result<()> {
        let awaited = Some((self.id, side));
        Ok(self.shared().poll(awaited, None, fds, deadline, wait)?)
    }

    /// Puts the socket into a list by a number, or into none; returns whether it is in the list.
    pub(crate) fn list_in(&self, list: Option<(&ReadyList, u64)>) -> io::Result<bool> {
        self.ready_fd()?;
        let shared = self.shared();
        let mut state = shared.lock();
        let is_in = state.list_in(self.id, list);
        shared.finish(state);
        Ok(is_in)
    }

    /// Has the descriptor show each arrival as an edge, or only the first of what is unread.
    pub(crate) fn set_edges(&self, on: bool) -> io::Result<()> {
        self.ready_fd()?;
        self.look(|state| state.set_edges(self.id, on));
        Ok(())
    }

    /// The readiness descriptor, for `poll` and `epoll`.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.ready.get() {
            return Ok(fd.as_fd());
        }
        let made = self.look(|state| {
            // An application that waits for the descriptor need not drive the net.
            self.shared().would_block(state);
            let (now, hide) = (state.readiness(self.id), state.hide);
            let made = (self.id.kind(), hide);
            state.socket_waiters(self.id).ready_fd(now, made)
        })?;
        Ok(self.ready.get_or_init(|| made).as_fd())
    }
}

/// Defines the calls on waiting that all socket types share: `core` is the field that holds
/// the [`SocketInner`]; the text describes the type's descriptor.
macro_rules! waits {
    ($type:ident, $core:tt, $ready:literal) => {
        impl $type {
            /// Limits how long a read, receive or accept waits; then it fails with `EAGAIN`.
            ///
            /// # Errors
            /// `EINVAL` if the time is zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.$core.set_timeout(Interest::Read, timeout)
            }

            /// The value of `set_read_timeout`.
            ///
            /// # Errors
            /// Currently none; the signature is that of `std`.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.$core.get_timeout(Interest::Read))
            }

            /// Makes calls fail with `EAGAIN` instead of waiting.
            ///
            /// # Errors
            /// Currently none; the signature is that of `std`.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.$core.set_nonblocking(nonblocking);
                Ok(())
            }

            /// Another handle of the same socket.
            ///
            /// # Errors
            /// Currently none; the signature is that of `std`.
            pub fn try_clone(&self) -> io::Result<$type> {
                Ok(self.clone())
            }

            #[doc = $ready]
            ///
            /// The application must not read from the descriptor or write to it.
            ///
            /// # Errors
            /// If the system provides no descriptor.
            pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
                self.$core.ready_fd()
            }

            /// Whether the descriptor shows each arrival behind what is unread as another edge, for
            /// epoll sets with `EPOLLET`, as the kernel's sockets do; false by default, since each
            /// costs two system calls. Without an effect on a host of several stacks.
            ///
            /// # Errors
            /// If the system provides no descriptor.
            pub fn set_edges(&self, on: bool) -> io::Result<()> {
                self.$core.set_edges(on)
            }
        }
    };
}
pub(crate) use waits;

impl Drop for SocketInner {
    fn drop(&mut self) {
        let linger = self.linger();
        let left = match (self.id, linger) {
            (Id::Stream(id), Some(time)) => self.wait_to_close(id, time),
            _ => Duration::ZERO,
        };
        let shared = self.shared();
        let mut state = shared.lock();
        let now_ns = shared.now_ns();
        if state.is_failed() {
            state.forget(self.id);
            return crate::net::unlock(state);
        }
        let stack = &mut state.stack;
        match (self.id, linger) {
            (Id::Stream(id), None) => stack.tcp_close(now_ns, id),
            (Id::Stream(id), Some(Duration::ZERO)) => stack.tcp_abort(now_ns, id),
            (Id::Stream(id), Some(_)) => {
                stack.tcp_close_linger(now_ns, id, left.as_nanos() as u64);
            }
            (Id::Listener(id), _) => stack.tcp_unlisten(now_ns, id),
            (Id::Udp(id), _) => stack.udp_close(id),
        }
        state.forget(self.id);
        shared.finish(state);
    }
}

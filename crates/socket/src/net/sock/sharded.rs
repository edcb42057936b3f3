//! A UDP socket or listener replicated on every stack of a net. Each stack has its own
//! receive queue; data stays in the stack that received it until the application reads it.

use super::inner::SocketInner;
use super::readiness::Interest;
use super::ready_fd::SharedReadyFd;
use crate::net::{Net, NetState};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Number of items taken from one stack's queue in a row while other queues have items too.
/// Looking into another queue costs the lock of its stack.
const BATCH_PER_SHARD: usize = 16;

/// A UDP socket or listener with a part in each stack.
pub(crate) struct ShardedSocket {
    /// One part for each stack.
    shards: Vec<SocketInner>,
    /// The stack whose queue comes first, times [`BATCH_PER_SHARD`], plus the number of items
    /// taken from it in a row.
    next_shard: AtomicUsize,
    gate: Arc<EventCount>,
    ready: OnceLock<Arc<OwnedFd>>,
    /// Held while that is made.
    making: Mutex<()>,
}

impl ShardedSocket {
    pub(crate) fn of(cores: Vec<SocketInner>) -> ShardedSocket {
        ShardedSocket {
            shards: cores,
            next_shard: AtomicUsize::new(0),
            gate: Arc::default(),
            ready: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// The part in the first stack, which holds the socket's settings.
    pub(crate) fn first(&self) -> &SocketInner {
        &self.shards[0]
    }

    /// The parts in all stacks.
    pub(crate) fn shards(&self) -> &[SocketInner] {
        &self.shards
    }

    pub(crate) fn net(&self) -> &Net {
        &self.first().net
    }

    /// Waits, as the socket is configured, until `take` succeeds on one stack; `take` fails
    /// with [`Errno::AGAIN`] on an empty queue. Returns the stack's number too.
    pub(crate) fn wait<T>(
        &self,
        mut take: impl FnMut(&SocketInner, &mut NetState, u64) -> Result<T, Errno>,
    ) -> io::Result<(usize, T)> {
        let first = self.first();
        if self.shards.len() == 1 {
            let taken = first.wait(Interest::Read, |state, now_ns| take(first, state, now_ns));
            return taken.map(|taken| (0, taken));
        }
        if first.is_nonblocking() {
            let found =
                self.find(
                    |core| match core.call(|state, now_ns| take(core, state, now_ns)) {
                        Err(Errno::AGAIN) => Poll::Pending,
                        taken => Poll::Ready(taken.map_err(io::Error::from)),
                    },
                );
            return match found {
                Poll::Ready(taken) => taken,
                Poll::Pending => Err(Errno::AGAIN.into()),
            };
        }
        let timeout = first.get_timeout(Interest::Read);
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        let waker = Waker::from(Arc::clone(&self.gate));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.gate.seen();
            if let Poll::Ready(taken) = self.poll(&mut context, &mut take) {
                return taken;
            }
            if !self.gate.wait(seen, deadline) {
                return Err(Errno::AGAIN.into());
            }
        }
    }

    /// As [`ShardedSocket::wait`], for a task, which is woken when another try is worthwhile.
    pub(crate) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut take: impl FnMut(&SocketInner, &mut NetState, u64) -> Result<T, Errno>,
    ) -> Poll<io::Result<(usize, T)>> {
        self.find(|core| {
            core.poll(context, Interest::Read, |state, now_ns| {
                take(core, state, now_ns)
            })
        })
    }

    /// The first success of `ask`, beginning with the part whose turn it is, and the number of
    /// that part.
    fn find<T>(
        &self,
        mut ask: impl FnMut(&SocketInner) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<(usize, T)>> {
        let count = self.shards.len();
        let first = self.next_shard.load(Relaxed) / BATCH_PER_SHARD;
        for step in 0..count {
            let part = (first + step) % count;
            if let Poll::Ready(taken) = ask(&self.shards[part]) {
                if step > 0 {
                    self.next_shard.store(part * BATCH_PER_SHARD, Relaxed);
                }
                return Poll::Ready(taken.map(|taken| (part, taken)));
            }
        }
        Poll::Pending
    }

    /// Records that an item was taken from the part that the last [`ShardedSocket::poll`] or
    /// [`ShardedSocket::wait`] found, so that eventually another part has its turn.
    pub(crate) fn took(&self) {
        let next = self.next_shard.load(Relaxed) + 1;
        self.next_shard
            .store(next % (BATCH_PER_SHARD * self.shards.len()), Relaxed);
    }

    pub(crate) fn set_timeout(&self, side: Interest, timeout: Option<Duration>) -> io::Result<()> {
        let mut cores = self.shards.iter();
        cores.try_for_each(|core| core.set_timeout(side, timeout))
    }

    pub(crate) fn get_timeout(&self, side: Interest) -> Option<Duration> {
        self.first().get_timeout(side)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        let cores = self.shards.iter();
        cores.for_each(|core| core.set_nonblocking(nonblocking));
    }

    /// As [`SocketInner::set_edges`]; without an effect if there are several parts.
    pub(crate) fn set_edges(&self, on: bool) -> io::Result<()> {
        match &self.shards[..] {
            [core] => core.set_edges(on),
            _ => Ok(()),
        }
    }

    /// The readiness descriptor for `poll` and `epoll`: readable while one part is.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let [core] = &self.shards[..] {
            return core.ready_fd();
        }
        let making = self.making.lock();
        let _making = making.unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = self.ready.get() {
            return Ok(fd.as_fd());
        }
        let hide = self.first().look(|state| state.hide);
        let joint = Arc::new(SharedReadyFd::new(
            self.shards.len(),
            (self.first().id.kind(), hide),
        )?);
        for (part, core) in self.shards.iter().enumerate() {
            core.look(|state| {
                let now = state.readiness(core.id);
                state.socket_waiters(core.id).share_fd(&joint, part, now);
            });
        }
        Ok(self.ready.get_or_init(|| joint.fd()).as_fd())
    }
}

impl Drop for ShardedSocket {
    /// Closes the first part last: while it is bound, no other socket can take the address.
    fn drop(&mut self) {
        while self.shards.pop().is_some() {}
    }
}

/// The condition for threads that wait for any of several stacks.
#[derive(Default)]
struct EventCount {
    /// Number of wake-ups so far.
    opened: Mutex<u64>,
    changed: Condvar,
}

impl EventCount {
    fn seen(&self) -> u64 {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a wake-up since `seen`; false if `deadline` has passed.
    fn wait(&self, seen: u64, deadline: Option<Instant>) -> bool {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        while *opened == seen {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            opened = crate::net::wait(&self.changed, opened, left);
        }
        true
    }
}

impl Wake for EventCount {
    fn wake(self: Arc<EventCount>) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

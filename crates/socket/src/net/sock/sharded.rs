//! One socket on all stacks of a net, a listener or one of UDP: each has a queue
//! of its own, and what comes stays in the stack whose it is until it is taken.

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

/// How much is taken of one stack's queue in a row, while others have something
/// too: to look into another costs its lock.
const BATCH_PER_SHARD: usize = 16;

/// See the module.
pub(crate) struct ShardedSocket {
    /// One for each stack.
    shards: Vec<SocketInner>,
    /// Whose queue is looked at first, times [`BATCH_PER_SHARD`], and how much was taken of it
    /// in a row.
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

    /// The first stack's, which keeps what is set.
    pub(crate) fn first(&self) -> &SocketInner {
        &self.shards[0]
    }

    /// Each stack's.
    pub(crate) fn shards(&self) -> &[SocketInner] {
        &self.shards
    }

    pub(crate) fn net(&self) -> &Net {
        &self.first().net
    }

    /// `take` gives what one stack has, or fails with [`Errno::AGAIN`]; waits as
    /// the socket is set to until one has something, and gives its number too.
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

    /// As [`ShardedSocket::wait`] for a task: it is woken when it is worth to try
    /// again.
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

    /// What `ask` gives for the first of the parts that has something, beginning
    /// with the one whose turn it is; and which that is.
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

    /// Something was taken where the last [`ShardedSocket::poll`] or [`ShardedSocket::wait`] found
    /// it: sooner or later it is another stack's turn.
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

    /// The descriptor for `poll` and `epoll`: readable while one stack has
    /// something.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let [core] = &self.shards[..] {
            return core.ready_fd();
        }
        let making = self.making.lock();
        let _making = making.unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = self.ready.get() {
            return Ok(fd.as_fd());
        }
        let joint = Arc::new(SharedReadyFd::new(self.shards.len())?);
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
    /// The first stack's last: who has its place has the others'.
    fn drop(&mut self) {
        while self.shards.pop().is_some() {}
    }
}

/// What threads wait at that wait for any of several stacks.
#[derive(Default)]
struct EventCount {
    /// How often it was opened.
    opened: Mutex<u64>,
    changed: Condvar,
}

impl EventCount {
    fn seen(&self) -> u64 {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was opened since `seen`; false if the time is over.
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

//! One socket on all stacks of a net, a listener or one of UDP: each has a queue
//! of its own, and what comes stays in the stack whose it is until it is taken.

use super::inner::{Core, Side};
use super::ready_fd::Joint;
use crate::net::{Net, State};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How much is taken of one stack's queue in a row, while others have something
/// too: to look into another costs its lock.
const ROW: usize = 16;

/// See the module.
pub(crate) struct Parts {
    /// One for each stack.
    cores: Vec<Core>,
    /// Whose queue is looked at first, times [`ROW`], and how much was taken of it
    /// in a row.
    turn: AtomicUsize,
    gate: Arc<Gate>,
    ready: OnceLock<Arc<OwnedFd>>,
    /// Held while that is made.
    making: Mutex<()>,
}

impl Parts {
    pub(crate) fn of(cores: Vec<Core>) -> Parts {
        Parts {
            cores,
            turn: AtomicUsize::new(0),
            gate: Arc::default(),
            ready: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// The first stack's, which keeps what is set.
    pub(crate) fn first(&self) -> &Core {
        &self.cores[0]
    }

    /// Each stack's.
    pub(crate) fn cores(&self) -> &[Core] {
        &self.cores
    }

    pub(crate) fn net(&self) -> &Net {
        &self.first().net
    }

    /// `take` gives what one stack has, or fails with [`Errno::AGAIN`]; waits as
    /// the socket is set to until one has something, and gives its number too.
    pub(crate) fn wait<T>(
        &self,
        mut take: impl FnMut(&Core, &mut State, u64) -> Result<T, Errno>,
    ) -> io::Result<(usize, T)> {
        let first = self.first();
        if self.cores.len() == 1 {
            let taken = first.wait(Side::Read, |state, now_ns| take(first, state, now_ns));
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
        let timeout = first.get_timeout(Side::Read);
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

    /// As [`Parts::wait`] for a task: it is woken when it is worth to try
    /// again.
    pub(crate) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut take: impl FnMut(&Core, &mut State, u64) -> Result<T, Errno>,
    ) -> Poll<io::Result<(usize, T)>> {
        self.find(|core| {
            core.poll(context, Side::Read, |state, now_ns| {
                take(core, state, now_ns)
            })
        })
    }

    /// What `ask` gives for the first of the parts that has something, beginning
    /// with the one whose turn it is; and which that is.
    fn find<T>(
        &self,
        mut ask: impl FnMut(&Core) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<(usize, T)>> {
        let count = self.cores.len();
        let first = self.turn.load(Relaxed) / ROW;
        for step in 0..count {
            let part = (first + step) % count;
            if let Poll::Ready(taken) = ask(&self.cores[part]) {
                if step > 0 {
                    self.turn.store(part * ROW, Relaxed);
                }
                return Poll::Ready(taken.map(|taken| (part, taken)));
            }
        }
        Poll::Pending
    }

    /// Something was taken where the last [`Parts::poll`] or [`Parts::wait`] found
    /// it: sooner or later it is another stack's turn.
    pub(crate) fn took(&self) {
        let next = self.turn.load(Relaxed) + 1;
        self.turn.store(next % (ROW * self.cores.len()), Relaxed);
    }

    pub(crate) fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        let mut cores = self.cores.iter();
        cores.try_for_each(|core| core.set_timeout(side, timeout))
    }

    pub(crate) fn get_timeout(&self, side: Side) -> Option<Duration> {
        self.first().get_timeout(side)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        let cores = self.cores.iter();
        cores.for_each(|core| core.set_nonblocking(nonblocking));
    }

    /// The descriptor for `poll` and `epoll`: readable while one stack has
    /// something.
    pub(crate) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let [core] = &self.cores[..] {
            return core.ready_fd();
        }
        let making = self.making.lock();
        let _making = making.unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = self.ready.get() {
            return Ok(fd.as_fd());
        }
        let joint = Arc::new(Joint::new(self.cores.len())?);
        for (part, core) in self.cores.iter().enumerate() {
            core.look(|state| {
                let now = state.readiness(core.id);
                state.watch(core.id).join(&joint, part, now);
            });
        }
        Ok(self.ready.get_or_init(|| joint.fd()).as_fd())
    }
}

impl Drop for Parts {
    /// The first stack's last: who has its place has the others'.
    fn drop(&mut self) {
        while self.cores.pop().is_some() {}
    }
}

/// What threads wait at that wait for any of several stacks.
#[derive(Default)]
struct Gate {
    /// How often it was opened.
    opened: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
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

impl Wake for Gate {
    fn wake(self: Arc<Gate>) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

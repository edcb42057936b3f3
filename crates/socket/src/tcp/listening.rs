//! One listening socket on all stacks of a net: each has a queue of its own,
//! and a connection stays in the stack whose it is.

use crate::net::{Core, Joint, Net, Side, State};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Listening {
    /// One for each stack.
    cores: Vec<Core>,
    /// Whose queue is looked at first.
    turn: AtomicUsize,
    gate: Arc<Gate>,
    ready: OnceLock<Arc<OwnedFd>>,
    /// Held while that is made.
    making: Mutex<()>,
}

impl Listening {
    pub(super) fn of(cores: Vec<Core>) -> Listening {
        Listening {
            cores,
            turn: AtomicUsize::new(0),
            gate: Arc::default(),
            ready: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// The first stack's, which keeps what is set.
    pub(super) fn first(&self) -> &Core {
        &self.cores[0]
    }

    /// Each stack's.
    pub(super) fn cores(&self) -> &[Core] {
        &self.cores
    }

    pub(super) fn net(&self) -> &Net {
        &self.first().net
    }

    /// `take` gives what one stack has, or fails with [`Errno::AGAIN`]; waits as
    /// the socket is set to until one has something, and gives its number too.
    pub(super) fn wait<T>(
        &self,
        mut take: impl FnMut(&Core, &mut State, u64) -> Result<T, Errno>,
    ) -> io::Result<(usize, T)> {
        let first = self.first();
        if self.cores.len() == 1 {
            let taken = first.wait(Side::Read, |state, now_ns| take(first, state, now_ns));
            return taken.map(|taken| (0, taken));
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
            if first.is_nonblocking() || !self.gate.wait(seen, deadline) {
                return Err(Errno::AGAIN.into());
            }
        }
    }

    /// As [`Listening::wait`] for a task: it is woken when it is worth to try
    /// again.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut take: impl FnMut(&Core, &mut State, u64) -> Result<T, Errno>,
    ) -> Poll<io::Result<(usize, T)>> {
        let count = self.cores.len();
        let first = self.turn.fetch_add(1, Relaxed);
        for step in 0..count {
            let core = &self.cores[(first + step) % count];
            let taken = core.poll(context, Side::Read, |state, now_ns| {
                take(core, state, now_ns)
            });
            if let Poll::Ready(taken) = taken {
                return Poll::Ready(taken.map(|taken| (core.shard, taken)));
            }
        }
        Poll::Pending
    }

    pub(super) fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        self.first().set_timeout(side, timeout)
    }

    pub(super) fn get_timeout(&self, side: Side) -> Option<Duration> {
        self.first().get_timeout(side)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.first().set_nonblocking(nonblocking);
    }

    /// The descriptor for `poll` and `epoll`: readable while one stack has
    /// something.
    pub(super) fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
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

impl Drop for Listening {
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
            opened = match left {
                Some(Duration::ZERO) => return false,
                None => {
                    let waited = self.changed.wait(opened);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(opened, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
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

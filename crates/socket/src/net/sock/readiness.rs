//! The waiters of a socket: threads, tasks, and pollers of its descriptor.

use super::ready_fd::{Hide, ReadyFd, SharedReadyFd};
use rustix::net::SocketType;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar};
use std::task::Waker;

/// The side of a socket that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    Read,
    Write,
    /// The peer's acknowledgment of everything that was written.
    AllAcked,
}

/// The calls on a socket that would not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Readiness {
    /// A read, receive or accept would return data, the end or an error.
    pub(crate) readable: bool,
    /// A write or send would take data or fail.
    pub(crate) writable: bool,
    /// The peer has acknowledged everything that was written.
    pub(crate) all_acked: bool,
    /// No more data will arrive (`POLLRDHUP`).
    pub(crate) ended: bool,
    /// No data will arrive or leave any more (`POLLHUP`).
    pub(crate) over: bool,
    /// The connection ended with an error (`POLLERR`).
    pub(crate) failed: bool,
    /// An error is pending: each call of a datagram socket would return it.
    pub(crate) pending: bool,
    /// A datagram socket has a pending error, or a queued ICMP error (`POLLERR`).
    pub(crate) erroneous: bool,
}

impl Readiness {
    /// Whether a call on this side would not wait.
    pub(crate) fn is(&self, side: Interest) -> bool {
        match side {
            Interest::Read => self.readable || self.pending,
            Interest::Write => self.writable || self.pending,
            Interest::AllAcked => self.all_acked,
        }
    }

    /// The readiness of a socket with these two parts: readable if either part is, since a
    /// read takes from both; writable if both are, since a write may go to either.
    pub(crate) fn and(self, other: Readiness) -> Readiness {
        Readiness {
            readable: self.readable || other.readable,
            writable: self.writable && other.writable,
            all_acked: self.all_acked || other.all_acked,
            ended: self.ended || other.ended,
            over: self.over || other.over,
            failed: self.failed || other.failed,
            pending: self.pending || other.pending,
            erroneous: self.erroneous || other.erroneous,
        }
    }

    /// The readiness of a socket on a host whose links are gone: every call returns at once.
    pub(crate) const GONE: Readiness = Readiness {
        readable: true,
        writable: true,
        all_acked: true,
        ended: true,
        over: true,
        failed: true,
        pending: true,
        erroneous: true,
    };
}

/// The waiters for one side of a socket.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Created when a thread first waits.
    condition: Option<Arc<Condvar>>,
    threads: usize,
    tasks: Vec<Waker>,
}

impl Waiters {
    /// Registers a thread that is about to wait; returns the condition to wait for.
    pub(crate) fn enter(&mut self) -> Arc<Condvar> {
        self.threads += 1;
        Arc::clone(self.condition.get_or_insert_default())
    }

    pub(crate) fn leave(&mut self) {
        self.threads = self.threads.saturating_sub(1);
    }

    /// Registers a task.
    pub(crate) fn task(&mut self, waker: &Waker) {
        if !self.tasks.iter().any(|other| other.will_wake(waker)) {
            self.tasks.push(waker.clone());
        }
    }

    /// Notifies all threads, and moves all tasks to `tasks`.
    pub(in crate::net) fn notify(&mut self, tasks: &mut Vec<Waker>) {
        if self.threads > 0
            && let Some(condition) = &self.condition
        {
            condition.notify_all();
        }
        tasks.append(&mut self.tasks);
    }

    pub(in crate::net) fn is_empty(&self) -> bool {
        self.threads == 0 && self.tasks.is_empty()
    }
}

/// The state of a socket besides the stack's.
#[derive(Default)]
pub(crate) struct SocketWaiters {
    readers: Waiters,
    writers: Waiters,
    closers: Waiters,
    pub(crate) ready: Option<ReadyFd>,
    /// The descriptor of a socket on several stacks, and this stack's part of it.
    shared_fd: Option<(Arc<SharedReadyFd>, usize)>,
    /// Whether the application has shut the socket down for reading, and for writing.
    pub(crate) shut_read: bool,
    pub(crate) shut_write: bool,
    /// Least number of bytes that make the socket readable (`SO_RCVLOWAT`); 0 counts as 1.
    pub(crate) recv_lowat: usize,
    /// Whether the error was reported: afterwards reads return the end.
    pub(in crate::net) error_reported: bool,
}

impl SocketWaiters {
    /// The waiters for one side.
    pub(crate) fn waiters(&mut self, side: Interest) -> &mut Waiters {
        match side {
            Interest::Read => &mut self.readers,
            Interest::Write => &mut self.writers,
            Interest::AllAcked => &mut self.closers,
        }
    }

    /// Whether a change would notify a thread, a task or a descriptor.
    pub(crate) fn is_watched(&self) -> bool {
        let waiters = [&self.readers, &self.writers, &self.closers];
        self.has_descriptor() || waiters.iter().any(|waiters| !waiters.is_empty())
    }

    /// Whether the socket has a readiness descriptor.
    pub(crate) fn has_descriptor(&self) -> bool {
        self.ready.is_some() || self.shared_fd.is_some()
    }

    /// Gives the descriptor this readiness; returns whether the socket's list got the socket.
    pub(crate) fn show(&mut self, readiness: Readiness) -> bool {
        if let Some((joint, part)) = &self.shared_fd {
            joint.set(*part, readiness);
        }
        let ready = self.ready.as_mut();
        ready.is_some_and(|ready| ready.set(readiness))
    }

    /// Whether arrivals behind what is unread show on the descriptor.
    pub(crate) fn shows_edges(&self) -> bool {
        self.ready.as_ref().is_some_and(ReadyFd::shows_edges)
    }

    /// Shows an arrival behind what is unread; returns whether the socket's list got the socket.
    pub(crate) fn note_arrived(&mut self, arrived: u32, now: Readiness) -> bool {
        let ready = self.ready.as_mut();
        ready.is_some_and(|ready| ready.note_arrived(arrived, now))
    }

    /// Notifies threads, and adds the tasks to be woken to `tasks`.
    pub(crate) fn notify(&mut self, readiness: Readiness, tasks: &mut Vec<Waker>) {
        for side in [Interest::Read, Interest::Write, Interest::AllAcked] {
            if readiness.is(side) {
                self.waiters(side).notify(tasks);
            }
        }
    }

    /// Marks the socket's error as reported; returns whether it was not before.
    pub(crate) fn report_error(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.error_reported, true);
        if first && let Some(ready) = &mut self.ready {
            ready.clear_error();
        }
        first
    }

    /// Joins the descriptor `joint` as its part of this number.
    pub(crate) fn share_fd(&mut self, joint: &Arc<SharedReadyFd>, part: usize, now: Readiness) {
        joint.set(part, now);
        self.shared_fd = Some((Arc::clone(joint), part));
    }

    /// The readiness descriptor, created at the first call.
    pub(crate) fn ready_fd(
        &mut self,
        now: Readiness,
        (kind, hide): (SocketType, Hide),
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => ReadyFd::new(kind, hide)?,
        };
        let ready = self.ready.insert(ready);
        ready.set(now);
        Ok(ready.fd())
    }
}

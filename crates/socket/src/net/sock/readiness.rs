//! Who waits for a socket: threads, tasks, and who polls its descriptor.

use super::ready_fd::{ReadyFd, SharedReadyFd};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar};
use std::task::Waker;

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    Read,
    Write,
    /// That the peer has all that was written.
    AllAcked,
}

/// What can be done with a socket without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Readiness {
    /// A read, receive or accept gives something, the end or an error
    /// included.
    pub(crate) readable: bool,
    /// A write or send takes something, or fails.
    pub(crate) writable: bool,
    /// The peer has all that was written.
    pub(crate) all_acked: bool,
    /// Nothing more will come (`POLLRDHUP`).
    pub(crate) ended: bool,
    /// Nor go (`POLLHUP`).
    pub(crate) over: bool,
    /// For a reason that is no orderly end (`POLLERR`).
    pub(crate) failed: bool,
}

impl Readiness {
    /// Whether a call of this side would not wait.
    pub(crate) fn is(&self, side: Interest) -> bool {
        match side {
            Interest::Read => self.readable,
            Interest::Write => self.writable,
            Interest::AllAcked => self.all_acked,
        }
    }

    /// What can be done with a socket of which these are two parts: who reads
    /// takes what either has, and who writes does not know to which it will go.
    pub(crate) fn and(self, other: Readiness) -> Readiness {
        Readiness {
            readable: self.readable || other.readable,
            writable: self.writable && other.writable,
            all_acked: self.all_acked || other.all_acked,
            ended: self.ended || other.ended,
            over: self.over || other.over,
            failed: self.failed || other.failed,
        }
    }

    /// Every call ends at once.
    pub(crate) const GONE: Readiness = Readiness {
        readable: true,
        writable: true,
        all_acked: true,
        ended: true,
        over: true,
        failed: true,
    };
}

/// Those that wait for one side.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Made when first a thread waits.
    condition: Option<Arc<Condvar>>,
    threads: usize,
    tasks: Vec<Waker>,
}

impl Waiters {
    /// A thread is about to wait for this.
    pub(crate) fn enter(&mut self) -> Arc<Condvar> {
        self.threads += 1;
        Arc::clone(self.condition.get_or_insert_default())
    }

    pub(crate) fn leave(&mut self) {
        self.threads = self.threads.saturating_sub(1);
    }

    /// A task waits.
    pub(crate) fn task(&mut self, waker: &Waker) {
        if !self.tasks.iter().any(|other| other.will_wake(waker)) {
            self.tasks.push(waker.clone());
        }
    }

    /// Wakes all.
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

/// What is kept of a socket besides the stack.
#[derive(Default)]
pub(crate) struct SocketWaiters {
    readers: Waiters,
    writers: Waiters,
    closers: Waiters,
    pub(crate) ready: Option<ReadyFd>,
    /// A descriptor that it has a part of.
    shared_fd: Option<(Arc<SharedReadyFd>, usize)>,
    /// The program has shut it down for reading, for writing.
    pub(crate) shut_read: bool,
    pub(crate) shut_write: bool,
    /// It is readable with so many bytes, or at the end; 0 is as 1.
    pub(crate) recv_lowat: usize,
    /// Its error was told: after it, there is only the end.
    pub(in crate::net) error_reported: bool,
}

impl SocketWaiters {
    /// Who waits for a side.
    pub(crate) fn waiters(&mut self, side: Interest) -> &mut Waiters {
        match side {
            Interest::Read => &mut self.readers,
            Interest::Write => &mut self.writers,
            Interest::AllAcked => &mut self.closers,
        }
    }

    /// Whether anybody would learn of a change.
    pub(crate) fn is_watched(&self) -> bool {
        let waiters = [&self.readers, &self.writers, &self.closers];
        self.has_descriptor() || waiters.iter().any(|waiters| !waiters.is_empty())
    }

    /// Whether a descriptor shows what can be done.
    pub(crate) fn has_descriptor(&self) -> bool {
        self.ready.is_some() || self.shared_fd.is_some()
    }

    /// Tells threads and the descriptor; tasks are added to those that are to
    /// be woken.
    pub(crate) fn notify(&mut self, readiness: Readiness, tasks: &mut Vec<Waker>) {
        if let Some(ready) = &mut self.ready {
            ready.set(readiness);
        }
        if let Some((joint, part)) = &self.shared_fd {
            joint.set(*part, readiness);
        }
        for side in [Interest::Read, Interest::Write, Interest::AllAcked] {
            if readiness.is(side) {
                self.waiters(side).notify(tasks);
            }
        }
    }

    /// The socket's error is told; whether it was not before.
    pub(crate) fn report_error(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.error_reported, true);
        if first && let Some(ready) = &mut self.ready {
            ready.clear_error();
        }
        first
    }

    /// Has a part of a descriptor, that one of this number.
    pub(crate) fn share_fd(&mut self, joint: &Arc<SharedReadyFd>, part: usize, now: Readiness) {
        joint.set(part, now);
        self.shared_fd = Some((Arc::clone(joint), part));
    }

    /// The descriptor that shows what can be done; made when first asked for.
    pub(crate) fn ready_fd(&mut self, now: Readiness) -> rustix::io::Result<Arc<OwnedFd>> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => ReadyFd::new()?,
        };
        let ready = self.ready.insert(ready);
        ready.set(now);
        Ok(ready.fd())
    }
}

//! A signal when frames arrive.
//!
//! BPF rings do not support `O_ASYNC` (their files have no `fasync`, up to
//! Linux 6.18 at least), nor do `epoll` and `eventfd`. So a thread waits for
//! the ring, if a signal was requested.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread that signals this process when a ring is readable, once for each
/// time it is armed.
#[derive(Debug)]
pub(super) struct SigioThread {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// An eventfd that arms or ends the thread.
    wake: OwnedFd,
    is_over: AtomicBool,
}

impl SigioThread {
    /// Starts the thread, unarmed.
    pub(super) fn start(ring: BorrowedFd<'_>, signal: Signal) -> io::Result<SigioThread> {
        let ring = ring.try_clone_to_owned()?;
        let shared = Arc::new(Shared {
            wake: eventfd(0, EventfdFlags::CLOEXEC)?,
            is_over: AtomicBool::new(false),
        });
        let alarm = SigioThread {
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("weir-signal".into());
        thread.spawn(move || attend(&shared, &ring, signal))?;
        Ok(alarm)
    }

    /// Arms the thread: the next frame raises the signal, or one that is
    /// already there.
    pub(super) fn set(&self) {
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for SigioThread {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.set();
    }
}

fn attend(shared: &Shared, ring: &OwnedFd, signal: Signal) {
    loop {
        // Wait until armed.
        if rustix::io::retry_on_intr(|| rustix::io::read(&shared.wake, &mut [0; 8])).is_err() {
            return;
        }
        loop {
            if shared.is_over.load(Ordering::Acquire) {
                return;
            }
            let mut fds = [ring.as_fd(), shared.wake.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let [came, woken] = fds.map(|fd| !fd.revents().is_empty());
            if woken {
                break;
            }
            if came {
                let _ = kill_process(getpid(), signal);
                break;
            }
        }
    }
}

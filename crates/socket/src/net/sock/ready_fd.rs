//! [`ReadyFd`]: a descriptor whose readiness, as `poll` reports it, is that of a socket.
//!
//! The descriptor is one end of a pair of Unix sockets. This process has both ends:
//!
//! ```text
//!  readable      a byte lies in its queue      sent from the other end
//!  writable      its own queue has room        filled and drained by us
//!  POLLRDHUP     the other end is shut down for writing
//!  POLLHUP       the other end is closed; POLLERR if it had not read all
//! ```
//!
//! The kernel therefore reports level and edge changes as for a TCP socket, in `poll`,
//! `select`, `epoll` and `io_uring` alike.

use super::readiness::Readiness;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_error};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Fills a socket queue of the least size. The kernel counts its own overhead too, so that
/// one message of 2 KiB is enough.
const FILL: [u8; 2048] = [0; 2048];

/// Moves a descriptor that the application does not see to another number: see
/// [`Builder::hide_fds`](crate::Builder::hide_fds).
pub(crate) type Hide = fn(OwnedFd) -> OwnedFd;

/// A descriptor with the readiness of a socket.
pub(crate) struct ReadyFd {
    /// The application's end.
    fd: Arc<OwnedFd>,
    other: Option<OwnedFd>,
    is_readable: bool,
    is_writable: bool,
    is_ended: bool,
}

impl ReadyFd {
    /// Creates a descriptor that is writable and not readable.
    pub(crate) fn new(hide: Hide) -> rustix::io::Result<ReadyFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (fd, other) = (hide(fd), hide(other));
        // The kernel raises the size to the least that it allows.
        set_socket_send_buffer_size(&fd, 0)?;
        Ok(ReadyFd {
            fd: Arc::new(fd),
            other: Some(other),
            is_readable: false,
            is_writable: true,
            is_ended: false,
        })
    }

    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Clears `POLLERR` once the error was reported; from now on only the end remains.
    pub(crate) fn clear_error(&mut self) {
        // Reading `SO_ERROR` clears the error.
        let _ = socket_error(&self.fd);
    }

    /// Gives the descriptor this readiness.
    pub(crate) fn set(&mut self, now: Readiness) {
        let Some(other) = &self.other else {
            return;
        };
        if now.readable != self.is_readable && !self.is_ended {
            if now.readable {
                let _ = send(other, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            } else {
                drain(&self.fd);
            }
            self.is_readable = now.readable;
        }
        if now.writable != self.is_writable {
            if now.writable {
                drain(other)
            } else {
                fill(&self.fd)
            }
            self.is_writable = now.writable;
        }
        if now.ended && !self.is_ended {
            let _ = shutdown(other, Shutdown::Write);
            self.is_ended = true;
        }
        if now.over {
            if now.failed {
                fill(&self.fd)
            } else {
                drain(other)
            }
            self.other = None;
        }
    }
}

/// The descriptor of a socket that has a part in each of several stacks.
pub(crate) struct SharedReadyFd(Mutex<(ReadyFd, Vec<Readiness>)>);

impl SharedReadyFd {
    /// Creates a descriptor for this number of parts, none of which is ready.
    pub(crate) fn new(parts: usize, hide: Hide) -> rustix::io::Result<SharedReadyFd> {
        let all = vec![Readiness::default(); parts];
        Ok(SharedReadyFd(Mutex::new((ReadyFd::new(hide)?, all))))
    }

    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        let joint = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        joint.0.fd()
    }

    /// Sets the readiness of one part.
    pub(in crate::net) fn set(&self, part: usize, now: Readiness) {
        let mut joint = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ready, parts) = &mut *joint;
        parts[part] = now;
        let all = parts.iter().copied().reduce(Readiness::and);
        ready.set(all.unwrap_or_default());
    }
}

/// Writes until the queue to the other end is full.
fn fill(fd: &OwnedFd) {
    while let Ok(1..) | Err(Errno::INTR) =
        send(fd, &FILL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    {}
}

/// Reads until the queue is empty.
fn drain(fd: &OwnedFd) {
    let mut bytes = [0; 4096];
    while let Ok((1.., _)) | Err(Errno::INTR) = recv(fd, &mut bytes, RecvFlags::DONTWAIT) {}
}

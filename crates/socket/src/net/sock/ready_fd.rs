//! [`ReadyFd`]: a descriptor whose readiness, as `poll` reports it, is that of a socket.
//!
//! The descriptor is one end of a pair of Unix sockets, of the socket's type. This process has both
//! ends:
//!
//! ```text
//!                 streams, listeners                     datagrams
//!  readable       a byte lies in its queue, sent from the other end
//!  writable       its own queue has room, filled and drained by us
//!  POLLRDHUP      the other end is shut down for writing   it is shut down for reading
//!  POLLHUP        it is shut down both ways                it is shut down both ways
//!  POLLERR        the other end was closed, and had        the other end has parted from it,
//!                 not read all                             and had not read all: cleared by
//!                                                          reading SO_ERROR
//! ```
//!
//! The kernel therefore reports level and edge changes as for a TCP or UDP socket, in `poll`,
//! `select`, `epoll` and `io_uring` alike. Data that arrive behind unread data change nothing here; if they are
//! to be an edge, too, another byte comes into the queue, and one is taken.

use super::readiness::Readiness;
use super::ready_list::{Listed, ReadyList};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_error};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, bind, connect, connect_unspec, getsockname, recv, send, shutdown, socketpair,
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
    is_datagrams: bool,
    /// The name of the application's end, once the other end has parted from it.
    name: Option<SocketAddrAny>,
    is_readable: bool,
    is_writable: bool,
    is_ended: bool,
    is_over: bool,
    is_erroneous: bool,
    /// The list that shows that the socket is readable, in place of the descriptor.
    listed: Option<Listed>,
    /// What had arrived ([`NetState::arrived`](crate::net::NetState)), if more of it behind what is unread shows
    /// as another edge.
    arrived: Option<u32>,
}

impl ReadyFd {
    /// Creates a descriptor that is writable and not readable.
    pub(crate) fn new(kind: SocketType, hide: Hide) -> rustix::io::Result<ReadyFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, other) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let (fd, other) = (hide(fd), hide(other));
        // The kernel raises the size to the least that it allows.
        set_socket_send_buffer_size(&fd, 0)?;
        Ok(ReadyFd {
            fd: Arc::new(fd),
            other: Some(other),
            is_datagrams: kind == SocketType::DGRAM,
            name: None,
            is_readable: false,
            is_writable: true,
            is_ended: false,
            is_over: false,
            is_erroneous: false,
            listed: None,
            arrived: None,
        })
    }

    /// Whether more that arrives behind what is unread shows as another edge; `arrived` is what has now.
    pub(crate) fn set_edges(&mut self, arrived: Option<u32>) {
        self.arrived = arrived;
    }

    pub(crate) fn shows_edges(&self) -> bool {
        self.arrived.is_some()
    }

    /// Shows another edge if more has arrived, and something was unread; returns whether the socket's list
    /// shows it.
    pub(crate) fn note_arrived(&mut self, arrived: u32, now: Readiness) -> bool {
        let Some(before) = &mut self.arrived else {
            return false;
        };
        let more = arrived.wrapping_sub(std::mem::replace(before, arrived));
        if more.cast_signed() <= 0 || !now.readable {
            return false;
        }
        if let Some(listed) = self.listed.as_ref().filter(|listed| listed.is_ready) {
            listed.list.push(listed.number);
            return true;
        }
        let shows = self.is_readable && !self.is_ended && !self.is_erroneous;
        if let Some(other) = self.other.as_ref().filter(|_| shows) {
            // Each message that comes is an edge. One is left.
            let sent = send(other, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if sent.is_ok() {
                take(&self.fd);
            }
        }
        false
    }

    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Clears `POLLERR` once the error was reported; from now on only the end remains.
    pub(crate) fn clear_error(&mut self) {
        // Reading `SO_ERROR` clears the error.
        let _ = socket_error(&self.fd);
    }

    /// Puts the socket into this list, by this number, or into none.
    pub(crate) fn list_in(&mut self, list: Option<(&ReadyList, u64)>) {
        self.listed = list.map(|(list, number)| Listed {
            list: list.clone(),
            number,
            is_ready: false,
        });
    }

    /// Whether the socket is in this list.
    pub(crate) fn is_listed_in(&self, list: &ReadyList) -> bool {
        let listed = self.listed.as_ref();
        listed.is_some_and(|listed| listed.list.is_same(list))
    }

    /// Whether the socket is readable by its list alone; then whether it is writable.
    pub(crate) fn is_listed_ready(&self) -> Option<bool> {
        let is_ready = self.listed.as_ref().is_some_and(|listed| listed.is_ready);
        is_ready.then_some(self.is_writable)
    }

    /// Whether the socket's list, and not the descriptor, shows that the socket is readable; and
    /// whether the list got the socket now.
    fn show_in_list(&mut self, now: Readiness) -> (bool, bool) {
        let Some(listed) = &mut self.listed else {
            return (false, false);
        };
        let is_shown = self.is_readable || now.ended || now.over || now.failed;
        let is_ready = now.readable && !is_shown;
        let is_new = is_ready && !listed.is_ready;
        listed.is_ready = is_ready;
        if is_new {
            listed.list.push(listed.number);
        }
        (is_ready, is_new)
    }

    /// Gives the descriptor this readiness; returns whether the socket's list got the socket.
    pub(crate) fn set(&mut self, mut now: Readiness) -> bool {
        let (by_list, is_new) = self.show_in_list(now);
        now.readable &= !by_list;
        self.show(now);
        is_new
    }

    fn show(&mut self, now: Readiness) {
        let Some(other) = &self.other else {
            return;
        };
        let mut is_touched = false;
        if now.readable != self.is_readable && !self.is_ended {
            if now.readable {
                let _ = send(other, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            } else {
                take(&self.fd);
            }
            self.is_readable = now.readable;
            is_touched = true;
        }
        // A call that sends returns the pending error.
        let writable = now.writable || now.erroneous && self.is_datagrams;
        if writable != self.is_writable {
            if writable {
                drain(other)
            } else {
                fill(&self.fd)
            }
            self.is_writable = writable;
            is_touched = true;
        }
        if self.is_datagrams {
            self.set_datagrams(now, is_touched);
            return;
        }
        if now.ended && !self.is_ended {
            let _ = shutdown(other, Shutdown::Write);
            self.is_ended = true;
        }
        if now.over && !self.is_over {
            // What the other end has not read becomes the error, if it is closed.
            let _ = send(&self.fd, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            let _ = shutdown(&self.fd, Shutdown::Both);
            self.is_over = true;
        }
        if now.over && now.failed {
            self.other = None;
        }
    }

    /// The part of [`ReadyFd::set`] for datagrams. If the end `is_touched`, a call on it has taken its
    /// error.
    fn set_datagrams(&mut self, now: Readiness, is_touched: bool) {
        if now.erroneous && (is_touched || !self.is_erroneous) {
            let _ = self.raise_error();
        } else if self.is_erroneous && !now.erroneous {
            let _ = socket_error(&self.fd);
        }
        self.is_erroneous = now.erroneous;
        let how = match (now.over, now.ended) {
            (true, _) => Shutdown::Both,
            (false, true) => Shutdown::Read,
            (false, false) => return,
        };
        if now.over || !self.is_ended {
            let _ = shutdown(&self.fd, how);
        }
        self.is_ended = true;
    }

    /// Has the kernel set the error of a datagram end (unix(7)): its peer parts from it with a message
    /// unread, and connects again.
    fn raise_error(&mut self) -> rustix::io::Result<()> {
        let Some(other) = &self.other else {
            return Ok(());
        };
        let name = match &self.name {
            Some(name) => name,
            None => {
                bind(&self.fd, &SocketAddrUnix::new_unnamed())?;
                self.name.insert(getsockname(&self.fd)?)
            }
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // The first one may return an error that is set already.
        let sent = send(&self.fd, &[0], flags).or_else(|_| send(&self.fd, &[0], flags));
        let parted = sent.and_then(|_| connect_unspec(other));
        let joined = connect(other, name);
        parted.and(joined)
    }
}

/// The descriptor of a socket that has a part in each of several stacks.
pub(crate) struct SharedReadyFd(Mutex<(ReadyFd, Vec<Readiness>)>);

impl SharedReadyFd {
    /// Creates a descriptor for this number of parts, none of which is ready.
    pub(crate) fn new(
        parts: usize,
        (kind, hide): (SocketType, Hide),
    ) -> rustix::io::Result<SharedReadyFd> {
        let all = vec![Readiness::default(); parts];
        Ok(SharedReadyFd(Mutex::new((ReadyFd::new(kind, hide)?, all))))
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

/// Writes until the queue to the other end is full. An error of a datagram end comes first.
fn fill(fd: &OwnedFd) {
    while let Ok(1..) | Err(Errno::INTR | Errno::CONNRESET) =
        send(fd, &FILL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    {}
}

/// Reads the one message that makes the descriptor readable. An error of a datagram end comes first.
fn take(fd: &OwnedFd) {
    while let Err(Errno::INTR | Errno::CONNRESET) = recv(fd, &mut [0; 1], RecvFlags::DONTWAIT) {}
}

/// Reads until the queue is empty. An error of a datagram end comes first.
fn drain(fd: &OwnedFd) {
    let mut bytes = [0; 4096];
    while let Ok((1.., _)) | Err(Errno::INTR | Errno::CONNRESET) =
        recv(fd, &mut bytes, RecvFlags::DONTWAIT)
    {}
}

//! One relayed listener: connections that are relayed, to the processes that accept.

use super::passing::{PASS, is_short, pass, send};
use super::protocol::Key;
use super::pump::{Interest, Pump};
use super::relay_stream;
use crate::sock::Sock;
use crate::{host, real};
use libc::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};
use weir_socket::TcpListener;

/// Connections that a listener accepts in one turn.
const ACCEPTS_MAX: usize = 64;

/// A listener, and the owner's end of its pair: each message to the other end passes a descriptor
/// of a connection.
pub(super) struct Listening {
    /// The socket, which gives connections its options.
    sock: Sock,
    listener: TcpListener,
    fd: OwnedFd,
    key: Key,
    /// A connection that waits until there is room for it.
    accepted: Option<OwnedFd>,
}

/// Limits how many connections wait in a new pair for `accept(2)`: as many as the backlog says, and at
/// least five. Further ones stay in the stack, up to the backlog again.
///
/// The kernel counts the memory of messages that were not received (`SO_SNDBUF`), all of one length
/// here; what one takes differs between kernels and is measured.
///
/// # Errors
/// If the system has no memory for a message.
pub(super) fn limit(own: &OwnedFd, other: &OwnedFd, backlog: usize) -> Result<(), c_int> {
    send(own, &[0; PASS], None)?;
    let one = unread(own);
    let flags = rustix::net::RecvFlags::DONTWAIT;
    let _ = rustix::net::recv(other, &mut [0_u8; PASS], flags);
    // The kernel doubles the value (socket(7)).
    let room = c_int::try_from(one.saturating_mul(backlog) / 2).unwrap_or(c_int::MAX);
    super::calls::set_int(own.as_raw_fd(), libc::SO_SNDBUF, room);
    Ok(())
}

/// The memory of the messages that the other end has not received (`SIOCOUTQ`, unix(7)).
fn unread(own: &OwnedFd) -> usize {
    let mut memory: c_int = 0;
    // SAFETY: the command writes a number.
    let asked = unsafe {
        let to = (&raw mut memory) as usize;
        real::ioctl(own.as_raw_fd(), libc::TIOCOUTQ, to)
    };
    usize::try_from(memory)
        .ok()
        .filter(|_| asked == 0)
        .unwrap_or(0)
}

/// What the next connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Peer,
    /// Processes that accept.
    Room,
    /// Descriptors or memory, whose return the kernel does not report.
    Later,
    /// Nothing: other items have their turn.
    Again,
}

impl Listening {
    pub(super) fn new(sock: Sock, listener: TcpListener, fd: OwnedFd, key: Key) -> Listening {
        Listening {
            sock,
            listener,
            fd,
            key,
            accepted: None,
        }
    }

    pub(super) fn socket(&self) -> (&Key, &Sock) {
        (&self.key, &self.sock)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Passes connections on; returns `None` once all processes have closed the listener. `later` asks
    /// for another turn after a while.
    pub(super) fn turn(
        &mut self,
        context: &mut Context<'_>,
        pump: &Pump,
        later: &mut bool,
    ) -> Option<Interest> {
        let waits = self.pass_on(context, pump)?;
        match waits {
            Waits::Later => *later = true,
            Waits::Again => context.waker().wake_by_ref(),
            Waits::Peer | Waits::Room => {}
        }
        let mut byte = [0];
        // The other end sends nothing: a message of no bytes is its end.
        match rustix::net::recv(&self.fd, &mut byte, rustix::net::RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(Interest {
                read: true,
                write: waits == Waits::Room,
            }),
            _ => None,
        }
    }

    /// Accepts connections and passes them on; returns what the next one waits for.
    fn pass_on(&mut self, context: &mut Context<'_>, pump: &Pump) -> Option<Waits> {
        for _ in 0..ACCEPTS_MAX {
            if let Some(accepted) = &self.accepted {
                match pass(&self.fd, accepted) {
                    Ok(()) => self.accepted = None,
                    Err(libc::EAGAIN) => return Some(Waits::Room),
                    Err(error) if is_short(error) => return Some(Waits::Later),
                    Err(_) => return None,
                }
            }
            // What no process has accepted leaves the guests their part.
            if pump.relays() >= host::relays_max() && unread(&self.fd) > 0 {
                return Some(Waits::Later);
            }
            match self.listener.poll_accept(context) {
                Poll::Pending => return Some(Waits::Peer),
                Poll::Ready(Ok((stream, _))) => {
                    // With the options of the listener.
                    let sock = Sock::accepted(&self.sock, stream.clone(), false);
                    let Ok((end, item)) = relay_stream(sock, stream) else {
                        // There is no descriptor left for the next one either.
                        return Some(Waits::Later);
                    };
                    self.accepted = Some(end);
                    pump.add(item);
                }
                Poll::Ready(Err(_)) => return None,
            }
        }
        Some(Waits::Again)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Though another thread may still have the listener.
        self.listener.shutdown();
    }
}

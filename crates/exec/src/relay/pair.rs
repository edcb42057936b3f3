//! One relayed connection: bytes between a stream and the owner's end of the pair.

use super::name;
use super::protocol::Key;
use super::pump::Interest;
use crate::sock::{Sock, errno};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, shutdown};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;
use weir_socket::TcpStream;

/// Bytes that are copied at a time.
pub(super) const CHUNK: usize = 64 << 10;
/// Chunks of one turn each way, so that no connection keeps the others waiting.
const CHUNKS_MAX: usize = 8;

/// Longest wait for a peer that takes nothing of what is left after the application has closed the
/// connection. It is the stack's own limit for such connections (RFC 6429 §4), which does not apply
/// while the relay has the stream.
const REST_MAX: Duration = Duration::from_secs(300);

/// Bytes that one side has given and the other has not taken.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    start: usize,
}

impl Rest {
    fn left(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes = bytes.to_vec();
        self.start = 0;
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            // A connection at rest has no memory here.
            *self = Rest::default();
        }
    }
}

/// Why a pair is over.
enum End {
    /// Both directions have ended.
    Both,
    /// The connection failed with this error.
    Failed(c_int),
    /// All processes have closed the application's end.
    Closed,
    /// As [`End::Closed`], with received bytes that no process has read: the kernel's TCP resets
    /// such a connection (RFC 2525 §2.17).
    Unread,
}

/// Bytes of a plug that are written at a time.
const PLUG: usize = 32 << 10;

/// Fills the application's end, so that it is not writable until the owner has taken the plug off:
/// a connection becomes writable when it is open, or has failed. Returns the plug's length.
pub(super) fn plug(end: &OwnedFd) -> Result<usize, c_int> {
    let mut len = 0;
    loop {
        let mut fds = [PollFd::new(end, PollFlags::OUT)];
        let polled = poll(&mut fds, Some(&NONE)).map_err(Errno::raw_os_error)?;
        if polled == 0 {
            return Ok(len);
        }
        match send(end, &[0; PLUG], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => len += count,
            Err(Errno::AGAIN) => return Ok(len),
            Err(error) => return Err(error.raw_os_error()),
        }
    }
}

const NONE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A connection and the owner's end of its pair.
pub(super) struct Pair {
    sock: Sock,
    stream: TcpStream,
    fd: OwnedFd,
    key: Key,
    /// Bytes that lie before the application's, until the connection is open.
    plug: usize,
    /// To the network, and to the application.
    up: Rest,
    down: Rest,
    up_done: bool,
    down_done: bool,
    /// Why nothing more can be written. What the peer had sent before is still the application's.
    failed: Option<c_int>,
    /// Whether the connection has ended before all processes have closed it, as far as is known.
    is_over: bool,
}

impl Pair {
    pub(super) fn new(sock: Sock, stream: TcpStream, fd: OwnedFd, key: Key, plug: usize) -> Pair {
        Pair {
            sock,
            stream,
            fd,
            key,
            plug,
            up: Rest::default(),
            down: Rest::default(),
            up_done: false,
            down_done: false,
            failed: None,
            is_over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn socket(&self) -> (&Key, &Sock) {
        (&self.key, &self.sock)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Copies what can be copied; returns what to wait for at the owner's end, or `None` once the
    /// pair is over. The stream wakes `context`.
    pub(super) fn turn(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        again: &mut bool,
    ) -> Option<Interest> {
        if self.plug > 0 {
            match self.open(context, scratch) {
                Ok(true) => {}
                Ok(false) => return Some(Interest::default()),
                Err(end) => {
                    self.end(&end);
                    return None;
                }
            }
        }
        let copied = self.copy_down(context, scratch, again);
        let copied = match copied {
            // What the application has written before its close goes before the RST.
            Err(End::Unread) => self.copy_up(context, scratch, again).and(copied),
            copied => copied.and_then(|()| self.copy_up(context, scratch, again)),
        };
        let copied = copied.and_then(|()| self.look());
        match copied {
            Ok(()) => Some(Interest {
                read: self.up.is_empty() && !self.up_done && self.failed.is_none(),
                write: !self.down.is_empty(),
            }),
            Err(end) => {
                self.end(&end);
                None
            }
        }
    }

    /// Whether the connection is open; the plug is off then. It stays on if the connection fails:
    /// with it unread, the close is an error at the application's end (`POLLERR`).
    fn open(&mut self, context: &mut Context<'_>, scratch: &mut [u8]) -> Result<bool, End> {
        match self.stream.poll_opened(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Err(End::Failed(errno(&error))),
            // Nothing was sent yet that the peer could miss.
            Poll::Pending if self.is_hung_up() => return Err(End::Unread),
            Poll::Pending => return Ok(false),
        }
        while self.plug > 0 {
            let room = self.plug.min(scratch.len());
            match recv(&self.fd, &mut scratch[..room], RecvFlags::DONTWAIT) {
                Ok((count @ 1.., _)) => self.plug -= count,
                Err(Errno::INTR) => {}
                _ => return Err(End::Unread),
            }
        }
        Ok(true)
    }

    fn end(&mut self, end: &End) {
        self.is_over = matches!(end, End::Both | End::Failed(_));
        match end {
            End::Both => name::say_end(&self.fd, 0),
            End::Failed(error) => {
                name::say_end(&self.fd, *error);
                if self.plug == 0 {
                    let _ = shutdown(&self.fd, rustix::net::Shutdown::Both);
                }
            }
            // Asked for by `SO_LINGER` with a time of zero.
            End::Closed if self.stream.linger().is_some() => self.stream.reset(),
            End::Closed => {
                // Though another thread may still have the stream.
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            End::Unread => self.stream.reset(),
        }
    }

    /// Whether all processes have closed the application's end, or both directions have ended.
    fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let _ = poll(&mut fds, Some(&NONE));
        fds[0].revents().contains(PollFlags::HUP)
    }

    /// Limits how long the peer may take nothing, unless the application has: no process is left to give
    /// the connection up.
    pub(super) fn limit_rest(&self) {
        if let Ok(None) = self.stream.user_timeout() {
            let _ = self.stream.set_user_timeout(Some(REST_MAX));
        }
    }

    fn look(&self) -> Result<(), End> {
        if !self.up_done || !self.up.is_empty() {
            return Ok(());
        }
        match (self.down_done, self.is_hung_up()) {
            (true, _) => Err(End::Both),
            (false, true) if self.down.is_empty() => Err(End::Closed),
            (false, true) => Err(End::Unread),
            (false, false) => Ok(()),
        }
    }

    /// From the network to the application.
    fn copy_down(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        again: &mut bool,
    ) -> Result<(), End> {
        for _ in 0..CHUNKS_MAX {
            if !self.down.is_empty() {
                let sent = self.give(self.down.left())?;
                self.down.take(sent);
                if !self.down.is_empty() {
                    return Ok(());
                }
            }
            if self.down_done {
                return self.failed.map_or(Ok(()), |error| Err(End::Failed(error)));
            }
            match self.stream.poll_read(context, scratch) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) if self.failed.is_some() => self.down_done = true,
                Poll::Ready(Ok(0)) => {
                    self.down_done = true;
                    let _ = shutdown(&self.fd, rustix::net::Shutdown::Write);
                    return Ok(());
                }
                Poll::Ready(Ok(count)) => {
                    let sent = self.give(&scratch[..count])?;
                    if sent < count {
                        self.down.keep(&scratch[sent..count]);
                    }
                }
                Poll::Ready(Err(error)) => {
                    return Err(End::Failed(self.failed.unwrap_or_else(|| errno(&error))));
                }
            }
        }
        *again = true;
        Ok(())
    }

    /// Sends to the application; returns how many bytes it has room for.
    fn give(&self, bytes: &[u8]) -> Result<usize, End> {
        match send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
            Err(_) if self.is_hung_up() => Err(End::Unread),
            // No process reads any more, but the application may still write.
            Err(_) => Ok(bytes.len()),
        }
    }

    /// From the application to the network.
    fn copy_up(
        &mut self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
        again: &mut bool,
    ) -> Result<(), End> {
        if let Some(error) = self.failed {
            self.refuse(error, scratch);
            return Ok(());
        }
        for _ in 0..CHUNKS_MAX {
            if !self.up.is_empty() {
                match self.stream.poll_write(context, self.up.left()) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(count)) => {
                        self.up.take(count);
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        let error = self.failure(&error);
                        self.failed = Some(error);
                        self.up = Rest::default();
                        self.copy_down(context, scratch, again)?;
                        self.refuse(error, scratch);
                        return Ok(());
                    }
                }
            }
            if self.up_done {
                return Ok(());
            }
            match recv(&self.fd, &mut *scratch, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    if self.stream.linger().is_some() && self.is_hung_up() {
                        // Without a FIN before.
                        return Err(End::Closed);
                    }
                    self.up_done = true;
                    // A connection that is over has sent its FIN.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    return Ok(());
                }
                Ok((count, _)) => self.up.keep(&scratch[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(_) => return Err(End::Unread),
            }
        }
        *again = true;
        Ok(())
    }

    /// Shows that the connection has failed to an application that leaves received bytes unread: a call of it
    /// that sends, or waits for room, fails.
    fn refuse(&self, error: c_int, scratch: &mut [u8]) {
        if self.down.is_empty() {
            return;
        }
        name::say_end(&self.fd, error);
        let _ = shutdown(&self.fd, rustix::net::Shutdown::Read);
        // Nothing is added now, and without what lies there the application's end is writable.
        while let Ok((1.., _)) = recv(&self.fd, &mut *scratch, RecvFlags::DONTWAIT) {}
    }

    /// The connection's own error, which a failed write hides behind `EPIPE`.
    fn failure(&self, error: &std::io::Error) -> c_int {
        let own = self.stream.take_error().ok().flatten();
        let number = own.map_or_else(|| errno(error), |own| errno(&own));
        match number {
            libc::EPIPE => libc::ECONNRESET,
            number => number,
        }
    }
}

//! [`TcpStream`]: a TCP connection.

use super::TcpSocket;
use super::socket::first;
use crate::errno;
use crate::net::{Id, Interest, Net, NetState, Operation, PollWait, ReadyList, SocketInner, waits};
use rustix::event::PollFd;
use rustix::io::Errno;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use weir_stack::tcp::{self, TcpError, TcpId, TcpInfo, TcpOptions};

/// A TCP connection, as [`std::net::TcpStream`]. A clone is a handle of the same connection,
/// which closes with its last handle.
#[derive(Clone)]
pub struct TcpStream {
    core: Arc<SocketInner>,
    id: TcpId,
}

impl TcpStream {
    pub(crate) fn of(net: &Net, shard: usize, id: TcpId) -> TcpStream {
        let core = Arc::new(SocketInner::new(net, shard, Id::Stream(id)));
        TcpStream { core, id }
    }

    /// Opens a connection to the first of these addresses that accepts it.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT` or `ENETUNREACH`, as for the last address.
    pub fn connect(net: &Net, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first(address, |address| {
            TcpSocket::new(net).connect(address, None)
        })
    }

    /// As [`TcpStream::connect`], and gives up after `timeout`.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; [`io::ErrorKind::TimedOut`] after `timeout`; `EINVAL` if
    /// `timeout` is zero.
    pub fn connect_timeout(
        net: &Net,
        address: &SocketAddr,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(Errno::INVAL.into());
        }
        TcpSocket::new(net).connect(*address, Some(timeout))
    }

    /// Waits until the connection is open.
    pub(super) fn opened(&self, deadline: Option<Instant>) -> io::Result<()> {
        let waited = self
            .core
            .wait_until(Interest::Write, deadline, |state, _| self.is_open(state));
        match waited {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Errno::TIMEDOUT.into()),
            other => other,
        }
    }

    /// As [`TcpStream::take_error`] for a task: ready once the connection is open or has
    /// failed.
    ///
    /// # Errors
    /// Why the connection failed.
    pub fn poll_opened(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let opened = |state: &mut NetState, _| self.is_open(state);
        self.core.poll(context, Interest::Write, opened)
    }

    fn is_open(&self, state: &mut NetState) -> Result<(), Errno> {
        state.check()?;
        match state.stack.tcp_state(self.id) {
            Some(tcp::State::SynSent) => Err(Errno::AGAIN),
            Some(tcp::State::Closed) => match self.error(state) {
                Some(error) => Err(error),
                None => Ok(()),
            },
            Some(_) => Ok(()),
            None => Err(Errno::NOTCONN),
        }
    }

    /// The connection's error, if it was not yet reported; marks the error as reported.
    fn error(&self, state: &mut NetState) -> Option<Errno> {
        let found = errno::tcp(state.stack.tcp_error(self.id)?);
        state
            .socket_waiters(self.core.id)
            .report_error()
            .then_some(found)
    }

    /// Passes the first contiguous run of received bytes to `take`, without a copy, and
    /// consumes as many as `take` returns; an empty slice is the end. Waits for the first
    /// byte as [`Read::read`] does.
    ///
    /// The stack's lock is held while `take` runs, so the net does no work meanwhile.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn read_with(&self, mut take: impl FnMut(&[u8]) -> usize) -> io::Result<usize> {
        self.core.wait(Interest::Read, |state, _| {
            self.front(state)?;
            let bytes = match state.stack.tcp_readable_slice(self.id) {
                Ok(bytes) => bytes,
                Err(_) => &[],
            };
            let count = take(bytes).min(bytes.len());
            let _ = state.stack.tcp_consume(self.id, count);
            Ok(count)
        })
    }

    /// As [`Net::poll`], and also until bytes, the end or an error can be read. The caller must then
    /// read or peek: only that shows on the readiness descriptor that something can be read.
    ///
    /// # Errors
    /// As [`Net::poll`].
    pub fn poll_to_read<'a>(
        &'a self,
        fds: &mut Vec<PollFd<'a>>,
        deadline: Option<Instant>,
        wait: &mut PollWait<'_>,
    ) -> io::Result<()> {
        self.core.poll_to(Interest::Read, fds, deadline, wait)
    }

    /// Puts the connection into a list of readable ones, by a number that says which it is, or into
    /// none. Its descriptor does not show then that bytes have arrived. Returns whether it is in the
    /// list: a host of several stacks has none, nor is an ended list used.
    ///
    /// # Errors
    /// As [`TcpStream::ready_fd`].
    pub fn list_in(&self, list: Option<(&ReadyList, u64)>) -> io::Result<bool> {
        self.core.list_in(list)
    }

    /// Whether bytes have arrived of which only the list of readable connections knows; then whether
    /// the connection is writable.
    pub fn is_listed_ready(&self) -> Option<bool> {
        self.core.look(|state| state.is_listed_ready(self.core.id))
    }

    /// Succeeds if bytes, or the end, can be read.
    fn front(&self, state: &mut NetState) -> Result<(), Errno> {
        let shut = state.socket_waiters(self.core.id).shut_read;
        match state.stack.tcp_readable_slice(self.id) {
            Ok(_) => Ok(()),
            Err(TcpError::WouldBlock) if shut => Ok(()),
            Err(TcpError::WouldBlock) => state.check().and(Err(Errno::AGAIN)),
            // Once the error was reported, reads return the end.
            Err(_) => self.error(state).map_or(Ok(()), Err),
        }
    }

    /// Fails while a read with room for `len` bytes should wait for more.
    fn has_enough(&self, state: &mut NetState, len: usize) -> Result<(), Errno> {
        let watch = state.socket_waiters(self.core.id);
        let least = watch.recv_lowat.min(len);
        let enough = least <= 1 || watch.shut_read || state.is_gone();
        if enough || state.stack.tcp_is_readable(self.id, least) {
            Ok(())
        } else {
            Err(Errno::AGAIN)
        }
    }

    fn try_read(&self, state: &mut NetState, out: &mut [u8]) -> Result<usize, Errno> {
        if out.is_empty() {
            return Ok(0);
        }
        self.front(state)?;
        Ok(state.stack.tcp_read(self.id, out).unwrap_or(0))
    }

    fn try_write(&self, state: &mut NetState, bytes: &[u8]) -> Result<usize, Errno> {
        match self.try_write_rest(state, bytes) {
            Err(Errno::PIPE) => Err(self.error(state).unwrap_or(Errno::PIPE)),
            written => written,
        }
    }

    /// As `try_write`, but an error of the connection stays for the next call: this one fails with `EPIPE`.
    fn try_write_rest(&self, state: &mut NetState, bytes: &[u8]) -> Result<usize, Errno> {
        if state.socket_waiters(self.core.id).shut_write {
            return Err(Errno::PIPE);
        }
        state.check()?;
        match state.stack.tcp_write(self.id, bytes) {
            Ok(count) => Ok(count),
            Err(TcpError::WouldBlock) => Err(Errno::AGAIN),
            Err(_) => Err(Errno::PIPE),
        }
    }

    /// Writes urgent data (`MSG_OOB`) as [`Write::write`] does: the last byte written is the
    /// last urgent one (RFC 9293 §3.8.5) and does not wait to fill a segment. The byte stays
    /// in order with all others, unless the peer delivers urgent data out of band.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn send_urgent(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.wait(Interest::Write, |state, _| {
            if state.socket_waiters(self.core.id).shut_write {
                return Err(self.error(state).unwrap_or(Errno::PIPE));
            }
            state.check()?;
            match state.stack.tcp_write_urgent(self.id, bytes) {
                Ok(count) => Ok(count),
                Err(TcpError::WouldBlock) => Err(Errno::AGAIN),
                Err(_) => Err(self.error(state).unwrap_or(Errno::PIPE)),
            }
        })
    }

    /// The number of bytes to read up to and including the peer's last urgent byte; some may
    /// not have arrived. `None` without an unread urgent mark. Urgent bytes are read in
    /// order with all others and a read does not stop at the mark: an application that looks
    /// for the mark reads no more bytes than this. At `Some(1)` the next byte is the urgent
    /// one (`SIOCATMARK`).
    pub fn urgent(&self) -> Option<usize> {
        self.core.look(|state| state.stack.tcp_urgent(self.id))
    }

    /// As [`Read::read`], of a call that has read bytes before: at the end, and if the connection has
    /// failed, it returns 0, and the error stays for the next call.
    ///
    /// # Errors
    /// `EAGAIN`; `ENETDOWN` if the link is gone.
    pub fn read_rest(&self, out: &mut [u8]) -> io::Result<usize> {
        self.core.wait(Interest::Read, |state, _| {
            let is_shut = state.socket_waiters(self.core.id).shut_read;
            match state.stack.tcp_read(self.id, out) {
                Err(TcpError::WouldBlock) if !is_shut => state.check().and(Err(Errno::AGAIN)),
                read => Ok(read.unwrap_or(0)),
            }
        })
    }

    /// As [`Write::write_vectored`], of a call that has written bytes before: an error of the connection
    /// stays for the next call.
    ///
    /// # Errors
    /// `EAGAIN`; `EPIPE` if the connection is closed for writing or has failed.
    pub fn write_rest(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.wait(Interest::Write, |state, _| {
            write_slices(slices, |slice| self.try_write_rest(state, slice))
        })
    }

    /// As [`Read::read`], for a task.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = |state: &mut NetState, _| self.try_read(state, out);
        self.core.poll(context, Interest::Read, read)
    }

    /// As [`Write::write`], for a task.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = |state: &mut NetState, _| self.try_write(state, bytes);
        self.core.poll(context, Interest::Write, write)
    }

    /// Copies received bytes without taking them.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        self.core.wait(Interest::Read, |state, _| {
            self.front(state)?;
            Ok(state.stack.tcp_peek(self.id, out).unwrap_or(0))
        })
    }

    /// Shuts down one or both directions. The peer reads the end after what was written;
    /// reads on this side return the end after what has arrived. With both directions shut down,
    /// data that arrives resets the connection.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection is over.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core.call(|state, now_ns| {
            // In TIME-WAIT both directions are complete, so that the socket has nothing to
            // shut down.
            match state.stack.tcp_state(self.id) {
                None | Some(tcp::State::Closed | tcp::State::TimeWait) => {
                    return Err(Errno::NOTCONN.into());
                }
                Some(_) => {}
            }
            let watch = state.socket_waiters(self.core.id);
            watch.shut_read |= how != Shutdown::Write;
            watch.shut_write |= how != Shutdown::Read;
            if how != Shutdown::Write {
                let shut = state.stack.tcp_shutdown_read(self.id);
                shut.map_err(errno::tcp)?;
            }
            if how != Shutdown::Read {
                let shut = state.stack.tcp_shutdown(now_ns, self.id);
                shut.map_err(errno::tcp)?;
            }
            Ok(())
        })
    }

    /// Resets the connection: written but unsent bytes are lost, as with `SO_LINGER` and a
    /// time of zero.
    pub fn reset(&self) {
        self.core
            .call(|state, now_ns| state.stack.tcp_abort(now_ns, self.id));
    }

    /// Sets how the last handle closes the connection (`SO_LINGER`). With `None` the drop
    /// returns at once, and the net sends what was written as long as the net exists. With
    /// zero the connection is reset. With another time the drop waits up to this time for
    /// the peer to acknowledge everything, and then resets the connection. The drop of a
    /// non-blocking handle, or of one that tasks have polled, does not wait: the net resets
    /// the connection after the time.
    ///
    /// A connection with unread bytes is reset in any case.
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.core.set_linger(linger);
    }

    /// The value of [`TcpStream::set_linger`].
    pub fn linger(&self) -> Option<Duration> {
        self.core.linger()
    }

    /// Waits, up to `timeout`, until the peer has acknowledged everything that was written,
    /// and the FIN if the connection was shut down for writing.
    ///
    /// # Errors
    /// `EAGAIN` after `timeout`; otherwise why the connection failed.
    pub fn wait_all_acked(&self, timeout: Option<Duration>) -> io::Result<()> {
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        self.core
            .wait_until(Interest::AllAcked, deadline, |state, _| {
                self.all_acked(state)
            })
    }

    /// As [`TcpStream::wait_all_acked`], for a task.
    ///
    /// # Errors
    /// Why the connection failed.
    pub fn poll_all_acked(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let arrived = |state: &mut NetState, _| self.all_acked(state);
        self.core.poll(context, Interest::AllAcked, arrived)
    }

    fn all_acked(&self, state: &mut NetState) -> Result<(), Errno> {
        if !state.stack.tcp_all_acked(self.id) {
            return state.check().and(Err(Errno::AGAIN));
        }
        match state.stack.tcp_state(self.id) {
            Some(tcp::State::Closed) | None => self.error(state).map_or(Ok(()), Err),
            Some(_) => Ok(()),
        }
    }

    /// The socket options: among them the hop limit (`IP_TTL`, `IPV6_UNICAST_HOPS`) and the
    /// traffic class (`IP_TOS`, `IPV6_TCLASS`).
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn options(&self) -> io::Result<TcpOptions> {
        let options = self.core.look(|state| state.stack.tcp_options(self.id));
        options.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Sets the options of [`TcpStream::options`] from the next segment on. The two lowest
    /// bits of the traffic class are ignored: they are the ECN field, which TCP sets.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit is 0; `ENOTCONN` if this side reset the connection.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        let options = super::valid(options)?;
        let set = self
            .core
            .call(|state, _| state.stack.tcp_set_options(self.id, options));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// The number of the stack that has the connection: see
    /// [`Builder::shards`](crate::Builder::shards).
    pub fn shard(&self) -> usize {
        self.core.shard
    }

    /// Whether both are handles of the same connection.
    pub fn is_same(&self, other: &TcpStream) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// The local address and transport port.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends()?.0)
    }

    /// The peer's address and transport port.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends()?.1)
    }

    fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let ends = self.core.look(|state| state.stack.tcp_ends(self.id));
        ends.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Why the connection failed, if that was not yet reported (`SO_ERROR`).
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.core.look(|state| match state.check() {
            Err(error) => Some(error),
            Ok(()) => self.error(state),
        });
        Ok(error.map(io::Error::from))
    }

    /// The state and measurements of the connection (`TCP_INFO`).
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn info(&self) -> io::Result<TcpInfo> {
        let info = self
            .core
            .call(|state, now_ns| state.stack.tcp_info(now_ns, self.id));
        info.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Sends small segments at once, without Nagle's algorithm (`TCP_NODELAY`).
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let set = self
            .core
            .call(|state, _| state.stack.tcp_set_nodelay(self.id, nodelay));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Holds back partial segments until `cork` is false again or more bytes fill them
    /// (`TCP_CORK`).
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        let set = self
            .core
            .call(|state, _| state.stack.tcp_set_cork(self.id, cork));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Acknowledges received segments at once, including one already delayed, instead of
    /// with outgoing segments (`TCP_QUICKACK`). The mode is not permanent: it ends when the
    /// application answers what it receives.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_quick_ack(&self, quick: bool) -> io::Result<()> {
        let set = self
            .core
            .call(|state, now_ns| state.stack.tcp_set_quick_ack(now_ns, self.id, quick));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Whether received segments are acknowledged at once now.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn quick_ack(&self) -> io::Result<bool> {
        let quick = self.core.look(|state| state.stack.tcp_quick_ack(self.id));
        quick.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Limits the unsent bytes to `bytes`, at least one segment, however large the send
    /// buffer is (`TCP_NOTSENT_LOWAT`). The stream is writable again once half of them have
    /// gone. `None` removes the limit.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_notsent_lowat(&self, bytes: Option<usize>) -> io::Result<()> {
        let set = self
            .core
            .call(|state, _| state.stack.tcp_set_notsent_lowat(self.id, bytes));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Sets how many bytes make the stream readable, and for how many a blocking read with
    /// room for them waits (`SO_RCVLOWAT`). The end, an error, a full window or a lack of
    /// memory also end the wait. After a time-out the read returns what has arrived.
    pub fn set_recv_lowat(&self, bytes: usize) {
        self.core.call(|state, _| {
            state.socket_waiters(self.core.id).recv_lowat = bytes;
        });
    }

    /// The value of [`TcpStream::set_recv_lowat`].
    pub fn recv_lowat(&self) -> usize {
        self.core
            .look(|state| state.socket_waiters(self.core.id).recv_lowat.max(1))
    }

    /// Limits the unsent and unacknowledged bytes (`SO_SNDBUF`). Bytes above a smaller limit
    /// stay. From now on the send buffer does not grow with the path.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        let set = self
            .core
            .call(|state, _| state.stack.tcp_set_send_buffer(self.id, bytes));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Limits the unread bytes, and so the window (`SO_RCVBUF`). The window takes nothing
    /// back that it has granted, and from now on does not grow with the path. For a future
    /// connection see [`TcpOptions::receive_buffer`].
    ///
    /// # Errors
    /// `EINVAL` if `bytes` is 0 or more than 4 GB; `ENOTCONN` if this side reset the
    /// connection.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = u32::try_from(bytes).ok().and_then(NonZeroU32::new);
        let receive_buffer = Some(bytes.ok_or(Errno::INVAL)?);
        self.set_options(TcpOptions {
            receive_buffer,
            ..self.options()?
        })
    }

    /// Limits how long written data may wait for the peer, in milliseconds rounded up
    /// (`TCP_USER_TIMEOUT`); then reads and writes fail with `ETIMEDOUT`. `None` leaves the
    /// limit to the stack (`TcpConfig::retries`). For a future connection see
    /// [`TcpOptions::user_timeout_ms`].
    ///
    /// # Errors
    /// `EINVAL` if the time is zero or longer than 49 days; `ENOTCONN` if this side reset the
    /// connection.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let in_ms = |time: Duration| {
            let ms = u32::try_from(time.as_nanos().div_ceil(1_000_000)).ok();
            ms.and_then(NonZeroU32::new).ok_or(Errno::INVAL)
        };
        let user_timeout_ms = timeout.map(in_ms).transpose()?;
        self.set_options(TcpOptions {
            user_timeout_ms,
            ..self.options()?
        })
    }

    /// The value of [`TcpStream::set_user_timeout`].
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        let ms = self.options()?.user_timeout_ms;
        Ok(ms.map(|ms| Duration::from_millis(ms.get().into())))
    }

    /// Sends keep-alive probes to a peer that was silent for this time (`SO_KEEPALIVE`,
    /// `TCP_KEEPIDLE`); `None` never.
    ///
    /// # Errors
    /// `ENOTCONN` if this side reset the connection.
    pub fn set_keepalive(&self, after: Option<Duration>) -> io::Result<()> {
        let after_ns = after.map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        let set = self
            .core
            .call(|state, now_ns| state.stack.tcp_set_keep_alive(now_ns, self.id, after_ns));
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Sets the time from one keep-alive probe to the next in seconds (`TCP_KEEPINTVL`), 75 by default,
    /// and the number of probes without an answer that end the connection (`TCP_KEEPCNT`), 9 by default.
    /// With a user timeout the time without an answer ends it instead.
    ///
    /// # Errors
    /// `EINVAL` if one is 0, `ENOTCONN` if this side reset the connection.
    pub fn set_keepalive_probes(&self, interval_s: u16, probes: u8) -> io::Result<()> {
        if interval_s == 0 || probes == 0 {
            return Err(Errno::INVAL.into());
        }
        let set = self.core.call(|state, _| {
            let stack = &mut state.stack;
            stack.tcp_set_keep_alive_probes(self.id, interval_s, probes)
        });
        set.map_err(|error| errno::tcp(error).into())
    }

    /// Limits how long a write waits; then it fails with `EAGAIN`.
    ///
    /// # Errors
    /// `EINVAL` if the time is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.core.set_timeout(Interest::Write, timeout)
    }

    /// The value of [`TcpStream::set_write_timeout`].
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.core.get_timeout(Interest::Write))
    }
}

waits!(
    TcpStream,
    core,
    "A descriptor for `poll` and `epoll`, readable and writable when the connection is, by level \
     and by edge, with `POLLRDHUP`, `POLLHUP` and `POLLERR` as a kernel's socket has them."
);

/// A read that may block.
struct Reading<'a> {
    stream: &'a TcpStream,
    out: &'a mut [u8],
    waits: bool,
    /// Bytes that are already in the caller's buffer.
    came: usize,
}

impl Operation<usize> for Reading<'_> {
    fn receive(&mut self, state: &mut NetState, now_ns: u64) -> bool {
        let watch = state.socket_waiters(self.stream.core.id);
        if watch.recv_lowat > 1 || watch.shut_read {
            state.receive(now_ns);
            return false;
        }
        self.came += state.receive_into(now_ns, self.stream.id, &mut self.out[self.came..]);
        self.came > 0
    }

    fn should_poll_now(&self, state: &mut NetState) -> bool {
        matches!(
            state.stack.tcp_readable_slice(self.stream.id),
            Err(TcpError::WouldBlock)
        )
    }

    fn try_once(&mut self, state: &mut NetState, _: u64) -> Result<usize, Errno> {
        if self.came > 0 {
            return Ok(self.came);
        }
        if self.waits {
            self.stream.has_enough(state, self.out.len())?;
        }
        self.stream.try_read(state, self.out)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let waits = !self.core.is_nonblocking();
        let reading = Reading {
            stream: self,
            out,
            waits,
            came: 0,
        };
        let read = self.core.wait_for(Interest::Read, reading);
        match read {
            // After the time-out the read returns what has arrived.
            Err(error) if waits && error.kind() == io::ErrorKind::WouldBlock => self
                .core
                .call(|state, _| self.try_read(state, out).map_err(io::Error::from)),
            read => read,
        }
    }
}

/// Writes one slice after the other, as far as `write` takes them.
fn write_slices(
    slices: &[IoSlice<'_>],
    mut write: impl FnMut(&[u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if slices.iter().all(|slice| slice.is_empty()) {
        // It fails where any write would.
        return write(&[]);
    }
    let mut written = 0;
    for slice in slices.iter().filter(|slice| !slice.is_empty()) {
        match write(slice) {
            Ok(count) => written += count,
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(written)
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.core
            .wait(Interest::Write, |state, _| self.try_write(state, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.wait(Interest::Write, |state, _| {
            write_slices(slices, |slice| self.try_write(state, slice))
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

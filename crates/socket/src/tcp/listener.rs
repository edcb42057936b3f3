//! Sockets that wait for connections.

use super::{TcpSocket, TcpStream};
use crate::errno;
use crate::net::{Core, Id, Net, Side, State, waits};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use weir_stack::tcp::{ListenerId, TcpOptions};

/// Connections that wait to be accepted, unless told otherwise.
pub(super) const BACKLOG: usize = 128;

/// A socket that accepts connections, as [`std::net::TcpListener`].
#[derive(Clone)]
pub struct TcpListener(Arc<Core>);

impl TcpListener {
    /// Listens at the first of these addresses that can be had: the
    /// unspecified address is all of the net's of its version, transport port
    /// 0 any that is free. 128 connections may wait to be accepted; see
    /// [`TcpSocket::listen`] for another number.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's, `EADDRINUSE` if the
    /// place is taken.
    pub fn bind(net: &Net, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        super::socket::first(address, |address| {
            let mut socket = TcpSocket::new(net);
            socket.bind(address)?;
            socket.listen(BACKLOG)
        })
    }

    pub(super) fn of(
        net: &Net,
        at: SocketAddr,
        backlog: usize,
        options: TcpOptions,
    ) -> io::Result<TcpListener> {
        let shared = net.shared();
        let mut state = shared.lock();
        state.check()?;
        let id = state.stack.tcp_listen(at, backlog).map_err(errno::tcp)?;
        let set = state.stack.tcp_set_listener_options(id, options);
        set.map_err(errno::tcp)?;
        state.watch(Id::Listener(id));
        drop(state);
        Ok(TcpListener(Arc::new(Core::of_watched(
            net,
            Id::Listener(id),
        ))))
    }

    /// Waits for a connection; gives it and who the peer is.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and the socket does not block; `ENETDOWN` if
    /// the link is gone.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (id, peer) = self
            .0
            .wait(Side::Read, |state, now_ns| self.next(state, now_ns))?;
        Ok((TcpStream::of(&self.0.net, id), peer))
    }

    /// As [`TcpListener::accept`], for a task.
    ///
    /// # Errors
    /// As there.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.0.poll(context, Side::Read, |state, now_ns| {
            self.next(state, now_ns)
        });
        accepted.map_ok(|(id, peer)| (TcpStream::of(&self.0.net, id), peer))
    }

    /// How the segments of the connections that it accepts go out, its answers
    /// to SYNs included: see [`TcpStream::options`].
    ///
    /// # Errors
    /// None now; as in `std`.
    pub fn options(&self) -> io::Result<TcpOptions> {
        let id = self.id()?;
        let options = self.0.look(|state| state.stack.tcp_listener_options(id));
        options.ok_or_else(|| Errno::BADF.into())
    }

    /// Sets what [`TcpListener::options`] gives, for connections that begin
    /// from now on.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit is 0.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        let (id, options) = (self.id()?, super::valid(options)?);
        let set = self
            .0
            .look(|state| state.stack.tcp_set_listener_options(id, options));
        set.map_err(|error| errno::tcp(error).into())
    }

    fn id(&self) -> Result<ListenerId, Errno> {
        match self.0.id {
            Id::Listener(id) => Ok(id),
            _ => Err(Errno::INVAL),
        }
    }

    fn next(
        &self,
        state: &mut State,
        now_ns: u64,
    ) -> Result<(weir_stack::tcp::TcpId, SocketAddr), Errno> {
        let listener = self.id()?;
        state.check()?;
        let id = state
            .stack
            .tcp_accept(now_ns, listener)
            .map_err(errno::tcp)?;
        let (_, peer) = state.stack.tcp_ends(id).ok_or(Errno::CONNABORTED)?;
        state.watch(Id::Stream(id));
        Ok((id, peer))
    }

    /// Connections as they come, for ever.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None now; as in `std`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let id = self.id()?;
        let local = self.0.look(|state| state.stack.tcp_listener_local(id));
        local.ok_or_else(|| Errno::BADF.into())
    }
}

waits!(
    TcpListener,
    0,
    "A descriptor for `poll` and `epoll`, readable while a connection waits."
);

/// Connections as they come: see [`TcpListener::incoming`].
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

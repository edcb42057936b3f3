//! [`TcpListener`]: a socket that accepts connections.

use super::{TcpSocket, TcpStream};
use crate::errno;
use crate::net::{Id, Interest, Net, NetState, ShardedSocket, SocketInner, waits};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use weir_stack::tcp::{FastOpenServer, Listen, ListenerId, TcpId, TcpOptions};

/// Default limit on connections that wait to be accepted.
pub(super) const BACKLOG: usize = 128;

/// The settings of a listener to be opened.
#[derive(Clone, Copy)]
pub(super) struct ListenConfig {
    pub(super) at: SocketAddr,
    pub(super) how: Listen,
    pub(super) options: TcpOptions,
    pub(super) fast_open: Option<FastOpenServer>,
}

/// A socket that accepts connections, as [`std::net::TcpListener`].
#[derive(Clone)]
pub struct TcpListener(Arc<ShardedSocket>);

impl TcpListener {
    /// Listens at the first of these addresses that is available. The unspecified address
    /// stands for all of the net's addresses of its version, port 0 for any free transport
    /// port. The backlog is 128; [`TcpSocket::listen`] takes another number.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's, `EADDRINUSE` if the address and port
    /// are taken.
    pub fn bind(net: &Net, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        super::socket::first(address, |address| {
            let mut socket = TcpSocket::new(net);
            socket.bind(address)?;
            socket.listen(BACKLOG)
        })
    }

    pub(super) fn of(net: &Net, wish: ListenConfig) -> io::Result<TcpListener> {
        // A listener that has the port in the first stack can have it in all of them. The
        // ports in the other stacks are taken and released while the first is locked.
        let mut first = net.first().lock();
        let (id, at) = listen(&mut first, wish)?;
        let wish = ListenConfig { at, ..wish };
        let mut ids = vec![id];
        for shard in 1..net.shards() {
            let mut state = net.shard(shard).lock();
            state.apply_addressing();
            match listen(&mut state, wish) {
                Ok((id, _)) => ids.push(id),
                Err(error) => {
                    drop(state);
                    close(net, &mut first, &ids);
                    return Err(error);
                }
            }
        }
        drop(first);
        let core = |(shard, id)| SocketInner::new(net, shard, Id::Listener(id));
        let cores = ids.into_iter().enumerate().map(core).collect();
        Ok(TcpListener(Arc::new(ShardedSocket::of(cores))))
    }

    /// Waits for a connection; returns it with the peer's address.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and the socket does not block; `ENETDOWN` if
    /// the link is gone; `EINVAL` after [`TcpListener::shutdown`].
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (shard, (id, peer)) = self.0.wait(next)?;
        self.0.took();
        Ok((TcpStream::of(self.0.net(), shard, id), peer))
    }

    /// As [`TcpListener::accept`], for a task.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.0.poll(context, next);
        accepted.map_ok(|(shard, (id, peer))| {
            self.0.took();
            (TcpStream::of(self.0.net(), shard, id), peer)
        })
    }

    /// The socket options of the connections that the listener accepts, which also apply to
    /// its SYN-ACKs: see [`TcpStream::options`].
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn options(&self) -> io::Result<TcpOptions> {
        let first = self.0.first();
        let id = listener(first)?;
        let options = first.look(|state| state.stack.tcp_listener_options(id));
        options.ok_or_else(|| Errno::BADF.into())
    }

    /// Sets the options of [`TcpListener::options`] for connections that begin from now on.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit is 0.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        let options = super::valid(options)?;
        for core in self.0.shards() {
            let id = listener(core)?;
            let set = core.look(|state| state.stack.tcp_set_listener_options(id, options));
            set.map_err(errno::tcp)?;
        }
        Ok(())
    }

    /// Sets the limit on connections that wait to be accepted (a second `listen(2)`); more that wait already
    /// stay.
    ///
    /// # Errors
    /// `EINVAL` after [`TcpListener::shutdown`].
    pub fn set_backlog(&self, backlog: usize) -> io::Result<()> {
        for core in self.0.shards() {
            let id = listener(core)?;
            let set = core.look(|state| state.stack.tcp_set_backlog(id, backlog));
            set.map_err(|_| Errno::INVAL)?;
        }
        Ok(())
    }

    /// An iterator that accepts connections without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Accepts no more connections, and resets those that wait: calls that wait for one
    /// return, and the descriptor is readable and hung up (`POLLHUP`).
    pub fn shutdown(&self) {
        for core in self.0.shards() {
            core.call(|state, now_ns| {
                state.socket_waiters(core.id).shut_read = true;
                if let Ok(id) = listener(core) {
                    state.stack.tcp_unlisten(now_ns, id);
                }
            });
        }
    }

    /// The address and transport port of the listener.
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.0.first();
        let id = listener(first)?;
        let local = first.look(|state| state.stack.tcp_listener_local(id));
        local.ok_or_else(|| Errno::BADF.into())
    }
}

/// Opens the listener of one stack; returns its handle and address.
fn listen(state: &mut NetState, wish: ListenConfig) -> io::Result<(ListenerId, SocketAddr)> {
    state.check()?;
    let ListenConfig { at, how, .. } = wish;
    let stack = &mut state.stack;
    let id = stack.tcp_listen_with(at, how).map_err(errno::tcp)?;
    let set = stack.tcp_set_listener_options(id, wish.options);
    set.and_then(|()| stack.tcp_set_fast_open(id, wish.fast_open))
        .map_err(errno::tcp)?;
    state.socket_waiters(Id::Listener(id));
    let place = state.stack.tcp_listener_local(id);
    Ok((id, place.unwrap_or(at)))
}

/// Closes the listeners of all stacks, the first stack's last.
fn close(net: &Net, first: &mut NetState, ids: &[ListenerId]) {
    for (shard, id) in ids.iter().enumerate().rev() {
        let shared = net.shard(shard);
        let close = |state: &mut NetState| {
            state.stack.tcp_unlisten(shared.now_ns(), *id);
            state.forget(Id::Listener(*id));
        };
        match shard {
            0 => close(first),
            _ => close(&mut shared.lock()),
        }
    }
}

fn listener(core: &SocketInner) -> Result<ListenerId, Errno> {
    match core.id {
        Id::Listener(id) => Ok(id),
        _ => Err(Errno::INVAL),
    }
}

/// Takes the next connection from one stack's listener.
fn next(
    core: &SocketInner,
    state: &mut NetState,
    now_ns: u64,
) -> Result<(TcpId, SocketAddr), Errno> {
    let listener = listener(core)?;
    state.check()?;
    if state.socket_waiters(core.id).shut_read {
        return Err(Errno::INVAL);
    }
    let id = state
        .stack
        .tcp_accept(now_ns, listener)
        .map_err(errno::tcp)?;
    let (_, peer) = state.stack.tcp_ends(id).ok_or(Errno::CONNABORTED)?;
    state.socket_waiters(Id::Stream(id));
    Ok((id, peer))
}

waits!(
    TcpListener,
    0,
    "A descriptor for `poll` and `epoll`, readable while a connection waits."
);

/// The iterator of [`TcpListener::incoming`].
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

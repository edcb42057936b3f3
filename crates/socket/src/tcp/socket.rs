//! [`TcpSocket`]: a TCP socket that is neither connected nor listening yet.

use super::listener::{BACKLOG, ListenConfig};
use super::{TcpListener, TcpStream};
use crate::errno;
use crate::net::{Id, Net, NetState};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use weir_stack::tcp::{FastOpenServer, Listen, TcpError, TcpId, TcpOptions};

/// A socket before `connect(2)` or `listen(2)`, for applications that make these calls one
/// by one.
#[derive(Clone)]
pub struct TcpSocket {
    net: Net,
    local: Option<SocketAddr>,
    options: TcpOptions,
    listen: Listen,
    fast_open: Option<usize>,
}

impl TcpSocket {
    /// Creates a socket (`socket(2)`).
    pub fn new(net: &Net) -> TcpSocket {
        TcpSocket {
            net: net.clone(),
            local: None,
            options: TcpOptions::default(),
            listen: Listen::new(BACKLOG),
            fast_open: None,
        }
    }

    /// Sets the local address and port (`bind(2)`). The port is not taken until the socket
    /// listens or connects.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's.
    pub fn bind(&mut self, local: SocketAddr) -> io::Result<()> {
        let ip = local.ip();
        if !ip.is_unspecified() && !self.net.is_own_address(ip) {
            return Err(rustix::io::Errno::ADDRNOTAVAIL.into());
        }
        self.local = Some(local);
        Ok(())
    }

    /// The socket options: see [`TcpStream::options`].
    pub fn options(&self) -> TcpOptions {
        self.options
    }

    /// Sets the options of [`TcpSocket::options`], from the first segment on. Accepted
    /// connections take their listener's options over.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit is 0.
    pub fn set_options(&mut self, options: TcpOptions) -> io::Result<()> {
        self.options = super::valid(options)?;
        Ok(())
    }

    /// `IPV6_V6ONLY`; default true. If false, a listener at `[::]` also accepts IPv4
    /// connections, whose addresses are IPv4 addresses, not mapped ones such as
    /// `::ffff:192.0.2.1`.
    pub fn set_only_v6(&mut self, only_v6: bool) {
        self.listen.both_versions = !only_v6;
    }

    /// `SO_REUSEPORT`: lets several listeners, all with this flag, share an address and port.
    /// A keyed hash of each connection's addresses and ports chooses its listener. Closing a
    /// listener resets the connections that wait at it.
    pub fn set_reuse_port(&mut self, reuse: bool) {
        self.listen.reuse_port = reuse;
    }

    /// `TCP_FASTOPEN` (RFC 7413): accepts data in the SYN of a client with a valid cookie.
    /// `pending` limits the connections so begun whose handshake is incomplete, in each of
    /// the net's stacks. Data in a SYN may be delivered twice, so the option is for
    /// idempotent requests. The net holds the secret of the cookies
    /// ([`Net::set_fast_open_key`]).
    pub fn set_fast_open(&mut self, pending: Option<usize>) {
        self.fast_open = pending;
    }

    /// Listens (`listen(2)`); at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE` if the address and port are taken.
    pub fn listen(self, backlog: usize) -> io::Result<TcpListener> {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let how = Listen {
            backlog,
            ..self.listen
        };
        let fast_open = self.fast_open.map(|pending_max| FastOpenServer {
            pending_max,
            key: self.net.fast_open_key(),
            without_cookie: false,
        });
        let wish = ListenConfig {
            at: self.local.unwrap_or(any),
            how,
            options: self.options,
            fast_open,
        };
        TcpListener::of(&self.net, wish)
    }

    /// Connects (`connect(2)`) and waits for the peer's answer, up to `timeout`.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`; `EADDRNOTAVAIL` if a connection has the same two
    /// addresses and ports.
    pub fn connect(self, remote: SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        let stream = self.start(remote)?;
        stream.opened(deadline)?;
        Ok(stream)
    }

    /// Connects without blocking (`connect(2)`, `EINPROGRESS`). The stream becomes writable
    /// when the connection is open or has failed; [`TcpStream::take_error`] says which.
    ///
    /// # Errors
    /// `ENETUNREACH`; `EADDRNOTAVAIL` if a connection has the same two addresses and ports.
    pub fn start(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let (stream, ()) = self.open(remote, |state, now_ns, local| {
            let id = state.stack.tcp_connect(now_ns, local, remote)?;
            Ok((id, ()))
        })?;
        Ok(stream)
    }

    /// As [`TcpSocket::start`], with data in the SYN (`MSG_FASTOPEN`, RFC 7413) if the server
    /// has given a cookie before; otherwise the SYN requests a cookie and carries no data.
    /// Returns how many bytes the SYN took. The application writes the rest, and need not
    /// wait for the peer's answer. Data in a SYN may be delivered twice, so the call is for
    /// idempotent requests.
    ///
    /// # Errors
    /// As [`TcpSocket::start`].
    pub fn start_fast(self, remote: SocketAddr, bytes: &[u8]) -> io::Result<(TcpStream, usize)> {
        self.open(remote, |state, now_ns, local| {
            let stack = &mut state.stack;
            stack.tcp_connect_fast(now_ns, local, remote, bytes, false)
        })
    }

    /// Opens the connection on the first of the possible stacks that succeeds.
    fn open<T>(
        self,
        remote: SocketAddr,
        connect: impl Fn(&mut NetState, u64, Option<SocketAddr>) -> Result<(TcpId, T), TcpError>,
    ) -> io::Result<(TcpStream, T)> {
        let mut last = Errno::NETUNREACH;
        for shard in self.shards(remote) {
            match self.start_on(shard, &connect) {
                Ok((id, taken)) => return Ok((TcpStream::of(&self.net, shard, id), taken)),
                // This stack may be out of transport ports while another is not.
                Err(error @ Errno::NOBUFS) => last = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(last.into())
    }

    /// The stacks that may open the connection, in turn. If both addresses and ports are
    /// known, only the stack that owns them.
    fn shards(&self, remote: SocketAddr) -> impl Iterator<Item = usize> + use<> {
        let bound = self.local.filter(|local| local.port() > 0);
        let sharded = bound.filter(|_| self.net.shards() > 1);
        let owner = sharded.map(|local| {
            let state = self.net.first().lock();
            // If no stack owns the addresses, the first stack returns the error.
            state.stack.tcp_owner(local, remote).unwrap_or(0)
        });
        let all = self.net.turn();
        let fits = move |shard: &usize| owner.is_none_or(|owner| owner == *shard);
        all.filter(fits)
    }

    fn start_on<T>(
        &self,
        shard: usize,
        connect: impl Fn(&mut NetState, u64, Option<SocketAddr>) -> Result<(TcpId, T), TcpError>,
    ) -> Result<(TcpId, T), Errno> {
        let shared = self.net.shard(shard);
        let mut state = shared.lock();
        state.check()?;
        state.apply_addressing();
        let opened = connect(&mut state, shared.now_ns(), self.local);
        let (id, taken) = opened.map_err(errno::connect)?;
        let set = state.stack.tcp_set_options(id, self.options);
        set.map_err(errno::tcp)?;
        state.socket_waiters(Id::Stream(id));
        shared.finish(state);
        Ok((id, taken))
    }
}

/// The result for the first address with which `try_it` succeeds, or else the error for the
/// last address.
pub(crate) fn first<T>(
    addresses: impl ToSocketAddrs,
    mut try_it: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses.to_socket_addrs()? {
        match try_it(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address was given");
    Err(last.unwrap_or_else(none))
}

//! A TCP socket that is neither connected nor listens yet.

use super::listener::{BACKLOG, ListenConfig};
use super::{TcpListener, TcpStream};
use crate::errno;
use crate::net::{Id, Net, NetState};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use weir_stack::tcp::{FastOpenServer, Listen, TcpError, TcpId, TcpOptions};

/// A socket before `connect(2)` or `listen(2)`: the calls one by one, as
/// programs make them that know only those.
#[derive(Clone)]
pub struct TcpSocket {
    net: Net,
    local: Option<SocketAddr>,
    options: TcpOptions,
    listen: Listen,
    fast_open: Option<usize>,
}

impl TcpSocket {
    /// `socket(2)`.
    pub fn new(net: &Net) -> TcpSocket {
        TcpSocket {
            net: net.clone(),
            local: None,
            options: TcpOptions::default(),
            listen: Listen::new(BACKLOG),
            fast_open: None,
        }
    }

    /// `bind(2)`: from where, or where. The place is taken when the socket
    /// listens or connects, not before.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's.
    pub fn bind(&mut self, local: SocketAddr) -> io::Result<()> {
        let ip = local.ip();
        if !ip.is_unspecified() && !self.net.addresses().contains(&ip) {
            return Err(rustix::io::Errno::ADDRNOTAVAIL.into());
        }
        self.local = Some(local);
        Ok(())
    }

    /// How segments go out: see [`TcpStream::options`].
    pub fn options(&self) -> TcpOptions {
        self.options
    }

    /// Sets what [`TcpSocket::options`] gives, from the first segment on; a
    /// listener's go to the connections it accepts.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit is 0.
    pub fn set_options(&mut self, options: TcpOptions) -> io::Result<()> {
        self.options = super::valid(options)?;
        Ok(())
    }

    /// `IPV6_V6ONLY`, on until this says otherwise: off, a listener at `[::]` takes
    /// connections of IPv4 too. These have addresses of IPv4, not such as
    /// `::ffff:192.0.2.1`.
    pub fn set_only_v6(&mut self, only_v6: bool) {
        self.listen.both_versions = !only_v6;
    }

    /// `SO_REUSEPORT`: several listeners may be at one place, if all are set so.
    /// Each connection goes to one of them, by a keyed hash of its ends; those
    /// that wait at one that is closed are reset.
    pub fn set_reuse_port(&mut self, reuse: bool) {
        self.listen.reuse_port = reuse;
    }

    /// `TCP_FASTOPEN`: whether bytes in a SYN are taken from who has a cookie, and
    /// how many connections so begun may wait for the peer's answer (RFC 7413),
    /// in each of the net's stacks. Bytes in a SYN may come twice: it is for
    /// questions that may be asked twice. The cookies' key is the net's
    /// ([`Net::set_fast_open_key`]).
    pub fn set_fast_open(&mut self, pending: Option<usize>) {
        self.fast_open = pending;
    }

    /// `listen(2)`: at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE` if the place is taken.
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

    /// `connect(2)`, which waits for the peer's answer, as long as `timeout`
    /// says at most.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EADDRINUSE`.
    pub fn connect(self, remote: SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        let stream = self.start(remote)?;
        stream.opened(deadline)?;
        Ok(stream)
    }

    /// `connect(2)` on a socket that does not block: the connection is
    /// opening (`EINPROGRESS`) when this returns, and writable when it is
    /// open or has failed, which [`TcpStream::take_error`] tells.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EADDRINUSE`.
    pub fn start(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let (stream, ()) = self.open(remote, |state, now_ns, local| {
            let id = state.stack.tcp_connect(now_ns, local, remote)?;
            Ok((id, ()))
        })?;
        Ok(stream)
    }

    /// As [`TcpSocket::start`], with bytes in the SYN (`MSG_FASTOPEN`, RFC 7413),
    /// as many as go in it, if the server has given us a cookie; else the SYN asks
    /// for one, and carries none. Gives how many bytes were taken: the rest is to
    /// be written, which need not wait for the peer's answer. They may come twice:
    /// it is for questions that may be asked twice.
    ///
    /// # Errors
    /// As there.
    pub fn start_fast(self, remote: SocketAddr, bytes: &[u8]) -> io::Result<(TcpStream, usize)> {
        self.open(remote, |state, now_ns, local| {
            let stack = &mut state.stack;
            stack.tcp_connect_fast(now_ns, local, remote, bytes, false)
        })
    }

    /// `connect` on one of the stacks that can.
    fn open<T>(
        self,
        remote: SocketAddr,
        connect: impl Fn(&mut NetState, u64, Option<SocketAddr>) -> Result<(TcpId, T), TcpError>,
    ) -> io::Result<(TcpStream, T)> {
        let mut last = Errno::NETUNREACH;
        for shard in self.shards(remote) {
            match self.start_on(shard, &connect) {
                Ok((id, taken)) => return Ok((TcpStream::of(&self.net, shard, id), taken)),
                // It may be out of transport ports, and another not.
                Err(error @ (Errno::ADDRINUSE | Errno::NOBUFS)) => last = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(last.into())
    }

    /// The stacks that can open it, in turn: the one that its ends say, if both
    /// are known.
    fn shards(&self, remote: SocketAddr) -> impl Iterator<Item = usize> + use<> {
        let bound = self.local.filter(|local| local.port() > 0);
        let sharded = bound.filter(|_| self.net.shards() > 1);
        let owner = sharded.map(|local| {
            let state = self.net.first().lock();
            // The first says what is wrong if nobody can.
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
        let (id, taken) = opened.map_err(errno::tcp)?;
        let set = state.stack.tcp_set_options(id, self.options);
        set.map_err(errno::tcp)?;
        state.socket_waiters(Id::Stream(id));
        shared.finish(state);
        Ok((id, taken))
    }
}

/// What the first address gives with which `try_it` succeeds, or else the
/// last one's error.
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

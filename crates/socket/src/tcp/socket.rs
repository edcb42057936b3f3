//! A TCP socket that is neither connected nor listens yet.

use super::{TcpListener, TcpStream};
use crate::errno;
use crate::net::{Id, Net};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use weir_stack::tcp::{TcpId, TcpOptions};

/// A socket before `connect(2)` or `listen(2)`: the calls one by one, as
/// programs make them that know only those.
#[derive(Clone)]
pub struct TcpSocket {
    net: Net,
    local: Option<SocketAddr>,
    options: TcpOptions,
}

impl TcpSocket {
    /// `socket(2)`.
    pub fn new(net: &Net) -> TcpSocket {
        TcpSocket {
            net: net.clone(),
            local: None,
            options: TcpOptions::default(),
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

    /// `listen(2)`: at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE` if the place is taken.
    pub fn listen(self, backlog: usize) -> io::Result<TcpListener> {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        TcpListener::of(&self.net, self.local.unwrap_or(any), backlog, self.options)
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
        let mut last = Errno::NETUNREACH;
        for shard in self.shards(remote) {
            match self.start_on(shard, remote) {
                Ok(id) => return Ok(TcpStream::of(&self.net, shard, id)),
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

    fn start_on(&self, shard: usize, remote: SocketAddr) -> Result<TcpId, Errno> {
        let shared = self.net.shard(shard);
        let mut state = shared.lock();
        state.check()?;
        state.catch_up();
        let opened = state.stack.tcp_connect(shared.now_ns(), self.local, remote);
        let id = opened.map_err(errno::tcp)?;
        let set = state.stack.tcp_set_options(id, self.options);
        set.map_err(errno::tcp)?;
        state.watch(Id::Stream(id));
        shared.finish(state);
        Ok(id)
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

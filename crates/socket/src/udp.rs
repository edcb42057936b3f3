//! UDP sockets.

use crate::errno;
use crate::net::{Core, Id, Net, Side, State, waits};
use crate::tcp::first;
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use weir_stack::Stack;
use weir_stack::udp::{BindError, SendError, UdpId, UdpOptions};

/// A UDP socket, as [`std::net::UdpSocket`].
#[derive(Clone)]
pub struct UdpSocket {
    core: Arc<Core>,
    id: UdpId,
    peer: Arc<Mutex<Option<SocketAddr>>>,
}

impl UdpSocket {
    /// A socket at the first of these addresses that can be had: the
    /// unspecified address is all of the net's of its version, transport port
    /// 0 any that is free.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's, `EADDRINUSE` if the
    /// place is taken.
    pub fn bind(net: &Net, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(address, |address| {
            UdpSocket::of(net, |stack| stack.udp_bind(address))
        })
    }

    /// A socket at all of the net's addresses of both versions of IP, as one at
    /// `[::]` without `IPV6_V6ONLY`; transport port 0 is any that is free. IPv4's
    /// peers have addresses of IPv4, not such as `::ffff:192.0.2.1`.
    ///
    /// # Errors
    /// `EADDRINUSE` if the place is taken, of either version.
    pub fn bind_both(net: &Net, port: u16) -> io::Result<UdpSocket> {
        UdpSocket::of(net, |stack| stack.udp_bind_both(port))
    }

    fn of(
        net: &Net,
        bind: impl FnOnce(&mut Stack) -> Result<UdpId, BindError>,
    ) -> io::Result<UdpSocket> {
        let mut state = net.first().lock();
        state.check()?;
        let id = bind(&mut state.stack).map_err(errno::bind)?;
        state.watch(Id::Udp(id));
        drop(state);
        Ok(UdpSocket {
            core: Arc::new(Core::of_watched(net, 0, Id::Udp(id))),
            id,
            peer: Arc::default(),
        })
    }

    /// Ties the socket to one peer: it hears no other, and learns when nobody
    /// is there.
    ///
    /// # Errors
    /// `ENETUNREACH` if no route leads there.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        first(address, |address| {
            let connected = self
                .core
                .call(|state, _| state.stack.udp_connect(self.id, address));
            connected.map_err(errno::bind)?;
            *self.lock_peer() = Some(address);
            Ok(())
        })
    }

    fn lock_peer(&self) -> std::sync::MutexGuard<'_, Option<SocketAddr>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram, in fragments if the path asks for it.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than a datagram can be, `ENETUNREACH` if no
    /// route leads there.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let to = address.to_socket_addrs()?.next();
        let to = to.ok_or(Errno::DESTADDRREQ)?;
        self.core.wait(Side::Write, |state, now_ns| {
            self.try_send(state, now_ns, to, bytes)
        })
    }

    /// Sends a datagram to the peer that the socket is connected to.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `EDESTADDRREQ` if it is not connected;
    /// `ECONNREFUSED` if an earlier one met nobody.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let to = self.lock_peer().ok_or(Errno::DESTADDRREQ)?;
        self.core.wait(Side::Write, |state, now_ns| {
            self.try_send(state, now_ns, to, bytes)
        })
    }

    /// Sends for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.core.poll(context, Side::Write, |state, now_ns| {
            self.try_send(state, now_ns, to, bytes)
        })
    }

    fn try_send(
        &self,
        state: &mut State,
        now_ns: u64,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        state.check()?;
        let mut sent = state.stack.udp_send(now_ns, self.id, to, bytes);
        if sent == Err(SendError::Full) {
            state.settle(now_ns);
            sent = state.stack.udp_send(now_ns, self.id, to, bytes);
        }
        if sent == Err(SendError::Full) {
            state.block(self.core.id);
        }
        sent.map_err(errno::send)?;
        Ok(bytes.len())
    }

    /// Waits for a datagram; gives its length, cut to `out`, and who sent it.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and the socket does not block or the time is
    /// over; `ECONNREFUSED` if nobody is at the connected peer.
    pub fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.core
            .wait(Side::Read, |state, _| self.try_receive(state, out, true))
    }

    /// As [`UdpSocket::recv_from`], of the connected peer.
    ///
    /// # Errors
    /// As there.
    pub fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(out)?.0)
    }

    /// As [`UdpSocket::recv_from`], and leaves the datagram where it is.
    ///
    /// # Errors
    /// As there.
    pub fn peek_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.core
            .wait(Side::Read, |state, _| self.try_receive(state, out, false))
    }

    /// Receives for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let receive = |state: &mut State, _| self.try_receive(state, out, true);
        self.core.poll(context, Side::Read, receive)
    }

    /// Waits for a datagram and gives it by value, which copies nothing.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_owned(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        self.core.wait(Side::Read, |state, _| {
            self.check(state)?;
            let datagram = state.stack.udp_receive(self.id).ok_or(Errno::AGAIN)?;
            Ok((datagram.bytes, datagram.from))
        })
    }

    fn check(&self, state: &mut State) -> Result<(), Errno> {
        state.check()?;
        match state.stack.udp_take_refused(self.id) {
            true => Err(Errno::CONNREFUSED),
            false => Ok(()),
        }
    }

    fn try_receive(
        &self,
        state: &mut State,
        out: &mut [u8],
        take: bool,
    ) -> Result<(usize, SocketAddr), Errno> {
        self.check(state)?;
        let datagram = state.stack.udp_peek(self.id).ok_or(Errno::AGAIN)?;
        let count = datagram.bytes.len().min(out.len());
        out[..count].copy_from_slice(&datagram.bytes[..count]);
        let from = datagram.from;
        if take {
            state.stack.udp_receive(self.id);
        }
        Ok((count, from))
    }

    /// Where the socket is.
    ///
    /// # Errors
    /// None now; as in `std`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.core.look(|state| state.stack.udp_local(self.id));
        local.ok_or_else(|| Errno::BADF.into())
    }

    /// The peer it is connected to.
    ///
    /// # Errors
    /// `ENOTCONN` if there is none.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.lock_peer().ok_or_else(|| Errno::NOTCONN.into())
    }

    /// `SO_ERROR`: whether nobody is at the connected peer, if nobody was told
    /// before.
    ///
    /// # Errors
    /// None now; as in `std`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let checked = self.core.look(|state| self.check(state));
        Ok(checked.err().map(io::Error::from))
    }

    /// `IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`: hears what is sent to a group,
    /// until it is left or the socket is closed; routers are told.
    ///
    /// # Errors
    /// `EINVAL` if it is no group of the socket's version of IP, `EADDRINUSE`
    /// if the socket is in it, `ENOBUFS` if it is in too many.
    pub fn join_multicast(&self, group: IpAddr) -> io::Result<()> {
        let joined = self
            .core
            .call(|state, _| state.stack.udp_join(self.id, group));
        joined.map_err(|error| errno::group(error).into())
    }

    /// As [`UdpSocket::join_multicast`], on the link of this number rather than
    /// on the one that [`UdpOptions::group_link`] says.
    ///
    /// # Errors
    /// As there; `ENODEV` if the net has no such link.
    pub fn join_multicast_on(&self, group: IpAddr, link: u8) -> io::Result<()> {
        let joined = self
            .core
            .call(|state, _| state.stack.udp_join_on(self.id, group, link));
        joined.map_err(|error| errno::group(error).into())
    }

    /// `IP_DROP_MEMBERSHIP`, `IPV6_LEAVE_GROUP`.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not in it.
    pub fn leave_multicast(&self, group: IpAddr) -> io::Result<()> {
        let left = self
            .core
            .call(|state, _| state.stack.udp_leave(self.id, group));
        left.map_err(|error| errno::group(error).into())
    }

    /// As [`UdpSocket::leave_multicast`], on the link of this number.
    ///
    /// # Errors
    /// As there.
    pub fn leave_multicast_on(&self, group: IpAddr, link: u8) -> io::Result<()> {
        let left = self
            .core
            .call(|state, _| state.stack.udp_leave_on(self.id, group, link));
        left.map_err(|error| errno::group(error).into())
    }

    /// How datagrams go out: hop limits (`IP_TTL`, `IP_MULTICAST_TTL`,
    /// `IPV6_UNICAST_HOPS`, `IPV6_MULTICAST_HOPS`), whether those to a group
    /// come back (`IP_MULTICAST_LOOP`), the traffic class (`IP_TOS`,
    /// `IPV6_TCLASS`).
    ///
    /// # Errors
    /// None now; as in `std`.
    pub fn options(&self) -> io::Result<UdpOptions> {
        let options = self
            .core
            .look(|state| state.stack.udp_options(self.id).copied());
        options.ok_or_else(|| Errno::BADF.into())
    }

    /// Sets what [`UdpSocket::options`] gives.
    ///
    /// # Errors
    /// `EINVAL` if the hop limit for one host is 0.
    pub fn set_options(&self, options: UdpOptions) -> io::Result<()> {
        if options.hop_limit == 0 {
            return Err(Errno::INVAL.into());
        }
        self.core
            .look(|state| match state.stack.udp_options(self.id) {
                Some(at) => {
                    *at = options;
                    Ok(())
                }
                None => Err(Errno::BADF.into()),
            })
    }
}

waits!(
    UdpSocket,
    core,
    "A descriptor for `poll` and `epoll`, readable while a datagram waits, writable while the link \
     takes some."
);

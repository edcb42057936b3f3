//! [`UdpSocket`].
//!
//! On a net of several stacks a socket has a part in each stack, all bound to the same
//! address and port. A peer's datagrams wait in the stack that owns the datagrams between
//! the socket and the peer, and datagrams to the peer leave from that stack. A connected
//! socket is connected in all stacks and reads only from the peer's.

mod message;

use crate::errno;
use crate::net::{Id, Interest, Net, NetState, ShardedSocket, SocketInner, waits};
use crate::tcp::first;
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use weir_stack::Stack;
use weir_stack::udp::{GroupError, SendError, SendInfo, UdpAddrs, UdpBind, UdpId, UdpOptions};

/// A UDP socket, as [`std::net::UdpSocket`].
#[derive(Clone)]
pub struct UdpSocket {
    parts: Arc<ShardedSocket>,
    addrs: Arc<SocketAddrs>,
}

/// The addresses of a socket.
struct SocketAddrs {
    local_port: u16,
    /// Whether the socket is for IPv4 only (`AF_INET`).
    is_ipv4: bool,
    peer: Mutex<Option<SocketAddr>>,
    /// The stack that owns the peer's datagrams; [`UNCONNECTED`] without a peer.
    shard: AtomicUsize,
}

/// The value of `SocketAddrs::shard` for a socket without a peer, which receives from all.
const UNCONNECTED: usize = usize::MAX;

impl UdpSocket {
    /// Binds a socket to the first of these addresses that is available. The unspecified
    /// address stands for all of the net's addresses of its version, port 0 for any free
    /// transport port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not the net's, `EADDRINUSE` if the address and port
    /// are taken.
    pub fn bind(net: &Net, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(address, |address| {
            UdpSocket::bind_with(net, address, UdpBind::default())
        })
    }

    /// Binds a socket to all of the net's addresses of both IP versions, as a socket at
    /// `[::]` without `IPV6_V6ONLY`; port 0 is any free transport port. IPv4 peers have IPv4
    /// addresses, not mapped ones such as `::ffff:192.0.2.1`.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken in either version.
    pub fn bind_both(net: &Net, port: u16) -> io::Result<UdpSocket> {
        let how = UdpBind {
            both_versions: true,
            ..UdpBind::default()
        };
        UdpSocket::bind_with(net, (Ipv6Addr::UNSPECIFIED, port).into(), how)
    }

    /// As [`UdpSocket::bind`], with both IP versions (`IPV6_V6ONLY` off) or with port sharing
    /// (`SO_REUSEPORT`, `SO_REUSEADDR`) by `how`.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_with(net: &Net, address: SocketAddr, how: UdpBind) -> io::Result<UdpSocket> {
        // The socket that has the port in the first stack can have it in all of them.
        let mut first = net.first().lock();
        let (id, local_port) = place(&mut first, address, how)?;
        let mut at = address;
        at.set_port(local_port);
        let mut cores = vec![SocketInner::new(net, 0, Id::Udp(id))];
        for shard in 1..net.shards() {
            let mut state = net.shard(shard).lock();
            state.apply_addressing();
            match place(&mut state, at, how) {
                Ok((id, _)) => cores.push(SocketInner::new(net, shard, Id::Udp(id))),
                Err(error) => {
                    // Closing the other parts takes the locks of their stacks.
                    drop((state, first));
                    drop(ShardedSocket::of(cores));
                    return Err(error.into());
                }
            }
        }
        drop(first);
        Ok(UdpSocket {
            parts: Arc::new(ShardedSocket::of(cores)),
            addrs: Arc::new(SocketAddrs {
                local_port,
                is_ipv4: address.is_ipv4(),
                peer: Mutex::default(),
                shard: AtomicUsize::new(UNCONNECTED),
            }),
        })
    }

    /// Connects the socket to one peer: it receives only the peer's datagrams, and reports
    /// ICMP errors about the peer.
    ///
    /// # Errors
    /// `ENETUNREACH` if no route leads to the peer; `EAFNOSUPPORT` if the socket is for IPv4
    /// and the address is IPv6.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        first(address, |address| Ok(self.connect_to(address)?))
    }

    /// Takes the peer away (`connect` to `AF_UNSPEC`): the socket has the address again that it was bound
    /// to, and receives from all. Datagrams that wait stay.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket has the address now.
    pub fn disconnect(&self) -> io::Result<()> {
        let mut known = self.lock_peer();
        self.change_peer(disconnect)?;
        *known = None;
        let before = self.addrs.shard.swap(UNCONNECTED, Relaxed);
        // A call that waits on the peer's stack must now wait on all.
        if let Some(core) = self.parts.shards().get(before) {
            core.call(|state, _| state.wake_readers(core.id));
        }
        Ok(())
    }

    /// Fails, as the kernel does, for an address of the other IP version.
    fn check_family(&self, to: SocketAddr) -> Result<(), Errno> {
        if self.addrs.is_ipv4 && to.is_ipv6() {
            Err(Errno::AFNOSUPPORT)
        } else {
            Ok(())
        }
    }

    fn connect_to(&self, peer: SocketAddr) -> Result<(), Errno> {
        self.check_family(peer)?;
        let mut known = self.lock_peer();
        let owner = self.shard_of(peer);
        self.change_peer(|core, state| connect(core, state, peer))?;
        let mut waiting = Vec::new();
        for core in self
            .parts
            .shards()
            .iter()
            .filter(|core| core.shard != owner)
        {
            core.call(|state, _| {
                let id = udp(core)?;
                waiting.extend(std::iter::from_fn(|| state.stack.udp_receive(id)));
                Ok::<_, Errno>(())
            })?;
        }
        // Datagrams that arrived before stay readable.
        let core = &self.parts.shards()[owner];
        core.call(|state, _| {
            let id = udp(core)?;
            let waiting = waiting.into_iter();
            waiting.for_each(|datagram| state.stack.udp_put(id, datagram));
            Ok::<_, Errno>(())
        })?;
        *known = Some(peer);
        let before = self.addrs.shard.swap(owner, Relaxed);
        // A call that waits on another peer's stack must now wait on this peer's stack.
        if let Some(core) = self.parts.shards().get(before).filter(|_| before != owner) {
            core.call(|state, _| state.wake_readers(core.id));
        }
        Ok(())
    }

    /// Gives every part another peer, or none.
    fn change_peer(
        &self,
        change: impl Fn(&SocketInner, &mut NetState) -> Result<UdpAddrs, Errno>,
    ) -> Result<(), Errno> {
        let tied = self.change_parts(change);
        // Waiting calls are notified without a lock: each may come back at once.
        for core in self.parts.shards() {
            core.call(|_, _| ());
        }
        tied
    }

    /// Changes the parts one after the other, and undoes it all if one fails.
    fn change_parts(
        &self,
        change: impl Fn(&SocketInner, &mut NetState) -> Result<UdpAddrs, Errno>,
    ) -> Result<(), Errno> {
        let net = self.parts.net();
        let (core, others) = (self.parts.first(), &self.parts.shards()[1..]);
        // A change of addresses begins with the first stack's part. While that is locked, no
        // other socket can take the old addresses of the parts, so that an undo succeeds.
        let mut first = net.first().lock();
        let mut tied = vec![(core, change(core, &mut first)?)];
        for core in others {
            let done = change(core, &mut net.shard(core.shard).lock());
            match done {
                Ok(before) => tied.push((core, before)),
                Err(error) => {
                    let (_, before) = tied.remove(0);
                    restore(self.parts.first(), &mut first, before);
                    for (core, before) in tied {
                        restore(core, &mut net.shard(core.shard).lock(), before);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn lock_peer(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        let peer = self.addrs.peer.lock();
        peer.unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the stack that owns the datagrams between the socket and `peer`.
    fn shard_of(&self, peer: SocketAddr) -> usize {
        let any = Ipv4Addr::UNSPECIFIED.into();
        let local = SocketAddr::new(any, self.addrs.local_port);
        self.parts.net().datagram_owner(local, peer)
    }

    /// The part that receives from the connected peer; `None` without a peer.
    fn connected(&self) -> Option<&SocketInner> {
        self.parts.shards().get(self.shard())
    }

    fn shard(&self) -> usize {
        self.addrs.shard.load(Relaxed)
    }

    /// The part that receives from the connected peer, or else the first part.
    fn main(&self) -> &SocketInner {
        self.connected().unwrap_or(self.parts.first())
    }

    /// Sends a datagram, fragmented if the path requires it.
    ///
    /// # Errors
    /// `EMSGSIZE` if `bytes` are more than a datagram can carry, `ENETUNREACH` if no route
    /// leads to the address, `EAFNOSUPPORT` if the socket is for IPv4 and the address is
    /// IPv6.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let to = address.to_socket_addrs()?.next();
        let to = to.ok_or(Errno::DESTADDRREQ)?;
        self.send_with(bytes, Some(to), &SendInfo::default())
    }

    /// Sends a datagram to the peer that the socket is connected to.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `EDESTADDRREQ` if the socket is not connected;
    /// `ECONNREFUSED` if an ICMP error reported that the peer's port is closed.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, None, &SendInfo::default())
    }

    /// As [`UdpSocket::send_to`], for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_with(context, bytes, to, &SendInfo::default())
    }

    /// Runs `take` if `core` is still the part that receives from the connected peer; `None`
    /// if the socket was connected to a peer of another stack meanwhile.
    fn of_owner<T>(
        &self,
        core: &SocketInner,
        take: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        if self.shard() == core.shard {
            take().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Waits until a part has a datagram or an error, and returns what `take` makes of it.
    fn read<T>(
        &self,
        mut take: impl FnMut(&SocketInner, &mut NetState) -> Result<T, Errno>,
    ) -> io::Result<T> {
        while let Some(core) = self.connected() {
            let read = core.wait(Interest::Read, |state, _| {
                self.of_owner(core, || take(core, state))
            });
            if let Some(read) = read.transpose() {
                return read;
            }
        }
        let read = self.parts.wait(|core, state, _| take(core, state));
        Ok(read?.1)
    }

    /// Waits for a datagram; returns its length, cut to that of `out`, and its sender.
    ///
    /// # Errors
    /// `EAGAIN` if there is no datagram and the socket does not block, or after the time-out;
    /// `ECONNREFUSED` if the connected peer's port is closed.
    pub fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.read(|core, state| receive(core, state, out, true))?;
        self.parts.took();
        Ok(received)
    }

    /// As [`UdpSocket::recv_from`], from the connected peer.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(out)?.0)
    }

    /// As [`UdpSocket::recv_from`], and leaves the datagram in the queue.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|core, state| receive(core, state, out, false))
    }

    /// As [`UdpSocket::recv_from`], for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.poll_read(context, |core, state| receive(core, state, out, true))
    }

    /// As `read`, for a task; what is returned was taken from the queue.
    fn poll_read<T>(
        &self,
        context: &mut Context<'_>,
        mut take: impl FnMut(&SocketInner, &mut NetState) -> Result<T, Errno>,
    ) -> Poll<io::Result<T>> {
        let received = loop {
            let Some(core) = self.connected() else {
                let take = |core: &SocketInner, state: &mut NetState, _| take(core, state);
                let received = self.parts.poll(context, take);
                break received.map_ok(|(_, received)| received);
            };
            let received = core.poll(context, Interest::Read, |state, _| {
                self.of_owner(core, || take(core, state))
            });
            match received.map(Result::transpose) {
                Poll::Ready(None) => {}
                Poll::Ready(Some(received)) => break Poll::Ready(received),
                Poll::Pending => break Poll::Pending,
            }
        };
        received.map_ok(|received| {
            self.parts.took();
            received
        })
    }

    /// Waits for a datagram and returns it by value, without a copy.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_owned(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        let datagram = self.recv_datagram()?;
        Ok((datagram.bytes, datagram.from))
    }

    /// The local address and transport port.
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let core = self.parts.first();
        let id = udp(core)?;
        let local = core.look(|state| state.stack.udp_local(id));
        local.ok_or_else(|| Errno::BADF.into())
    }

    /// The connected peer.
    ///
    /// # Errors
    /// `ENOTCONN` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.lock_peer().ok_or_else(|| Errno::NOTCONN.into())
    }

    /// The ICMP error about the connected peer, if it was not yet reported (`SO_ERROR`).
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let core = self.main();
        let checked = core.call(|state, _| check(core, state));
        Ok(checked.err().map(io::Error::from))
    }

    /// Joins a multicast group until it is left or the socket closes (`IP_ADD_MEMBERSHIP`,
    /// `IPV6_JOIN_GROUP`). The host reports its membership to routers.
    ///
    /// # Errors
    /// `EINVAL` if `group` is not a group of the socket's IP version, `EADDRINUSE` if the
    /// socket is already a member, `ENOBUFS` if it is a member of too many groups.
    pub fn join_multicast(&self, group: IpAddr) -> io::Result<()> {
        self.of_groups(|stack, id| stack.udp_join(id, group))
    }

    /// As [`UdpSocket::join_multicast`], on the link of this number instead of
    /// [`UdpOptions::group_link`].
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast`]; `ENODEV` if the net has no such link.
    pub fn join_multicast_on(&self, group: IpAddr, link: u8) -> io::Result<()> {
        self.of_groups(|stack, id| stack.udp_join_on(id, group, link))
    }

    /// Leaves a multicast group (`IP_DROP_MEMBERSHIP`, `IPV6_LEAVE_GROUP`).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave_multicast(&self, group: IpAddr) -> io::Result<()> {
        self.of_groups(|stack, id| stack.udp_leave(id, group))
    }

    /// As [`UdpSocket::leave_multicast`], on the link of this number.
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast`].
    pub fn leave_multicast_on(&self, group: IpAddr, link: u8) -> io::Result<()> {
        self.of_groups(|stack, id| stack.udp_leave_on(id, group, link))
    }

    /// Runs a group call on the first stack, which receives and sends all group traffic.
    fn of_groups(
        &self,
        call: impl FnOnce(&mut Stack, UdpId) -> Result<(), GroupError>,
    ) -> io::Result<()> {
        let core = self.parts.first();
        let id = udp(core)?;
        let called = core.call(|state, _| call(&mut state.stack, id));
        called.map_err(|error| errno::group(error).into())
    }

    /// The length of a datagram that the next call receives (`FIONREAD`); `None` if none waits. A pending
    /// error stays for that call.
    pub fn next_len(&self) -> Option<usize> {
        self.parts.shards().iter().find_map(|core| {
            core.look(|state| {
                let id = udp(core).ok()?;
                state.stack.udp_peek(id).map(|next| next.bytes.len())
            })
        })
    }

    /// Marks one or both directions as shut down: the descriptor says so (`POLLRDHUP`,
    /// `POLLHUP`). Datagrams still arrive and leave; the caller refuses them.
    pub fn shutdown(&self, how: Shutdown) {
        for core in self.parts.shards() {
            core.call(|state, _| {
                let watch = state.socket_waiters(core.id);
                watch.shut_read |= how != Shutdown::Write;
                watch.shut_write |= how != Shutdown::Read;
            });
        }
    }

    /// The socket options: hop limits (`IP_TTL`, `IP_MULTICAST_TTL`, `IPV6_UNICAST_HOPS`,
    /// `IPV6_MULTICAST_HOPS`), loopback of group datagrams (`IP_MULTICAST_LOOP`), traffic
    /// class (`IP_TOS`, `IPV6_TCLASS`), queues of ICMP errors (`IP_RECVERR`, `IPV6_RECVERR`).
    ///
    /// # Errors
    /// Currently none; the signature is that of `std`.
    pub fn options(&self) -> io::Result<UdpOptions> {
        let core = self.parts.first();
        let id = udp(core)?;
        let options = core.look(|state| state.stack.udp_options(id).copied());
        options.ok_or_else(|| Errno::BADF.into())
    }

    /// Sets the options of [`UdpSocket::options`]. ICMP errors that are queued are discarded once
    /// neither version's are.
    ///
    /// # Errors
    /// `EINVAL` if the unicast hop limit is 0.
    pub fn set_options(&self, options: UdpOptions) -> io::Result<()> {
        if options.hop_limit == 0 {
            return Err(Errno::INVAL.into());
        }
        for core in self.parts.shards() {
            let id = udp(core)?;
            core.call(|state, _| {
                let at = state.stack.udp_options(id).ok_or(Errno::BADF)?;
                *at = options;
                if !options.icmp_errors && !options.icmpv6_errors {
                    state.stack.udp_discard_icmp_errors(id);
                }
                Ok::<_, Errno>(())
            })?;
        }
        Ok(())
    }
}

fn udp(core: &SocketInner) -> Result<UdpId, Errno> {
    match core.id {
        Id::Udp(id) => Ok(id),
        _ => Err(Errno::INVAL),
    }
}

/// Connects one part to a peer; returns its addresses before.
fn connect(core: &SocketInner, state: &mut NetState, peer: SocketAddr) -> Result<UdpAddrs, Errno> {
    let id = udp(core)?;
    state.apply_addressing();
    state.stack.udp_connect(id, peer).map_err(errno::bind)
}

fn disconnect(core: &SocketInner, state: &mut NetState) -> Result<UdpAddrs, Errno> {
    let id = udp(core)?;
    state.stack.udp_disconnect(id).map_err(errno::bind)
}

/// Restores a part's addresses of before.
fn restore(core: &SocketInner, state: &mut NetState, before: UdpAddrs) {
    let restored = udp(core).map(|id| state.stack.udp_restore(id, before));
    debug_assert!(matches!(restored, Ok(Ok(()))), "{restored:?}");
}

/// Binds the part of one stack; returns its handle and its transport port.
fn place(state: &mut NetState, at: SocketAddr, how: UdpBind) -> Result<(UdpId, u16), Errno> {
    state.check()?;
    let id = state.stack.udp_bind_with(at, how).map_err(errno::bind)?;
    state.socket_waiters(Id::Udp(id));
    let local = state.stack.udp_local(id).unwrap_or(at);
    Ok((id, local.port()))
}

/// Fails with the pending error of this part, if there is one.
fn check(core: &SocketInner, state: &mut NetState) -> Result<UdpId, Errno> {
    state.check()?;
    let id = udp(core)?;
    match state.stack.udp_take_pending_error(id) {
        Some(cause) => Err(errno::icmp(cause)),
        None => Ok(id),
    }
}

fn receive(
    core: &SocketInner,
    state: &mut NetState,
    out: &mut [u8],
    take: bool,
) -> Result<(usize, SocketAddr), Errno> {
    let id = check(core, state)?;
    let datagram = state.stack.udp_peek(id).ok_or(Errno::AGAIN)?;
    let count = datagram.bytes.len().min(out.len());
    out[..count].copy_from_slice(&datagram.bytes[..count]);
    let from = datagram.from;
    if take {
        state.stack.udp_receive(id);
    }
    Ok((count, from))
}

fn try_send(
    core: &SocketInner,
    state: &mut NetState,
    now_ns: u64,
    (to, info): (SocketAddr, &SendInfo),
    bytes: &[u8],
) -> Result<usize, Errno> {
    state.check()?;
    state.apply_addressing();
    let id = udp(core)?;
    let mut sent = state.stack.udp_send_with(now_ns, id, to, info, bytes);
    if sent == Err(SendError::Full) {
        state.settle_within(now_ns);
        sent = state.stack.udp_send_with(now_ns, id, to, info, bytes);
    }
    if sent == Err(SendError::Full) {
        state.mark_tx_blocked(core.id);
    }
    sent.map_err(errno::send)?;
    Ok(bytes.len())
}

waits!(
    UdpSocket,
    parts,
    "A descriptor for `poll` and `epoll`, readable while a datagram waits, writable while the link \
     takes some, with `POLLERR` while an error is pending or an ICMP error is queued."
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use weir_stack::Config;

    const SHARED: UdpBind = UdpBind {
        shared: true,
        both_versions: false,
        reuse_address: false,
    };

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A net of three stacks, the last of which has a socket connected to a peer.
    fn net_with(any: SocketAddr, peer: SocketAddr) -> (Net, UdpId) {
        let (near, _far) = link::mem().unwrap();
        let config = Config::new(weir_wire::ethernet::Address([2, 0, 0, 0, 0, 1]));
        let config = config.address("192.0.2.1/24".parse().unwrap());
        let net = Net::builder().link(near, &config).shards(3);
        let net = net.start().unwrap();
        let has = {
            let stack = &mut net.shard(2).lock().stack;
            let has = stack.udp_bind_with(any, SHARED).unwrap();
            stack.udp_connect(has, peer).unwrap();
            has
        };
        (net, has)
    }

    #[test]
    fn a_socket_of_ipv4_sends_nothing_to_ipv6() {
        let [any, peer, v6, mapped] = [
            "0.0.0.0:7",
            "192.0.2.9:9",
            "[2001:db8::9]:9",
            "[::ffff:192.0.2.9]:9",
        ]
        .map(at);
        let (net, _has) = net_with(any, peer);
        let socket = UdpSocket::bind(&net, at("0.0.0.0:8")).unwrap();
        let unsupported = Some(Errno::AFNOSUPPORT.raw_os_error());
        for to in [v6, mapped] {
            let errors = [socket.send_to(b"x", to).err(), socket.connect(to).err()];
            for error in errors {
                assert_eq!(error.unwrap().raw_os_error(), unsupported, "{to}");
            }
            // As in the kernel.
            let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let error = kernels.send_to(b"x", to).unwrap_err();
            assert_eq!(error.raw_os_error(), unsupported, "{to}");
        }
        // A socket for both versions has a route to neither, or to IPv4 only.
        let both = UdpSocket::bind_both(&net, 9).unwrap();
        let error = both.send_to(b"x", v6).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NETUNREACH.raw_os_error()));
        both.send_to(b"x", peer).unwrap();
    }

    /// Meanwhile another socket requests the address.
    #[test]
    fn a_refused_connect_keeps_the_old_peer() {
        let [any, peer, other] = ["0.0.0.0:7", "192.0.2.9:9", "192.0.2.8:9"].map(at);
        let (net, _has) = net_with(any, peer);
        let bind = || UdpSocket::bind_with(&net, any, SHARED).unwrap();
        let (socket, greedy) = (bind(), bind());
        socket.connect(other).unwrap();
        const TIMES: usize = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..TIMES).for_each(|_| assert!(greedy.connect(other).is_err())));
            (0..TIMES).for_each(|_| assert!(socket.connect(peer).is_err()));
        });
        assert_eq!(socket.peer_addr().unwrap(), other);
        for core in socket.parts.shards() {
            core.look(|state| {
                let id = udp(core).unwrap();
                let mut ends = || state.stack.udp_connect(id, other).unwrap();
                assert_eq!(ends(), ends(), "stack {}", core.shard);
            });
        }
        let ties = greedy.parts.shards().iter().filter(|core| {
            core.look(|state| state.stack.udp_channel(udp(core).unwrap()).is_some())
        });
        assert_eq!(ties.count(), 0);
    }

    /// The last of three stacks refuses, since another socket has the peer.
    #[test]
    fn a_socket_connects_on_all_shards_or_on_none() {
        let [any, peer, other] = ["0.0.0.0:7", "192.0.2.9:9", "192.0.2.8:9"].map(at);
        let (net, has) = net_with(any, peer);
        let socket = UdpSocket::bind_with(&net, any, SHARED).unwrap();
        let ties = || {
            let parts = socket.parts.shards().iter();
            let tied = parts.map(|core| {
                core.look(|state| state.stack.udp_channel(udp(core)?).ok_or(Errno::NOTCONN))
            });
            tied.filter(Result::is_ok).count()
        };
        let refused = || {
            let error = socket.connect(peer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        };
        refused();
        assert_eq!((ties(), socket.local_addr().unwrap()), (0, any));
        assert!(socket.peer_addr().is_err());
        socket.connect(other).unwrap();
        refused();
        assert_eq!((ties(), socket.peer_addr().unwrap()), (3, other));
        // The earlier peer was not lost to another socket.
        let third = UdpSocket::bind_with(&net, any, SHARED).unwrap();
        assert!(third.connect(other).is_err());
        net.shard(2).lock().stack.udp_close(has);
        socket.connect(peer).unwrap();
        assert_eq!((ties(), socket.peer_addr().unwrap()), (3, peer));
        third.connect(other).unwrap();
    }
}

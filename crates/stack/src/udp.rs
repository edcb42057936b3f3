//! UDP sockets (RFC 768, RFC 1122 §4.1, RFC 8085).

mod bind_table;
mod errors;
mod fast_path;
mod source;

pub use errors::{ICMP_ERRORS_MAX, IcmpCause, IcmpError};

use crate::header_filter::HeaderFilter;
use crate::iface::{Channel, DropReason, GROUPS_MAX, HOP_LIMIT, Header, Incoming};
use crate::links::{Interfaces, strip_zone, with_zone};
use crate::pcb::{ChunkSource, InsertError, Key, PcbId, Table, Weir};
use crate::ports;
use crate::rng::PrfRng;
use crate::slab::{Handle, Slab};
use bind_table::{BindKey, BindTable};
use source::source;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_wire::{AddrPair, Protocol, udp};

/// Limit on the UDP sockets of one stack.
pub const UDP_SOCKETS_MAX: usize = 65_536;
/// Default limit, in bytes, on the receive queue of one socket, where each datagram counts
/// [`DATAGRAM_COST`] more; the stack drops further datagrams.
pub const UDP_QUEUE_BYTES: usize = 256 << 10;
/// Highest limit on the receive queue of one socket, in bytes.
pub const UDP_QUEUE_BYTES_MAX: usize = 8 << 20;
/// What a datagram counts in addition to its length, in bytes, so that the limit also holds
/// for empty datagrams.
pub const DATAGRAM_COST: usize = 128;

/// Limit on the multicast groups of one socket.
pub const UDP_GROUPS_MAX: usize = 20;

/// Handle of a UDP socket of one stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(Handle);

/// How a packet was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The number of the link.
    pub link: u8,
    /// The received hop limit (TTL).
    pub hop_limit: u8,
    /// The received traffic class: differentiated services and ECN bits.
    pub traffic_class: u8,
    /// When, by the stack's clock.
    pub at_ns: u64,
}

/// What one datagram has in place of the socket's address and options (RFC 3542 §6); `None`
/// leaves the socket's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendInfo {
    /// The source address.
    pub from: Option<IpAddr>,
    /// The link.
    pub link: Option<u8>,
    /// The hop limit (TTL).
    pub hop_limit: Option<u8>,
    /// The traffic class.
    pub traffic_class: Option<u8>,
}

/// A received datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddr,
    /// The destination: an address of the host or a group.
    pub to: IpAddr,
    /// How the datagram was received.
    pub arrival: Arrival,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// Why a socket was not bound or not connected.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// The address does not belong to this host.
    #[error("{0} is not an address of this host: bind one of its own, or the unspecified one")]
    Address(IpAddr),
    /// Another socket has the address and port.
    #[error(
        "another socket is bound to {0}: choose another transport port, or 0 for any that is free"
    )]
    InUse(SocketAddr),
    /// No transport port is free, or the limit on sockets is reached.
    #[error("all transport ports or sockets are taken: close some first")]
    Full,
    /// No route leads to the peer.
    #[error("no route leads to {0}: add one that contains it")]
    NoRoute(SocketAddr),
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
}

/// Why a datagram was not sent.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The payload exceeds what a datagram can carry.
    #[error("{0} bytes are more than the {1} that a datagram carries")]
    TooLong(usize, usize),
    /// No route leads to the destination, or none from the socket's address.
    #[error("no route leads to {0}: add one that contains it")]
    NoRoute(SocketAddr),
    /// The output queue is full.
    #[error("the queue to the link is full: poll the stack, then send again")]
    Full,
    /// The source address is not one of this host.
    #[error("{0} is not an address of this host: send from one of its own")]
    Source(IpAddr),
    /// The stack has no such link.
    #[error("the stack has no link {0}: give the number of one, from 0 on")]
    NoLink(u8),
    /// An ICMP error reported that an earlier datagram's destination port is closed.
    #[error("no application has a socket at {0}")]
    Refused(SocketAddr),
    /// Another ICMP error was reported about an earlier datagram.
    #[error("an earlier datagram was answered by an ICMP error: {0:?}")]
    Icmp(IcmpCause),
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
}

/// Why a socket was not added to a group, or not removed.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// The address is not a group of the socket's IP version.
    #[error("{0} is not a group of this socket's IP version: give one that is")]
    NoGroup(IpAddr),
    /// The socket is already a member.
    #[error("the socket is already a member of {0}")]
    Joined(IpAddr),
    /// The socket is not a member.
    #[error("the socket is not in {0}: only a group that was joined can be left")]
    NotJoined(IpAddr),
    /// The stack has no such link.
    #[error("the stack has no link {0}: give the number of one, from 0 on")]
    NoLink(u8),
    /// A limit on groups is reached.
    #[error("a socket is in at most {UDP_GROUPS_MAX} groups, a link in {GROUPS_MAX}: leave some")]
    Full,
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
}

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Options of a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpOptions {
    /// Hop limit (TTL) of unicast datagrams.
    pub hop_limit: u8,
    /// Hop limit (TTL) of multicast datagrams; the default is 1 (RFC 1112 §6.1).
    pub group_hop_limit: u8,
    /// Whether the host receives its own datagrams to groups that it has joined
    /// (`IP_MULTICAST_LOOP`).
    pub group_loop: bool,
    /// Traffic class: differentiated services and ECN bits.
    pub traffic_class: u8,
    /// The link of multicast and broadcast datagrams, unless the socket is bound to an
    /// address, which has its link, or the destination has a zone.
    pub group_link: u8,
    /// Whether ICMP errors about the socket's datagrams are queued (`IP_RECVERR`).
    pub icmp_errors: bool,
    /// As `icmp_errors`, of ICMPv6 (`IPV6_RECVERR`).
    pub icmpv6_errors: bool,
    /// Limit, in bytes, on datagrams that wait to be received, each with its cost of
    /// [`DATAGRAM_COST`] (`SO_RCVBUF`); at most [`UDP_QUEUE_BYTES_MAX`] counts.
    pub queue_bytes: usize,
}

impl UdpOptions {
    /// Whether ICMP errors of this IP version are queued.
    pub fn queues_errors(&self, v6: bool) -> bool {
        if v6 {
            self.icmpv6_errors
        } else {
            self.icmp_errors
        }
    }
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            hop_limit: HOP_LIMIT,
            group_hop_limit: 1,
            group_loop: true,
            traffic_class: 0,
            group_link: 0,
            icmp_errors: false,
            icmpv6_errors: false,
            queue_bytes: UDP_QUEUE_BYTES,
        }
    }
}

/// How a socket is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpBind {
    /// Whether a socket at the unspecified IPv6 address is bound for IPv4 too (RFC 3493 §5.3).
    /// IPv4 datagrams then have IPv4 addresses.
    pub both_versions: bool,
    /// Whether other sockets with this flag may share the address and port (`SO_REUSEPORT`). A
    /// keyed hash of both ends chooses the socket of each peer's datagrams, and the choice
    /// lasts as long as the set of sockets. Multicast and broadcast datagrams go to each
    /// socket. A connected socket receives only from its peer.
    pub shared: bool,
    /// Whether other sockets with this flag may have the address and port, too (`SO_REUSEADDR`):
    /// the socket that was bound last receives. Multicast and broadcast datagrams go to each
    /// socket.
    pub reuse_address: bool,
}

/// The local and remote address of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpAddrs {
    local: SocketAddr,
    both: bool,
    link: u8,
    remote: Option<SocketAddr>,
}

struct Socket {
    local: SocketAddr,
    /// Whether the socket is bound for IPv4 too.
    both: bool,
    /// Whether other sockets may share the address and port.
    shared: bool,
    reuse_address: bool,
    /// Whether the socket is in the table of binds.
    is_bound: bool,
    /// The address and versions of IP that the socket was bound to.
    bound: (SocketAddr, bool),
    /// The link of the local address, once the socket is connected.
    link: u8,
    remote: Option<SocketAddr>,
    received: VecDeque<Datagram>,
    /// Bytes that `received` counts towards its limit.
    charged_bytes: usize,
    /// The ICMP error that the next call reports.
    pending_error: Option<IcmpCause>,
    /// The ICMP errors that the application has asked for.
    errors: VecDeque<IcmpError>,
    /// The expected headers of the peer's datagrams; not armed without a peer.
    filter: HeaderFilter,
    options: UdpOptions,
    /// The socket's groups, each with its link.
    groups: Vec<(u8, IpAddr)>,
    /// Whether the socket is in `notify_queue`.
    in_notify_queue: bool,
}

/// All UDP sockets of a stack.
pub(crate) struct Sockets {
    sockets: Slab<Socket>,
    binds: BindTable,
    connected: Weir,
    /// The socket that received the last datagram.
    last_socket: Option<Handle>,
    /// Sockets with an event, each once.
    notify_queue: VecDeque<Handle>,
    rng: PrfRng,
}

impl Sockets {
    pub(crate) fn new(seed: u128) -> Sockets {
        let mut rng = PrfRng::new(seed, "udp");
        Sockets {
            sockets: Slab::new(),
            binds: BindTable::new(|| rng.wide()),
            connected: Weir::new(rng.wide()),
            last_socket: None,
            notify_queue: VecDeque::new(),
            rng,
        }
    }

    pub(crate) fn set_chunk_source(&mut self, supply: &ChunkSource) {
        self.connected.set_chunk_source(supply);
    }

    pub(crate) fn bind(
        &mut self,
        hosts: &Interfaces,
        local: SocketAddr,
        how: UdpBind,
    ) -> Result<UdpId, BindError> {
        let mut local = strip_zone(local);
        let ip = local.ip();
        let both = how.both_versions && ip == Ipv6Addr::UNSPECIFIED;
        if !ip.is_unspecified() && !hosts.is_ours(ip) {
            return Err(BindError::Address(ip));
        }
        if self.sockets.len() == UDP_SOCKETS_MAX {
            return Err(BindError::Full);
        }
        if local.port() == 0 {
            let places = &mut self.binds;
            let port = ports::free(&mut self.rng, |port| {
                !(places.is_taken(ip, port) || both && places.is_taken(ANY4, port))
            });
            local.set_port(port.ok_or(BindError::Full)?);
        }
        let socket = Socket {
            local,
            both,
            shared: how.shared,
            reuse_address: how.reuse_address,
            is_bound: true,
            bound: (local, both),
            link: 0,
            remote: None,
            received: VecDeque::new(),
            charged_bytes: 0,
            pending_error: None,
            errors: VecDeque::new(),
            filter: HeaderFilter::default(),
            options: UdpOptions::default(),
            groups: Vec::new(),
            in_notify_queue: false,
        };
        let place = socket.bind_key();
        let name = self.sockets.insert(socket);
        match self.binds.insert(place, PcbId(name.index), true) {
            Ok(()) => Ok(UdpId(name)),
            Err(error) => {
                self.sockets.remove(name);
                Err(match error {
                    InsertError::Exists(_) => BindError::InUse(local),
                    InsertError::Full | InsertError::Name(_) => BindError::Full,
                })
            }
        }
    }

    pub(crate) fn connect(
        &mut self,
        hosts: &Interfaces,
        id: UdpId,
        remote: SocketAddr,
    ) -> Result<UdpAddrs, BindError> {
        let socket = self.sockets.get(id.0).ok_or(BindError::Closed)?;
        let from = socket.from(remote);
        let link = hosts.egress_interface(from, remote, socket.options.group_link);
        let link = link.ok_or(BindError::NoRoute(remote))?;
        let source = source(&hosts.at(link).routes, from, remote);
        let source = source.ok_or(BindError::NoRoute(remote))?;
        let remote = strip_zone(remote);
        let local = SocketAddr::new(source, socket.local.port());
        let key = Key::new(local, remote).ok_or(BindError::NoRoute(remote))?;
        if socket.connection() == Some(key) {
            return Ok(socket.ends());
        }
        // From now on the socket is bound to this address only.
        let ends = UdpAddrs {
            local,
            both: false,
            link,
            remote: Some(remote),
        };
        self.set_peer(id, ends)
    }

    /// Takes a socket's peer away: it is bound as before [`Sockets::connect`]. Returns its addresses before.
    pub(crate) fn disconnect(&mut self, id: UdpId) -> Result<UdpAddrs, BindError> {
        let socket = self.sockets.get(id.0).ok_or(BindError::Closed)?;
        let (local, both) = socket.bound;
        let ends = UdpAddrs {
            local,
            both,
            link: 0,
            remote: None,
        };
        let before = self.set_peer(id, ends)?;
        let is_bound = |it: &Sockets| it.sockets.get(id.0).is_some_and(|socket| socket.is_bound);
        if !is_bound(self) {
            // Another socket has taken the address meanwhile, and this one would receive nothing.
            self.set_peer(id, before)?;
            return Err(BindError::InUse(local));
        }
        Ok(before)
    }

    /// Sets a socket's addresses; returns the previous ones.
    pub(crate) fn set_peer(&mut self, id: UdpId, ends: UdpAddrs) -> Result<UdpAddrs, BindError> {
        let socket = self.sockets.get_mut(id.0).ok_or(BindError::Closed)?;
        let (before, place, pcb) = (socket.ends(), socket.bind_key(), PcbId(id.0.index));
        if before == ends {
            return Ok(before);
        }
        if let Some(key) = ends.connection() {
            let entered = self.connected.insert(key, pcb);
            entered.map_err(|_| BindError::InUse(ends.local))?;
        }
        if let Some(key) = before.connection() {
            self.connected.remove(&key);
        }
        (socket.local, socket.both) = (ends.local, ends.both);
        (socket.remote, socket.link) = (ends.remote, ends.link);
        let filter = ends
            .remote
            .map(|remote| HeaderFilter::udp(remote, ends.local));
        socket.filter = filter.unwrap_or_default();
        let moved = socket.bind_key();
        if socket.is_bound {
            self.binds.remove(place, pcb);
        }
        // If another socket is bound to the same address, only the connection table finds this
        // socket; without a peer nothing does.
        let entered = self.binds.insert(moved, pcb, ends.remote.is_none());
        socket.is_bound = entered.is_ok();
        Ok(before)
    }

    pub(crate) fn close(&mut self, hosts: &mut Interfaces, id: UdpId) {
        let Some(socket) = self.sockets.remove(id.0) else {
            return;
        };
        for (link, group) in &socket.groups {
            hosts.at_mut(*link).leave(*group);
        }
        if let Some(key) = socket.connection() {
            self.connected.remove(&key);
        }
        if socket.is_bound {
            self.binds.remove(socket.bind_key(), PcbId(id.0.index));
        }
    }

    pub(crate) fn join(
        &mut self,
        hosts: &mut Interfaces,
        id: UdpId,
        group: IpAddr,
        link: Option<u8>,
    ) -> Result<(), GroupError> {
        let socket = self.sockets.get_mut(id.0).ok_or(GroupError::Closed)?;
        let link = link.unwrap_or_else(|| socket.group_link(hosts));
        let host = hosts.get_mut(link).ok_or(GroupError::NoLink(link))?;
        let version = socket.both || group.is_ipv4() == socket.local.is_ipv4();
        if !group.is_multicast() || !version {
            return Err(GroupError::NoGroup(group));
        }
        if socket.groups.contains(&(link, group)) {
            return Err(GroupError::Joined(group));
        }
        if socket.groups.len() == UDP_GROUPS_MAX || !host.join(group) {
            return Err(GroupError::Full);
        }
        socket.groups.push((link, group));
        Ok(())
    }

    pub(crate) fn leave(
        &mut self,
        hosts: &mut Interfaces,
        id: UdpId,
        group: IpAddr,
        link: Option<u8>,
    ) -> Result<(), GroupError> {
        let socket = self.sockets.get_mut(id.0).ok_or(GroupError::Closed)?;
        let link = link.unwrap_or_else(|| socket.group_link(hosts));
        let at = socket.groups.iter().position(|one| *one == (link, group));
        socket
            .groups
            .remove(at.ok_or(GroupError::NotJoined(group))?);
        hosts.at_mut(link).leave(group);
        Ok(())
    }

    pub(crate) fn options(&mut self, id: UdpId) -> Option<&mut UdpOptions> {
        Some(&mut self.sockets.get_mut(id.0)?.options)
    }

    pub(crate) fn local(&self, id: UdpId) -> Option<SocketAddr> {
        self.sockets.get(id.0).map(|socket| socket.local)
    }

    pub(crate) fn send(
        &mut self,
        now_ns: u64,
        hosts: &mut Interfaces,
        id: UdpId,
        (to, info): (SocketAddr, &SendInfo),
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let socket = self.sockets.get_mut(id.0).ok_or(SendError::Closed)?;
        if let Some(cause) = socket.pending_error.take() {
            return Err(if cause.is_port_unreachable() {
                SendError::Refused(socket.remote.unwrap_or(to))
            } else {
                SendError::Icmp(cause)
            });
        }
        let local = info.from.unwrap_or_else(|| socket.sender(to));
        let is_of_peer = socket
            .remote
            .is_some_and(|remote| remote.is_ipv4() == to.is_ipv4());
        let link = match (info.link, socket.remote) {
            _ if info.from.is_some() && !hosts.is_ours(local) => {
                return Err(SendError::Source(local));
            }
            (Some(link), _) if usize::from(link) >= hosts.count() => {
                return Err(SendError::NoLink(link));
            }
            (Some(link), _) => Some(link).filter(|link| hosts.is_egress_interface(*link, to)),
            (None, Some(_)) if info.from.is_none() && is_of_peer => {
                Some(socket.link).filter(|link| hosts.is_egress_interface(*link, to))
            }
            _ => hosts.egress_interface(local, to, socket.options.group_link),
        };
        let host = link.and_then(|link| hosts.get_mut(link));
        let host = host.ok_or(SendError::NoRoute(to))?;
        let to = strip_zone(to);
        let from = source(&host.routes, local, to).ok_or(SendError::NoRoute(to))?;
        let addresses = AddrPair::new(from, to.ip()).ok_or(SendError::NoRoute(to))?;
        let most = match addresses {
            AddrPair::V4(..) => 65_507,
            AddrPair::V6(..) => 65_527,
        };
        if bytes.len() > most {
            return Err(SendError::TooLong(bytes.len(), most));
        }
        // A datagram has at most 53 fragments on the narrowest link.
        if host.queue_room() < 64 {
            return Err(SendError::Full);
        }
        let mut datagram = vec![0; udp::Repr::LEN];
        datagram.extend_from_slice(bytes);
        let repr = udp::Repr {
            src_port: socket.local.port(),
            dst_port: to.port(),
        };
        repr.emit(&mut datagram, addresses);
        let options = socket.options;
        let from = SocketAddr::new(from, socket.local.port());
        let to_group = to.ip().is_multicast();
        let header = Header {
            hop_limit: info.hop_limit.unwrap_or(if to_group {
                options.group_hop_limit
            } else {
                options.hop_limit
            }),
            traffic_class: info.traffic_class.unwrap_or(options.traffic_class),
            ..Header::new(addresses, Protocol::UDP)
        };
        host.send(now_ns, &header, &datagram);
        let arrival = Arrival {
            link: host.link,
            hop_limit: header.hop_limit,
            traffic_class: header.traffic_class,
            at_ns: now_ns,
        };
        if to_group
            && options.group_loop
            && host.is_in(to.ip())
            && let Err(reason @ DropReason::SocketFull) =
                self.deliver_to_group(with_zone(from, host.link), to, arrival, bytes)
        {
            host.counters.drop(reason);
        }
        Ok(())
    }

    pub(crate) fn take(&mut self, id: UdpId) -> Option<Datagram> {
        let socket = self.sockets.get_mut(id.0)?;
        let datagram = socket.received.pop_front()?;
        socket.charged_bytes -= DATAGRAM_COST + datagram.bytes.len();
        Some(datagram)
    }

    /// Appends a datagram that was counted before, whatever the length of the queue.
    pub(crate) fn enqueue(&mut self, id: UdpId, datagram: Datagram) {
        if let Some(socket) = self.sockets.get_mut(id.0) {
            socket.charged_bytes += DATAGRAM_COST + datagram.bytes.len();
            socket.received.push_back(datagram);
            self.notify(id.0);
        }
    }

    /// Receives a datagram from the network.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
    ) -> Result<(), DropReason> {
        let datagram = udp::Datagram::new(incoming.payload).map_err(|_| DropReason::Malformed)?;
        if datagram.length() > incoming.payload.len() {
            return Err(DropReason::Malformed);
        }
        let v6 = matches!(incoming.addresses, AddrPair::V6(..));
        match datagram.checksum_is_right(incoming.addresses) {
            Some(true) => {}
            Some(false) if incoming.checksum_ok => {}
            // RFC 768: IPv4 allows datagrams without a checksum.
            None if !v6 => {}
            _ => return Err(DropReason::ChecksumWrong),
        }
        let from = SocketAddr::new(incoming.src(), datagram.src_port());
        let local = SocketAddr::new(incoming.dst(), datagram.dst_port());
        let arrival = Arrival {
            link: incoming.link,
            hop_limit: incoming.hop_limit,
            traffic_class: incoming.traffic_class,
            at_ns: now_ns,
        };
        let connected = self.find_connected(local, from);
        if incoming.to_group && connected.is_none() {
            let from = with_zone(from, incoming.link);
            return self.deliver_to_group(from, local, arrival, datagram.payload());
        }
        let name = connected.or_else(|| self.find_open(local, from));
        let name = name.ok_or(DropReason::PortUnknown)?;
        if let Some(socket) = self.sockets.get_mut(name)
            && let Some(remote) = socket.remote
        {
            if socket.link != incoming.link {
                return Err(DropReason::OtherLink);
            }
            if !socket.filter.is_armed() {
                // The socket's address was lost and is back.
                socket.filter = HeaderFilter::udp(remote, socket.local);
            }
        }
        let from = with_zone(from, incoming.link);
        self.deliver(name, (from, local.ip()), arrival, datagram.payload())
    }

    /// Appends a multicast or broadcast datagram to the queue of each socket that receives it.
    fn deliver_to_group(
        &mut self,
        from: SocketAddr,
        local: SocketAddr,
        arrival: Arrival,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let hearers = self.binds.all(local);
        let names = hearers.iter().filter_map(|pcb| self.sockets.at(pcb.0));
        let names: Vec<Handle> = names.collect();
        let nobody = Err(DropReason::PortUnknown);
        names.into_iter().fold(nobody, |kept, name| {
            let one = self.deliver(name, (from, local.ip()), arrival, bytes);
            if kept.is_ok() { kept } else { one }
        })
    }

    /// Appends a datagram to a socket's receive queue.
    fn deliver(
        &mut self,
        name: Handle,
        (from, to): (SocketAddr, IpAddr),
        arrival: Arrival,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        self.last_socket = Some(name);
        let socket = self.sockets.get_mut(name).ok_or(DropReason::PortUnknown)?;
        let cost = DATAGRAM_COST + bytes.len();
        let limit = socket.options.queue_bytes.min(UDP_QUEUE_BYTES_MAX);
        if socket.charged_bytes + cost > limit {
            return Err(DropReason::SocketFull);
        }
        socket.charged_bytes += cost;
        socket.received.push_back(Datagram {
            from,
            to,
            arrival,
            bytes: bytes.to_vec(),
        });
        self.notify(name);
        Ok(())
    }

    /// The channel of a connected socket.
    pub(crate) fn channel(&self, id: UdpId) -> Option<Channel> {
        self.sockets.get(id.0)?.remote?;
        Some(Channel::of_udp(id.0.bits()))
    }

    /// The socket that is connected to `remote`, or else an unconnected one at `local`.
    fn find(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Handle> {
        let connected = self.find_connected(local, remote);
        connected.or_else(|| self.find_open(local, remote))
    }

    /// The socket that is connected between these ends: the table may take others for
    /// them.
    fn find_connected(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Handle> {
        let key = Key::new(local, remote)?;
        let name = self.sockets.at(self.connected.find(&key)?.0)?;
        let socket = self.sockets.get(name)?;
        (socket.connection() == Some(key)).then_some(name)
    }

    fn find_open(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Handle> {
        let pcb = self.binds.select(local, &Key::new(local, remote)?)?;
        self.sockets.at(pcb.0)
    }

    fn notify(&mut self, name: Handle) {
        if let Some(socket) = self.sockets.get_mut(name)
            && !std::mem::replace(&mut socket.in_notify_queue, true)
        {
            self.notify_queue.push_back(name);
        }
    }

    /// Takes the next socket with an event.
    pub(crate) fn next_notified(&mut self) -> Option<UdpId> {
        while let Some(name) = self.notify_queue.pop_front() {
            if let Some(socket) = self.sockets.get_mut(name) {
                socket.in_notify_queue = false;
                return Some(UdpId(name));
            }
        }
        None
    }

    /// Number of datagrams in a socket's receive queue.
    pub(crate) fn waiting(&self, id: UdpId) -> usize {
        let socket = self.sockets.get(id.0);
        socket.map_or(0, |socket| socket.received.len())
    }

    /// The oldest datagram in a socket's receive queue.
    pub(crate) fn front(&self, id: UdpId) -> Option<&Datagram> {
        self.sockets.get(id.0)?.received.front()
    }
}

impl Socket {
    /// The link of the socket's groups, unless the caller names another.
    fn group_link(&self, hosts: &Interfaces) -> u8 {
        let owner = hosts.owner(self.local.ip());
        owner.map_or(self.options.group_link, |host| host.link)
    }

    /// The socket's key in the table of binds.
    fn bind_key(&self) -> BindKey {
        BindKey {
            local: self.local,
            both: self.both,
            shared: self.shared,
            reuse_address: self.reuse_address,
        }
    }

    fn ends(&self) -> UdpAddrs {
        UdpAddrs {
            local: self.local,
            both: self.both,
            link: self.link,
            remote: self.remote,
        }
    }

    fn connection(&self) -> Option<Key> {
        self.ends().connection()
    }
}

impl UdpAddrs {
    fn connection(&self) -> Option<Key> {
        Key::new(self.local, self.remote?)
    }
}

//! The kernel's routes, and a monitor of their changes.

use super::netlink::Netlink;
use netlink_packet_core::{NLM_F_DUMP, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

/// `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`.
const ROUTES: u32 = 0x40 | 0x400;

/// The type of a route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteKind {
    /// Packets are forwarded or delivered.
    Unicast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are dropped, with an ICMP "unreachable" error.
    Unreachable,
    /// Packets are dropped, with an ICMP "prohibited" error.
    Prohibit,
}

/// One next hop of a route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RouteHop {
    /// The number of the egress interface.
    pub ifindex: u32,
    /// The next router's address; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// A route of the kernel. Table, prefix and metric identify it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// The table's number; 254 is `main`.
    pub table: u32,
    /// The first address of the prefix.
    pub prefix: IpAddr,
    /// The prefix length, in bits.
    pub prefix_len: u8,
    /// The metric; the route with the lowest one is used.
    pub metric: u32,
    /// The route's type.
    pub kind: RouteKind,
    /// The next hops, except those that the kernel marks dead.
    pub hops: Vec<RouteHop>,
}

/// A change of the kernel's routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteEvent {
    /// A full dump begins: a route that is not in the dump is gone.
    Begin,
    /// A route was added, or replaced the one with the same table, prefix and
    /// metric.
    Set(Route),
    /// A route was removed.
    Gone(Route),
    /// The full dump is complete.
    Complete,
}

/// Reports every route of the network namespace in which this value was opened:
/// first all routes, then each change. Broadcast, local, multicast and
/// link-local (`fe80::/10`) routes are omitted.
///
/// If the kernel dropped notifications, all routes are reported again.
#[derive(Debug)]
pub struct RouteMonitor {
    notifications: Netlink,
    /// The socket of a dump in progress, and the families still to be dumped.
    all: Option<(Netlink, Vec<AddressFamily>)>,
    events: VecDeque<RouteEvent>,
}

impl RouteMonitor {
    /// Opens a monitor of the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel's answer cannot be read.
    pub fn open() -> io::Result<RouteMonitor> {
        // Subscribe before the dump, so that no change is missed.
        let notifications = Netlink::listening(ROUTES)?;
        let mut monitor = RouteMonitor {
            notifications,
            all: None,
            events: VecDeque::new(),
        };
        monitor.begin()?;
        Ok(monitor)
    }

    /// Requests another full dump: the kernel does not report the routes that
    /// it removes when an interface is set down.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn begin(&mut self) -> io::Result<()> {
        let families = vec![AddressFamily::Inet6, AddressFamily::Inet];
        self.all = Some((Netlink::open()?, families));
        self.events.clear();
        self.events.push_back(RouteEvent::Begin);
        self.request_dump()
    }

    /// Requests the dump of the next family.
    fn request_dump(&mut self) -> io::Result<()> {
        let Some((socket, families)) = &mut self.all else {
            return Ok(());
        };
        match families.pop() {
            Some(family) => {
                let mut message = RouteMessage::default();
                message.header.address_family = family;
                socket.send_request(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)
            }
            None => {
                self.all = None;
                self.events.push_back(RouteEvent::Complete);
                Ok(())
            }
        }
    }

    /// The next event, without waiting; `None` if there is none now.
    ///
    /// # Errors
    /// If the kernel's answer cannot be read.
    pub fn next_event(&mut self) -> io::Result<Option<RouteEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            // Notifications wait until the dump is complete: they are later
            // than the dump.
            let from_all = self.all.is_some();
            let socket = self
                .all
                .as_ref()
                .map_or(&self.notifications, |(socket, _)| socket);
            match socket.receive(RecvFlags::DONTWAIT) {
                Ok(messages) => self.handle_message(messages, from_all)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.begin()?,
                Err(error) => return Err(error),
            }
        }
    }

    fn handle_message(
        &mut self,
        messages: Vec<NetlinkMessage<RouteNetlinkMessage>>,
        from_all: bool,
    ) -> io::Result<()> {
        for message in messages {
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(message)) => {
                    let set = read(&message).map(RouteEvent::Set);
                    self.events.extend(set);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(message)) => {
                    let gone = read(&message).map(RouteEvent::Gone);
                    self.events.extend(gone);
                }
                NetlinkPayload::Done(_) if from_all => self.request_dump()?,
                NetlinkPayload::Error(error) if from_all && error.code.is_some() => {
                    return Err(error.to_io());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl AsFd for RouteMonitor {
    /// Readable when there may be events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// Parses a route of a supported type; `None` for another.
fn read(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let kind = match header.kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        _ => return None,
    };
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let prefix = match header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut route = Route {
        table: header.table.into(),
        prefix,
        prefix_len: header.destination_prefix_length,
        metric: 0,
        kind,
        hops: Vec::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => route.prefix = address(to)?,
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::MultiPath(hops) => {
                let alive = hops.iter().filter(|hop| !hop.flags.is_dead());
                route
                    .hops
                    .extend(alive.map(|next| hop(&next.attributes, next.interface_index)));
            }
            _ => {}
        }
    }
    let single = message.attributes.iter().find_map(|fact| match fact {
        RouteAttribute::Oif(ifindex) => Some(*ifindex),
        _ => None,
    });
    if let Some(ifindex) = single.filter(|_| route.hops.is_empty()) {
        route.hops.push(hop(&message.attributes, ifindex));
    }
    let on_one_link = match route.prefix {
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
        IpAddr::V4(ip) => ip.is_multicast(),
    };
    (!on_one_link).then_some(route)
}

/// Whether the kernel marks a next hop as dead.
trait Dead {
    fn is_dead(&self) -> bool;
}

impl Dead for netlink_packet_route::route::RouteNextHopFlags {
    fn is_dead(&self) -> bool {
        self.intersects(Self::Dead)
    }
}

fn hop(attributes: &[RouteAttribute], ifindex: u32) -> RouteHop {
    let gateway = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(to) => address(to),
        RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Via(RouteVia::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    });
    RouteHop { ifindex, gateway }
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

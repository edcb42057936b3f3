//! The kernel's routes, and what becomes of them.

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

/// Where packets of a route go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteKind {
    /// On.
    Unicast,
    /// Nowhere, without a word.
    Blackhole,
    /// Nowhere, and the sender is told that nobody is reached.
    Unreachable,
    /// Nowhere, and the sender is told that it is not allowed.
    Prohibit,
}

/// One way that a route leads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RouteHop {
    /// The number of the interface to send on.
    pub ifindex: u32,
    /// The router to send to; `None` where the destination is a neighbour.
    pub gateway: Option<IpAddr>,
}

/// A route of the kernel. Within a table, prefix and metric name it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// The number of its table; 254 is `main`.
    pub table: u32,
    /// The first address of the prefix.
    pub prefix: IpAddr,
    /// How many bits of it the prefix has.
    pub prefix_len: u8,
    /// The lower comes first.
    pub metric: u32,
    /// Where its packets go.
    pub kind: RouteKind,
    /// The ways there, those that the kernel holds for dead left out.
    pub hops: Vec<RouteHop>,
}

/// News of the kernel's routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteEvent {
    /// All there are will be told now, from the beginning: what is not among
    /// them is gone.
    Begin,
    /// This one is there, in place of one of its name.
    Set(Route),
    /// This one is not there any more.
    Gone(Route),
    /// All were told.
    Complete,
}

/// Tells of every route of the network namespace that it was opened in:
/// first all there are, then each change. Broadcast, local and multicast
/// routes, and those of single links (`fe80::/10`), are left out.
///
/// Where the kernel had to drop news, all is told again.
#[derive(Debug)]
pub struct RouteMonitor {
    notifications: Netlink,
    /// Where all are asked for, and which families are not yet.
    all: Option<(Netlink, Vec<AddressFamily>)>,
    events: VecDeque<RouteEvent>,
}

impl RouteMonitor {
    /// Watches the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn open() -> io::Result<RouteMonitor> {
        // Listen first, then look: nothing falls between.
        let notifications = Netlink::listening(ROUTES)?;
        let mut monitor = RouteMonitor {
            notifications,
            all: None,
            events: VecDeque::new(),
        };
        monitor.begin()?;
        Ok(monitor)
    }

    /// Has all routes be told again: the kernel says nothing of those that go
    /// with an interface that is set down.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn begin(&mut self) -> io::Result<()> {
        let families = vec![AddressFamily::Inet6, AddressFamily::Inet];
        self.all = Some((Netlink::open()?, families));
        self.events.clear();
        self.events.push_back(RouteEvent::Begin);
        self.request_dump()
    }

    /// Asks for the routes of the next family.
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
    /// When the kernel does not tell.
    pub fn next_event(&mut self) -> io::Result<Option<RouteEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            // News wait until all that was there is told: they are later.
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
    /// Readable when there may be news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// A route that packets can be sent by; `None` for another.
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

/// Whether the kernel does not send over a hop.
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

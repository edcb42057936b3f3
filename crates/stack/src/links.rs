//! [`Interfaces`]: the links of one host by the strong end system model (RFC 1122 §3.3.4.2).
//! Addresses, routes and neighbours belong to a link, not to the host.
//!
//! ```text
//!                    ┌─ link 0: addresses, routes, neighbours, groups, DHCP … ─┐
//!  receive(link) ──► ├─ link 1: its own                                        ├─► poll: outlet(link)
//!                    └─ …                                                      ┘
//!                         └───────► one table of connections and sockets
//! ```
//!
//! A packet by a link must be for an address of that link, and a packet from an address goes
//! out by that address's link. Therefore a connection keeps one link for its life, a reply
//! leaves by the link of its request, and a neighbour on one link can neither impersonate a
//! neighbour on another nor reach that link's addresses. An address from a router or a server
//! is given up if another link has it.
//!
//! The destination chooses the link only while the source address is unspecified: the longest
//! matching route of all links, then a reachable router, then the preferred router, then the
//! link with the lowest number. The source is then an address of that link (RFC 6724 §5,
//! rule 5).
//!
//! A host forwards nothing between its links, so no loop can arise.

use crate::iface::{Config, ConfigError, Counters, Interface, Lease, RemovalReason};
use crate::rng::PrfRng;
use crate::stack::TxSink;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Limit on the links of one stack.
pub const LINKS_MAX: usize = 16;

/// The outputs of several links: anything that returns the output of a link by its number.
pub trait TxSinks {
    /// The output of this link, which is one of those that the stack was made with.
    fn sink(&mut self, link: u8) -> &mut dyn TxSink;
}

impl<O: TxSink> TxSinks for Vec<O> {
    fn sink(&mut self, link: u8) -> &mut dyn TxSink {
        &mut self[usize::from(link)]
    }
}

/// The output of the first link; frames of other links stay in the stack.
pub(crate) struct SingleTx<'a>(pub(crate) &'a mut dyn TxSink, pub(crate) NullTx);

/// An output that takes no frames.
#[derive(Default)]
pub(crate) struct NullTx;

impl TxSink for NullTx {
    fn reserve(&mut self, _len: usize) -> Option<&mut [u8]> {
        None
    }

    fn submit(&mut self) {}
}

impl TxSinks for SingleTx<'_> {
    fn sink(&mut self, link: u8) -> &mut dyn TxSink {
        match link {
            0 => self.0,
            _ => &mut self.1,
        }
    }
}

/// One link of a stack, to be inspected.
pub struct Link<'a>(&'a Interface);

impl<'a> Link<'a> {
    /// The host's addresses on the link, IPv6 link-local ones included. An address under
    /// duplicate address detection is listed once the host uses it.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let all = self.0.routes.addresses().iter();
        all.filter(|owned| owned.is_ours())
            .map(|owned| owned.prefix.address())
    }

    /// The counters of the link.
    pub fn counters(&self) -> &'a Counters {
        &self.0.counters
    }

    /// The lease of a DHCP server, if [`Config::dhcp`] asks for one.
    pub fn lease(&self) -> Option<&'a Lease> {
        self.0.lease()
    }
}

/// The interfaces of all links; at least one.
pub(crate) struct Interfaces(Vec<Interface>);

impl Interfaces {
    pub(crate) fn new(configs: &[Config], seed: u128) -> Result<Interfaces, ConfigError> {
        if !(1..=LINKS_MAX).contains(&configs.len()) {
            return Err(ConfigError::Links(configs.len()));
        }
        let addresses = |config: &Config| config.addresses.clone().into_iter();
        for (at, config) in configs.iter().enumerate() {
            let before = configs[..at].iter().flat_map(addresses);
            let before: Vec<_> = before.map(|prefix| prefix.address()).collect();
            let twice = addresses(config).find(|prefix| before.contains(&prefix.address()));
            if let Some(prefix) = twice {
                return Err(ConfigError::Twice(prefix.address()));
            }
        }
        // The first link has the stack's own seed, as in a stack with one link.
        let mut seeds = PrfRng::new(seed, "links");
        let make = |(link, config)| {
            let seed = if link == 0 { seed } else { seeds.wide() };
            Interface::new(config, link as u8, seed)
        };
        let hosts: Result<_, _> = configs.iter().enumerate().map(make).collect();
        Ok(Interfaces(hosts?))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, link: u8) -> Option<&mut Interface> {
        self.0.get_mut(usize::from(link))
    }

    /// The interface of an existing link, such as that of a connection.
    #[inline]
    pub(crate) fn at(&self, link: u8) -> &Interface {
        &self.0[usize::from(link)]
    }

    /// As [`Interfaces::at`], mutable.
    #[inline]
    pub(crate) fn at_mut(&mut self, link: u8) -> &mut Interface {
        &mut self.0[usize::from(link)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Interface> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Interface> {
        self.0.iter_mut()
    }

    pub(crate) fn link(&self, link: u8) -> Option<Link<'_>> {
        self.0.get(usize::from(link)).map(Link)
    }

    /// The counters, summed over all links.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for host in self.iter() {
            sum.add(&host.counters);
        }
        sum
    }

    /// Gives up addresses that a router or server has given on this link if another link has
    /// them, since each address belongs to one link. Link-local addresses are exempt: they are
    /// unique only on their link.
    pub(crate) fn abandon_duplicates(&mut self, now_ns: u64, link: u8) {
        while self.at_mut(link).take_added() {
            let elsewhere = |address: &IpAddr| {
                let mut others = self.iter().filter(|host| host.link != link);
                others.any(|host| host.routes.find(*address).is_some())
            };
            let addresses = self.at(link).routes.addresses().iter();
            let addresses = addresses.map(|owned| owned.prefix.address());
            let twice: Vec<_> = addresses
                .filter(|address| !is_link_local(*address) && elsewhere(address))
                .collect();
            for address in twice {
                self.at_mut(link)
                    .abandon(now_ns, address, RemovalReason::OtherLink);
            }
        }
    }

    /// The first interface that has this address.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&Interface> {
        self.iter().find(|host| host.routes.is_ours(address))
    }

    /// Whether packets to `to` may leave by this link: it exists, and the address has no other
    /// zone.
    pub(crate) fn is_egress_interface(&self, link: u8, to: SocketAddr) -> bool {
        !self.at(link).is_gone
            && (self.count() == 1 || zone(to).is_none_or(|zone| zone == u32::from(link)))
    }

    /// Whether the host has this address, on any link.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        self.owner(address).is_some()
    }

    /// The link by which packets to `to` leave: the link of the source address, unless that
    /// is unspecified; else the link of the destination's zone; else the link with the best
    /// route. Multicast and broadcast, which have no route, leave by `group_link`. `None` if
    /// source and zone contradict each other, or the link is gone.
    #[inline]
    pub(crate) fn egress_interface(
        &self,
        from: IpAddr,
        to: SocketAddr,
        group_link: u8,
    ) -> Option<u8> {
        let link = match self.0[..] {
            [_] => 0,
            _ => self.choose(from, to, group_link)?,
        };
        let host = self.0.get(usize::from(link));
        host.filter(|host| !host.is_gone).map(|_| link)
    }

    fn choose(&self, from: IpAddr, to: SocketAddr, group_link: u8) -> Option<u8> {
        let owner = self.owner(from).map(|host| host.link);
        // Several links may have the same link-local address.
        let owns = |link: u8| {
            let host = self.0.get(usize::from(link));
            host.is_some_and(|host| host.routes.is_ours(from))
        };
        let zone = match zone(to) {
            Some(zone) => Some(u8::try_from(zone).ok()?),
            None => None,
        };
        match (owner, zone) {
            (Some(_), Some(zone)) => owns(zone).then_some(zone),
            (Some(_), None) if is_for_all(to.ip()) && owns(group_link) => Some(group_link),
            (Some(owner), None) => Some(owner),
            (None, Some(zone)) => Some(zone),
            (None, None) if is_for_all(to.ip()) => Some(group_link),
            (None, None) if is_link_local(to.ip()) => Some(0),
            (None, None) => Some(self.best_route(to.ip())),
        }
    }

    /// The link with the best route to an address, among those that have a source address for
    /// it; the first link if there is none.
    fn best_route(&self, to: IpAddr) -> u8 {
        let mut best = None;
        for host in self.iter().filter(|host| !host.is_gone) {
            let found = host.routes.worth(to);
            let usable = found.filter(|_| host.routes.source_for(to).is_some());
            if let Some(worth) = usable
                && best.is_none_or(|(other, _)| worth > other)
            {
                best = Some((worth, host.link));
            }
        }
        best.map_or(0, |(_, link)| link)
    }
}

/// The zone of a scoped address: its link's number (RFC 4007 §6). Zone 0, the default, is the
/// first link; `None` for a global address.
fn zone(address: SocketAddr) -> Option<u32> {
    let SocketAddr::V6(address) = address else {
        return None;
    };
    let scoped = is_link_local((*address.ip()).into()) || address.ip().is_multicast();
    Some(address.scope_id()).filter(|zone| scoped && *zone != 0)
}

/// The address with its zone, if the address is scoped.
pub(crate) fn with_zone(address: SocketAddr, link: u8) -> SocketAddr {
    match address {
        SocketAddr::V6(one) if is_link_local((*one.ip()).into()) => {
            SocketAddrV6::new(*one.ip(), one.port(), 0, link.into()).into()
        }
        other => other,
    }
}

/// The address without its zone, as in the tables.
pub(crate) fn strip_zone(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_for_all(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

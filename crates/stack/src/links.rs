//! Several links of one host, by the strong end system model (RFC 1122
//! §3.3.4.2): addresses, routes and neighbours are a link's, not the host's.
//!
//! ```text
//!                    ┌─ link 0: addresses, routes, neighbours, groups, DHCP … ─┐
//!  receive(link) ──► ├─ link 1: its own                                        ├─► poll: outlet(link)
//!                    └─ …                                                      ┘
//!                         └───────► one table of connections and sockets
//! ```
//!
//! What comes by a link must be for an address of that link, and what comes
//! from an address goes out by that address's link. So a connection has one
//! link for its life, an answer leaves where the question came from, and a
//! neighbour on one link can neither speak for another nor reach its addresses;
//! an address that a router or a server gives is given up if another link has it.
//! A destination decides the link only while the source is open: the longest
//! route of all links, then a router that answers, then the preferred one, then
//! the link that was given first; and the source is one of that link (RFC 6724
//! §5, rule 5).
//!
//! Nothing can loop: a host forwards nothing, by whatever link it came.

use crate::iface::{Config, ConfigError, Counters, Interface, Lease, RemovalReason};
use crate::rng::PrfRng;
use crate::stack::TxSink;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Links of one stack.
pub const LINKS_MAX: usize = 16;

/// Where the frames of several links go out: anything that gives the outlet of
/// each, by its number.
pub trait TxSinks {
    /// The outlet of a link that the stack was made with.
    fn sink(&mut self, link: u8) -> &mut dyn TxSink;
}

impl<O: TxSink> TxSinks for Vec<O> {
    fn sink(&mut self, link: u8) -> &mut dyn TxSink {
        &mut self[usize::from(link)]
    }
}

/// The outlet of the first link; frames of others stay with the stack.
pub(crate) struct SingleTx<'a>(pub(crate) &'a mut dyn TxSink, pub(crate) NullTx);

/// Takes nothing.
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

/// What a stack tells of one of its links.
pub struct Link<'a>(&'a Interface);

impl<'a> Link<'a> {
    /// Our addresses on it, the link-local one of IPv6 included; those that may
    /// turn out to be another's only once they are used.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let all = self.0.routes.addresses().iter();
        all.filter(|owned| owned.is_ours())
            .map(|owned| owned.prefix.address())
    }

    /// What was counted on it.
    pub fn counters(&self) -> &'a Counters {
        &self.0.counters
    }

    /// The address that a DHCP server gave, if [`Config::dhcp`] says to ask.
    pub fn lease(&self) -> Option<&'a Lease> {
        self.0.lease()
    }
}

/// The link and IP layers of each link; there is one at least.
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
        // The first has the stack's seed, as if it were alone.
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

    /// A link that is there, as one that a connection came by.
    #[inline]
    pub(crate) fn at(&self, link: u8) -> &Interface {
        &self.0[usize::from(link)]
    }

    /// As [`Interfaces::at`], to be changed.
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

    /// What was counted on all of them.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for host in self.iter() {
            sum.add(&host.counters);
        }
        sum
    }

    /// What a router or a server on this link has given is given up if another
    /// link has it: an address has one link, whoever says otherwise. Link-local
    /// ones mean something on their link alone.
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

    /// The first that has this address.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&Interface> {
        self.iter().find(|host| host.routes.is_ours(address))
    }

    /// Whether packets to `to` may go by this link: it is there, and no zone says
    /// another.
    pub(crate) fn is_egress_interface(&self, link: u8, to: SocketAddr) -> bool {
        !self.at(link).is_gone
            && (self.count() == 1 || zone(to).is_none_or(|zone| zone == u32::from(link)))
    }

    /// Whether it is an address of ours, on whichever link.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        self.owner(address).is_some()
    }

    /// The link that packets to `to` go out by: that of the address they come
    /// from, unless that is unspecified; else the one that the destination's
    /// zone names; else the one with the best route. What has no route, a group
    /// or all stations, goes by `group_link`. `None` if two of them contradict
    /// each other, or the link is gone.
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

    /// The link with the best route to an address, of those that have a source
    /// for it; the first if there is none.
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

/// The zone of an address that means something on one link alone: the link's
/// number (RFC 4007 §6). 0 says none: the default zone is the first link.
fn zone(address: SocketAddr) -> Option<u32> {
    let SocketAddr::V6(address) = address else {
        return None;
    };
    let scoped = is_link_local((*address.ip()).into()) || address.ip().is_multicast();
    Some(address.scope_id()).filter(|zone| scoped && *zone != 0)
}

/// An address with its zone, if it means something on one link alone.
pub(crate) fn with_zone(address: SocketAddr, link: u8) -> SocketAddr {
    match address {
        SocketAddr::V6(one) if is_link_local((*one.ip()).into()) => {
            SocketAddrV6::new(*one.ip(), one.port(), 0, link.into()).into()
        }
        other => other,
    }
}

/// An address without its zone, as tables have it.
pub(crate) fn strip_zone(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_for_all(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

//! Routes: the next hop of a packet, and its source address.

use super::address::{Lifetimes, LocalAddress};
use super::{Config, Origin, Prefix};
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use weir_wire::nd::router::Preference;

/// A route to a network through a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The network.
    pub to: Prefix,
    /// The gateway's address on the link.
    pub gateway: IpAddr,
}

/// An entry of the routing table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) to: Prefix,
    /// The gateway; `None` for the link's own network.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) origin: Origin,
    pub(crate) preference: Preference,
    pub(crate) until_ns: u64,
    /// Gateways that do not answer rank after those that do (RFC 4861 §6.3.6).
    rank: u32,
}

impl Entry {
    pub(crate) fn new(to: Prefix, gateway: Option<IpAddr>, origin: Origin) -> Entry {
        Entry {
            to,
            gateway,
            origin,
            preference: Preference::Medium,
            until_ns: u64::MAX,
            rank: 0,
        }
    }
}

/// The host's addresses on a link, and the routes by descending prefix length: the first route
/// that contains an address is the longest match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Routes {
    addresses: Vec<LocalAddress>,
    by_length: Vec<Entry>,
}

impl Routes {
    pub(super) fn new(config: &Config) -> Routes {
        let mut routes = Routes {
            addresses: Vec::new(),
            by_length: Vec::new(),
        };
        for prefix in &config.addresses {
            routes.own(LocalAddress::new(*prefix, Origin::Configured));
        }
        let link_local = |prefix: &Prefix| matches!(prefix.address(), IpAddr::V6(address) if address.is_unicast_link_local());
        // Every IPv6 host has a link-local address (RFC 4291 §2.8).
        let has_v6 = config.addresses.iter().any(|one| one.address().is_ipv6());
        if has_v6 && !config.autoconf && !config.addresses.iter().any(link_local) {
            let address = from_hardware(config.hardware.0);
            let prefix = Prefix::new(address.into(), 64).expect("64 bits are fewer than 128");
            routes.own(LocalAddress::new(prefix, Origin::LinkLocal));
        }
        for route in &config.routes {
            let to = route.to.network();
            routes.add(Entry::new(to, Some(route.gateway), Origin::Configured));
        }
        routes
    }

    /// The host's addresses, including tentative ones.
    pub(crate) fn addresses(&self) -> &[LocalAddress] {
        &self.addresses
    }

    pub(super) fn addresses_mut(&mut self) -> &mut [LocalAddress] {
        &mut self.addresses
    }

    #[inline]
    pub(crate) fn find(&self, address: IpAddr) -> Option<&LocalAddress> {
        let mut all = self.addresses.iter();
        // Compared by version: an IPv4 address was just written as four bytes, and loading sixteen
        // would stall on the store.
        match address {
            IpAddr::V4(one) => all.find(|owned| owned.prefix.address() == one),
            IpAddr::V6(one) => all.find(|owned| owned.prefix.address() == one),
        }
    }

    pub(super) fn find_mut(&mut self, address: IpAddr) -> Option<&mut LocalAddress> {
        let mut all = self.addresses.iter_mut();
        all.find(|owned| owned.prefix.address() == address)
    }

    /// Adds an address, with the route to its network unless router advertisements define the
    /// on-link networks.
    pub(super) fn own(&mut self, owned: LocalAddress) {
        if owned.origin != Origin::Advertised {
            self.add(Entry::new(owned.prefix, None, owned.origin));
        }
        self.addresses.push(owned);
    }

    /// Removes an address and the route to its network.
    pub(super) fn disown(&mut self, address: IpAddr) -> Option<LocalAddress> {
        let mut all = self.addresses.iter();
        let at = all.position(|owned| owned.prefix.address() == address)?;
        let gone = self.addresses.remove(at);
        if gone.origin != Origin::Advertised {
            let route = (gone.prefix, None, gone.origin);
            let same = |entry: &Entry| (entry.to, entry.gateway, entry.origin) == route;
            self.by_length.retain(|entry| !same(entry));
        }
        Some(gone)
    }

    /// Adds or renews a route.
    pub(super) fn add(&mut self, entry: Entry) {
        self.by_length.retain(|other| !other.is_same(&entry));
        self.by_length.push(entry);
        self.sort();
    }

    fn sort(&mut self) {
        self.by_length
            .sort_by_key(|one| (Reverse(one.to.len()), one.rank, Reverse(one.preference)));
    }

    /// Removes routes for which `gone` is true.
    pub(super) fn remove(&mut self, mut gone: impl FnMut(&Entry) -> bool) {
        self.by_length.retain(|entry| !gone(entry));
    }

    pub(super) fn routes(&self) -> &[Entry] {
        &self.by_length
    }

    /// A gateway does not answer: other gateways are preferred, and its redirects are removed (RFC
    /// 4861 §7.3.3).
    pub(super) fn demote(&mut self, gateway: IpAddr) {
        self.remove(|entry| {
            let next = entry.gateway.unwrap_or(entry.to.address());
            entry.origin == Origin::Redirected && next == gateway
        });
        let last = self.by_length.iter().map(|entry| entry.rank).max();
        self.rank(gateway, last.unwrap_or(0).saturating_add(1));
    }

    /// A gateway answers again.
    pub(super) fn promote(&mut self, gateway: IpAddr) {
        if self.by_length.iter().any(|entry| entry.rank > 0) {
            self.rank(gateway, 0);
        }
    }

    fn rank(&mut self, gateway: IpAddr, rank: u32) {
        let mut changed = false;
        for entry in &mut self.by_length {
            if entry.gateway == Some(gateway) {
                changed |= entry.rank != rank;
                entry.rank = rank;
            }
        }
        if changed {
            self.sort();
        }
    }

    /// Removes expired entries; returns the expired addresses.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<IpAddr> {
        self.by_length.retain(|entry| entry.until_ns > now_ns);
        for owned in &mut self.addresses {
            owned.deprecated = owned.lifetimes.preferred_until_ns <= now_ns;
        }
        let over = |owned: &&LocalAddress| owned.lifetimes.valid_until_ns <= now_ns;
        let over = self.addresses.iter().filter(over);
        over.map(|owned| owned.prefix.address()).collect()
    }

    /// A copy for another stack of the host: without lifetimes, pending detection, and gateway
    /// ranks, which the managing stack handles.
    pub(super) fn lasting(&self) -> Routes {
        let mut all = self.clone();
        for owned in &mut all.addresses {
            owned.lifetimes = Lifetimes::default();
            if owned.deprecated {
                owned.lifetimes.preferred_until_ns = 0;
            }
            (owned.probe, owned.defended_ns) = (None, None);
        }
        for entry in &mut all.by_length {
            (entry.until_ns, entry.rank) = (u64::MAX, 0);
        }
        all.sort();
        all
    }

    /// When a timer is due.
    pub(super) fn due_ns(&self) -> u64 {
        let addresses = self.addresses.iter().map(LocalAddress::due_ns);
        let routes = self.by_length.iter().map(|entry| entry.until_ns);
        addresses.chain(routes).min().unwrap_or(u64::MAX)
    }

    /// Whether the address belongs to the host; with one of 127.0.0.0/8 all of them do (RFC 1122
    /// §3.2.1.3).
    #[inline]
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        match self.find(address) {
            Some(owned) => owned.is_ours(),
            None => address.is_loopback() && self.has_loopback_network(address),
        }
    }

    #[cold]
    fn has_loopback_network(&self, address: IpAddr) -> bool {
        let contains = |owned: &LocalAddress| {
            owned.prefix.address().is_loopback() && owned.prefix.contains(address)
        };
        self.addresses.iter().any(contains)
    }

    /// The next hop to a unicast address; `None` if there is no route.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let entry = self.by_length.iter().find(|entry| entry.to.contains(to))?;
        Some(entry.gateway.unwrap_or(to))
    }

    /// The value of the route to an address, for comparison with other links: prefix length,
    /// whether the gateway answers, preference.
    pub(crate) fn worth(&self, to: IpAddr) -> Option<impl Ord + Copy + use<>> {
        let entry = self.by_length.iter().find(|entry| entry.to.contains(to))?;
        Some((entry.to.len(), Reverse(entry.rank), entry.preference))
    }

    /// The source address of packets to `to`: of the same scope if possible, then not deprecated,
    /// then in the next hop's network, then with the same label, then with the longest common
    /// prefix (RFC 6724 §5, rules 2, 3, 5, 6 and 8).
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let next_hop = if to.is_multicast() {
            to
        } else {
            self.next_hop(to)?
        };
        let ours = self.addresses.iter().filter(|owned| owned.is_ours());
        let mut fitting = ours.filter(|owned| owned.prefix.common(to).is_some());
        let first = fitting.next()?;
        let Some(second) = fitting.next() else {
            return Some(first.prefix.address());
        };
        let all = [first, second].into_iter().chain(fitting);
        let best = all.max_by_key(|owned| {
            let prefix = &owned.prefix;
            let address = prefix.address();
            (
                is_local(address) == is_local(to),
                !owned.deprecated,
                prefix.contains(next_hop),
                label(address) == label(to),
                prefix.common(to),
            )
        })?;
        Some(best.prefix.address())
    }

    /// The source address of packets to a network's broadcast address.
    pub(crate) fn broadcast_source(&self, to: IpAddr) -> Option<IpAddr> {
        let ours = self.addresses.iter().filter(|owned| owned.is_ours());
        let prefixes = ours.map(|owned| owned.prefix);
        let v4 = prefixes.filter(|prefix| prefix.address().is_ipv4());
        let best = v4.max_by_key(|prefix| (prefix.contains(to), Reverse(prefix.len())))?;
        Some(best.address())
    }

    /// Whether an IPv4 address is a broadcast address of the link.
    #[inline]
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return false;
        };
        let directed = |owned: &LocalAddress| owned.prefix.is_broadcast(address);
        address.is_broadcast() || self.addresses.iter().any(directed)
    }
}

impl Entry {
    /// Whether one entry replaces the other.
    fn is_same(&self, other: &Entry) -> bool {
        (self.to, self.gateway, self.origin) == (other.to, other.gateway, other.origin)
    }
}

/// The label of an address (RFC 6724 §2.1, the default policy table): source and destination
/// should have the same label.
fn label(address: IpAddr) -> u8 {
    let IpAddr::V6(address) = address else {
        return 4;
    };
    match address.segments() {
        [0x2002, ..] => 2,
        [0x2001, 0, ..] => 5,
        [first, ..] if first & 0xfe00 == 0xfc00 => 13,
        [first, ..] if first & 0xffc0 == 0xfec0 => 11,
        _ => 1,
    }
}

/// The group of all IPv6 nodes of the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address of `address` (RFC 4291 §2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(base.to_bits() | address.to_bits() & 0xff_ffff)
}

/// The link-local address formed from a hardware address (RFC 4291, appendix A).
pub(super) fn from_hardware([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let low = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(low))
}

fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) if address.is_multicast() => address.octets()[1] & 0xf <= 2,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::ethernet::Address;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn routes() -> Routes {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let config = Config::new(Address([2, 0, 0, 0, 0, 5]))
            .address(prefix("192.0.2.5/24"))
            .address(prefix("198.51.100.5/25"))
            .address(prefix("2001:db8::5/64"))
            .route(prefix("0.0.0.0/0"), ip("192.0.2.1"))
            .route(prefix("203.0.113.0/24"), ip("198.51.100.1"))
            .route(prefix("203.0.113.128/25"), ip("198.51.100.2"))
            .route(prefix("::/0"), ip("fe80::1"));
        config.check().unwrap();
        Routes::new(&config)
    }

    #[test]
    fn the_longest_prefix_wins() {
        let routes = routes();
        for (to, hop, source) in [
            ("192.0.2.77", "192.0.2.77", "192.0.2.5"),
            ("8.8.8.8", "192.0.2.1", "192.0.2.5"),
            ("203.0.113.7", "198.51.100.1", "198.51.100.5"),
            ("203.0.113.200", "198.51.100.2", "198.51.100.5"),
            ("2001:db8::9", "2001:db8::9", "2001:db8::5"),
            ("2001:db9::9", "fe80::1", "2001:db8::5"),
            ("fe80::9", "fe80::9", "fe80::ff:fe00:5"),
        ] {
            assert_eq!(routes.next_hop(ip(to)), Some(ip(hop)), "{to}");
            assert_eq!(routes.source_for(ip(to)), Some(ip(source)), "{to}");
        }
    }

    #[test]
    fn routers_that_do_not_answer_come_last() {
        let mut routes = routes();
        let all = "::/0".parse().unwrap();
        let mut better = Entry::new(all, Some(ip("fe80::2")), Origin::Advertised);
        better.preference = Preference::High;
        routes.add(better);
        let hop = |routes: &Routes| routes.next_hop(ip("2001:db9::9")).unwrap();
        assert_eq!(hop(&routes), ip("fe80::2"));
        routes.demote(ip("fe80::2"));
        assert_eq!(hop(&routes), ip("fe80::1"));
        routes.demote(ip("fe80::1"));
        assert_eq!(hop(&routes), ip("fe80::2"));
        routes.promote(ip("fe80::1"));
        assert_eq!(hop(&routes), ip("fe80::1"));
    }

    #[test]
    fn what_is_deprecated_is_a_source_of_nothing_new() {
        let mut routes = routes();
        let mut old = LocalAddress::new("2001:db8::6/64".parse().unwrap(), Origin::Advertised);
        old.lifetimes.preferred_until_ns = 5;
        old.lifetimes.valid_until_ns = 7;
        routes.own(old);
        let near = ip("2001:db8::7");
        assert_eq!(routes.source_for(near), Some(ip("2001:db8::6")));
        assert_eq!(routes.due_ns(), 5);
        assert!(routes.expire(5).is_empty());
        assert_eq!(routes.source_for(near), Some(ip("2001:db8::5")));
        assert!(routes.is_ours(ip("2001:db8::6")) && routes.due_ns() == 7);
        assert_eq!(routes.expire(7), [ip("2001:db8::6")]);
        // The same label as the destination, whatever the common prefix.
        routes.own(LocalAddress::new(
            "fd00::1/64".parse().unwrap(),
            Origin::Advertised,
        ));
        assert_eq!(routes.source_for(ip("fd01::1")), Some(ip("fd00::1")));
        assert_eq!(routes.source_for(ip("2a00::1")), Some(ip("2001:db8::5")));
    }

    #[test]
    fn without_a_route_there_is_no_source() {
        let config =
            Config::new(Address([2, 0, 0, 0, 0, 5])).address("192.0.2.5/24".parse().unwrap());
        let routes = Routes::new(&config);
        assert_eq!(routes.next_hop(ip("8.8.8.8")), None);
        assert_eq!(routes.source_for(ip("8.8.8.8")), None);
        assert_eq!(routes.source_for(ip("2001:db8::1")), None);
    }

    #[test]
    fn broadcasts_are_those_of_our_networks() {
        let routes = routes();
        assert!(
            routes.is_broadcast(ip("192.0.2.255")) && routes.is_broadcast(ip("255.255.255.255"))
        );
        assert!(
            routes.is_broadcast(ip("198.51.100.127")) && !routes.is_broadcast(ip("198.51.100.126"))
        );
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let hardware = Address([2, 0, 0, 0, 0, 5]);
        let with = |text: &str| Config::new(hardware).address(text.parse().unwrap());
        for wrong in [
            "0.0.0.0/0",
            "224.0.0.1/8",
            "127.0.0.1/8",
            "192.0.2.255/24",
            "ff02::1/64",
            "::1/128",
        ] {
            let error = with(wrong).check().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
        let gateway = with("192.0.2.5/24").route("0.0.0.0/0".parse().unwrap(), ip("192.0.3.1"));
        assert!(
            gateway
                .check()
                .unwrap_err()
                .to_string()
                .contains("192.0.3.1")
        );
        let mut config = Config::new(hardware);
        config.mtu = 1279;
        assert_eq!(config.check(), Err(crate::iface::ConfigError::Mtu(1279)));
        assert!(Config::new(Address::BROADCAST).check().is_err());
    }
}

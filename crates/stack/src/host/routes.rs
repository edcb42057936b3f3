//! Which neighbour a packet goes to, and from which address of ours.

use super::{Config, Prefix};
use std::net::{IpAddr, Ipv6Addr};

/// The way to a network through a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The network.
    pub to: Prefix,
    /// The neighbour.
    pub gateway: IpAddr,
}

/// Our addresses, and the routes by falling prefix length: the first that
/// contains an address is its longest.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    addresses: Vec<Prefix>,
    /// A network, and its gateway unless it is the link's own.
    by_length: Vec<(Prefix, Option<IpAddr>)>,
}

impl Routes {
    pub(super) fn new(config: &Config) -> Routes {
        let mut addresses = config.addresses.clone();
        let link_local = |prefix: &Prefix| matches!(prefix.address(), IpAddr::V6(address) if address.is_unicast_link_local());
        // Every IPv6 host has one (RFC 4291 §2.8).
        let has_v6 = addresses.iter().any(|prefix| prefix.address().is_ipv6());
        if has_v6 && !addresses.iter().any(link_local) {
            let address = from_hardware(config.hardware.0);
            addresses.extend(Prefix::new(address.into(), 64));
        }
        let near = addresses.iter().map(|prefix| (*prefix, None));
        let far = config
            .routes
            .iter()
            .map(|route| (route.to, Some(route.gateway)));
        let mut by_length: Vec<_> = near.chain(far).collect();
        by_length.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Routes {
            addresses,
            by_length,
        }
    }

    /// Our addresses.
    pub(crate) fn addresses(&self) -> &[Prefix] {
        &self.addresses
    }

    /// Whether it is ours.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|prefix| prefix.address() == address)
    }

    /// The neighbour to hand a packet to, on its way to an address that is no
    /// group; `None` if no route leads there.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let (_, gateway) = self
            .by_length
            .iter()
            .find(|(prefix, _)| prefix.contains(to))?;
        Some(gateway.unwrap_or(to))
    }

    /// The address of ours that packets to this one come from: of the same
    /// scope if possible, then the one in the next hop's network, then the one
    /// with most leading bits in common (RFC 6724 §5, rules 2, 5 and 8).
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let next_hop = if to.is_multicast() {
            to
        } else {
            self.next_hop(to)?
        };
        let fitting = self
            .addresses
            .iter()
            .filter(|prefix| prefix.common(to).is_some());
        let best = fitting.max_by_key(|prefix| {
            let same_scope = is_local(prefix.address()) == is_local(to);
            (same_scope, prefix.contains(next_hop), prefix.common(to))
        })?;
        Some(best.address())
    }

    /// The address of ours that packets to all hosts of a network come from.
    pub(crate) fn broadcast_source(&self, to: IpAddr) -> Option<IpAddr> {
        let v4 = self
            .addresses
            .iter()
            .filter(|prefix| prefix.address().is_ipv4());
        let best =
            v4.max_by_key(|prefix| (prefix.contains(to), std::cmp::Reverse(prefix.len())))?;
        Some(best.address())
    }

    /// Whether an IPv4 address means all hosts of our network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return false;
        };
        let directed = |prefix: &Prefix| prefix.is_broadcast(address);
        address.is_broadcast() || self.addresses.iter().any(directed)
    }

    /// Whether packets to this group are for us: all hosts, and for IPv6 the
    /// groups that stand for our addresses (RFC 4291 §2.8).
    pub(crate) fn is_our_group(&self, group: IpAddr) -> bool {
        match group {
            IpAddr::V4(group) => group.octets() == [224, 0, 0, 1],
            IpAddr::V6(group) => {
                let stands_for = |prefix: &Prefix| match prefix.address() {
                    IpAddr::V6(address) => solicited_node(address) == group,
                    IpAddr::V4(_) => false,
                };
                group == ALL_NODES || self.addresses.iter().any(stands_for)
            }
        }
    }
}

/// All IPv6 hosts of the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group that a neighbour solicitation for `address` goes to (RFC 4291
/// §2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(base.to_bits() | address.to_bits() & 0xff_ffff)
}

/// The link-local address made of a hardware address (RFC 4291, appendix A).
fn from_hardware([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
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
    fn without_a_route_there_is_no_source() {
        let config =
            Config::new(Address([2, 0, 0, 0, 0, 5])).address("192.0.2.5/24".parse().unwrap());
        let routes = Routes::new(&config);
        assert_eq!(routes.next_hop(ip("8.8.8.8")), None);
        assert_eq!(routes.source_for(ip("8.8.8.8")), None);
        assert_eq!(routes.source_for(ip("2001:db8::1")), None);
    }

    #[test]
    fn groups_stand_for_our_addresses() {
        let routes = routes();
        for ours in ["224.0.0.1", "ff02::1", "ff02::1:ff00:5"] {
            assert!(routes.is_our_group(ip(ours)), "{ours}");
        }
        for other in ["224.0.0.2", "ff02::2", "ff02::1:ff00:6"] {
            assert!(!routes.is_our_group(ip(other)), "{other}");
        }
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
        assert_eq!(config.check(), Err(super::super::ConfigError::Mtu(1279)));
        assert!(Config::new(Address::BROADCAST).check().is_err());
    }
}

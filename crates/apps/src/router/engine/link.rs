//! The links of a router.

use super::host_prefix;
use super::table::routes::{LinkId, Target};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_stack::Prefix;
use weir_wire::ethernet::Address;

/// The settings of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSettings {
    /// The link's name, for display.
    pub name: String,
    /// The router's hardware address on it.
    pub hardware: Address,
    /// The MTU in bytes, without the Ethernet header; at least 1,280 on a link
    /// with IPv6 addresses (RFC 8200 §5), otherwise at least 68.
    pub mtu: usize,
    /// The router's addresses on it, each with its network.
    pub addresses: Vec<Prefix>,
}

impl LinkSettings {
    /// Whether an address is the router's on this link.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        address == link_local(self.hardware, &self.addresses)
            || self.addresses.iter().any(|own| own.address() == address)
    }
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) hardware: Address,
    pub(super) mtu: usize,
    pub(super) addresses: Vec<Prefix>,
    /// The link-local address (RFC 4291 §2.5.6), formed from the hardware
    /// address unless one is configured.
    pub(super) link_local: Ipv6Addr,
    pub(super) up: bool,
}

impl Link {
    pub(super) fn new(settings: &LinkSettings) -> Link {
        let mut link = Link {
            hardware: settings.hardware,
            mtu: settings.mtu,
            addresses: Vec::new(),
            link_local: Ipv6Addr::UNSPECIFIED,
            up: true,
        };
        link.set_addresses(settings.addresses.clone());
        link
    }

    pub(super) fn set_addresses(&mut self, addresses: Vec<Prefix>) {
        self.link_local = link_local(self.hardware, &addresses);
        self.addresses = addresses;
    }

    /// Whether an address is in a network of this link.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => true,
            _ => self.addresses.iter().any(|prefix| prefix.contains(address)),
        }
    }

    /// Whether an address is the router's on this link.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        address == self.link_local
            || self
                .addresses
                .iter()
                .any(|prefix| prefix.address() == address)
    }

    /// A source address of the router on this link: in the network of `near` if
    /// there is one; `None` without an address of that family.
    pub(super) fn source(&self, near: IpAddr) -> Option<IpAddr> {
        let same = |prefix: &&Prefix| prefix.address().is_ipv4() == near.is_ipv4();
        let mut own = self.addresses.iter().filter(same);
        let best = own.clone().find(|prefix| prefix.contains(near));
        let best = best.or_else(|| own.next()).map(Prefix::address);
        match near {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(self.link_local.into()),
            _ => best,
        }
    }

    /// The routes to the link's networks and to the router's addresses; of two
    /// routes with one prefix the later is valid.
    pub(super) fn own_routes(&self, number: LinkId) -> Vec<(Prefix, Target)> {
        let mut routes = Vec::new();
        for prefix in &self.addresses {
            if matches!(prefix.address(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
                continue; // the same on every link
            }
            routes.push((*prefix, Target::to(number, None)));
            let all = broadcasts(prefix).into_iter().flatten();
            routes.extend(all.map(|all| (host_prefix(all), Target::Broadcast)));
        }
        for prefix in &self.addresses {
            let own = [Some(prefix.address()), anycast(prefix)];
            let own = own.into_iter().flatten();
            routes.extend(own.map(|own| (host_prefix(own), Target::Local)));
        }
        routes
    }
}

/// The network and broadcast address of an IPv4 network (RFC 919); a prefix of
/// 31 or 32 bits has none (RFC 3021).
fn broadcasts(prefix: &Prefix) -> [Option<IpAddr>; 2] {
    match prefix.address() {
        IpAddr::V4(ip) if (1..31).contains(&prefix.len()) => {
            let hosts = u32::MAX >> prefix.len();
            let ip = ip.to_bits();
            [ip & !hosts, ip | hosts].map(|ip| Some(Ipv4Addr::from_bits(ip).into()))
        }
        _ => [None, None],
    }
}

/// The subnet-router anycast address of an IPv6 network (RFC 4291 §2.6.1).
fn anycast(prefix: &Prefix) -> Option<IpAddr> {
    match prefix.address() {
        IpAddr::V6(ip) if (1..127).contains(&prefix.len()) => {
            let hosts = u128::MAX >> prefix.len();
            Some(Ipv6Addr::from_bits(ip.to_bits() & !hosts).into())
        }
        _ => None,
    }
}

/// The router's link-local address: the first configured one, else the one
/// formed from the hardware address (RFC 4291, appendix A).
fn link_local(hardware: Address, given: &[Prefix]) -> Ipv6Addr {
    let given = given.iter().find_map(|prefix| match prefix.address() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
        _ => None,
    });
    given.unwrap_or_else(|| made_of(hardware))
}

fn made_of(hardware: Address) -> Ipv6Addr {
    let [a, b, c, d, e, f] = hardware.0.map(u16::from);
    let join = |high: u16, low: u16| high << 8 | low;
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        join(a ^ 2, b),
        join(c, 0xff),
        join(0xfe, d),
        join(e, f),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_an_address_of_its_own_kind() {
        let made = made_of(Address([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert_eq!(made.to_string(), "fe80::5054:ff:fe12:3456");
    }

    #[test]
    fn networks_have_their_special_addresses() {
        let of =
            |text: &str| broadcasts(&text.parse().unwrap()).map(|ip| ip.map(|ip| ip.to_string()));
        let pair = |a: &str, b: &str| [Some(a.to_owned()), Some(b.to_owned())];
        assert_eq!(of("192.0.2.9/29"), pair("192.0.2.8", "192.0.2.15"));
        assert_eq!(of("192.0.2.9/31"), [None, None]);
        let any = anycast(&"2001:db8::9/64".parse().unwrap());
        assert_eq!(any, Some("2001:db8::".parse().unwrap()));
    }
}

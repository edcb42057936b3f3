//! [`Config`]: a link, and the host's addresses and routes on it.

use super::{BURST_MAX, Offload, Prefix, Route};
use crate::links::LINKS_MAX;
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Limit on the addresses of one link.
pub const ADDRESSES_MAX: usize = 64;
/// Limit on the routes of one link, in addition to those to its addresses' networks.
pub const ROUTES_MAX: usize = 256;
/// Range of a link's MTU in bytes (RFC 8200 §5).
pub const MTU: std::ops::RangeInclusive<usize> = 1280..=65_535;

/// The path of received packets (Biersack and Rütsche 1996, §3). Both paths give the same
/// result.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mode {
    /// All packets take the standard path: each header is parsed, and the connection is looked
    /// up.
    Mux,
    /// Packets with the expected headers take a fast path.
    #[default]
    Opt,
}

/// Duplicate address detection (RFC 4862 §5.4, RFC 5227). With [`DadMode::Off`] the host also
/// does not defend its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DadMode {
    /// None: addresses are in use at once, and the host announces nothing unasked.
    #[default]
    Off,
    /// While the address is already in use (RFC 4429): the host gives it up if another station
    /// has it.
    Optimistic,
    /// Before the address is used, which takes two seconds for IPv6 and up to nine for IPv4.
    Blocking,
}

/// A link, and the host's addresses and routes on it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's hardware address on the link.
    pub hardware: Address,
    /// MTU: length in bytes of the longest packet, without the Ethernet header.
    pub mtu: usize,
    /// The work that the link does for the stack.
    pub offload: Offload,
    /// Whether the link returns frames to the host's own hardware address, with
    /// [`RxMeta::looped`](super::RxMeta::looped): then the host reaches its own addresses on the
    /// link, and loopback addresses may be among them. Otherwise its own addresses have no route.
    pub hairpin: bool,
    /// The path of received packets.
    pub mode: Mode,
    /// The host's addresses and their networks, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<Prefix>,
    /// The routes to other networks, at most [`ROUTES_MAX`].
    pub routes: Vec<Route>,
    /// Duplicate address detection.
    pub dad_mode: DadMode,
    /// Whether the host solicits router advertisements and forms IPv6 addresses from them
    /// (RFC 4862).
    pub autoconf: bool,
    /// Whether the host requests an IPv4 address from a DHCP server (RFC 2131).
    pub dhcp: bool,
    /// Secret from which, with the network and the hardware address, automatic IPv6 addresses
    /// are formed (RFC 7217): they are stable and reveal nothing. Without a secret the
    /// addresses differ each time.
    pub secret: Option<u128>,
}

/// Why a configuration is invalid.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The hardware address is a group address or zero.
    #[error("{0} cannot be a station's address: give one that is neither a group nor zero")]
    Hardware(Address),
    /// The MTU is out of range.
    #[error("an MTU of {0} bytes is not in {min}..={max}", min = MTU.start(), max = MTU.end())]
    Mtu(usize),
    /// Segmentation offload requires checksum offload.
    #[error("segmentation offload requires checksum offload: set `checksum` too")]
    Offload,
    /// [`Offload::burst`] exceeds its limit.
    #[error("a burst of {0} frames is longer than {BURST_MAX}: set `burst` to that at most")]
    Burst(u8),
    /// The address cannot be a host's.
    #[error("{0} cannot be a host's address: it is unspecified, a group, a broadcast or loopback")]
    Address(Prefix),
    /// More addresses or routes than the limit.
    #[error("{0} addresses or {1} routes are more than {ADDRESSES_MAX} and {ROUTES_MAX}")]
    TooMany(usize, usize),
    /// No link, or more than the limit.
    #[error("{0} links are not 1 to {LINKS_MAX}: make several stacks")]
    Links(usize),
    /// Two links have the same address.
    #[error("{0} is given on two links: an address belongs to one")]
    Twice(IpAddr),
    /// The gateway is not in a network of the host's addresses.
    #[error("gateway {0} is not in a network of this host's addresses: add one that contains it")]
    Gateway(IpAddr),
    /// The gateway's address is the host's own, or not a host's.
    #[error("gateway {0} is not another host's address: give the router's")]
    NotARouter(IpAddr),
}

impl Config {
    /// A host without addresses on an Ethernet link.
    pub fn new(hardware: Address) -> Config {
        Config {
            hardware,
            mtu: 1500,
            offload: Offload::default(),
            hairpin: false,
            mode: Mode::default(),
            addresses: Vec::new(),
            routes: Vec::new(),
            dad_mode: DadMode::default(),
            autoconf: false,
            dhcp: false,
            secret: None,
        }
    }

    /// Adds an address.
    #[must_use]
    pub fn address(mut self, address: Prefix) -> Config {
        self.addresses.push(address);
        self
    }

    /// Adds a route to a network through a gateway on the link.
    #[must_use]
    pub fn route(mut self, to: Prefix, gateway: IpAddr) -> Config {
        self.routes.push(Route { to, gateway });
        self
    }

    /// Checks it as the start of an interface does.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.hardware.is_multicast() || self.hardware == Address::default() {
            return Err(ConfigError::Hardware(self.hardware));
        }
        if !MTU.contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let Offload {
            checksum,
            tso4,
            tso6,
            burst: run,
        } = self.offload;
        if (tso4 || tso6) && !checksum {
            return Err(ConfigError::Offload);
        }
        if usize::from(run) > BURST_MAX {
            return Err(ConfigError::Burst(run));
        }
        let (addresses, routes) = (self.addresses.len(), self.routes.len());
        if addresses > ADDRESSES_MAX || routes > ROUTES_MAX {
            return Err(ConfigError::TooMany(addresses, routes));
        }
        let wrong = self.addresses.iter().find(|prefix| {
            let is_loopback = self.hairpin && prefix.address().is_loopback();
            !is_loopback && !is_a_hosts(prefix)
        });
        if let Some(prefix) = wrong {
            return Err(ConfigError::Address(*prefix));
        }
        let unreachable = self.routes.iter().find(|route| {
            let near = |prefix: &Prefix| prefix.contains(route.gateway);
            !self.addresses.iter().any(near) && !is_link_local(route.gateway)
        });
        if let Some(route) = unreachable {
            return Err(ConfigError::Gateway(route.gateway));
        }
        let mut gateways = self.routes.iter().map(|route| route.gateway);
        match gateways.find(|gateway| !self.may_be_a_router(*gateway)) {
            Some(gateway) => Err(ConfigError::NotARouter(gateway)),
            None => Ok(()),
        }
    }
}

impl Config {
    /// Whether the address may be a gateway's: not the host's own, not a network's, and not a
    /// broadcast address.
    fn may_be_a_router(&self, gateway: IpAddr) -> bool {
        self.addresses.iter().all(|ours| {
            let near = ours.contains(gateway);
            let its = Prefix::new(gateway, ours.len()).filter(|_| near);
            let is_hosts = its.is_none_or(|its| is_a_hosts(&its) && !its.is_network());
            is_hosts && ours.address() != gateway
        })
    }
}

pub(super) fn is_a_hosts(prefix: &Prefix) -> bool {
    let address = prefix.address();
    let broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast() || prefix.is_broadcast(address),
        IpAddr::V6(_) => false,
    };
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback() && !broadcast
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
